"""Windows that hop along an axis of unknown length are gathered in front of the loop."""

from __future__ import annotations

import onnx
import pytest

from looplift.rewrite.facts.assertions import Assertions
from looplift.rules.vectorization.sliding_windows import VectorizeSlidingWindows

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse

LENGTHS = Feeds(sizes=(0, 1, 2, 3, 5, 8, 9, 16, 23), most=80)


def _framing(width: int, hop: int, count: str, first: int = 0) -> onnx.ModelProto:
    """`count` windows of x [B, W], the sum of each: an empty one has none the less."""
    return parse(f"""g (float[B,W] x, int64 m) => (float[N] y)
        <int64[1] ax = {{1}}, int64[1] at0 = {{0}}, int64 one = {{1}}, int64 width = {{{width}}},
         int64 hop = {{{hop}}}, int64 first = {{{first}}}, bool true = {{1}}> {{
        all = Shape(x) w = Gather(all, one) d = Sub(w, width) q = Div(d, hop) n = Add(q, one)
        more = Add(n, one) e0 = Sub(d, first) q0 = Div(e0, hop) fewer = Add(q0, one)
        y = Loop ({count}, true) <body = b (int64 i, bool ci) => (bool co, float r) {{
            co = Identity(ci) k = Mul(i, hop) p = Add(k, first) s = Unsqueeze(p, at0)
            f = Add(p, width) e = Unsqueeze(f, at0) v = Slice(x, s, e, ax)
            r = ReduceSum<keepdims=0>(v) }}> }}""")


@pytest.mark.parametrize(("width", "hop"), [(8, 4), (8, 8), (3, 1), (5, 7), (2, 3)])
def test_hops_count_what_the_division_gives(width: int, hop: int) -> None:
    """It rounds towards zero: an axis that is a little shorter has one window, all of it."""
    model = _framing(width, hop, "n")
    result, trace, _ = run_rules(model, [VectorizeSlidingWindows])
    assert trace.defects() == []
    assert len(trace.commits()) == 1
    assert assert_equivalent(model, result, LENGTHS) >= 20
    rewritten(model, LENGTHS, 1e-5)


def test_an_axis_that_has_room_needs_no_shorter_window() -> None:
    model = _framing(8, 4, "n")
    result, trace, _ = run_rules(
        model, [VectorizeSlidingWindows], assertions=Assertions(minima={"W": 8})
    )
    assert len(trace.commits()) == 1
    assert "Min" not in ops(result)
    assert_equivalent(model, result, Feeds(fixed={"W": 21}, sizes=(0, 1, 3)))


@pytest.mark.parametrize(
    ("width", "hop", "count", "first"),
    [(8, 4, "more", 0), (8, 4, "m", 0), (8, 4, "n", 1), (8, 4, "fewer", 2), (8, 2, "q", -1)],
)
def test_windows_that_may_be_short_stay(width: int, hop: int, count: str, first: int) -> None:
    model = _framing(width, hop, count, first)
    _, trace, _ = run_rules(model, [VectorizeSlidingWindows])
    assert trace.commits() == []
    rewritten(model, Feeds(sizes=(0, 1, 9, 16), values={"m": [0, 1, 4]}), 1e-5)


def test_a_loop_that_never_runs_has_no_windows() -> None:
    """The Slice in its body is shorter than a window; nobody ever sees it."""
    model = parse("""g (float[2,2] x) => (float[N] y)
        <int64[1] ax = {1}, int64[1] at0 = {0}, int64 none = {0}, int64 two = {2}, int64 three = {3}, bool true = {1}> {
        y = Loop (none, true) <body = b (int64 i, bool ci) => (bool co, float r) {
            co = Identity(ci) k = Mul(i, three) p = Add(k, two) s = Unsqueeze(p, at0) f = Add(p, two)
            e = Unsqueeze(f, at0) v = Slice(x, s, e, ax) r = ReduceSum<keepdims=0>(v) }> }""")
    _, trace, _ = run_rules(model, [VectorizeSlidingWindows])
    assert trace.defects() == []
    assert trace.commits() == []
