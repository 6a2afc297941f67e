"""Carried values with a closed form need no loop: sums, products, extrema, flags, delay lines."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from looplift import rewrite
from looplift.rewrite.engine.rule import Options, Rule
from looplift.rules.reductions.closed_form_rules import (
    DelayLineToShift,
    LoopToAll,
    LoopToAny,
    LoopToMaximum,
    LoopToMinimum,
    LoopToProduct,
    LoopToSum,
)
from looplift.rules.values.dead_nodes import EliminateIdentity

from ...equivalence import (
    assert_equal,
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

COUNTS = Feeds(sizes=(7, 1, 0), values={"n": [0, 1, 2, 7]})
"""Also fewer iterations than slices, none, and an empty batch."""
NOT_EMPTY = Feeds(sizes=(7, 1), values={"n": [1, 2, 7]})
"""At least one iteration: in an empty scan output, onnxruntime sets the size of the batch to 0."""


def _text(
    work: str, *, dtype: str = "float", outputs: str = "", start: str = "s0", slices: str = "B,3"
) -> str:
    """A carried value s [B,3] and slices x; `work` makes the next value so and a slice r to collect."""
    outputs = outputs or f"{dtype}[B,3] y, {dtype}[R,B,3] ys"
    return f"""g ({dtype}[T,{slices}] xs, {dtype}[B,3] s0, {dtype}[B,3] w, int64 n) => ({outputs})
        <int64[1] zero = {{0}}, int64[1] three = {{3}}, float[3] v = {{1, -2, 3}}> {{
        size = Shape<start=0,end=1>(s0) shape = Concat<axis=0>(size, three)
        zeros = ConstantOfShape(shape)
        y, ys = Loop (n, , {start}) <body = b (int64 i, bool ci, {dtype}[B,3] s)
            => (bool co, {dtype}[B,3] so, {dtype}[Q,3] r) {{
            co = Identity(ci) x = Gather(xs, i) {work} }}> }}"""


FINAL = "float[B,3] y"
RULES: dict[type[Rule], tuple[str, str, str, str]] = {
    LoopToSum: ("float", "so = Add(s, x)", "so = Sub(x, s)", "no carried value is a sum"),
    LoopToProduct: ("float", "so = Mul(x, s)", "so = Div(s, x)", "no carried value is a product"),
    LoopToMaximum: ("float", "so = Max(s, x)", "so = Min(s, x)", "no carried value is a maximum"),
    LoopToMinimum: ("float", "so = Min(x, s)", "so = Max(s, x)", "no carried value is a minimum"),
    LoopToAny: ("bool", "so = Or(s, x)", "so = And(s, x)", "becomes true as soon as"),
    LoopToAll: ("bool", "so = And(x, s)", "so = Or(s, x)", "becomes false as soon as"),
    DelayLineToShift: ("float", "so = Neg(x)", "so = Neg(s)", "no carried value holds"),
}
"""For each rule the type, an update that it takes, another one, and why it declines that."""


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_alone(rule: type[Rule]) -> None:
    """The loop is gone, and the final value is the same for 0, 1, 2 and 7 iterations."""
    dtype, update, _, _ = RULES[rule]
    model = parse(_text(f"{update} r = Identity(x)", dtype=dtype, outputs=f"{dtype}[B,3] y"))
    result, trace, _ = run_rules(model, [rule])
    assert trace.defects() == []
    assert [c.rule for c in trace.commits()] == [rule.name()]
    assert "Loop" not in ops(result)
    assert_equivalent(model, result, Feeds(sizes=(7, 0, 1, 2), values={"n": [0, 1, 2, 7]}), 1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_declines_another_update(rule: type[Rule]) -> None:
    dtype, _, update, words = RULES[rule]
    model = parse(_text(f"{update} r = Identity(x)", dtype=dtype, outputs=f"{dtype}[B,3] y"))
    assert words in reason_of(rule, model)
    rewritten(model, COUNTS, 1e-5)


SUMS = {
    "plain": "so = Add(s, x) r = Identity(so)",
    "exclusive": "so = Add(x, s) r = Identity(s)",
    "both": "so = Add(x, s) r = Sub(s, so)",
    "difference": "so = Sub(s, x) r = Identity(so)",
    "of a product": "p = Mul(x, x) q = Exp(p) so = Add(s, q) r = Identity(so)",
    "of several": "a = Add(s, x) b = Sub(a, v) so = Add(w, b) r = Identity(so)",
    "intermediate": "a = Add(s, x) so = Add(a, v) r = Identity(a)",
    "of an outer value": "so = Add(s, w) r = Identity(so)",
    "of a smaller value": "so = Add(s, v) r = Identity(so)",
    "of the iteration number": "f = Cast<to=1>(i) so = Add(s, f) r = Identity(so)",
}


@pytest.mark.parametrize("start", ["s0", "zeros"])
@pytest.mark.parametrize("work", SUMS.values(), ids=SUMS)
def test_sums(work: str, start: str) -> None:
    result = rewritten(parse(_text(work, start=start)), NOT_EMPTY, 1e-5)
    assert "Loop" not in ops(result.model)


@pytest.mark.parametrize("work", SUMS.values(), ids=SUMS)
def test_final_sums(work: str) -> None:
    """The final value alone, also of a loop that does not run."""
    text = _text(work, outputs=FINAL)
    result = rewritten(parse(text), COUNTS, 1e-5)
    assert "Loop" not in ops(result.model)


@pytest.mark.parametrize("dtype", ["float", "double", "int32", "int64"])
def test_sums_of_other_types(dtype: str) -> None:
    text = _text("so = Sub(s, x) r = Identity(so)", dtype=dtype)
    result = rewritten(parse(text), NOT_EMPTY, 1e-5)
    assert "Loop" not in ops(result.model)


@pytest.mark.parametrize(
    ("count", "remains"), [(1000, False), (3 << 17, False), (1 << 24, False), (1 << 25, True)]
)
def test_iteration_numbers_fill_neither_the_file_nor_memory(count: int, remains: bool) -> None:
    model = parse(f"""g (float s0) => (float y) <int64 n = {{{count}}}> {{
        y = Loop (n, , s0) <body = b (int64 i, bool ci, float s) => (bool co, float so) {{
            co = Identity(ci) f = Cast<to=1>(i) so = Add(s, f) }}> }}""")
    result = rewrite(model)
    assert bool({"Loop", "Scan"} & set(ops(result.model))) == remains
    assert result.model.ByteSize() < 1000


def test_an_empty_running_sum_has_the_size_of_the_batch() -> None:
    result = rewritten(parse(_text(SUMS["plain"])), Feeds(fixed={"B": 4}, values={"n": [1]}), 1e-5)
    feed = {
        "xs": np.zeros((5, 4, 3), np.float32),
        "s0": np.ones((4, 3), np.float32),
        "w": np.zeros((4, 3), np.float32),
        "n": np.array(0),
    }
    names = {i.name for i in result.model.graph.input}
    final, running = session(result.model).run(None, {k: v for k, v in feed.items() if k in names})
    assert running.shape == (0, 4, 3)
    np.testing.assert_array_equal(final, feed["s0"])


def test_a_sum_that_another_carried_value_reads() -> None:
    text = """g (float[T,3] xs, float[3] s0, float[3] u0, int64 n) => (float[3] y, float[3] z) {
        y, z = Loop (n, , s0, u0) <body = b (int64 i, bool ci, float[3] s, float[3] u)
            => (bool co, float[3] so, float[3] uo) {
            co = Identity(ci) x = Gather(xs, i) so = Add(s, x) p = Mul(u, s) q = Add(p, so) uo = Sin(q) }> }"""
    result, trace, _ = run_rules(parse(text), [LoopToSum])
    assert trace.defects() == []
    loop = result.graph.node[-1]
    assert list(loop.output) == ["z"]
    # The other value reads the sum before and the one after each iteration.
    assert ops(result)["CumSum"] == 2
    (body,) = [attribute.g for attribute in loop.attribute]
    assert [info.name for info in body.input] == ["i", "ci", "u"]
    rewritten(parse(text), COUNTS, 1e-5)


PRODUCTS = {
    "so = Mul(s, x) r = Neg(x)": "ReduceProd",
    "a = Mul(x, s) so = Mul(a, v) r = Neg(x)": "ReduceProd",
}
EXTREMA = {
    "so = Max(s, x) r = Neg(x)": "ReduceMax",
    "so = Max(x, s, w) r = Neg(x)": "ReduceMax",
    "so = Min(s, x) r = Neg(x)": "ReduceMin",
}


@pytest.mark.parametrize(("work", "operator"), [*PRODUCTS.items(), *EXTREMA.items()])
def test_reductions(work: str, operator: str) -> None:
    result = rewritten(parse(_text(work, outputs=FINAL)), COUNTS, 1e-5)
    assert "Loop" not in ops(result.model)
    assert operator in ops(result.model)


@pytest.mark.parametrize(("work", "operator"), EXTREMA.items())
def test_extrema_of_integers(work: str, operator: str) -> None:
    result = rewritten(parse(_text(work, outputs="int64[B,3] y", dtype="int64")), COUNTS)
    assert "Loop" not in ops(result.model)
    assert operator in ops(result.model)


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    "work", ["so = Add(s, x)", "so = Sub(s, x)", "a = Add(s, w) so = Add(a, w)", "so = Mul(s, x)"]
)
def test_integers_wrap_around(work: str, dtype: str, count: int) -> None:
    """onnxruntime's ReduceSum and ReduceProd compute integers as floats."""
    text = _text(f"{work} r = Neg(x)", outputs=f"{dtype}[B,3] y", dtype=dtype)
    model = parse(text)
    kind = np.dtype(dtype)
    bounds = np.iinfo(kind).min, np.iinfo(kind).max
    feed = {
        name: np.random.default_rng(seed).integers(*bounds, shape, kind, endpoint=True)
        for seed, (name, shape) in enumerate({"xs": (5, 2, 3), "s0": (2, 3), "w": (2, 3)}.items())
    }
    feed["n"] = np.array(count, np.int64)
    result = rewrite(model)
    assert result.report.defects == []
    assert_equal(outcome(session(model), feed), outcome(session(result.model), feed))


