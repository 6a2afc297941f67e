"""Reads of slices of a buffer that the previous iteration, or none, has written."""

from __future__ import annotations

import onnx
import pytest

from looplift.rewrite.engine.rule import Options
from looplift.rules.loops.buffer_reads import CarryWrittenSlice, ReadInitialBuffer

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(sizes=(0, 1, 2, 5), values={"m": [0, 1, 2, 5]}, most=60)
READ = "s = Gather(q, i)"
FIRST = "k = Reshape(p, square) u = Unsqueeze(r, at0) qo = ScatterND(q, k, u)"
ELEMENTS = """u = Unsqueeze(r, at0) su = Shape(u) f = Reshape(p, cube) k = Expand(f, su)
    qo = ScatterElements<axis=0>(q, k, u)"""
SECOND = """u = Unsqueeze(r, at1) su = Shape(u) f = Reshape(p, cube) k = Expand(f, su)
    qo = ScatterElements<axis=1>(q, k, u)"""
TRANSPOSED = """qt = Transpose<perm=[1,0,2]>(q) k = Reshape(p, square) u = Unsqueeze(r, at0)
    w1 = ScatterND(qt, k, u) qo = Transpose<perm=[1,0,2]>(w1)"""


def _model(
    write: str = FIRST,
    read: str = READ,
    position: str = "p = Add(i, one)",
    trip: str = "n",
    shape: str = "first",
    going: str = "co = Identity(ci)",
) -> onnx.ModelProto:
    """A loop over x [T, B, 3] whose iteration i reads slice i of q, and writes slice i + 1."""
    return parse(f"""g (float[T,B,3] x, int64 m) => (float[P,Q,3] w)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, int64[1] at0 = {{0}}, int64[1] at1 = {{1}},
         int64[1] one1 = {{1}}, int64[1] three1 = {{3}}, int64[2] square = {{1, 1}},
         int64[3] cube = {{1, 1, 1}}, int64[1] end = {{9223372036854775807}}, int64[1] minus = {{-1}}, float half = {{0.5}}> {{
        all = Shape(x) nt = Gather(all, at0) nb = Gather(all, at1) n = Squeeze(nt, at0)
        longer = Add(nt, one1) first = Concat<axis=0>(longer, nb, three1)
        second = Concat<axis=0>(nb, longer, three1) zeros = ConstantOfShape({shape})
        start = Add(zeros, half)
        w = Loop ({trip}, , start) <body = b (int64 i, bool ci, float[P,Q,3] q)
            => (bool co, float[P,Q,3] qo) {{
            {going} xt = Gather(x, i) {read} h = Mul(s, s) d = Sub(h, xt) r = Tanh(d)
            {position} {write} }}> }}""")


@pytest.mark.parametrize(
    ("write", "read", "shape"),
    [
        (FIRST, READ, "first"),
        (ELEMENTS, READ, "first"),
        (FIRST, "j = Unsqueeze(i, at0) s0 = Gather(q, j) s = Squeeze(s0, at0)", "first"),
        (FIRST, "j = Sub(p, one) s1 = Gather(q, j) s0 = Gather(q, i) s = Max(s0, s1)", "first"),
        (SECOND, "s = Gather<axis=1>(q, i)", "second"),
        (TRANSPOSED, "s = Gather<axis=-2>(q, i)", "second"),
    ],
)
@pytest.mark.parametrize("trip", ["n", "m"])
def test_the_slice_is_carried(write: str, read: str, shape: str, trip: str) -> None:
    position = "" if "p, one" in read else "p = Add(i, one)"
    read = read if position else f"p = Add(i, one) {read}"
    model = _model(write, read, position, trip, shape)
    result, trace, _ = run_rules(model, [CarryWrittenSlice])
    assert trace.defects() == []
    assert [commit.rule for commit in trace.commits()] == ["CarryWrittenSlice"]
    assert_equivalent(model, result, FEEDS)
    assert not {"ScatterND", "ScatterElements"} & set(ops(rewritten(model, FEEDS, 1e-5).model))


def test_a_loop_that_ends_early() -> None:
    model = _model(going="j = Add(i, one) co = Less(j, m)")
    result, trace, _ = run_rules(model, [CarryWrittenSlice])
    assert len(trace.commits()) == 1
    assert_equivalent(model, result, FEEDS)


