"""Loops around a cell become the operator, with the answers of the loop at every size."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from looplift import rewrite
from looplift.rewrite.engine.miss import Miss
from looplift.rules.recurrence import FuseRecurrence, probe
from looplift.rules.recurrence.cells import Cell
from looplift.rules.recurrence.emission import OperatorWeights, operator_weights
from looplift.rules.recurrence.lifting import constant_value

from ...equivalence import ops, rewritten
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of
from .cell_models import numbers

CORPUS = Path(__file__).parents[4] / "shared" / "corpus"
FEEDS = Feeds(sizes=(1, 2, 7), most=40)
ALSO_EMPTY = Feeds(values={"n": [0, 1, 2, 7]}, sizes=(7,), most=40)
W = "float[2,12] w = {%s}, float[3,12] r = {%s}, float[12] b = {%s}"


CONSTANTS = W % (numbers(24, 0.0), numbers(36, 1.0), numbers(12, 2.0))
LSTM = """
    p = MatMul(xt, w) q = MatMul(h, r) a = Add(p, q) g0 = Add(a, b)
    gi, gf, gg, go = Split<axis=1, num_outputs=4>(g0)
    i = Sigmoid(gi) f = Sigmoid(gf) g = Tanh(gg) o = Sigmoid(go)
    fc = Mul(f, c) ig = Mul(i, g) cn = Add(fc, ig) tc = Tanh(cn) hn = Mul(o, tc) """
RNN_WEIGHTS = f"float[2,3] w = {{{numbers(6, 0.0)}}}, float[3,3] r = {{{numbers(9, 1.0)}}}"
RNN = "p = MatMul(xt, w) q = MatMul(h, r) a = Add(p, q)"


def _loop(nodes: str, outputs: str = "float[K,L,3] y", rows: str = "hn") -> str:
    """A Loop over the first n slices of x with the states h and c."""
    return f"""g (float[7,2,2] x, float[2,3] h0, float[2,3] c0, int64 n)
      => ({outputs}) <{CONSTANTS}> {{
      hl, cl, y = Loop (n, , h0, c0) <
        body = cell (int64 t, bool on, float[2,3] h, float[2,3] c)
            => (bool again, float[2,3] hn, float[2,3] cn, float[2,3] row) {{
          again = Identity(on) xt = Gather<axis=0>(x, t) {nodes} row = Identity({rows}) }}>
      hz = Identity(hl) cz = Identity(cl) }}"""


ALL = "float[K,L,3] y, float[2,3] hz, float[2,3] cz"


def _fused(text: str, feeds: Feeds) -> dict[str, int]:
    return ops(rewritten(parse(text, opset=18), feeds, 1e-5).model)


@pytest.mark.parametrize("outputs", ["float[K,L,3] y", "float[2,3] hz", "float[2,3] cz", ALL])
def test_sequence_and_final_outputs(outputs: str) -> None:
    """Without an iteration, the final states are the initial ones; the operator does not return them."""
    counts = _fused(_loop(LSTM, outputs), ALSO_EMPTY)
    assert (counts["LSTM"], counts.get("Loop", 0)) == (1, 0)


def test_a_state_that_the_rest_of_the_body_reads_keeps_the_loop() -> None:
    text = _loop(LSTM + " hc = Add(h, cn) ", rows="hc")
    assert "is read by more than the cell" in reason_of(FuseRecurrence, parse(text, opset=18))
    assert _fused(text, ALSO_EMPTY)["Loop"] == 1


def test_a_second_carried_value_takes_the_new_state() -> None:
    """It starts elsewhere, so that it is no copy of the state."""
    text = f"""g (float[7,2,2] x, float[2,3] h0, float[2,3] l0, int64 n)
      => (float[K,2,3] y, float[2,3] hz, float[2,3] lz) <{RNN_WEIGHTS}> {{
      hl, ll, y = Loop (n, , h0, l0) <
        body = cell (int64 t, bool on, float[2,3] h, float[2,3] l)
            => (bool again, float[2,3] hn, float[2,3] ln, float[2,3] row) {{
          again = Identity(on) xt = Gather<axis=0>(x, t) {RNN} hn = Tanh(a) ln = Identity(hn)
          row = Sin(l) }}>
      hz = Identity(hl) lz = Identity(ll) }}"""
    counts = _fused(text, ALSO_EMPTY)
    assert (counts["RNN"], counts.get("Loop", 0)) == (1, 0)


def test_what_follows_the_cell_leaves_the_loop() -> None:
    counts = _fused(_loop(LSTM + " m = Mul(hn, hn) ", rows="m"), ALSO_EMPTY)
    assert (counts["LSTM"], counts.get("Loop", 0)) == (1, 0)


def test_gates_sliced_along_all_axes() -> None:
    """The slice takes all of the batch."""
    names = [f"{gate} = Slice(g0, from{k}, to{k}, axes)"
             for k, gate in enumerate(("gi", "gf", "gg", "go"))]  # fmt: skip
    split = "gi, gf, gg, go = Split<axis=1, num_outputs=4>(g0)"
    bounds = "".join(
        f", int64[2] from{k} = {{0, {3 * k}}}, int64[2] to{k} = {{2, {3 * k + 3}}}"
        for k in range(4)
    )
    text = _loop(LSTM.replace(split, " ".join(names)), ALL)
    text = text.replace(CONSTANTS, f"{CONSTANTS}{bounds}, int64[2] axes = {{0, 1}}")
    counts = _fused(text, ALSO_EMPTY)
    assert (counts["LSTM"], counts.get("Loop", 0)) == (1, 0)


def test_weights_that_are_inputs_are_reordered_in_the_graph() -> None:
    text = f"""g (float[T,B,2] x, float[B,3] h0, float[B,3] c0, float[2,12] w, float[3,12] r)
      => (float[T,B,3] y) <float[12] b = {{{numbers(12, 2.0)}}}> {{
      hl, cl, y = Scan <num_scan_inputs=1, body = cell (float[B,3] h, float[B,3] c, float[B,2] xt)
            => (float[B,3] hn, float[B,3] cn, float[B,3] row) {{ {LSTM} row = Identity(hn) }}>
        (h0, c0, x) }}"""
    counts = _fused(text, FEEDS)
    assert (counts["LSTM"], counts.get("Scan", 0)) == (1, 0)
    # All gates of W at once, and all of R, though the operator has them in another order.
    assert (counts["Gather"], counts["Transpose"], counts.get("Concat", 0)) == (2, 2, 0)


# --- the probe ---


def test_an_operator_that_differs_from_the_loop_is_declined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The probe compares the operator with the body, whatever is wrong with the weights."""

    def wrong(cell: Cell) -> OperatorWeights:
        found = operator_weights(cell)
        return replace(found, r=np.asarray(found.r) * np.float32(1.01))

    monkeypatch.setattr(probe, "operator_weights", wrong)
    reason = reason_of(FuseRecurrence, parse(_loop(LSTM), opset=18))
    assert re.search(r"the LSTM differs from the original by 0\.\d+ on random inputs", reason)


