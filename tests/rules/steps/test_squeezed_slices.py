"""Elements that are read by a Slice with an end and a step beyond all sizes, as TensorFlow does."""

from __future__ import annotations

import onnx
import pytest

from looplift.api import rewrite
from looplift.rules.loops.squeezed_slices import SqueezedSliceToGather

from ...equivalence import assert_equivalent, ops, rewritten
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

STEPWISE = Feeds(sizes=(0, 1, 2, 3, 5))
ENDS = "f = Cast<to=1>(e) w = Max(f, big) h = Cast<to=6>(w) end = Where(none, least, h)"


def _reading(
    position: str, cut: str = ENDS, far: int = 1000000000, trip: str = "t", steps: str = "steps"
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
            e = Add(b, ones) begin = Where(none, all, b) {cut}
            v = Slice(x, begin, end, axes, {steps}) xt = Squeeze(v, along)
            co = Identity(ci) h2 = Mul(s, s) so = Sub(h2, xt) }}> }}""")


@pytest.mark.parametrize(
    "position", ["p = Identity(k)", "p = Sub(last, k)", "n = Neg(k) p = Add(n, last)"]
)
@pytest.mark.parametrize("steps", ["steps", "ones"])
def test_one_step_is_read_at_a_time(position: str, steps: str) -> None:
    """No Slice is left in the body: each iteration takes one slice of x."""
    result = rewritten(_reading(position, steps=steps), STEPWISE).model
    assert all(
        inner.op_type not in ("Slice", "Squeeze", "Where")
        for node in result.graph.node
        for attribute in node.attribute
        for inner in attribute.g.node
    )


@pytest.mark.parametrize("trip", ["m", "t"])
def test_a_position_that_may_be_before_the_axis(trip: str) -> None:
    """It then is that of the first element; behind the axis the run fails."""
    model = _reading("two = Add(one, one) q = Sub(last, k) p = Sub(q, two)", trip=trip)
    result = rewrite(model).model
    feeds = Feeds(sizes=(1, 2, 5), values={"m": [0, 1, 2, 5]})
    assert assert_equivalent(model, result, feeds) > 0


def test_an_end_within_reach_of_an_axis_stays() -> None:
    """B may be larger than 1000: the Slice takes only so many."""
    model = _reading("p = Identity(k)", far=1000)
    words = "cut as well"
    assert "Squeeze" in ops(rewrite(model).model)
    text = """g (float[B,3] x, int64[1] k) => (float[B] y) <int64[1] one = {1}, int64[1] zero = {0}, int64[1] far = {1000}, int64[2] axes = {0, 1}> {
        p = Concat<axis=0>(zero, k) e = Concat<axis=0>(far, far) s = Slice(x, p, e, axes) y = Squeeze(s, one) }"""
    assert words in reason_of(SqueezedSliceToGather, parse(text))


def test_strictly_floats_stay() -> None:
    model = _reading("p = Identity(k)")
    result = rewrite(model, strict=True).model
    assert "Squeeze" in ops(result)
    assert_equivalent(model, result, STEPWISE)