@pytest.mark.parametrize("op", ["Max", "Min"])
@pytest.mark.parametrize("place", [0, 1, 4])
def test_nan_is_kept(op: str, place: int) -> None:
    """onnxruntime's ReduceMax keeps NaN of its first operand only; Max passes every NaN on."""
    text = _text(f"so = {op}(s, x) r = Neg(x)", outputs=FINAL)
    model = parse(text)
    result = rewritten(model, COUNTS)
    xs = np.arange(30, dtype=np.float32).reshape(5, 2, 3)
    xs[place, 1, 2] = np.nan
    feed = {"xs": xs, "s0": np.ones((2, 3), np.float32), "w": xs[0], "n": np.array(5)}
    expected = session(model).run(None, feed)
    assert np.isnan(expected[0]).sum() == 1
    given = {i.name for i in result.model.graph.input}
    actual = optimized_session(result.model).run(None, {k: feed[k] for k in feed if k in given})
    assert_equal(expected, actual)


@pytest.mark.parametrize("collected", ["so", "s", "x"])
@pytest.mark.parametrize("op", ["Or", "And"])
def test_flags(op: str, collected: str) -> None:
    text = _text(f"so = {op}(s, x) r = Identity({collected})", dtype="bool")
    result = rewritten(parse(text), NOT_EMPTY)
    assert "Loop" not in ops(result.model)
    text = _text(f"so = {op}(s, x) r = Identity({collected})", dtype="bool", outputs="bool[B,3] y")
    assert "Loop" not in ops(rewritten(parse(text), COUNTS).model)


