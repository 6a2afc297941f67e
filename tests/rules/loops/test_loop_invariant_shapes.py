"""Shapes of values in a loop are computed before the loop."""

from __future__ import annotations

import pytest

from looplift.rules.loops.loop_invariant_shapes import HoistLoopInvariantShape

from ...equivalence import assert_equivalent, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(values={"m": [0, 1, 2, 7]})


@pytest.mark.parametrize(
    "size",
    [
        "v = Mul(s, s) n = Shape(v)",
        "n = Shape<start=1>(s)",
        "n = Shape<start=-2, end=2>(s)",
        "v = Transpose<perm=[2,0,1]>(s) n = Shape(v)",
        "v = Concat<axis=1>(s, w) n = Shape<end=1>(v)",
        "v = Unsqueeze(s, at0) n = Shape(v)",
    ],
)
def test_sizes_of_carried_values_are_those_of_outer_values(size: str) -> None:
    model = parse(f"""g (float[A,B,3] x, float[A,C,3] w, int64 m) => (float[A,B,3] y)
        <int64[1] at0 = {{0}}> {{
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[A,B,3] s) => (bool co, float[A,B,3] so) {{
            co = Identity(ci) {size} f = Cast<to=1>(n) t = ReduceSum<keepdims=0>(f)
            so = Add(s, t) }}> }}""")
    result, trace, _ = run_rules(model, [HoistLoopInvariantShape])
    assert trace.defects() == []
    assert len(trace.commits()) == 1
    (loop,) = (node for node in result.graph.node if node.op_type == "Loop")
    assert "Shape" not in [node.op_type for node in loop.attribute[0].g.node]
    assert_equivalent(model, result, FEEDS)


def test_a_computed_size_is_that_of_the_initial_value() -> None:
    """No input has an axis of N // 2 + 1 elements, but the initial value has."""
    model = parse("""g (float[N] x, int64 m) => (float[P] y)
        <int64[1] two = {2}, int64[1] one = {1}, int64[1] zero = {0}> {
        all = Shape(x) h = Div(all, two) n1 = Add(h, one) z = ConstantOfShape(n1)
        y = Loop (m, , z) <body = b (int64 i, bool ci, float[P] s) => (bool co, float[P] so) {
            co = Identity(ci) n = Shape(s) f = Cast<to=1>(n) t = ReduceSum<keepdims=0>(f)
            so = Add(s, t) }> }""")
    result, trace, _ = run_rules(model, [HoistLoopInvariantShape])
    assert len(trace.commits()) == 1
    (loop,) = (node for node in result.graph.node if node.op_type == "Loop")
    assert "Shape" not in [node.op_type for node in loop.attribute[0].g.node]
    assert_equivalent(model, result, FEEDS)


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ("n = Shape(s) so = Concat<axis=0>(s, w)", "not the size of an outer value"),
        ("n = Shape(w) so = Neg(s)", "is already an outer value"),
        ("z = NonZero(s) n = Shape(z) so = Neg(s)", "not the size of an outer value"),
    ],
)
def test_sizes_that_change_stay(update: str, words: str) -> None:
    model = parse(f"""g (float[A,3] x, float[A,3] w, int64 m) => (float[P,3] y, int64[K,2] ns) {{
        y, ns = Loop (m, , x) <body = b (int64 i, bool ci, float[P,3] s)
            => (bool co, float[Q,3] so, int64[2] row) {{
            co = Identity(ci) {update} row = Neg(n) }}> }}""")
    assert words in reason_of(HoistLoopInvariantShape, model)
    rewritten(model, FEEDS)


def test_a_size_that_is_known_only_after_the_loop_stays() -> None:
    model = parse("""g (float[A,3] x, int64 m) => (float[A,3] y, float[A,3] z) {
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[A,3] s) => (bool co, float[A,3] so) {
            co = Identity(ci) p = NonZero(s) n = Shape(p) f = Cast<to=1>(n)
            t = ReduceSum<keepdims=0>(f) so = Add(s, t) }>
        z = Neg(y) }""")
    _, trace, _ = run_rules(model, [HoistLoopInvariantShape])
    assert trace.commits() == []
    rewritten(model, FEEDS)
