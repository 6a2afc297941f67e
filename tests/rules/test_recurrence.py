"""Loops around a cell become the operator, with the answers of the loop at every size."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from looplift import rewrite
from looplift.rules.dead import RemoveUnread
from looplift.rules.recurrence import FuseRecurrence, probe
from looplift.rules.recurrence.cells import Cell
from looplift.rules.recurrence.emission import Parameters, parameters
from looplift.rules.recurrence.unfuse import UNFUSE, OperatorToScan

from ..equivalence import assert_equivalent, ops, rewritten, run_rules
from ..rewrite.fact_oracle import Feeds
from ..small_models import parse
from .reasons import reason_of

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
FEEDS = Feeds(sizes=(1, 2, 7), most=40)
ALSO_EMPTY = Feeds(values={"n": [0, 1, 2, 7]}, sizes=(7,), most=40)
W = "float[2,12] w = {%s}, float[3,12] r = {%s}, float[12] b = {%s}"


def _numbers(count: int, start: float) -> str:
    return ", ".join(f"{np.sin(start + k):.3f}" for k in range(count))


CONSTANTS = W % (_numbers(24, 0.0), _numbers(36, 1.0), _numbers(12, 2.0))
LSTM = """
    p = MatMul(xt, w) q = MatMul(h, r) a = Add(p, q) g0 = Add(a, b)
    gi, gf, gg, go = Split<axis=1, num_outputs=4>(g0)
    i = Sigmoid(gi) f = Sigmoid(gf) g = Tanh(gg) o = Sigmoid(go)
    fc = Mul(f, c) ig = Mul(i, g) cn = Add(fc, ig) tc = Tanh(cn) hn = Mul(o, tc) """


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
    """Without an iteration the final states are the initial ones, which the operator forgets."""
    counts = _fused(_loop(LSTM, outputs), ALSO_EMPTY)
    assert (counts["LSTM"], counts.get("Loop", 0)) == (1, 0)


def test_a_state_that_others_read_keeps_the_loop() -> None:
    text = _loop(LSTM + " hc = Add(h, cn) ", rows="hc")
    assert "is read by more than the cell" in reason_of(FuseRecurrence, parse(text, opset=18))
    assert _fused(text, ALSO_EMPTY)["Loop"] == 1


def test_what_follows_the_cell_leaves_the_loop() -> None:
    counts = _fused(_loop(LSTM + " m = Mul(hn, hn) ", rows="m"), ALSO_EMPTY)
    assert (counts["LSTM"], counts.get("Loop", 0)) == (1, 0)


@pytest.mark.parametrize(
    ("replaced", "by", "reason"),
    [
        ("tc = Tanh(cn)", "tc = Tanh(c)", "is that of no LSTM"),
        ("g = Tanh(gg)", "g = Softmax<axis=1>(gg)", "Softmax"),
        ("fc = Mul(f, c)", "s0 = Slice(xt, k0, k1, k1) fc0 = Mul(f, s0) fc = Mul(fc0, c)", "data"),
        ("a = Add(p, q)", "a0 = Add(p, q) a = LayerNormalization(a0, b)", "LayerNormalization"),
        ("g = Tanh(gg)", "g = Softplus(gg)", "Softplus overflows"),
        ("q = MatMul(h, r)", "v = Mul(h, c) q = MatMul(v, r)", "no operator does"),
    ],
)
def test_near_misses_say_why(replaced: str, by: str, reason: str) -> None:
    text = _loop(LSTM.replace(replaced, by)).replace(
        CONSTANTS, CONSTANTS + ", int64[1] k0 = {0}, int64[1] k1 = {1}"
    )
    assert reason in reason_of(FuseRecurrence, parse(text, opset=18))
    assert _fused(text, ALSO_EMPTY).get("LSTM", 0) == 0


def test_weights_that_are_inputs_are_reordered_in_the_graph() -> None:
    text = f"""g (float[T,B,2] x, float[B,3] h0, float[B,3] c0, float[2,12] w, float[3,12] r)
      => (float[T,B,3] y) <float[12] b = {{{_numbers(12, 2.0)}}}> {{
      hl, cl, y = Scan <num_scan_inputs=1, body = cell (float[B,3] h, float[B,3] c, float[B,2] xt)
            => (float[B,3] hn, float[B,3] cn, float[B,3] row) {{ {LSTM} row = Identity(hn) }}>
        (h0, c0, x) }}"""
    counts = _fused(text, FEEDS)
    assert (counts["LSTM"], counts.get("Scan", 0)) == (1, 0)


def test_other_batches_are_not_taken_for_equal() -> None:
    text = """g (float[T,B,3] x, float[N,3] h0) => (float[N,3] y)
      <float[3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
      y = Scan <num_scan_inputs=1, body = cell (float[N,3] h, float[B,3] xt) => (float[N,3] hn) {
        q = MatMul(h, r) a = Add(xt, q) hn = Tanh(a) }> (h0, x) }"""
    model = parse(text, opset=18)
    result, trace, _ = run_rules(model, [FuseRecurrence])
    assert trace.commits() == []
    assert_equivalent(model, result, Feeds(sizes=(1, 2)))


# --- the inverse ---

CASES: list[tuple[str, dict[str, Any]]] = [
    ("RNN", {}),
    ("RNN", {"direction": "reverse", "initial": True}),
    ("RNN", {"activations": ["Relu"], "clip": 0.5}),
    ("GRU", {"initial": True}),
    ("GRU", {"linear_before_reset": 1, "initial": True}),
    ("GRU", {"clip": 0.7, "linear_before_reset": 1}),
    ("LSTM", {}),
    ("LSTM", {"bias": False, "initial": True}),
    ("LSTM", {"peepholes": True, "initial": True}),
    ("LSTM", {"peepholes": True, "clip": 0.8}),
    ("LSTM", {"direction": "reverse"}),
    (
        "LSTM",
        {
            "activations": ["HardSigmoid", "Softsign", "ScaledTanh"],
            "activation_alpha": [0.25, 1.2],
            "activation_beta": [0.4, 0.8],
        },
    ),
]


def _operator(
    op: str, *, peepholes: bool = False, initial: bool = False, bias: bool = True, **attrs: Any
) -> onnx.ModelProto:
    gates, features, hidden = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 3, 4
    random = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        return (0.5 * random.standard_normal(shape)).astype(np.float32)

    arrays = {"w": array(1, gates * hidden, features), "r": array(1, gates * hidden, hidden)}
    arrays |= {"b": array(1, 2 * gates * hidden)} if bias else {}
    arrays |= {"p": array(1, 3 * hidden)} if peepholes else {}
    states = ["h0", "c0"] if op == "LSTM" else ["h0"]
    inputs = ["x", "w", "r", "b" if bias else "", ""]
    inputs += states if initial else [""] * len(states)
    inputs += ["p"] if peepholes else []
    names = ["y", "yh", "yc"][: 1 + len(states)]
    while not inputs[-1]:
        inputs.pop()

    def tensor(name: str, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    given = [tensor("x", ["T", "B", features])]
    given += [tensor(s, [1, "B", hidden]) for s in states] if initial else []
    results = [tensor("y", ["T", 1, "B", hidden])]
    results += [tensor(n, [1, "B", hidden]) for n in names[1:]]
    node = helper.make_node(op, inputs, names, hidden_size=hidden, **attrs)
    weights = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    graph = helper.make_graph([node], "operator", given, results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def _weights(model: onnx.ModelProto) -> list[np.ndarray]:
    """W, R, the sum of the biases that are only added, and P of the only operator."""
    (node,) = (n for n in model.graph.node if n.op_type in ("LSTM", "GRU", "RNN"))
    arrays = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    found = [arrays[n] for k, n in enumerate(node.input) if k in (1, 2, 7) and n]
    if len(node.input) > 3 and node.input[3]:
        bias = arrays[node.input[3]].reshape(2, -1)
        rows = (
            bias.shape[1]
            if not any(a.name == "linear_before_reset" for a in node.attribute)
            else (bias.shape[1] * 2 // 3)
        )
        found += [bias[0, :rows] + bias[1, :rows], bias[:, rows:]]
    return found


@pytest.mark.parametrize(("op", "attributes"), CASES)
def test_operator_to_scan_and_back(op: str, attributes: dict[str, Any]) -> None:
    model = _operator(op, **attributes)
    apart, trace, _ = run_rules(model, [OperatorToScan])
    assert (trace.defects(), len(trace.commits())) == ([], 1)
    assert_equivalent(model, apart, FEEDS, 1e-5)
    again, trace, _ = run_rules(apart, [FuseRecurrence, RemoveUnread])
    assert trace.defects() == []
    assert_equivalent(model, again, FEEDS, 1e-5)
    for before, after in zip(_weights(model), _weights(again), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)


def test_both_directions_are_two_scans() -> None:
    model = _operator("GRU")
    (node,) = model.graph.node
    node.attribute.append(helper.make_attribute("direction", "bidirectional"))
    for weight in model.graph.initializer:
        array = numpy_helper.to_array(weight)
        weight.CopyFrom(numpy_helper.from_array(np.concatenate([array, -array]), weight.name))
    for output, axis in zip(model.graph.output, (1, 0)):
        output.type.tensor_type.shape.dim[axis].dim_value = 2
    apart, _, _ = run_rules(model, [OperatorToScan])
    assert ops(apart)["Scan"] == 2
    assert_equivalent(model, apart, FEEDS, 1e-5)


def test_the_inverse_says_what_it_is_about() -> None:
    model = onnx.parser.parse_model(OperatorToScan.fires)
    result = rewritten(model, FEEDS, 1e-5, rules=UNFUSE)
    assert ops(result.model)["Scan"] == 1
    for words, text in OperatorToScan.spares.items():
        assert words in reason_of(OperatorToScan, onnx.parser.parse_model(text))


# --- evidence ---


def test_an_operator_that_differs_from_the_loop_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with the weights, the old body has the last word."""

    def wrong(cell: Cell) -> Parameters:
        found = parameters(cell)
        return replace(found, r=np.asarray(found.r) * np.float32(1.01))

    monkeypatch.setattr(probe, "parameters", wrong)
    reason = reason_of(FuseRecurrence, parse(_loop(LSTM), opset=18))
    assert re.search(r"the LSTM differs from the loop by 0\.\d+ on random inputs", reason)


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