@pytest.mark.parametrize("work", ["so = Neg(x) r = Identity(s)", "so = Identity(x) r = Mul(x, s)"])
def test_delay_lines(work: str) -> None:
    result = rewritten(parse(_text(work)), NOT_EMPTY)
    assert "Loop" not in ops(result.model)
    final = rewritten(parse(_text(work, outputs=FINAL)), COUNTS)
    assert "Loop" not in ops(final.model)


def test_a_longer_delay_line() -> None:
    text = """g (float[T,3] xs, float[3] a0, float[3] b0, int64 n) => (float[3] y, float[3] z, float[R,3] rs) {
        y, z, rs = Loop (n, , a0, b0) <body = b (int64 i, bool ci, float[3] a, float[3] c)
            => (bool co, float[3] ao, float[3] bo, float[3] r) {
            co = Identity(ci) x = Gather(xs, i) ao = Identity(x) bo = Identity(a) s = Add(a, c) r = Add(s, x) }> }"""
    result = rewritten(parse(text), COUNTS, 1e-6)
    assert "Loop" not in ops(result.model)


DECLINED = {
    "a sum with itself": (LoopToSum, "a = Add(s, s) so = Add(a, x) r = Neg(x)", "no carried value is a sum"),
    "a sum that rounds": (LoopToSum, "h = Abs(x) a = Add(s, h) so = Sub(a, h) r = Neg(x)", "which rounds"),
    "a mean": (LoopToSum, "so = Mean(s, x) r = Neg(x)", "no carried value is a sum"),
    "running products": (LoopToProduct, "so = Mul(s, x) r = Identity(so)", "reads running values"),
    "running maxima": (LoopToMaximum, "so = Max(s, x) r = Identity(s)", "reads running values"),
    "running minima": (LoopToMinimum, "so = Min(s, x) r = Identity(so)", "reads running values"),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "work", "words"), DECLINED.values(), ids=DECLINED)