OTHER = "reads other slices of `q` than the one"


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"read": "s = Gather(q, zero)"}, "by a fixed step"),
        ({"position": "p = Add(i, two)"}, OTHER),
        ({"position": "p = Identity(i)"}, "slices are written from 0"),
        ({"read": "j = Mul(i, two) s = Gather(q, j)"}, OTHER),
        ({"read": "j = Add(i, one) s = Gather(q, j)"}, OTHER),
        ({"read": "s0 = Gather(q, i) a = Neg(q) s1 = Gather(a, i) s = Add(s0, s1)"}, OTHER),
        ({"read": "j = Concat<axis=0>(at0, at0) s0 = Gather(q, j) s = ReduceMax<keepdims=0>(s0)"}, OTHER),
        ({"read": "s0 = Gather<axis=1>(q, i) s = ReduceMax<keepdims=0>(s0)"}, OTHER),
        ({"position": "j = Sub(n, i) p = Sub(j, one)"}, "slices are written from"),
    ],
)  # fmt: skip
def test_other_reads_stay(parts: dict[str, str], words: str) -> None:
    assert words in reason_of(CarryWrittenSlice, _model(**parts))


def test_strict_keeps_a_loop_that_may_leave_the_buffer() -> None:
    words = reason_of(CarryWrittenSlice, _model(trip="m"), Options(strict=True))
    assert "past the end" in words
    _, trace, _ = run_rules(_model(), [CarryWrittenSlice], options=Options(strict=True))
    assert len(trace.commits()) == 1


def test_a_buffer_that_may_be_empty_stays() -> None:
    model = parse("""g (float[P,3] x, int64 m) => (float[P,3] w)
        <int64 one = {1}, int64[1] at0 = {0}, int64[2] square = {1, 1}> {
        w = Loop (m, , x) <body = b (int64 i, bool ci, float[P,3] q) => (bool co, float[P,3] qo) {
            co = Identity(ci) s = Gather(q, i) r = Sin(s) p = Add(i, one) k = Reshape(p, square)
            u = Unsqueeze(r, at0) qo = ScatterND(q, k, u) }> }""")
    assert "may be empty" in reason_of(CarryWrittenSlice, model)


IN_PLACE = "p = Identity(i)"
"""Iteration i writes slice i."""
INITIAL = {
    "a Gather": {"read": "s = Gather(q, p)"},
    "ScatterElements": {"read": "s = Gather(q, p)", "write": ELEMENTS},
    "the second axis": {"read": "s = Gather<axis=1>(q, p)", "write": SECOND, "shape": "second"},
    "a transposed buffer": {"read": "s = Gather<axis=-2>(q, p)", "write": TRANSPOSED, "shape": "second"},
    "several reads": {"read": "a = Gather(q, p) j = Reshape(p, one1) t = Gather(q, j) e = Squeeze(t, at0) s = Max(a, e)"},
    "the next slice": {"read": "j = Add(p, one) a = Gather(q, j) t = Gather(q, p) s = Sub(a, t)"},
    "all that follow": {"read": "j = Unsqueeze(p, at0) a = Slice(q, j, end, at0) s = ReduceMax<axes=[0], keepdims=0>(a)"},
    "one slice of others": {
        "read": "j = Unsqueeze(p, at0) f = Add(j, one1) a = Slice(q, j, f, at0) s = Squeeze(a, at0)"
    },
    "backwards": {"position": "j = Sub(n, i) p = Sub(j, one)", "read": "s = Gather(q, p)"},
    "from the end": {"position": "j = Neg(i) p = Sub(j, one)", "read": "s = Gather(q, p)"},
    "from the second": {"position": "p = Add(i, one)", "read": "s = Gather(q, p)"},
    "every other": {"position": "p = Mul(i, two)", "read": "s = Gather(q, p)"},
    "a branch": {
        "read": """most = ReduceMax<keepdims=0>(xt) c = Greater(most, half) s = If(c) <
            then_branch = t () => (v) { v = Gather(q, p) }, else_branch = e () => (v) { v = Identity(xt) }>"""
    },
}  # fmt: skip


@pytest.mark.parametrize("parts", INITIAL.values(), ids=INITIAL)
def test_unwritten_slices_are_read_before_the_loop(parts: dict[str, str]) -> None:
    position = parts.get("position", IN_PLACE)
    parts = {**parts, "read": f"{position} {parts['read']}", "position": ""}
    model = _model(**parts)
    result, trace, engine = run_rules(model, [ReadInitialBuffer])
    assert trace.defects() == []
    assert [commit.rule for commit in trace.commits()] == ["ReadInitialBuffer"]
    assert_equivalent(model, result, FEEDS)
    (loop,) = (node for node in engine.index.walk() if node.op == "Loop")
    assert engine.index.use_count(loop.attrs["body"].inputs[2]) == 1
    rewritten(model, FEEDS, 1e-5)


