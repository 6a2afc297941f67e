"""Buffers that each iteration writes the next slice of become scan outputs."""

from __future__ import annotations

import onnx
import pytest

from looplift.rewrite.engine.rule import fixture
from looplift.rules.loops.scatter_accumulation import ScatterToScanOutput

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(sizes=(0, 1, 2, 5), values={"m": [0, 1, 2, 5]}, most=60)
FIRST = "k = Reshape(p, square) u = Unsqueeze(r, at0) qo = ScatterND(q, k, u)"
SECOND = """grid = Concat<axis=0>(nb, one1) column = Range(zero, b, one)
    cb = Unsqueeze(column, at1) ct = Expand(p, grid) k = Concat<axis=-1>(cb, ct)
    qo = ScatterND(q, k, r)"""
THIRD = """grid = Concat<axis=0>(nb, three1, one1) rows = Range(zero, b, one)
    columns = Range(zero, three, one) row2 = Unsqueeze(rows, at12) rg = Expand(row2, grid)
    column2 = Unsqueeze(columns, at1) cg = Expand(column2, grid) tg = Expand(p, grid)
    k = Concat<axis=-1>(rg, cg, tg) qo = ScatterND(q, k, r)"""


def _elements(axis: int) -> str:
    return f"""ax = Constant<value_ints=[{axis}]>() u = Unsqueeze(r, ax) su = Shape(u)
        f = Reshape(p, cube) k = Expand(f, su) qo = ScatterElements<axis={axis}>(q, k, u)"""


def _writing(
    write: str,
    shape: str = "all",
    position: str = "p = Identity(i)",
    trip: str = "n",
    going: str = "co = Identity(ci)",
) -> onnx.ModelProto:
    """A loop over x [T, B, 3] that writes slice r [B, 3] of iteration i to the buffer q."""
    return parse(f"""g (float[T,B,3] x, float[B,3] s0, int64 m) => (float[P,Q,R] w)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 three = {{3}}, int64 two = {{2}},
         int64[1] at0 = {{0}}, int64[1] at1 = {{1}}, int64[1] at2 = {{2}}, int64[1] one1 = {{1}},
         int64[2] at12 = {{1, 2}}, int64[1] three1 = {{3}}, int64[1] two1 = {{2}}, int64 minus = {{-1}},
         int64[2] square = {{1, 1}}, int64[3] cube = {{1, 1, 1}}, float half = {{0.5}}> {{
        all = Shape(x) nt = Gather(all, at0) nb = Gather(all, at1)
        n = Squeeze(nt, at0) b = Squeeze(nb, at0) last = Sub(n, one)
        longer1 = Add(nt, two1)
        second = Concat<axis=0>(nb, nt, three1) end = Concat<axis=0>(nb, three1, nt)
        longer = Concat<axis=0>(longer1, nb, three1)
        zeros = ConstantOfShape({shape}) start = Add(zeros, half)
        y, w = Loop ({trip}, , s0, start) <body = b (int64 i, bool ci, float[B,3] s, float[P,Q,R] q)
            => (bool co, float[B,3] so, float[P,Q,R] qo) {{
            {going} xt = Gather(x, i) h = Mul(s, s) so = Sub(h, xt) r = Tanh(so)
            {position} {write} }}> }}""")


def _collects(model: onnx.ModelProto) -> None:
    result, trace, _ = run_rules(model, [ScatterToScanOutput])
    assert trace.defects() == []
    assert len(trace.commits()) == 1
    assert_equivalent(model, result, FEEDS)
    assert not {"ScatterND", "ScatterElements"} & set(ops(rewritten(model, FEEDS, 1e-5).model))


WRITES = [
    (FIRST, "all"),
    (SECOND, "second"),
    (THIRD, "end"),
    (_elements(0), "all"),
    (_elements(1), "second"),
    (_elements(2), "end"),
]


@pytest.mark.parametrize(("write", "shape"), WRITES)
@pytest.mark.parametrize("position", ["p = Identity(i)", "p = Sub(last, i)"])
def test_every_slice_is_written(write: str, shape: str, position: str) -> None:
    _collects(_writing(write, shape, position))


@pytest.mark.parametrize("write", [FIRST, _elements(0)])
@pytest.mark.parametrize("position", ["p = Identity(i)", "p = Add(i, one)", "p = Sub(last, i)"])
def test_unwritten_slices_stay(write: str, position: str) -> None:
    _collects(_writing(write, "longer", position))


