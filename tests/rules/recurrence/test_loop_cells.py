"""Which values of a loop are inputs and states of a cell, and how their batches are broadcast."""

from __future__ import annotations

import numpy as np
import pytest

from looplift.rewrite.engine.rule import fixture
from looplift.rules.recurrence import FuseRecurrence

from ...equivalence import ops, rewritten
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of
from .cell_models import constant, integers, numbers, scan_rnn

FEEDS = Feeds(sizes=(1, 2, 5), most=24)
RNN_WEIGHTS = f"{constant('w', 2, 3)}, {constant('r', 3, 3)}"


def _assert_fused(text: str, op: str, feeds: Feeds = FEEDS) -> None:
    counts = ops(rewritten(parse(text, opset=21), feeds, 1e-5).model)
    assert counts[op] == 1
    assert not {"Loop", "Scan"} & set(counts)


# --- loop-invariant inputs ---

CONTEXT = f"{RNN_WEIGHTS}, {constant('v', 2, 3)}"
WITH_CONTEXT = "p = MatMul(xt, w) q = MatMul(h, r) k = MatMul(z, v) s = Add(p, q) a = Add(s, k)"


@pytest.mark.parametrize("batch", ["B", "2", "3"])
def test_a_context_computed_before_the_loop(batch: str) -> None:
    """Also where its shape is static and could be that of a weight."""
    text = scan_rnn(WITH_CONTEXT, CONTEXT, "float[T,B,2] x, float[B,2] u", "z = Exp(u)")
    text = text.replace("[B,", f"[{batch},").replace("T,B,", f"T,{batch},")
    _assert_fused(text, "RNN")


def test_a_context_beside_the_input() -> None:
    nodes = "j = Concat<axis=1>(xt, u, h) a = MatMul(j, w)"
    _assert_fused(scan_rnn(nodes, constant("w", 7, 3), "float[T,B,2] x, float[B,2] u"), "RNN")


def test_a_context_that_multiplies_is_not_an_input() -> None:
    nodes = "p = MatMul(xt, w) q = MatMul(h, r) s = Add(p, q) t = Tanh(s) hn = Mul(t, u)"
    text = scan_rnn(nodes, RNN_WEIGHTS, "float[T,B,2] x, float[B,3] u").replace("hn = Tanh(a) ", "")
    assert "is multiplied by" in reason_of(FuseRecurrence, parse(text, opset=21))
    assert "RNN" not in ops(rewritten(parse(text, opset=21), FEEDS, 1e-5).model)


def test_an_input_without_a_feature_axis() -> None:
    nodes = "e = Unsqueeze(xt, last) p = MatMul(e, w) q = MatMul(h, r) a = Add(p, q)"
    constants = f"{constant('w', 1, 3)}, {constant('r', 3, 3)}, {integers(last=[1])}"
    _assert_fused(scan_rnn(nodes, constants, "float[T,B] x"), "RNN")


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("result", "trips"), [("float[K,B,3] y", [1, 2, 7]), ("float[B,3] z", [0, 1, 2, 7])]
)
def test_the_iteration_number_as_a_feature(result: str, trips: list[int], batch: int) -> None:
    """Each iteration puts the target of the Expand together, and the loop may not run."""
    constants = f"{constant('w', 3, 3)}, {constant('r', 3, 3)}, {integers(single=[1])}"
    text = f"""g (float[7,B,2] x, float[B,3] h0, int64 n) => ({result}) <{constants}> {{
      b = Shape<start=1, end=2>(x)
      z, y = Loop (n, , h0) <body = cell (int64 i, bool on, float[B,3] h)
          => (bool again, float[B,3] hn, float[B,3] row) {{
          again = Identity(on) xt = Gather<axis=0>(x, i) f = Cast<to=1>(i)
          column = Concat<axis=0>(b, single) e = Expand(f, column) j = Concat<axis=1>(xt, e)
          p = MatMul(j, w) q = MatMul(h, r) a = Add(p, q) hn = Tanh(a) row = Identity(hn) }}> }}"""
    feeds = Feeds(values={"n": trips}, fixed={"B": batch}, sizes=(7,), most=4)
    counts = ops(rewritten(parse(text, opset=17), feeds, 1e-5).model)
    assert (counts["RNN"], counts.get("Loop", 0)) == (1, 0)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("trips", [1, 2, 7])
