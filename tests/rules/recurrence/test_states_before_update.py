"""Loops whose iterations read the state before they update it: Concat(h0, Y) without its last step."""

from __future__ import annotations

import numpy as np
import pytest

from looplift.rules.recurrence import FuseRecurrence

from ...equivalence import ops, rewritten
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of
from .cell_models import constant, integers, numbers

LENGTHS = [np.array(v) for v in ([0, 2, 5], [-3, 1, 9], [7, 7, 7], [0, 0, 0], [3, 1, 2])]
BATCHES = (1, 3)

CONSTANTS = f"""float[2,3] w = {{{numbers(6, 0.0)}}}, float[3,3] r = {{{numbers(9, 1.0)}}},
    float[2,9] wg = {{{numbers(18, 0.0)}}}, float[3,9] rg = {{{numbers(27, 1.0)}}},
    float[2,12] wl = {{{numbers(24, 0.0)}}}, float[3,12] rl = {{{numbers(36, 1.0)}}},
    {constant("v", 3, 3)}, float unit = {{1}}, int64[3] parts = {{3, 3, 3}},
    int64[4] quarters = {{3, 3, 3, 3}}, {integers(nul=0, uno=1, one=[1])}"""
RNN = "p = MatMul(xt, w) q = MatMul(h, r) a = Add(p, q) hn = Tanh(a)"
GRU = """p = MatMul(xt, wg) q = MatMul(h, rg)
    pz, pr, pn = Split<axis=1>(p, parts) qz, qr, qn = Split<axis=1>(q, parts)
    az = Add(pz, qz) z = Sigmoid(az) ar = Add(pr, qr) e = Sigmoid(ar) rn = Mul(e, qn)
    an = Add(pn, rn) m = Tanh(an) keep = Sub(unit, z) new = Mul(keep, m) old = Mul(z, h)
    hn = Add(new, old)"""
LSTM = """p = MatMul(xt, wl) q = MatMul(h, rl) a = Add(p, q)
    gi, gf, gg, go = Split<axis=1>(a, quarters)
    i = Sigmoid(gi) f = Sigmoid(gf) g = Tanh(gg) o = Sigmoid(go)
    fc = Mul(f, c) ig = Mul(i, g) cn = Add(fc, ig) tc = Tanh(cn) hn = Mul(o, tc)"""
CELLS = {"RNN": RNN, "GRU": GRU, "LSTM": LSTM}


def _loop(op: str, rows: str, results: str = "float[K,L,3] y") -> str:
    """A Loop over the first n slices of x with a state h and, of an LSTM, c."""
    c = ["float[B,3] c", "float[B,3] cn"] if op == "LSTM" else ["", ""]
    carried, updates = (f", {v}" if v else "" for v in c)
    start, last = (", c0", ", cl") if op == "LSTM" else ("", "")
    return f"""g (float[7,B,2] x, float[B,3] h0, float[B,3] c0, int64 n) => ({results})
      <{CONSTANTS}> {{
      hl{last}, y = Loop (n, , h0{start}) <body = cell (int64 t, bool on, float[B,3] h{carried})
          => (bool again, float[B,3] hn{updates}, float[B,3] row) {{
          again = Identity(on) xt = Gather<axis=0>(x, t) {CELLS[op]} {rows} }}> hz = Identity(hl) }}"""


def _assert_fused(text: str, op: str, feeds: Feeds, number: int = 1) -> None:
    counts = ops(rewritten(parse(text, opset=17), feeds, 1e-5).model)
    assert counts[op] == number
    assert not {"Loop", "Scan"} & set(counts)


def _trips(batch: int) -> Feeds:
    return Feeds(values={"n": [0, 1, 2, 7]}, sizes=(batch,), most=8)


