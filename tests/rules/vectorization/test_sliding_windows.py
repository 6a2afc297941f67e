"""VectorizeSlidingWindows gathers all windows before the loop."""

from __future__ import annotations

import onnx
import pytest

from looplift.rewrite.facts.assertions import Assertions
from looplift.rules.vectorization.sliding_windows import VectorizeSlidingWindows

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse

LENGTHS = Feeds(sizes=(0, 1, 2, 3, 5, 8, 9, 16, 23), most=80)


WINDOWS = {
    "from the first": ("i", "4", 6),
    "from the third": ("Add(i, two)", "3", 5),
    "every other": ("Mul(i, two)", "2", 4),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("start", "extent", "trips"), WINDOWS.values(), ids=WINDOWS)
def test_windows_along_a_static_axis(axis: int, start: str, extent: str, trips: int) -> None:
    shape = "9,2,3" if axis == 0 else "2,9,3"
    place = "Identity(i)" if start == "i" else start
    text = f"""g (float[{shape}] xs) => (rs) <bool true = {{1}}, int64 n = {{{trips}}}, int64 two = {{2}},
        int64[1] ax = {{{axis}}}, int64[1] zero = {{0}}, int64[1] extent = {{{extent}}}> {{
        rs = Loop (n, true) <body = b (int64 i, bool ci) => (bool co, r) {{
            co = Identity(ci) p = {place} b = Unsqueeze(p, zero) e = Add(b, extent)
            w = Slice(xs, b, e, ax) q = Softmax<axis={axis}>(w) r = ReduceMax<keepdims=0>(q) }}> }}"""
    model = parse(text)
    _, trace, _ = run_rules(model, [VectorizeSlidingWindows])
    assert [c.rule for c in trace.commits()] == ["VectorizeSlidingWindows"]
    assert "Loop" not in ops(rewritten(model, tolerance=1e-5).model)


def test_windows_over_an_open_axis() -> None:
    text = """g (float[B,T,3] xs) => (float[R,B,3] rs) <bool true = {1}, int64 one = {1}, int64 three = {3}, int64[1] first = {0}, int64[1] second = {1}, int64[1] four = {4}> {
        all = Shape(xs) t = Gather(all, one) n = Sub(t, three)
        rs = Loop (n, true) <body = b (int64 i, bool ci) => (bool co, float[Q,3] r) {
            co = Identity(ci) k = Unsqueeze(i, first) e = Add(k, four)
            w = Slice(xs, k, e, second) r = ReduceMean<axes=[1], keepdims=0>(w) }> }"""
    feeds = Feeds(sizes=(1, 2), fixed={"T": 9})
    assert "Loop" not in ops(rewritten(parse(text), feeds, 1e-5).model)


def test_windows_that_reach_beyond_the_end_stay() -> None:
    """A Slice shortens the last ones, which cannot be stacked."""
    text = """g (float[9,3] xs) => (float[3] y) <int64 n = {9}, int64[1] zero = {0}, int64[1] four = {4}, float[3] s0 = {0, 0, 0}> {
        y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
            co = Identity(ci) k = Unsqueeze(i, zero) e = Add(k, four)
            w = Slice(xs, k, e, zero) m = ReduceMean<axes=[0], keepdims=0>(w) so = Max(s, m) }> }"""
    _, trace, _ = run_rules(parse(text), [VectorizeSlidingWindows])
    assert trace.commits() == []
    rewritten(parse(text), tolerance=1e-5)


def _framing(width: int, hop: int, count: str, first: int = 0) -> onnx.ModelProto:
    """The sums of `count` windows of x [B, W]."""
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
def test_framing(width: int, hop: int) -> None:
    """Div rounds towards zero: an axis that is shorter than a window has one window, all of it."""
    model = _framing(width, hop, "n")
    result, trace, _ = run_rules(model, [VectorizeSlidingWindows])
    assert trace.defects() == []
    assert len(trace.commits()) == 1
    assert assert_equivalent(model, result, LENGTHS) >= 20
    rewritten(model, LENGTHS, 1e-5)


def test_an_axis_known_to_be_long_enough() -> None:
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
    """The Slice in its body would take fewer elements than a window has."""
    model = parse("""g (float[2,2] x) => (float[N] y)
        <int64[1] ax = {1}, int64[1] at0 = {0}, int64 none = {0}, int64 two = {2}, int64 three = {3}, bool true = {1}> {
        y = Loop (none, true) <body = b (int64 i, bool ci) => (bool co, float r) {
            co = Identity(ci) k = Mul(i, three) p = Add(k, two) s = Unsqueeze(p, at0) f = Add(p, two)
            e = Unsqueeze(f, at0) v = Slice(x, s, e, ax) r = ReduceSum<keepdims=0>(v) }> }""")
    _, trace, _ = run_rules(model, [VectorizeSlidingWindows])
    assert trace.defects() == []
    assert trace.commits() == []
