"""Operands whose batches have names of their own are broadcast together, as the loop does."""

from __future__ import annotations

import numpy as np
import pytest

from looplift.rules.recurrence import FuseRecurrence

from ...equivalence import ops, rewritten
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of


def _numbers(count: int, start: float) -> str:
    return ", ".join(f"{np.sin(start + k):.3f}" for k in range(count))


CONSTANTS = f"""float[2,3] w = {{{_numbers(6, 0.0)}}}, float[3,3] v = {{{_numbers(9, 1.0)}}},
    int64[1] one = {{1}}, int64 nul = {{0}}, int64 uno = {{1}}, float zero = {{0}}"""
RNN = "p = MatMul(xt, w) q = MatMul(h, v) a = Add(p, q)"
LENGTHS = [np.array(v) for v in ([2], [0], [0, 3, 1], [9, -1, 2])]
OUTPUTS = {"rows": "float[L,R,3] y", "last": "float[M,3] z", "both": "float[L,R,3] y, float[M,3] z"}


def _loop(
    nodes: str,
    given: str,
    outputs: str,
    trip: str = "n0 = Shape<start=0, end=1>(x) n = Squeeze(n0)",
) -> str:
    return f"""g ({given}) => ({outputs}) <{CONSTANTS}> {{
      {trip}
      z, y = Loop (n, , h0) <body = b (int64 t, bool on, float[?,3] h)
            => (bool again, float[?,3] hn, float[?,3] row) {{
          again = Identity(on) xt = Gather<axis=0>(x, t) {nodes} row = Identity(r) }}> }}"""


def _assert_fused(text: str, feeds: Feeds, op: str = "RNN") -> None:
    counts = ops(rewritten(parse(text, opset=18), feeds, 1e-5).model)
    assert (counts.get(op, 0), counts.get("Loop", 0), counts.get("Scan", 0)) == (1, 0, 0)


@pytest.mark.parametrize(
    ("outputs", "trips"),
    [("float[L,R,3] y", [1, 4]), ("float[M,3] z", [0, 1, 4]), (OUTPUTS["both"], [1, 4])],
)
def test_a_first_state_for_all_rows(outputs: str, trips: list[int]) -> None:
    """The states after no iteration have the rows of the first state; nobody knows those of no row."""
    given = "float[T,B,2] x, float[1,3] h0, int64 n"
    feeds = Feeds(sizes=(0, 1, 4), most=40, values={"n": trips})
    _assert_fused(_loop(f"{RNN} hn = Tanh(a) r = Identity(hn)", given, outputs, trip=""), feeds)


@pytest.mark.parametrize("outputs", OUTPUTS.values(), ids=OUTPUTS.keys())
def test_a_state_and_a_sequence_of_other_rows(outputs: str) -> None:
    given = "float[T,B,2] x, float[N,3] h0"
    feeds = Feeds(sizes=(1, 3), most=20)
    _assert_fused(_loop(f"{RNN} hn = Tanh(a) r = Identity(hn)", given, outputs), feeds)


@pytest.mark.parametrize("row", ["r = Where(m, h1, zero)", "r = Identity(hn)"])
def test_lengths_of_other_rows(row: str) -> None:
    nodes = f"{RNN} h1 = Tanh(a) c = Less(t, l) m = Unsqueeze(c, one) hn = Where(m, h1, h) {row}"
    given = "float[T,B,2] x, float[B,3] h0, int64[N] l"
    feeds = Feeds(sizes=(1, 3), most=40, values={"l": LENGTHS})
    _assert_fused(_loop(nodes, given, OUTPUTS["both"]), feeds)


def test_a_scan_keeps_the_rows_of_its_state() -> None:
    text = """g (float[T,B,3] x, float[N,3] h0) => (float[N,3] y)
      <float[3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
      y = Scan <num_scan_inputs=1, body = cell (float[N,3] h, float[B,3] xt) => (float[N,3] hn) {
        q = MatMul(h, r) a = Add(xt, q) hn = Tanh(a) }> (h0, x) }"""
    _assert_fused(text, Feeds(sizes=(1, 2)))


def test_cell_and_hidden_state_of_other_rows() -> None:
    text = f"""g (float[T,B,2] x, float[1,3] h0, float[N,3] c0) => (float[L,R,3] y, float[M,3] cz)
      <float[2,12] w = {{{_numbers(24, 0.0)}}}, float[3,12] v = {{{_numbers(36, 1.0)}}}> {{
      n0 = Shape<start=0, end=1>(x) n = Squeeze(n0)
      hz, cz, y = Loop (n, , h0, c0) <body = b (int64 t, bool on, float[?,3] h, float[?,3] c)
            => (bool again, float[?,3] hn, float[?,3] cn, float[?,3] row) {{
          again = Identity(on) xt = Gather<axis=0>(x, t) p = MatMul(xt, w) q = MatMul(h, v)
          a = Add(p, q) gi, gf, gg, go = Split<axis=1, num_outputs=4>(a)
          i = Sigmoid(gi) f = Sigmoid(gf) g = Tanh(gg) o = Sigmoid(go) fc = Mul(f, c)
          ig = Mul(i, g) cn = Add(fc, ig) tc = Tanh(cn) hn = Mul(o, tc) row = Identity(hn) }}> }}"""
    _assert_fused(text, Feeds(sizes=(1, 3), most=20), "LSTM")


def test_rows_of_what_is_no_operand_count_too() -> None:
    """d adds nothing but its rows, which no operand of the RNN has."""
    nodes = f"""{RNN} dt = Gather<axis=0>(d, t) e = Sub(dt, dt) a1 = Add(a, e) hn = Tanh(a1)
      r = Identity(hn)"""
    text = _loop(nodes, "float[T,B,2] x, float[1,3] h0, float[T,D,3] d", OUTPUTS["both"])
    model = parse(text, opset=18)
    assert "no state keeps its shape" in reason_of(FuseRecurrence, model)
    rewritten(model, Feeds(sizes=(1, 3), most=20), 1e-5)
    named = parse(text.replace("float[1,3] h0", "float[B,3] h0"), opset=18)
    reason = reason_of(FuseRecurrence, named)
    assert "joins sizes B and D; if they are the same, --shape gives them one name" in reason


def test_an_axis_that_is_mixed_is_no_batch() -> None:
    """A product over rows cannot be done row by row."""
    nodes = f"""{RNN} hT = Transpose(h) k = MatMul(h, hT) u = MatMul(k, h) a1 = Add(a, u)
      hn = Tanh(a1) r = Identity(hn)"""
    text = _loop(nodes, "float[T,B,2] x, float[1,3] h0", OUTPUTS["both"])
    counts = ops(rewritten(parse(text, opset=18), Feeds(sizes=(1, 3), most=12), 1e-4).model)
    assert counts.get("RNN", 0) == 0