ROWS = {
    "before": "row = Identity(h)",
    "both": "row = Sub(hn, h)",
    "a prediction before the update": "k = MatMul(h, v) row = Tanh(k)",
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("op", CELLS)
def test_what_the_iterations_read(op: str, rows: str, batch: int) -> None:
    """The batch has a number, so that onnxruntime knows the shape of an empty scan output."""
    text = _loop(op, rows, results="float[K,L,3] y, float[B,3] hz").replace("B,", f"{batch},")
    _assert_fused(text, op, _trips(batch))


def test_an_initial_state_of_zeros() -> None:
    """The operator leaves it out; the sequence of states starts with it."""
    text = _loop("RNN", "row = Identity(h)").replace("B,", "3,")
    text = text.replace("hl, y = ", "s = Shape(h0) zeros = ConstantOfShape(s) hl, y = ")
    _assert_fused(text.replace("(n, , h0)", "(n, , zeros)"), "RNN", _trips(3))


def test_a_second_layer_reads_the_old_state_of_the_first() -> None:
    text = f"""g (float[7,3,2] x, float[3,3] h0, float[3,3] k0, int64 n)
      => (float[K,3,3] y, float[3,3] hz, float[3,3] kz) <{CONSTANTS}> {{
      hl, kl, y = Loop (n, , h0, k0) <body = cell (int64 t, bool on, float[3,3] h, float[3,3] k)
          => (bool again, float[3,3] hn, float[3,3] kn, float[3,3] row) {{
          again = Identity(on) xt = Gather<axis=0>(x, t) {RNN}
          p2 = MatMul(h, v) q2 = MatMul(k, r) a2 = Add(p2, q2) kn = Tanh(a2) row = Identity(kn) }}>
      hz = Identity(hl) kz = Identity(kl) }}"""
    _assert_fused(text, "RNN", _trips(3), number=2)


def test_another_carried_value_takes_the_old_state() -> None:
    text = f"""g (float[7,3,2] x, float[3,3] h0, float[3,3] k0, int64 n)
      => (float[K,3,3] y, float[3,3] kz) <{CONSTANTS}> {{
      hl, kl, y = Loop (n, , h0, k0) <body = cell (int64 t, bool on, float[3,3] h, float[3,3] k)
          => (bool again, float[3,3] hn, float[3,3] kn, float[3,3] row) {{
          again = Identity(on) xt = Gather<axis=0>(x, t) {RNN} kn = Identity(h) row = Exp(k) }}>
      kz = Identity(kl) }}"""
    _assert_fused(text, "RNN", _trips(3))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("read", "stacked"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_directions_of_a_scan(read: int, stacked: int, batch: int) -> None:
    text = f"""g (float[T,B,2] x, float[B,3] h0) => (float[T,B,3] y, float[T,B,3] u) <{CONSTANTS}> {{
      hl, y, u = Scan <num_scan_inputs=1, scan_input_directions=[{read}],
          scan_output_directions=[{stacked}, 0],
          body = cell (float[B,3] h, float[B,2] xt) => (float[B,3] hn, float[B,3] row, float[B,3] e) {{
          {RNN} row = Identity(h) e = Mul(h, hn) }}> (h0, x) }}"""
    _assert_fused(text, "RNN", Feeds(sizes=(1, 2, 7), fixed={"B": batch}, most=8))


def test_a_state_whose_batch_is_last() -> None:
    cell = "p = MatMul(wt, xt) q = MatMul(v, h) a = Add(p, q) hn = Tanh(a) row = Identity(h)"
    text = f"""g (float[T,2,B] x, float[3,B] h0) => (float[T,3,B] y) <{CONSTANTS}, {constant("wt", 3, 2)}> {{
      hl, y = Scan <num_scan_inputs=1, body = cell (float[3,B] h, float[2,B] xt)
          => (float[3,B] hn, float[3,B] row) {{ {cell} }}> (h0, x) }}"""
    _assert_fused(text, "RNN", Feeds(sizes=(1, 2, 7), most=9))


# --- rows with lengths of their own ---

MASKED = f"{RNN.replace('hn =', 'h1 =')} m = Unsqueeze(c, one) hn = Where(m, h1, h)"


FORWARD = "c = Less(t, l) xt = Gather<axis=0>(x, t)"
BACKWARD = "b = Sub(last, t) c = Less(b, l) xt = Gather<axis=0>(x, b)"


@pytest.mark.parametrize("rows", ["row = Identity(h)", "row = Sub(hn, h)"])
@pytest.mark.parametrize("read", [FORWARD, BACKWARD], ids=["forward", "backward"])
@pytest.mark.parametrize("length", [0, 1, 2, 7])
def test_masked_rows_keep_their_state(read: str, rows: str, length: int) -> None:
    text = f"""g (float[T,3,2] x, float[3,3] h0, int64[3] l) => (float[T,3,3] y, float[3,3] z)
      <{CONSTANTS}> {{
      n0 = Shape<start=0, end=1>(x) n = Squeeze(n0) last = Sub(n, uno)
      z, y = Loop (n, , h0) <body = cell (int64 t, bool on, float[3,3] h)
          => (bool again, float[3,3] hn, float[3,3] row) {{
          again = Identity(on) {read} {MASKED} {rows} }}> }}"""
    _assert_fused(text, "RNN", Feeds(sizes=(length,), values={"l": LENGTHS}, most=10))


# --- near misses ---


def test_the_cell_state_before_the_update_keeps_the_loop() -> None:
    text = _loop("LSTM", "row = Identity(c)").replace("B,", "3,")
    reason = reason_of(FuseRecurrence, parse(text, opset=17))
    assert "an LSTM returns that state for the last time step only" in reason
    assert ops(rewritten(parse(text, opset=17), _trips(3), 1e-5).model)["Loop"] == 1


def test_a_state_that_gets_the_batch_of_the_input_keeps_the_loop() -> None:
    """The first prediction is computed for one row, the others for all of them."""
    rows = "d = MatMul(h, v) k = MatMul(xt, w) row = Add(d, k)"
    text = _loop("RNN", rows).replace("float[B,3] h0", "float[1,3] h0")
    text = text.replace("float[B,3] h)", "float[?,3] h)").replace("float[B,3] hn", "float[?,3] hn")
    model = parse(text, opset=17)
    assert "keeps its shape" in reason_of(FuseRecurrence, model)
    feeds = Feeds(values={"n": [1, 7]}, sizes=(1, 3), most=8)
    assert "RNN" not in ops(rewritten(model, feeds, 1e-5).model)