def test_other_carried_values_stay(rule: type[Rule], work: str, words: str) -> None:
    model = parse(_text(work))
    assert words in reason_of(rule, model)
    rewritten(model, NOT_EMPTY, 1e-5)


def test_a_carried_value_that_grows_with_the_first_slice_stays() -> None:
    """[1,3] + [B,3] is [B,3] after one iteration, and [1,3] after none."""
    text = """g (float[T,B,3] xs, float[1,3] s0, int64 n) => (float[P,3] y) {
        y = Loop (n, , s0) <body = b (int64 i, bool ci, float[P,3] s) => (bool co, float[P,3] so) {
            co = Identity(ci) x = Gather(xs, i) so = Add(s, x) }> }"""
    model = parse(text)
    assert "may change in the loop" in reason_of(LoopToSum, model)
    rewritten(model, COUNTS, 1e-5)


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_an_invariant_operand_of_a_sum_is_multiplied(trips: int) -> None:
    """Without a copy per iteration; a loop that does not run does not add 0 times infinity."""
    text = f"""g (float[N] x, float[N] s0) => (float[N] y) <int64 m = {{{trips}}}, float big = {{1e38}}> {{
        v = Mul(x, big) w = Mul(v, big)
        y = Loop (m, , s0) <body = b (int64 i, bool ci, float[N] s) => (bool co, float[N] so) {{
            co = Identity(ci) a = Sub(s, w) so = Sub(a, x) }}> }}"""
    result = rewritten(parse(text), Feeds(sizes=(0, 1, 100)), 1e-5)
    assert "Loop" not in ops(result.model)
    assert "Expand" not in ops(result.model)


def test_large_invariant_values_are_not_repeated() -> None:
    text = """g (float[N] x, float[N] s0, int64 m) => (float[N] y) {
        y = Loop (m, , s0) <body = b (int64 i, bool ci, float[N] s) => (bool co, float[N] so) {
            co = Identity(ci) so = Max(s, x) }> }"""
    assert "too large to repeat" in reason_of(LoopToMaximum, parse(text))