TRANSPOSED = [
    (
        "qt = Transpose<perm=[1,0,2]>(q) k = Reshape(p, square) u = Unsqueeze(r, at0) "
        "w1 = ScatterND(qt, k, u) qo = Transpose<perm=[1,0,2]>(w1)",
        "second",
    ),
    (
        "qt = Transpose<perm=[2,0,1]>(q) k = Reshape(p, square) u = Unsqueeze(r, at0) "
        "w1 = ScatterND(qt, k, u) qo = Transpose<perm=[1,2,0]>(w1)",
        "end",
    ),
    (
        "qt = Transpose<perm=[2,1,0]>(q) k = Reshape(p, square) rt = Transpose(r) "
        "u = Unsqueeze(rt, at0) w1 = ScatterND(qt, k, u) qo = Transpose(w1)",
        "end",
    ),
    (
        "qt = Transpose<perm=[1,2,0]>(q) rt = Transpose(r) u = Unsqueeze(rt, at0) su = Shape(u) "
        "f = Reshape(p, cube) k = Expand(f, su) w1 = ScatterElements<axis=0>(qt, k, u) "
        "qo = Transpose<perm=[2,0,1]>(w1)",
        "second",
    ),
]
"""Writes to a transposed buffer, as `torch.export` spells `y[:, t] = r`."""


@pytest.mark.parametrize(("write", "shape"), TRANSPOSED)
@pytest.mark.parametrize("trip", ["n", "m"])
def test_a_transposed_buffer(write: str, shape: str, trip: str) -> None:
    _collects(_writing(write, shape, trip=trip))


def test_a_buffer_that_is_not_transposed_back_stays() -> None:
    write = TRANSPOSED[0][0].replace("qo = Transpose<perm=[1,0,2]>", "qo = Transpose<perm=[1,2,0]>")
    words = reason_of(ScatterToScanOutput, _writing(write, "second"))
    assert words == ScatterToScanOutput.no_accumulator


def test_a_transposed_buffer_that_is_read_stays() -> None:
    write = TRANSPOSED[0][0].replace(
        "u = Unsqueeze(r", "v = Gather(qt, i) z = Add(r, v) u = Unsqueeze(z"
    )
    words = reason_of(ScatterToScanOutput, _writing(write, "second"))
    assert words == ScatterToScanOutput.no_accumulator


def test_a_slice_of_a_range_as_the_position() -> None:
    """`y[t : t + 1] = r`, as `torch.export` spells it."""
    write = """numbers = Range(zero, n, one) from = Unsqueeze(p, at0) to = Add(from, one1)
        here = Slice(numbers, from, to, at0, one1) k = Unsqueeze(here, at1)
        u = Unsqueeze(r, at0) qo = ScatterND(q, k, u)"""
    result = rewritten(_writing(write), FEEDS, 1e-5)
    assert "ScatterND" not in ops(result.model)


def test_the_first_slice_may_be_unwritten() -> None:
    _collects(_writing(FIRST, "all", "p = Add(i, one)", trip="last"))


def test_positions_may_count_from_the_end() -> None:
    _collects(_writing(FIRST, "all", "j = Add(i, one) p = Neg(j)"))


@pytest.mark.parametrize("trip", ["m", "last"])
def test_any_number_of_iterations(trip: str) -> None:
    _collects(_writing(FIRST, "all", trip=trip))


def test_a_loop_that_ends_early_leaves_the_other_slices() -> None:
    model = _writing(FIRST, "all", going="j = Add(i, one) co = Less(j, m)")
    result, trace, _ = run_rules(model, [ScatterToScanOutput])
    assert len(trace.commits()) == 1
    assert_equivalent(model, result, FEEDS)


def test_a_buffer_of_no_elements_keeps_its_size() -> None:
    """No position is out of range there, however many slices the loop writes."""
    model = parse("""g (float[T,B] x, float[1,B] r, int64 m) => (float[T,B] w)
        <int64[2] square = {1, 1}> {
        w = Loop (m, , x) <body = b (int64 i, bool ci, float[T,B] q) => (bool co, float[T,B] qo) {
            co = Identity(ci) f = Reshape(i, square) sr = Shape(r) k = Expand(f, sr)
            qo = ScatterElements<axis=0>(q, k, r) }> }""")
    result, trace, _ = run_rules(model, [ScatterToScanOutput])
    assert len(trace.commits()) == 1
    assert_equivalent(model, result, FEEDS)


