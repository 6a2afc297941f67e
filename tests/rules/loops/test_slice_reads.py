"""Reads whose position advances with the iteration number become reads at that number."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from looplift import rewrite
from looplift.rules.loops.slice_reads import GatherAtIteration

from ...equivalence import (
    assert_equivalent,
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
def test_a_position_in_other_words(position: str) -> None:
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
def test_strides_and_offsets_are_cut_out_before_the_loop(position: str, trip: str) -> None:
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
        ("k = Mul(i, i)", "n", "does not advance by a fixed step"),
        ("k = Div(i, two)", "n", "does not advance by a fixed step"),
        ("f = Cast<to=1>(i) g = Sqrt(f) k = Cast<to=7>(g)", "n", "is not known"),
    ],
)
def test_other_positions_stay(position: str, trip: str, words: str) -> None:
    model = _reading(position, trip=trip)
    _, trace, _ = run_rules(model, [GatherAtIteration])
    assert trace.commits() == []
    assert words in _reason(model)


def test_a_position_before_the_axis_fails_as_before() -> None:
    """A Slice would start at the first slice there."""
    model = _reading("k = Sub(back, i)", trip="m")
    result = rewrite(model, strict=True).model
    feed = {
        "x": np.ones((2, 1, 3), np.float32),
        "s0": np.zeros((1, 3), np.float32),
        "m": np.array(1),
    }
    assert outcome(session(model), feed) is None
    assert outcome(session(result), feed) is None


def test_a_position_from_the_end_that_is_surely_inside() -> None:
    model = parse("""g (float[4,3] x, float[3] s0, int64 m) => (float[3] y) <int64 back = {-3}> {
        y = Loop (m, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
            k = Sub(back, i) xt = Gather(x, k) co = Identity(ci) h = Mul(s, s) so = Sub(h, xt) }> }""")
    result, trace, _ = run_rules(model, [GatherAtIteration])
    assert len(trace.commits()) == 1
    assert_equivalent(model, result, FEEDS, fails_alike=True)


def _reason(model: onnx.ModelProto) -> str:
    """The reason at the Gather in the body; the one outside is made a Slice first."""
    text = _text(model).replace(
        "n = Gather (all, zero)", "v = Slice (all, first, ones) n = Squeeze (v)"
    )
    return reason_of(GatherAtIteration, parse(text))


def test_several_positions_at_once_stay() -> None:
    model = parse("""g (float[T,3] x, float[2,3] s0, int64[2] p, int64 n) => (float[2,3] y) {
        y = Loop (n, , s0) <body = b (int64 i, bool ci, float[2,3] s) => (bool co, float[2,3] so) {
            k = Add(p, i) xt = Gather(x, k) co = Identity(ci) so = Max(s, xt) }> }""")
    assert "is not one number" in reason_of(GatherAtIteration, model)


def test_what_the_body_computes_is_not_rearranged_before_it() -> None:
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