@pytest.mark.parametrize("opset", [11, 12])
def test_rows_in_place(opset: int) -> None:
    model = parse(
        """g (float[T,B,3] x) => (float[T,B,3] y) <int64[2] square = {1, 1}> {
        n = Shape(x) zero = Constant<value=int64 {0}>() t = Gather(n, zero)
        y = Loop (t, , x) <body = b (int64 i, bool ci, float[T,B,3] q) => (bool co, float[T,B,3] qo) {
            co = Identity(ci) s = Gather(q, i) r = Tanh(s) k = Reshape(i, square)
            u = Unsqueeze<axes=[0]>(r) qo = ScatterND(q, k, u) }> }""",
        opset,
    )
    assert "Loop" not in ops(rewritten(model, FEEDS, 1e-6).model)


def test_rows_that_the_loop_does_not_reach_keep_their_values() -> None:
    model = parse("""g (float[T,B,3] x, int64 m) => (float[T,B,3] y) <int64[2] square = {1, 1}, int64[1] at0 = {0}, int64 one = {1}> {
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[T,B,3] q) => (bool co, float[T,B,3] qo) {
            co = Identity(ci) p = Add(i, one) s = Gather(q, p) r = Tanh(s) k = Reshape(p, square)
            u = Unsqueeze(r, at0) qo = ScatterND(q, k, u) }> }""")
    feeds = Feeds(sizes=(0, 1, 2, 5), values={"m": [0, 1, 3, 4]})
    assert "Loop" not in ops(rewritten(model, feeds, 1e-6).model)


def test_a_row_that_depends_on_the_previous_one() -> None:
    """The present row is that of the initial value, the previous one is carried."""
    model = _model(
        read="p = Add(i, one) a = Gather(q, i) t = Gather(q, p) s = Sub(a, t)", position=""
    )
    result = rewritten(model, FEEDS, 1e-5)
    assert result.report.commits["ReadInitialBuffer"] == 1
    assert result.report.commits["CarryWrittenSlice"] == 1
    assert "ScatterND" not in ops(result.model)


def test_indices_that_are_proven_to_be_in_range() -> None:
    """JAX leaves out updates whose positions are out of range; the trip count proves that none is."""
    model = parse("""g (float[6,B,3] x) => (float[6,B,3] y)
        <int64[2] square = {1, 1}, int64[1] at0 = {0}, int64[1] one = {1}, int64[1] five = {5}, int64 n = {6}> {
        y = Loop (n, , x) <body = b (int64 i, bool ci, float[6,B,3] q) => (bool co, float[6,B,3] qo) {
            co = Identity(ci) s = Gather(q, i) r = Tanh(s) k = Reshape(i, square) u = Unsqueeze(r, at0)
            v = Reshape(i, one) low = GreaterOrEqual(v, at0) high = LessOrEqual(v, five) in = And(low, high)
            w = NonZero(in) f = Squeeze(w, at0) kv = Gather(k, f) uv = Gather(u, f)
            qo = ScatterND(q, kv, uv) }> }""")
    assert "Loop" not in ops(rewritten(model, FEEDS, 1e-6).model)


WRITTEN = "may have been written by an earlier iteration"


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"read": "j = Sub(p, one) s = Gather(q, j)"}, "may go around"),
        ({"position": "p = Add(i, two)", "read": "j = Sub(p, one) s = Gather(q, j)"}, WRITTEN),
        ({"read": "j = Mul(p, two) s = Gather(q, j)"}, WRITTEN),
        ({"read": "s = Gather(q, zero)"}, "by a fixed step"),
        ({"position": "j = Sub(n, i) p = Sub(j, one)", "read": "j1 = Add(p, one) s = Gather(q, j1)"}, WRITTEN),
        ({"position": "j = Sub(n, i) p = Sub(j, one)", "read": "f = Unsqueeze(p, at0) a = Slice(q, f, end, at0) s = ReduceMax<axes=[0], keepdims=0>(a)"}, WRITTEN),
        ({"position": "p = Sub(i, one)", "read": "s = Gather(q, p)"}, "may go around"),
        ({"position": "p = Sub(two, i)", "read": "s = Gather(q, p)"}, "may go around"),
        ({"read": "s = ReduceMax<axes=[0], keepdims=0>(q)"}, "in another way than by slices"),
        ({"read": "a = Gather<axis=1>(q, p) s = ReduceMax<axes=[0], keepdims=0>(a)"}, "in another way than by slices"),
        ({"read": "f = Unsqueeze(p, at0) a = Slice(q, f, end, at0, minus) s = ReduceMax<axes=[0], keepdims=0>(a)"}, "in another way than by slices"),
    ],
)  # fmt: skip
def test_slices_that_may_be_written_are_read_in_the_loop(parts: dict[str, str], words: str) -> None:
    position = parts.get("position", IN_PLACE)
    model = _model(read=f"{position} {parts['read']}", position="")
    assert words in reason_of(ReadInitialBuffer, model)
    rewritten(model, FEEDS, 1e-5)