@pytest.mark.parametrize(
    ("write", "position", "trip", "words"),
    [
        (FIRST, "p = Mul(i, two)", "n", "not one after the other"),
        (FIRST, "p = Add(i, minus)", "n", "not one after the other"),
        (FIRST, "p = Sub(last, i)", "m", "not one after the other"),
        (FIRST, "p = Mul(i, i)", "n", "does not change by a fixed step"),
        (FIRST, "p = Mod(i, two)", "n", "does not change by a fixed step"),
        (
            "k = Reshape(p, square) u = Unsqueeze(r, at0) z = Neg(q) qo = ScatterND(z, k, u)",
            "p = Identity(i)",
            "n",
            "does not write to",
        ),
        (
            "k = Reshape(p, square) u = Unsqueeze(r, at0) qo = ScatterND<reduction=\"add\">(q, k, u)",
            "p = Identity(i)",
            "n",
            "does not overwrite",
        ),
        (
            "f = Gather(q, i) v = Add(f, r) k = Reshape(p, square) u = Unsqueeze(v, at0) "
            "qo = ScatterND(q, k, u)",
            "p = Identity(i)",
            "n",
            "is read in the body",
        ),
        (
            "j = Concat<axis=0>(at0, at0) k0 = Unsqueeze(p, at0) k1 = Concat<axis=0>(k0, at0) "
            "k = Unsqueeze(k1, at0) r1 = Slice(r, at0, one1) qo = ScatterND(q, k, r1)",
            "p = Identity(i)",
            "n",
            "writes only part of a slice",
        ),
    ],
)  # fmt: skip
def test_other_writes_stay(write: str, position: str, trip: str, words: str) -> None:
    assert words in reason_of(ScatterToScanOutput, _writing(write, "all", position, trip))


def test_a_loop_with_more_iterations_than_slices_stays() -> None:
    model = parse("""g (float[2,3] x, float[3] r) => (float[2,3] w)
        <int64 n = {5}, int64[2] square = {1, 1}, int64[1] at0 = {0}> {
        w = Loop (n, , x) <body = b (int64 i, bool ci, float[2,3] q) => (bool co, float[2,3] qo) {
            co = Identity(ci) k = Reshape(i, square) u = Unsqueeze(r, at0)
            qo = ScatterND(q, k, u) }> }""")
    assert "writes slices up to 5 of `q`, which has 2" in reason_of(ScatterToScanOutput, model)


def test_values_of_another_shape_than_the_indices() -> None:
    """onnxruntime accepts them, although the specification does not."""
    text = ScatterToScanOutput.fires.replace("value_ints=[0]", "value_ints=[1]")
    assert "another shape than its indices" in reason_of(ScatterToScanOutput, fixture(text))


def test_indices_without_an_axis_stay() -> None:
    """Such a model runs only without an iteration."""
    model = parse("""g (float[T,3] x, float[1,3] r, int64 n) => (float[T,3] ys) {
        ys = Loop (n, , x) <body = b (int64 i, bool ci, float[T,3] q) => (bool co, float[T,3] qo) {
            co = Identity(ci) qo = ScatterND(q, i, r) }> }""")
    assert "the number of indices per slice" in reason_of(ScatterToScanOutput, model)


def test_a_scan_output_of_a_node_that_always_fails_has_the_rank_of_a_slice() -> None:
    """onnxruntime knows no shape of it, and gives a scan output of no iterations one axis."""
    model = parse("""g (int64 n, float[1,2,2] q0) => (float[1,2,2] w)
        <float[2,1,2] rows = {1, 2, 3, 4}, int64 zero = {0}, int64[1] at0 = {0}, int64[2] square = {1, 1}> {
        w = Loop (n, , q0) <body = b (int64 i, bool ci, float[1,2,2] q) => (bool co, float[1,2,2] qo) {
            co = Identity(ci) at = Unsqueeze(i, at0) e = Slice(rows, at, at) r = Squeeze(e, at0)
            first = Reshape(zero, square) second = Reshape(i, square)
            k = Concat<axis = -1>(first, second) qo = ScatterND(q, k, r) }> }""")
    result = rewritten(model, Feeds(sizes=(2,), values={"n": [0]}, most=5))
    assert result.report.commits["FailingNodeToTrap"] == 1
    assert "Loop" in ops(result.model)
    assert "ScatterND" not in ops(result.model)


def test_a_buffer_of_another_rank_than_the_slices_need() -> None:
    """The original runs if the loop has no iteration; each iteration fails."""
    model = parse("""g (float[T,3] x, int64[1] n, int64 m) => (float[K] y) {
        first = ConstantOfShape(n)
        y = Loop(m, "", first) <body = b (int64 i, bool c, float[?,3] q)
            => (bool d, float[?,3] r) {
            d = Identity(c) row = Gather(x, i) at = Constant<value_ints = [1, 1]>()
            zero = Constant<value_ints = [0]>() k = Reshape(i, at) u = Unsqueeze(row, zero)
            r = ScatterND(q, k, u) }> }""")
    assert "another shape than its indices" in reason_of(ScatterToScanOutput, model)