@pytest.mark.parametrize("layer", ["Relu(m0)", "BatchNormalization(m0, k, k, k, k)"])
def test_a_layer_over_the_rows_of_all_time_steps(layer: str, trips: int, batch: int) -> None:
    """View(T * B, -1) and back: without rows or time steps, the original run fails."""
    nodes = "p = MatMul(xt, w) q = MatMul(h, r) a = Add(p, q) hn = Tanh(a) row = Identity(hn)"
    constants = f"{RNN_WEIGHTS}, float[2] k = {{0.5, 2}}, {integers(minus=[-1])}"
    text = f"""g (float[T,B,2] x) => (float[T,B,3] y) <{constants}, {integers(three=[3])}> {{
      t = Shape<start=0, end=1>(x) b = Shape<start=1, end=2>(x) n = Mul(t, b)
      rows = Concat<axis=0>(n, minus) back = Concat<axis=0>(t, b, minus)
      m0 = Reshape(x, rows) m1 = {layer} x1 = Reshape(m1, back)
      hs = Concat<axis=0>(b, three) h0 = ConstantOfShape(hs) trips = Squeeze(t)
      z, y = Loop (trips, , h0) <body = b (int64 i, bool on, float[B,3] h)
          => (bool again, float[B,3] hn, float[B,3] row) {{
          again = Identity(on) xt = Gather<axis=0>(x1, i) {nodes} }}> }}"""
    model = parse(text, opset=17)
    feeds = Feeds(sizes=(trips,), fixed={"B": batch}, most=4)
    counts = ops(rewritten(model, feeds, 1e-5).model)
    assert (counts["RNN"], counts.get("Loop", 0)) == (1, 0)


def test_a_state_with_several_feature_axes_is_declined() -> None:
    """Its recurrent weights would be a matrix that is mostly zeros."""
    nodes = "q = MatMul(h, r) a = Add(xt, q)"
    text = scan_rnn(nodes, constant("r", 3, 3), "float[T,B,4,3] x").replace("[B,3]", "[B,4,3]")
    text = text.replace("[T,B,3]", "[T,B,4,3]")
    assert "have 2 axes" in reason_of(FuseRecurrence, parse(text, opset=21))
    assert "RNN" not in ops(rewritten(parse(text, opset=21), FEEDS, 1e-5).model)


# --- states ---


def test_states_in_a_list() -> None:
    """As modules in a Python list carry them: each replaces its own element."""
    layer = """h{0} = SequenceAt({1}, k{0}) p{0} = MatMul({2}, w) q{0} = MatMul(h{0}, r) a{0} = Add(p{0}, q{0})
        n{0} = Tanh(a{0}) e{0} = SequenceErase({1}, k{0}) l{0} = SequenceInsert(e{0}, n{0}, k{0}) """
    nodes = layer.format(0, "l", "xt") + layer.format(1, "l0", "n0")
    text = f"""m (float[5,2,3] x, float[2,3] z, int64 n) => (float[K,2,3] y)
      <{constant("w", 3, 3)}, {constant("r", 3, 3)}, {integers(k0=0, k1=1)}> {{
      s0 = SequenceConstruct(z, z)
      s, y = Loop (n, , s0) <body = cell (int64 t, bool on, seq(float[2,3]) l)
            => (bool again, seq(float[2,3]) l1, float[2,3] row) {{
          again = Identity(on) xt = Gather<axis=0>(x, t) {nodes} row = Identity(n1) }}> }}"""
    feeds = Feeds(values={"n": [0, 1, 5]}, sizes=(2,), most=12)
    counts = ops(rewritten(parse(text, opset=21), feeds, 1e-5).model)
    assert counts["RNN"] == 2
    assert not {"Loop", "SequenceAt", "SequenceErase", "SequenceInsert"} & set(counts)


# --- operands whose batches have different sizes ---

