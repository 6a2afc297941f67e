"""Dead, invariant and equal carried values are removed, and dead scan outputs."""

from __future__ import annotations

import onnx
import pytest

from looplift.rules.loops.carried_values import (
    EliminateDeadCarriedValues,
    EliminateDeadScanOutputs,
    ForwardInvariantCarriedValues,
    MergeEqualCarriedValues,
)

from ...equivalence import assert_equivalent, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(values={"m": [0, 1, 2, 7]})


def _loop(model: onnx.ModelProto) -> onnx.NodeProto:
    found: onnx.NodeProto = next(n for n in model.graph.node if n.op_type in ("Loop", "Scan"))
    return found


def _two(first: str, second: str, outputs: str = "float[3] y", initial: str = "x, w") -> str:
    """A loop with two carried values s and t, which become so and to."""
    return f"""g (float[3] x, float[3] w, int64 m) => ({outputs}) {{
        y, z = Loop (m, , {initial}) <body = b (int64 i, bool ci, float[3] s, float[3] t)
            => (bool co, float[3] so, float[3] to) {{ co = Identity(ci) {first} {second} }}> }}"""


BOTH = "float[3] y, float[3] z"


def test_carried_values_that_only_update_each_other_are_dead() -> None:
    text = """g (float[3] x, int64 m) => (float[3] y) {
        y, a, d = Loop (m, , x, x, x) <
            body = b (int64 i, bool ci, float[3] s, float[3] p, float[3] q)
                => (bool co, float[3] so, float[3] po, float[3] qo) {
            co = Identity(ci) so = Sin(s) po = Neg(q) qo = Add(p, q) }> }"""
    assert len(_loop(rewritten(parse(text), FEEDS).model).output) == 1


def test_a_carried_value_that_only_the_condition_needs_stays() -> None:
    text = """g (float[3] x, int64 m) => (float[3] y) <float z = {0}, float big = {9}> {
        y, a = Loop (m, , x, z) <body = b (int64 i, bool ci, float[3] s, float p)
            => (bool co, float[3] so, float po) {
            so = Add(s, s) q = ReduceMax<keepdims=0>(s) po = Add(p, q) co = Less(po, big) }> }"""
    assert "every carried value is needed" in reason_of(EliminateDeadCarriedValues, parse(text))
    assert len(_loop(rewritten(parse(text), FEEDS).model).output) == 2


def test_a_carried_value_that_only_a_nested_body_reads_is_needed() -> None:
    text = """g (float[3] x, int64 m, bool c) => (float[3] y) {
        y, a = Loop (m, , x, x) <body = b (int64 i, bool ci, float[3] s, float[3] p)
            => (bool co, float[3] so, float[3] po) {
            co = Identity(ci) po = Exp(p)
            so = If (c) <then_branch = u () => (float[3] v) { v = Add(s, p) },
                         else_branch = e () => (float[3] o) { o = Neg(s) }> }> }"""
    model = parse(text)
    assert "every carried value is needed" in reason_of(EliminateDeadCarriedValues, model)


@pytest.mark.parametrize(
    "update", ["to = Identity(t)", "to = Identity(w)", "a = Identity(t) to = Identity(a)"]
)
def test_an_invariant_carried_value_is_its_initial_value(update: str) -> None:
    result = rewritten(parse(_two("so = Sub(t, s)", update, BOTH)), FEEDS)
    assert len(_loop(result.model).output) == 1


def test_carried_values_that_are_exchanged_are_not_invariant() -> None:
    text = _two("so = Identity(t)", "to = Identity(s)", BOTH)
    assert "every carried value changes" in reason_of(ForwardInvariantCarriedValues, parse(text))
    assert len(_loop(rewritten(parse(text), FEEDS).model).output) == 2


def test_a_carried_value_that_becomes_another_outer_value_is_not_invariant() -> None:
    text = _two("so = Sub(t, s)", "to = Identity(x)", BOTH)
    assert "every carried value changes" in reason_of(ForwardInvariantCarriedValues, parse(text))
    rewritten(parse(text), FEEDS)


@pytest.mark.parametrize("outputs", ["float[3] y", BOTH])
def test_equal_carried_values_are_merged(outputs: str) -> None:
    text = _two("so = Sin(s)", "to = Sin(t)", outputs, "x, x")
    model = parse(text)
    result, trace, _ = run_rules(model, [MergeEqualCarriedValues])
    assert trace.defects() == []
    assert len(trace.commits()) == 1
    assert_equivalent(model, result, FEEDS)


@pytest.mark.parametrize(
    ("second", "initial"),
    [("to = Sin(t)", "x, w"), ("to = Sin(s)", "x, w"), ("to = Cos(t)", "x, x")],
)
def test_carried_values_that_differ_stay_two(second: str, initial: str) -> None:
    text = _two("so = Sin(s)", second, BOTH, initial)
    assert "start and change in the same way" in reason_of(MergeEqualCarriedValues, parse(text))
    rewritten(parse(text), FEEDS)


