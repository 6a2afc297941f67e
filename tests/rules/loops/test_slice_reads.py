"""Reads of one slice per iteration become `Gather(x, iteration)`."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from looplift import rewrite
from looplift.rewrite.engine.rule import Options
from looplift.rules.loops.float_counters import FloatCounterToInteger
from looplift.rules.loops.slice_reads import (
    GatherAtIteration,
    SliceToGather,
    SqueezedSliceToGather,
)

from ...equivalence import (
    assert_equivalent,
    ops,
    optimized_session,
    outcome,
    rewritten,
    run_rules,
    session,
)
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(values={"m": [0, 1, 2, 7]})


def _reading(position: str, read: str = "Gather(x, k)", trip: str = "n") -> onnx.ModelProto:
    """A loop that reads slice k of x [T, B, 3], for as many slices as there are."""
    return parse(f"""g (float[T,B,3] x, float[B,3] s0, int64 m) => (float[B,3] y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, int64 minus = {{-1}}, int64 back = {{-3}}, int64 large = {{4294967296}},
         int64[1] first = {{0}}, int64[1] ones = {{1}}, int64[1] any = {{-1}}> {{
        all = Shape(x) n = Gather(all, zero) batch = Size(s0) last = Sub(n, one) half = Div(n, two)
        numbers = Range(zero, n, one)
        y = Loop ({trip}, , s0) <body = b (int64 i, bool ci, float[B,3] s)
            => (bool co, float[B,3] so) {{
            {position} xt = {read} co = Identity(ci) h = Mul(s, s) so = Sub(h, xt) }}> }}""")


@pytest.mark.parametrize(
    "position",
    [
        "k = Sub(last, i)",
        "j = Neg(i) k = Add(j, last)",
        "e = Sub(n, i) k = Sub(e, one)",
        "j = Mul(minus, i) k = Add(j, minus)",
        "k = Add(i, zero)",
        "w = Unsqueeze(i, first) k = Squeeze(w, first)",
        "v = Reshape(i, any) k = Reshape(v, scalar)",
        "c = Cast<to=6>(i) k = Cast<to=7>(c)",
        "k = Gather(numbers, i)",
        "v = Unsqueeze(i, first) e = Add(v, ones) c = Slice(numbers, v, e) k = Squeeze(c, first)",
        "j = Gather(numbers, i) k = Sub(last, j)",
    ],
)
def test_other_forms_of_a_position(position: str) -> None:
    position = position.replace("scalar)", "none)").replace(
        "v = Reshape", "none = Constant<value = int64[0] {}>() v = Reshape"
    )
    model = _reading(position)
    result, trace, _ = run_rules(model, [GatherAtIteration])
    assert trace.defects() == []
    assert "GatherAtIteration" in [commit.rule for commit in trace.commits()]
    assert_equivalent(model, result, FEEDS)
    rewritten(model, FEEDS)


@pytest.mark.parametrize(
    ("position", "trip"),
    [
        ("k = Add(i, one)", "last"),
        ("d = Mul(i, two) k = Add(d, one)", "half"),
        ("k = Mul(two, i)", "half"),
        ("d = Mul(i, two) k = Sub(minus, d)", "half"),
    ],
)
def test_strides_and_offsets_are_sliced_before_the_loop(position: str, trip: str) -> None:
    model = _reading(position, trip=trip)
    result, trace, _ = run_rules(model, [GatherAtIteration])
    assert len(trace.commits()) == 1
    assert any(node.op_type == "Slice" for node in result.graph.node)
    assert_equivalent(model, result, FEEDS)


@pytest.mark.parametrize("read", ["Gather<axis=1>(z, k)", "Gather<axis=-2>(z, k)"])
def test_any_axis(read: str) -> None:
    model = parse(f"""g (float[B,T,3] z, float[B,3] s0) => (float[B,3] y) <int64 one = {{1}}> {{
        all = Shape(z) n = Gather(all, one) last = Sub(n, one)
        y = Loop (n, , s0) <body = b (int64 i, bool ci, float[B,3] s) => (bool co, float[B,3] so) {{
            k = Sub(last, i) xt = {read} co = Identity(ci) h = Mul(s, s) so = Sub(h, xt) }}> }}""")
    result = rewritten(model, Feeds())
    assert result.report.commits["GatherAtIteration"] == 1


def test_a_position_with_an_axis_keeps_it() -> None:
    model = _reading("v = Unsqueeze(i, first) k = Sub(last, v)", "Squeeze(w, first)")
    model = parse(_text(model).replace("xt = Squeeze", "w = Gather(x, k) xt = Squeeze"))
    result, trace, _ = run_rules(model, [GatherAtIteration])
    assert len(trace.commits()) == 1
    assert_equivalent(model, result, FEEDS)


def _text(model: onnx.ModelProto) -> str:
    text: str = onnx.printer.to_text(model.graph)
    return text


@pytest.mark.parametrize(
    ("position", "trip", "words"),
    [
        ("k = Sub(last, i)", "m", "is not known to stay within"),
        ("k = Sub(batch, i)", "n", "is not the last of `x`"),
        ("k = Add(i, batch)", "n", "is not a known number"),
        ("k = Sub(m, i)", "n", "is not known"),
        ("k = Add(i, m)", "n", "is not known"),
        ("k = Sub(back, i)", "half", "may be outside `x`"),
        ("e = Mul(i, large) q = Cast<to=6>(e) k = Cast<to=7>(q)", "half", "is not known"),
        ("k = Add(i, minus)", "n", "counts from the end"),
        ("k = Mul(i, i)", "n", "does not change by a fixed step"),
        ("k = Div(i, two)", "n", "does not change by a fixed step"),
        ("f = Cast<to=1>(i) g = Sqrt(f) k = Cast<to=7>(g)", "n", "is not known"),
    ],
)
def test_other_positions_stay(position: str, trip: str, words: str) -> None:
    model = _reading(position, trip=trip)
    _, trace, _ = run_rules(model, [GatherAtIteration])
    assert trace.commits() == []
    assert words in _reason(model)


def test_a_position_before_the_axis_fails_as_before() -> None:
    """A Slice would start at the first slice."""
    model = _reading("k = Sub(back, i)", trip="m")
    result = rewrite(model, strict=True).model
    feed = {
        "x": np.ones((2, 1, 3), np.float32),
        "s0": np.zeros((1, 3), np.float32),
        "m": np.array(1),
    }
    assert outcome(session(model), feed) is None
    assert outcome(session(result), feed) is None


def test_a_position_from_the_end_that_is_within_the_axis() -> None:
    model = parse("""g (float[4,3] x, float[3] s0, int64 m) => (float[3] y) <int64 back = {-3}> {
        y = Loop (m, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
            k = Sub(back, i) xt = Gather(x, k) co = Identity(ci) h = Mul(s, s) so = Sub(h, xt) }> }""")
    result, trace, _ = run_rules(model, [GatherAtIteration])
    assert len(trace.commits()) == 1
    assert_equivalent(model, result, FEEDS, fails_alike=True)


def _reason(model: onnx.ModelProto) -> str:
    """The reason at the Gather in the body; the Gather outside becomes a Slice first."""
    text = _text(model).replace(
        "n = Gather (all, zero)", "v = Slice (all, first, ones) n = Squeeze (v)"
    )
    return reason_of(GatherAtIteration, parse(text))


def test_several_positions_at_once_stay() -> None:
    model = parse("""g (float[T,3] x, float[2,3] s0, int64[2] p, int64 n) => (float[2,3] y) {
        y = Loop (n, , s0) <body = b (int64 i, bool ci, float[2,3] s) => (bool co, float[2,3] so) {
            k = Add(p, i) xt = Gather(x, k) co = Identity(ci) so = Max(s, xt) }> }""")
    assert "is not a single number" in reason_of(GatherAtIteration, model)


def test_a_read_of_an_inner_value_stays() -> None:
    model = parse("""g (float[3] s0, int64 n) => (float[3] y) <int64 minus = {-1}> {
        y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
            k = Sub(minus, i) e = Exp(s) xt = Gather(e, k) co = Identity(ci) so = Max(s, xt) }> }""")
    assert "is computed in the body" in reason_of(GatherAtIteration, model)


def test_a_read_in_a_branch_stays() -> None:
    model = parse("""g (float[T,3] x, float[3] s0, int64 n, bool c) => (float[3] y) <int64 minus = {-1}> {
        y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
            co = Identity(ci) k = Sub(minus, i)
            so = If (c) <then_branch = t () => (float[3] u) { u = Gather(x, k) },
                         else_branch = e () => (float[3] v) { v = Neg(s) }> }> }""")
    assert "not in the body of a Loop" in reason_of(GatherAtIteration, model)


@pytest.mark.parametrize("position", ["k = Add(i, one)", "d = Mul(i, two) k = Sub(minus, d)"])
def test_a_run_that_leaves_the_axis_still_fails(position: str) -> None:
    model = _reading(position, trip="n")
    result, trace, _ = run_rules(model, [GatherAtIteration])
    assert len(trace.commits()) == 1
    failed = 0
    for feed in FEEDS.of(model):
        if outcome(optimized_session(model), feed) is None:
            failed += 1
            assert outcome(optimized_session(result), feed) is None
    assert failed > 0


# --- Slice ---


def _slicing(read: str, trip: str = "n") -> onnx.ModelProto:
    """A loop that slices one element out of x [B, T, 3] along axis 1 in each iteration."""
    return parse(f"""g (float[B,T,3] x, float[B,1,3] s0, int64 m) => (float[B,1,3] y)
        <int64[1] one = {{1}}, int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[1] far = {{{2**63 - 1}}},
         int64[1] minus = {{-1}}, int64[1] second = {{-2}}> {{
        all = Shape<start=1, end=2>(x) n = Squeeze(all, zero)
        y = Loop ({trip}, , s0) <body = b (int64 i, bool ci, float[B,1,3] s)
            => (bool co, float[B,1,3] so) {{
            k = Unsqueeze(i, zero) e = Add(k, one) co = Identity(ci)
            {read} h = Mul(s, s) so = Sub(h, xt) }}> }}""")


@pytest.mark.parametrize(
    "read",
    [
        "xt = Slice(x, k, e, one)",
        "xt = Slice(x, k, e, second)",
        "xt = Slice(x, k, e, one, one)",
        """p = Concat<axis=0>(zero, k, zero) q = Concat<axis=0>(far, e, far)
           xt = Slice(x, p, q)""",
        """p = Concat<axis=0>(k, zero) q = Concat<axis=0>(e, far) a = Concat<axis=0>(one, zero)
           xt = Slice(x, p, q, a)""",
        "j = Sub(all, e) f = Add(j, one) xt = Slice(x, j, f, one)",
    ],
)
def test_other_forms_of_a_slice(read: str) -> None:
    model = _slicing(read)
    result, trace, _ = run_rules(model, [SliceToGather])
    assert trace.defects() == []
    assert len(trace.commits()) == 1
    assert_equivalent(model, result, FEEDS)
    assert rewritten(model, FEEDS).report.commits["SliceToGather"] == 1


@pytest.mark.parametrize(
    ("read", "trip", "words"),
    [
        ("xt = Slice(x, k, e, one)", "m", "may be outside the axis"),
        ("f = Add(k, two) w = Slice(x, k, f, one) xt = ReduceSum(w, one)", "n", "more than one"),
        ("xt = Slice(x, k, e, one, two)", "n", "steps are not 1"),
        (
            "p = Concat<axis=0>(k, k) q = Concat<axis=0>(e, e) a = Concat<axis=0>(one, zero) "
            "w = Slice(x, p, q, a) xt = ReduceSum(w, zero)",
            "n",
            "it slices 2 axes",
        ),
        ("j = Sub(minus, k) f = Add(j, one) xt = Slice(x, j, f, one)", "n", "may be outside"),
        ("z = Tanh(x) xt = Slice(z, k, e, one)", "n", "is computed in the body"),
        ("v = Mul(k, k) f = Add(v, one) xt = Slice(x, v, f, one)", "n", "fixed step"),
    ],
)
def test_slices_that_are_not_one_element_stay(read: str, trip: str, words: str) -> None:
    assert words in reason_of(SliceToGather, _slicing(read, trip))


def test_a_slice_past_the_end_stays_empty() -> None:
    model = parse("""g (float[T,3] x, float[P,3] s0, int64 m) => (float[Q,3] y)
        <int64[1] one = {1}, int64[1] zero = {0}> {
        y = Loop (m, , s0) <body = b (int64 i, bool ci, float[P,3] s) => (bool co, float[R,3] so) {
            k = Unsqueeze(i, zero) e = Add(k, one) co = Identity(ci)
            w = Slice(x, k, e, zero) so = Concat<axis=0>(s, w) }> }""")
    rewritten(model, FEEDS)


# --- Squeeze of a Slice ---


SMALL = Feeds(sizes=(0, 1, 2, 3, 5))
ENDS = "f = Cast<to=1>(e) w = Max(f, big) h = Cast<to=6>(w) end = Where(none, least, h)"


def _squeezing(
    position: str, end: str = ENDS, far: int = 1000000000, trip: str = "t", steps: str = "steps"
) -> onnx.ModelProto:
    """A loop that reads x[:, p] of x [B, T, 3]."""
    return parse(f"""g (float[B,T,3] x, float[B,3] s0, int64 m) => (float[B,3] y)
        <int32 one = {{1}}, int64[1] along = {{1}}, int64[1] first = {{0}}, int64 at = {{1}},
         int32[1] zero = {{0}}, bool[2] none = {{0, 0}}, int32[2] all = {{{far}, {far}}}, int32[2] least = {{-1, -1}},
         float[2] big = {{{far}, {far}}}, int32[2] steps = {{1, {far}}}, int32[2] ones = {{1, 1}}, int32[2] axes = {{0, 1}}> {{
        shape = Shape(x) t = Gather(shape, at) short = Cast<to=6>(t) last = Sub(short, one)
        y = Loop ({trip}, , s0) <body = b (int64 i, bool ci, float[B,3] s)
            => (bool co, float[B,3] so) {{
            k = Cast<to=6>(i) {position} u = Unsqueeze(p, first) b = Concat<axis=0>(zero, u)
            e = Add(b, ones) begin = Where(none, all, b) {end}
            v = Slice(x, begin, end, axes, {steps}) xt = Squeeze(v, along)
            co = Identity(ci) h2 = Mul(s, s) so = Sub(h2, xt) }}> }}""")


@pytest.mark.parametrize(
    "position", ["p = Identity(k)", "p = Sub(last, k)", "n = Neg(k) p = Add(n, last)"]
)
@pytest.mark.parametrize("steps", ["steps", "ones"])
def test_each_iteration_reads_one_slice(position: str, steps: str) -> None:
    """No Slice is left in the body."""
    result = rewritten(_squeezing(position, steps=steps), SMALL).model
    assert all(
        inner.op_type not in ("Slice", "Squeeze", "Where")
        for node in result.graph.node
        for attribute in node.attribute
        for inner in attribute.g.node
    )


@pytest.mark.parametrize("trip", ["m", "t"])
def test_a_position_that_may_be_before_the_axis(trip: str) -> None:
    """It becomes that of the first element; a position past the axis fails."""
    model = _squeezing("two = Add(one, one) q = Sub(last, k) p = Sub(q, two)", trip=trip)
    result = rewrite(model).model
    feeds = Feeds(sizes=(1, 2, 5), values={"m": [0, 1, 2, 5]})
    assert assert_equivalent(model, result, feeds) > 0


def test_an_end_that_an_axis_may_reach_stays() -> None:
    """B may be larger than 1000, of which the Slice takes 1000."""
    model = _squeezing("p = Identity(k)", far=1000)
    words = "is sliced as well"
    assert "Squeeze" in ops(rewrite(model).model)
    text = """g (float[B,3] x, int64[1] k) => (float[B] y) <int64[1] one = {1}, int64[1] zero = {0}, int64[1] far = {1000}, int64[2] axes = {0, 1}> {
        p = Concat<axis=0>(zero, k) e = Concat<axis=0>(far, far) s = Slice(x, p, e, axes) y = Squeeze(s, one) }"""
    assert words in reason_of(SqueezedSliceToGather, parse(text))


def test_strict_keeps_bounds_that_are_computed_as_floats() -> None:
    model = _squeezing("p = Identity(k)")
    result = rewrite(model, strict=True).model
    assert "Squeeze" in ops(result)
    assert_equivalent(model, result, SMALL)


STARTS = [[0], [2], [-1], [-9]]


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_a_squeezed_slice_starts_where_a_slice_does(dtype: str) -> None:
    """A start before the axis means its first element."""
    text = f"""g (float[N,3] x, {dtype}[1] k) => (float[3] y) <int64[1] zero = {{0}}, {dtype}[1] ax = {{0}}, {dtype}[1] big = {{99999}}> {{
        s = Slice(x, k, big, ax, big) y = Squeeze(s, zero) }}"""
    model = parse(text)
    result, trace, _ = run_rules(model, [SqueezedSliceToGather])
    assert trace.defects() == []
    assert "Squeeze" not in ops(result)
    kind = np.dtype(dtype)
    feeds = Feeds(sizes=(1, 3), values={"k": [np.array(s, kind) for s in STARTS]})
    assert assert_equivalent(model, result, feeds) >= 4


def test_the_other_axes_of_a_squeezed_slice_are_whole() -> None:
    text = """g (float[3,1] x, int64 k) => (float[1] y) <int64[2] axes = {0, 1}, int64[1] zero = {0}, float[2] big = {9999, 9999}, int64[2] steps = {9999, 1}> {
        p = Unsqueeze(k, zero) b = Concat<axis=0>(p, zero) f = Cast<to=1>(b) m = Max(f, big) e = Cast<to=7>(m)
        s = Slice(x, b, e, axes, steps) y = Squeeze(s, zero) }"""
    result, _, _ = run_rules(parse(text), [FloatCounterToInteger, SqueezedSliceToGather])
    assert "Squeeze" not in ops(result)
    assert_equivalent(parse(text), result, Feeds(values={"k": [0, 1, 2, -1, -3]}))


def test_strict_keeps_a_squeezed_slice() -> None:
    text = """g (float[N,3] x, int64[1] k, int64[1] e) => (float[3] y) <int64[1] zero = {0}> {
        s = Slice(x, k, e, zero) y = Squeeze(s, zero) }"""
    reason = reason_of(SqueezedSliceToGather, parse(text), Options(strict=True))
    assert "strict" in reason