CONSTANTS = f"""float[2,3] w = {{{numbers(6, 0.0)}}}, float[3,3] v = {{{numbers(9, 1.0)}}},
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


def _assert_broadcast(text: str, feeds: Feeds, op: str = "RNN") -> None:
    counts = ops(rewritten(parse(text, opset=18), feeds, 1e-5).model)
    assert (counts.get(op, 0), counts.get("Loop", 0), counts.get("Scan", 0)) == (1, 0, 0)


@pytest.mark.parametrize(
    ("outputs", "trips"),
    [("float[L,R,3] y", [1, 4]), ("float[M,3] z", [0, 1, 4]), (OUTPUTS["both"], [1, 4])],
)
def test_an_initial_state_for_all_rows(outputs: str, trips: list[int]) -> None:
    """Without an iteration, the final states have the one row of the initial state."""
    given = "float[T,B,2] x, float[1,3] h0, int64 n"
    feeds = Feeds(sizes=(0, 1, 4), most=40, values={"n": trips})
    _assert_broadcast(_loop(f"{RNN} hn = Tanh(a) r = Identity(hn)", given, outputs, trip=""), feeds)


@pytest.mark.parametrize("outputs", OUTPUTS.values(), ids=OUTPUTS.keys())
def test_a_state_and_a_sequence_with_different_batches(outputs: str) -> None:
    given = "float[T,B,2] x, float[N,3] h0"
    feeds = Feeds(sizes=(1, 3), most=20)
    _assert_broadcast(_loop(f"{RNN} hn = Tanh(a) r = Identity(hn)", given, outputs), feeds)


def test_without_an_iteration_the_batches_need_not_broadcast() -> None:
    given = "float[T,B,2] x, float[N,3] h0"
    feeds = Feeds(sizes=(0, 2, 3), most=30)
    _assert_broadcast(_loop(f"{RNN} hn = Tanh(a) r = Identity(hn)", given, OUTPUTS["last"]), feeds)


@pytest.mark.parametrize("row", ["r = Where(m, h1, zero)", "r = Identity(hn)"])
def test_lengths_with_another_batch(row: str) -> None:
    nodes = f"{RNN} h1 = Tanh(a) c = Less(t, l) m = Unsqueeze(c, one) hn = Where(m, h1, h) {row}"
    given = "float[T,B,2] x, float[B,3] h0, int64[N] l"
    feeds = Feeds(sizes=(1, 3), most=40, values={"l": LENGTHS})
    _assert_broadcast(_loop(nodes, given, OUTPUTS["both"]), feeds)


def test_a_scan_keeps_the_batch_of_its_state() -> None:
    text = """g (float[T,B,3] x, float[N,3] h0) => (float[N,3] y)
      <float[3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
      y = Scan <num_scan_inputs=1, body = cell (float[N,3] h, float[B,3] xt) => (float[N,3] hn) {
        q = MatMul(h, r) a = Add(xt, q) hn = Tanh(a) }> (h0, x) }"""
    _assert_broadcast(text, Feeds(sizes=(1, 2)))


def test_hidden_and_cell_state_with_different_batches() -> None:
    text = f"""g (float[T,B,2] x, float[1,3] h0, float[N,3] c0) => (float[L,R,3] y, float[M,3] cz)
      <float[2,12] w = {{{numbers(24, 0.0)}}}, float[3,12] v = {{{numbers(36, 1.0)}}}> {{
      n0 = Shape<start=0, end=1>(x) n = Squeeze(n0)
      hz, cz, y = Loop (n, , h0, c0) <body = b (int64 t, bool on, float[?,3] h, float[?,3] c)
            => (bool again, float[?,3] hn, float[?,3] cn, float[?,3] row) {{
          again = Identity(on) xt = Gather<axis=0>(x, t) p = MatMul(xt, w) q = MatMul(h, v)
          a = Add(p, q) gi, gf, gg, go = Split<axis=1, num_outputs=4>(a)
          i = Sigmoid(gi) f = Sigmoid(gf) g = Tanh(gg) o = Sigmoid(go) fc = Mul(f, c)
          ig = Mul(i, g) cn = Add(fc, ig) tc = Tanh(cn) hn = Mul(o, tc) row = Identity(hn) }}> }}"""
    _assert_broadcast(text, Feeds(sizes=(1, 3), most=20), "LSTM")


def test_a_batch_that_no_operand_has() -> None:
    """d contributes only its batch, which no operand of the RNN has."""
    nodes = f"""{RNN} dt = Gather<axis=0>(d, t) e = Sub(dt, dt) a1 = Add(a, e) hn = Tanh(a1)
      r = Identity(hn)"""
    text = _loop(nodes, "float[T,B,2] x, float[1,3] h0, float[T,D,3] d", OUTPUTS["both"])
    model = parse(text, opset=18)
    assert "no carried value keeps its shape" in reason_of(FuseRecurrence, model)
    rewritten(model, Feeds(sizes=(1, 3), most=20), 1e-5)
    named = parse(text.replace("float[1,3] h0", "float[B,3] h0"), opset=18)
    reason = reason_of(FuseRecurrence, named)
    assert "broadcasts sizes B and D; if they are equal, give them one name with --shape" in reason


def test_an_axis_that_is_mixed_is_not_a_batch() -> None:
    """A product of rows is not computed row by row."""
    nodes = f"""{RNN} hT = Transpose(h) k = MatMul(h, hT) u = MatMul(k, h) a1 = Add(a, u)
      hn = Tanh(a1) r = Identity(hn)"""
    text = _loop(nodes, "float[T,B,2] x, float[1,3] h0", OUTPUTS["both"])
    counts = ops(rewritten(parse(text, opset=18), Feeds(sizes=(1, 3), most=12), 1e-4).model)
    assert counts.get("RNN", 0) == 0


def test_a_batch_of_size_zero() -> None:
    """Some of onnxruntime's operators end the process for it, so that it is not tried."""
    model = fixture(FuseRecurrence.fires)
    for info in (*model.graph.input, *model.graph.output):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param == "B":
                dim.dim_value = 0
    assert "has no elements" in reason_of(FuseRecurrence, model)


def test_a_value_of_too_many_features_is_declined() -> None:
    """Its affine form would have a number for each of them; of 2^33, there is not the memory."""
    text = """g (float[T,8589934592] x, float[8589934592] h0) => (float[8589934592] y) {
        y = Scan <num_scan_inputs = 1, body = step (float[8589934592] h, float[8589934592] part)
            => (float[8589934592] t) { s = Add(h, part) t = Tanh(s) }> (h0, x) }"""
    assert "no carried value" in reason_of(FuseRecurrence, parse(text, opset=21))