@pytest.mark.parametrize(("last", "left"), [("Add(d, a)", 2), ("Add(d, b)", 4), ("Sub(d, a)", 4)])
def test_pairs_that_are_equal_only_together_are_merged(last: str, left: int) -> None:
    """a equals c if b equals d, and vice versa."""
    text = f"""g (int64 m, float[3] x, float[3] w)
        => (float[3] p, float[3] q, float[3] r, float[3] t) {{
      p, q, r, t = Loop (m, , x, w, x, w) <body = h
          (int64 i, bool ci, float[3] a, float[3] b, float[3] c, float[3] d)
          => (bool co, float[3] a1, float[3] b1, float[3] c1, float[3] d1) {{
        co = Identity(ci) a1 = Mul(a, b) b1 = Add(b, a) c1 = Mul(c, d) d1 = {last} }}> }}"""
    model = parse(text)
    result, trace, _ = run_rules(model, [MergeEqualCarriedValues])
    assert trace.defects() == []
    assert len(_loop(result).output) == left
    assert_equivalent(model, result, FEEDS)


def test_random_updates_are_not_equal() -> None:
    text = _two("so = RandomNormalLike(s)", "to = RandomNormalLike(t)", BOTH, "x, x")
    model = parse(text)
    result, trace, _ = run_rules(model, [MergeEqualCarriedValues])
    assert trace.commits() == []
    assert trace.defects() == []
    assert len(_loop(result).output) == 2


def test_a_body_that_returns_its_iteration_number_keeps_a_copy() -> None:
    """onnxruntime increments the iteration number in place."""
    text = """g (int64 m, int64 n) => (int64 last, int64[K] all) {
        last, all = Loop (m, , n) <body = b (int64 i, bool ci, int64 s)
            => (bool co, int64 so, int64 row) {
            co = Identity(ci) so = Identity(i) row = Identity(i) }> }"""
    rewritten(parse(text), FEEDS)


@pytest.mark.parametrize("row", ["Identity(xt)", "Identity(s)", "Identity(w)"])
def test_a_node_computes_each_scan_output(row: str) -> None:
    """onnxruntime does not write a scan output that is an input of the body."""
    text = f"""g (float[T,3] xs, float[3] w) => (float[3] y, float[T,3] r) {{
        y, r = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt)
            => (float[3] so, float[3] row) {{ so = Sub(xt, s) row = {row} }}> (w, xs) }}"""
    rewritten(parse(text))


def test_a_dead_scan_output_takes_its_axis_and_direction_with_it() -> None:
    text = """g (float[T,3] xs, float[3] w) => (float[3] y, float[3,T] kept) {
        y, gone, kept = Scan <num_scan_inputs=1, scan_output_axes=[0, 1],
            scan_output_directions=[0, 1],
            body = b (float[3] s, float[3] xt) => (float[3] so, float[3] p, float[3] q) {
            so = Sub(xt, s) p = Exp(s) q = Neg(s) }> (w, xs) }"""
    result, trace, _ = run_rules(parse(text), [EliminateDeadScanOutputs])
    assert trace.defects() == []
    given = {a.name: list(a.ints) for a in _loop(result).attribute if a.ints}
    assert given["scan_output_axes"] == [1]
    assert given["scan_output_directions"] == [1]


ZEROS = """g (float[T,B,3] x, float[T,B,1] m, float[3] z0) => (float[B,3] y, float[B,3] z)
  <int64[1] three = {3}, float zero = {0}, float[3] minus = {-0.0, 0, 0}> {
    d = Shape<start = 1, end = 2>(x) shape = Concat<axis = 0>(d, three)
    a0 = ConstantOfShape(shape) b0 = Expand(INITIAL, shape)
    y, z = Scan <num_scan_inputs = 2, body = b (float[B,3] a, float[B,3] b, float[B,3] xt, float[B,1] mt)
        => (float[B,3] an, float[B,3] bn) {
      n = Add(a, xt) u = Mul(n, mt) ka = Mul(a, mt) kb = Mul(b, mt) an = Add(u, ka) bn = Add(u, LAST) }>
      (a0, b0, x, m) }"""


def _of_zeros(initial: str, last: str) -> onnx.ModelProto:
    return parse(ZEROS.replace("INITIAL", initial).replace("LAST", last), 18, 8)


def test_carried_values_that_start_with_zeros_and_have_longer_updates() -> None:
    """As in a padded batch: the carried value, and the output beyond the length."""
    model = _of_zeros("zero", "kb")
    result, trace, _ = run_rules(model, [MergeEqualCarriedValues])
    assert [commit.rule for commit in trace.commits()] == ["MergeEqualCarriedValues"]
    assert_equivalent(model, result, Feeds(sizes=(1, 4)))


@pytest.mark.parametrize(
    ("initial", "last"),
    [("z0", "kb"), ("minus", "kb"), ("zero", "xt"), ("zero", "u")],
    ids=["unknown start", "minus zero", "another update", "another operand"],
)
def test_carried_values_that_are_only_nearly_equal(initial: str, last: str) -> None:
    reason = reason_of(MergeEqualCarriedValues, _of_zeros(initial, last))
    assert "start and change in the same way" in reason