# --- the corpus ---


@pytest.mark.skipif(not CORPUS.exists(), reason="the collection of exported models is elsewhere")
def test_the_corpus_ends_in_operators() -> None:
    labels = json.loads((CORPUS / "labels.json").read_text())
    wanted = {
        n: entry["n"] for n, entry in labels.items() if entry["target"] in ("lstm", "gru", "rnn")
    }
    found = 0
    for name, count in wanted.items():
        model = rewrite(str(CORPUS / f"{name}.onnx")).model
        top = sum(node.op_type in ("LSTM", "GRU", "RNN") for node in model.graph.node)
        found += min(top, count)
    assert found >= 64
    assert sum(wanted.values()) == 67


def test_an_empty_axis_is_not_split() -> None:
    with pytest.raises(Miss, match="it reshapes an axis of size 0"):
        constant_value(np.zeros((0, 3))).reshape((3, 0))


GRU = f"""g (float[7,2,2] x, float[2,3] h0, int64 n) => (float[K,2,3] y, float[2,3] hz)
    <float[2,9] w = {{{numbers(18, 0.0)}}}, float[3,9] r = {{{numbers(27, 1.0)}}},
     float unit = {{1}}, int64[3] parts = {{3, 3, 3}}> {{
    hl, y = Loop (n, , h0) <body = b (int64 t, bool on, float[2,3] h)
        => (bool again, float[2,3] hn, float[2,3] row) {{
        again = Identity(on) xt = Gather<axis=0>(x, t) p = MatMul(xt, w) q = MatMul(h, r)
        pz, pr, pn = Split<axis=1>(p, parts) qz, qr, qn = Split<axis=1>(q, parts)
        az = Add(pz, qz) z = Sigmoid(az) ar = Add(pr, qr) e = Sigmoid(ar)
        rn = Mul(e, qn) an = Add(pn, rn) m = Tanh(an)
        keep = Sub(unit, z) new = Mul(keep, m) old = Mul(z, h) hn = Add(new, old)
        row = Identity(hn) }}> hz = Identity(hl) }}"""


def test_a_gru_over_as_many_time_steps_as_data_says() -> None:
    """onnxruntime's GRU crashes on an empty sequence; the length of a row may well be 0."""
    model = parse(GRU, opset=18)
    result = rewritten(model, Feeds(values={"n": [0, 1, 7, -2]}), 1e-5)
    assert (ops(result.model)["GRU"], ops(result.model).get("Loop", 0)) == (1, 0)
    assert not any("empty sequence" in note for note in result.report.notes)


UNGATED = GRU.replace("rn = Mul(e, qn) an = Add(pn, rn)", "an = Add(pn, qn)")
SOME_STEPS = Feeds(values={"n": [1, 2, 7]})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("m = Tanh(an)", "m = Relu(an)"),
        ("new = Mul(keep, m) old = Mul(z, h)", "new = Mul(z, m) old = Mul(keep, h)"),
        ("an = Add(pn, qn)", "b = Constant<value_float=0.5>() s = Add(pn, qn) an = Add(s, b)"),
    ],
    ids=["tanh", "light", "exchanged", "bias"],
)
def test_a_candidate_without_a_reset_gate(old: str, new: str) -> None:
    """The operator has a reset gate, which is 1 for a large bias."""
    result = rewritten(parse(UNGATED.replace(old, new), opset=18), SOME_STEPS, 1e-5)
    assert (ops(result.model)["GRU"], ops(result.model).get("Loop", 0)) == (1, 0)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("z = Sigmoid(az)", "z = HardSigmoid(az)", "the operator's is not 1 for any bias"),
        ("an = Add(pn, qn)", "an = Identity(pn)", "does not read the state"),
        ("an = Add(pn, qn)", "u = Mul(qn, h) an = Add(pn, u)", "by other than a reset gate"),
    ],
)
def test_other_candidates_without_a_reset_gate(old: str, new: str, words: str) -> None:
    model = parse(UNGATED.replace(old, new), opset=18)
    assert ops(rewritten(model, SOME_STEPS, 1e-5).model).get("GRU", 0) == 0
    assert words in reason_of(FuseRecurrence, model)