@pytest.mark.parametrize("work", SUMS.values(), ids=SUMS)
def test_the_sign_of_zero(work: str) -> None:
    """A sum that starts at +0 is never -0."""
    text = _text(work, start="zeros", outputs="float[B,3] y, float[R,B,3] ys")
    result = rewrite(parse(text))
    feed = {"xs": -np.zeros((2, 1, 3), np.float32), "w": -np.zeros((1, 3), np.float32)}
    feed |= {"s0": np.ones((1, 3), np.float32), "n": np.array(2)}
    expected = outcome(session(parse(text)), feed)
    actual = outcome(session(result.model), feed)
    assert expected is not None
    assert actual is not None
    for left, right in zip(expected, actual):
        np.testing.assert_array_equal(np.signbit(left), np.signbit(right))


def test_a_sum_that_starts_at_negative_zero_stays() -> None:
    text = """g (float[T] x) => (float y) <int64 zero = {0}, float s0 = {-0.0}> {
        all = Shape(x) n = Gather(all, zero)
        y = Loop (n, , s0) <body = b (int64 i, bool ci, float s) => (bool co, float so) {
            co = Identity(ci) xt = Gather(x, i) so = Add(s, xt) }> }"""
    model = parse(text)
    assert np.signbit(onnx.numpy_helper.to_array(model.graph.initializer[1]))
    assert "starts at -0" in reason_of(LoopToSum, model)
    (y,) = session(rewrite(model).model).run(None, {"x": np.zeros(0, np.float32)})
    assert np.signbit(y)


def test_a_delay_line_in_a_body_without_operators() -> None:
    text = """g (float[T,3] xs, float[3] s0) => (float[3] y, float[T,3] r) {
        y, r = Scan <num_scan_inputs = 1, body = b (float[3] s, float[3] xt)
            => (float[3] so, float[3] row) { so = Identity(xt) row = Identity(s) }> (s0, xs) }"""
    result = rewritten(parse(text), Feeds(sizes=(1, 2, 7)))
    assert not {"Loop", "Scan"} & set(ops(result.model))


@pytest.mark.parametrize(("trip", "commits"), [("n", 0), ("t", 1)])
def test_strictly_every_read_must_be_in_range(trip: str, commits: int) -> None:
    """The loop fails where n is larger than the length of xs; a ReduceSum would not."""
    model = parse(f"""g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y) <int64 zero = {{0}}> {{
        shape = Shape(xs) t = Gather(shape, zero)
        y = Loop ({trip}, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {{
            co = Identity(ci) x = Gather(xs, i) so = Add(s, x) }}> }}""")
    feeds = Feeds(values={"n": [0, 1, 2, 7]})
    strict = Options(strict=True)
    result, trace, _ = run_rules(model, [EliminateIdentity, LoopToSum], options=strict)
    assert [c.rule for c in trace.commits()].count("LoopToSum") == commits
    assert_equivalent(model, result, feeds, 1e-5, fails_alike=True)
    if not commits:
        assert "may have fewer slices" in reason_of(LoopToSum, model, strict)


@pytest.mark.parametrize("elements", [0, 2])
def test_a_trip_count_of_several_elements(elements: int) -> None:
    """onnxruntime fails there."""
    text = f"""g (float[3] x, int64[{elements}] n) => (float[3] y) {{
        y = Loop (n, "", x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {{
            co = Identity(ci) so = Add(s, x) }}> }}"""
    model = parse(text)
    assert "the trip count is not a scalar" in reason_of(LoopToSum, model)
    with pytest.raises(Exception, match="should be a scalar"):
        session(rewrite(model).model).run(
            None, {"x": np.ones(3, np.float32), "n": np.ones(elements, np.int64)}
        )


@pytest.mark.parametrize(
    ("kind", "axes"), [("int64", 0), ("int64[1]", 1), ("int64[1,1]", 2), ("int64[N]", 1)]
)
def test_a_trip_count_of_one_element(kind: str, axes: int) -> None:
    text = f"""g (float[3] x, {kind} n) => (float[3] y) {{
        y = Loop (n, "", x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {{
            co = Identity(ci) so = Add(s, x) }}> }}"""
    model = parse(text)
    result = rewrite(model).model
    assert "Loop" not in ops(result)
    for count in (0, 1, 3):
        feed = {"x": np.ones(3, np.float32), "n": np.full((1,) * axes, count)}
        assert_equal(session(model).run(None, feed), session(result).run(None, feed))
