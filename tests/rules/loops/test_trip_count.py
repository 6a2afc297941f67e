"""Trip counts of while loops for every form of the comparison, compared on onnxruntime."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest

from looplift.rewrite.engine.rule import Options
from looplift.rules.loops.trip_count import InferTripCount

from ...equivalence import assert_equal, assert_equivalent, run_rules, session
from ...rewrite.fact_oracle import Feeds
from ...samples import one_of
from ...small_models import parse
from ..downgrade import downgraded
from ..reasons import reason_of

COMPARISONS = {
    "less": "Less({0}, {1})",
    "at most": "LessOrEqual({0}, {1})",
    "greater, exchanged": "Greater({1}, {0})",
    "at least, exchanged": "GreaterOrEqual({1}, {0})",
    "not at least": "Not(GreaterOrEqual({0}, {1}))",
    "not greater": "Not(Greater({0}, {1}))",
    "not at most, exchanged": "Not(LessOrEqual({1}, {0}))",
    "not less, exchanged": "Not(Less({1}, {0}))",
}
FIRST = {"the same": "c0", "absent": "", "another": "c"}
TRIPS = {"absent": "", "given": "m"}
STEPS = (1, 3)
FEEDS = Feeds(values={"n": [-4, 0, 1, 2, 7], "m": [0, 1, 4, -1], "c": [True, False]}, most=40)


def _holds(comparison: str, result: str, low: str, high: str) -> str:
    """Assignments in ONNX text, a negated comparison as two."""
    text = COMPARISONS[comparison].format(low, high)
    if not text.startswith("Not("):
        return f"{result} = {text}"
    return f"{result}_inner = {text[4:-1]} {result} = Not({result}_inner)"


def _while(comparison: str, first: str = "the same", trip: str = "absent", step: int = 1,
           start: int = -1, kind: str = "int64") -> onnx.ModelProto:  # fmt: skip
    return parse(
        f"""g (float[3] x, {kind} n, int64 m, bool c) => (float[3] y, {kind} k, float[K,3] rows)
            <{kind} k0 = {{{start}}}, {kind} size = {{{step}}}> {{
            {_holds(comparison, "c0", "k0", "n")}
            k, y, rows = Loop ({TRIPS[trip]}, {FIRST[first]}, k0, x) <
                body = b (int64 i, bool ci, {kind} t, float[3] s)
                    => (bool co, {kind} t1, float[3] s1, float[3] r) {{
                    t1 = Add(t, size)
                    {_holds(comparison, "co", "t1", "n")}
                    one = Constant<value = float {{1}}>() s1 = Add(s, one) r = Neg(s) }}>
        }}""",
        opset=21,
        ir_version=10,
    )


def _counts(model: onnx.ModelProto) -> onnx.ModelProto:
    result, trace, _ = run_rules(model, [InferTripCount])
    assert trace.defects() == []
    assert [commit.rule for commit in trace.commits()] == ["InferTripCount"]
    loop = next(node for node in result.graph.node if node.op_type == "Loop")
    assert loop.input[0]
    given = next(node for node in model.graph.node if node.op_type == "Loop").input[1]
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in result.graph.initializer}
    assert constants[loop.input[1]].all() if given else loop.input[1] == ""
    return result


@pytest.mark.parametrize("comparison", one_of(2, COMPARISONS))
def test_every_comparison_counts(comparison: str) -> None:
    for first, trip, step in itertools.product(FIRST, TRIPS, STEPS):
        model = _while(comparison, first, trip, step)
        assert_equivalent(model, _counts(model), FEEDS)


@pytest.mark.parametrize(
    ("comparison", "opset"),
    one_of(3, [(c, n) for c, op in COMPARISONS.items() if "Equal" not in op for n in (9, 11)]),
)
def test_integers_are_compared_before_opset_12(comparison: str, opset: int) -> None:
    """Max and Min take no integers there, and there is no LessOrEqual."""
    for first, trip, step in itertools.product(FIRST, TRIPS, STEPS):
        model = downgraded(_while(comparison, first, trip, step), opset)
        assert_equivalent(model, _counts(model), FEEDS)


@pytest.mark.parametrize("start", [-5, 0, 4])
def test_counters_start_anywhere_and_have_any_width(start: int) -> None:
    model = _while("at most", start=start, step=2, kind="int32")
    assert_equivalent(model, _counts(model), FEEDS)


@pytest.mark.parametrize("limit", [2**63 - 1, 2**62, -(2**63)])
@pytest.mark.parametrize("comparison", ["less", "at most"])
def test_limits_at_the_end_of_the_range_count_right(limit: int, comparison: str) -> None:
    model = _while(comparison, trip="given", step=1, start=-5)
    assert_equivalent(model, _counts(model), Feeds(values={"n": [limit], "m": [0, 1, 4]}))


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("comparison", ["less", "at most"])
@pytest.mark.parametrize("first", ["c0", ""])
@pytest.mark.parametrize("step", [1, 3])
def test_counters_that_overflow_wrap_around(
    kind: str, comparison: str, first: str, step: int
) -> None:
    """After the largest number of its type a counter continues with the smallest."""
    largest = 2**63 - 1 if kind == "int64" else 2**31 - 1
    model = parse(
        f"""g (float[3] x, {kind} start, {kind} n, int64 m) => (float[3] y, {kind} k)
            <{kind} size = {{{step}}}> {{
            {_holds(comparison, "c0", "start", "n")}
            k, y = Loop (m, {first}, start, x) <
                body = b (int64 i, bool ci, {kind} t, float[3] s)
                    => (bool co, {kind} t1, float[3] s1) {{
                    t1 = Add(t, size)
                    {_holds(comparison, "co", "t1", "n")}
                    one = Constant<value = float {{1}}>() s1 = Add(s, one) }}> }}""",
        21,
        10,
    )
    ends = [largest, largest - 1, largest - 3, largest // 2 + 10, 7, -largest - 1, -largest + 3]
    starts = [largest, largest - 2, largest // 2 + 7, 0, -largest - 1, -largest]
    feeds = Feeds(values={"start": starts, "n": ends, "m": [0, 1, 4]}, most=200)
    assert_equivalent(model, _counts(model), feeds)


def _while_down(
    comparison: str, first: str, change: str, start: str, limit: int = 0, kind: str = "int64"
) -> onnx.ModelProto:
    """Counts from n or a number down to a limit."""
    begin, k0 = ("n", "0") if start == "n" else ("k0", start)
    back = "" if kind.startswith("u") else f"{kind} back = {{-2}},"
    return parse(
        f"""g (float[3] x, {kind} n, bool c) => (float[3] y, {kind} k, float[K,3] rows)
            <{kind} k0 = {{{k0}}}, {kind} two = {{2}}, {back} {kind} end = {{{limit}}}> {{
            {_holds(comparison, "c0", "end", begin)}
            k, y, rows = Loop (, {FIRST[first]}, {begin}, x) <
                body = b (int64 i, bool ci, {kind} t, float[3] s)
                    => (bool co, {kind} t1, float[3] s1, float[3] r) {{
                    t1 = {change}
                    {_holds(comparison, "co", "end", "t1")}
                    one = Constant<value = float {{1}}>() s1 = Add(s, one) r = Neg(s) }}>
        }}""",
        opset=21,
        ir_version=10,
    )


@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize(
    ("start", "first", "change"),
    [
        ("5", "another", "Sub(t, two)"),
        ("-6", "absent", "Add(back, t)"),
        ("n", "the same", "Sub(t, two)"),
    ],
)
def test_counters_that_count_down(
    comparison: str, kind: str, start: str, first: str, change: str
) -> None:
    starts = [np.array(n, kind) for n in (-9, -1, 0, 1, 2, 3, 8, np.iinfo(kind).min)]
    feeds = Feeds(values={"n": starts, "c": [True, False]}, most=40)
    for limit in (-1, 2):
        model = _while_down(comparison, first, change, start, limit, kind)
        assert assert_equivalent(model, _counts(model), feeds) >= 8


@pytest.mark.parametrize(
    ("change", "start", "first", "kind", "words"),
    [
        ("Sub(t, two)", "n", "absent", "int64", "may start below its limit"),
        ("Add(t, two)", "9", "the same", "int64", "moves away from the limit"),
        ("Sub(two, t)", "9", "the same", "int64", "does not change by a fixed step"),
        ("Sub(t, two)", "9", "the same", "uint32", "past the end of its type"),
        ("Sub(t, two)", "9", "the same", "int8", "past the end of its type"),
    ],
)
def test_counting_down_near_misses(
    change: str, start: str, first: str, kind: str, words: str
) -> None:
    model = _while_down("at most", first, change, start, kind=kind)
    assert words in reason_of(InferTripCount, model)


def test_the_iteration_number_is_a_counter() -> None:
    model = parse(
        """g (float[3] x, int64 n, int64 m) => (float[3] y) <int64 two = {2}, int64 one = {1}> {
            y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] s1) {
                twice = Mul(i, two) t = Add(twice, one) co = Less(t, n) s1 = Add(s, s) }> }"""
    )
    assert_equivalent(model, _counts(model), FEEDS)


def test_either_comparison_of_an_and_ends_the_loop() -> None:
    model = parse(
        """g (float[3] x, int64 n, int64 m) => (float[3] y, int64 a, int64 b)
            <int64 zero = {0}, int64 one = {1}, int64 two = {2}> {
            a, b, y = Loop (, , zero, one, x) <
                body = f (int64 i, bool ci, int64 s, int64 t, float[3] u)
                    => (bool co, int64 s1, int64 t1, float[3] u1) {
                    s1 = Add(s, one) t1 = Add(t, two) p = Less(s1, n) q = LessOrEqual(t1, m)
                    co = And(p, q) u1 = Add(u, u) }> }"""
    )
    assert_equivalent(model, _counts(model), FEEDS)


def _until(condition: str, first: str = "c0", step: int = 1, start: str = "zero") -> str:
    """A loop whose counter t has the limit n, a size, and whose condition reads both.

    `{0}` is the name of the condition, `{1}` that of the counter.
    """
    return f"""g (float[N,2] x, int64 m) => (float[2] y, int64 k)
        <int64 zero = {{0}}, int64 size = {{{step}}}, float[2] x0 = {{1, 1}}, int64[0] none = {{}}> {{
        n1 = Shape<end=1>(x) n = Reshape(n1, none) {condition.format("c0", start)}
        k, y = Loop (m, {first}, {start}, x0) <
            body = b (int64 i, bool ci, int64 t, float[2] s) => (bool co, int64 t1, float[2] s1) {{
                t1 = Add(t, size) {condition.format("co", "t1")} s1 = Add(s, s) }}> }}"""


DIFFERENT = "{0}_e = Equal({1}, n) {0} = Not({0}_e)"
DIFFERENT_EXCHANGED = "{0}_e = Equal(n, {1}) {0} = Not({0}_e)"
DOWN_TO_ZERO = "{0}_e = Equal(zero, {1}) {0} = Not({0}_e)"
REMAINING = "{0}_d = Sub(n, {1}) {0} = Greater({0}_d, zero)"
REMAINING_OR_NONE = "{0}_d = Sub({1}, n) {0} = LessOrEqual({0}_d, zero)"
SIZES = Feeds(values={"m": [0, 1, 3, 100, -1]})


@pytest.mark.parametrize(
    ("condition", "first", "step", "start"),
    [
        (DIFFERENT, "c0", 1, "zero"),
        (DIFFERENT_EXCHANGED, "c0", 1, "zero"),
        (DOWN_TO_ZERO, "c0", -1, "n"),
        (REMAINING, "c0", 1, "zero"),
        (REMAINING, "", 2, "zero"),
        (REMAINING_OR_NONE, "c0", 3, "zero"),
    ],
)
def test_a_size_that_is_met_or_what_remains_of_it(
    condition: str, first: str, step: int, start: str
) -> None:
    model = parse(_until(condition, first, step, start), 21, 10)
    result, trace, _ = run_rules(model, [InferTripCount])
    assert [commit.rule for commit in trace.commits()] == ["InferTripCount"]
    assert_equivalent(model, result, SIZES)


@pytest.mark.parametrize("counted", ["i", "t1"])
@pytest.mark.parametrize(
    "condition",
    [
        "co = Less({0}, n)",
        "co = LessOrEqual({0}, n)",
        "d = Sub(n, {0}) co = Greater(d, zero)",
        "d = Sub(n, {0}) co = GreaterOrEqual(d, zero)",
        "d = Equal({0}, n) co = Not(d)",
    ],
)
def test_a_limit_that_is_only_bounded_below(condition: str, counted: str) -> None:
    """As a caller writes "no limit": the trip count ends the loop."""
    text = f"""g (float[2] x, int64 given, int64 m) => (float[2] y, int64 k)
        <int64 zero = {{0}}, int64 one = {{1}}> {{
        n = Max(given, zero)
        k, y = Loop (m, , zero, x) <
            body = b (int64 i, bool ci, int64 t, float[2] s) => (bool co, int64 t1, float[2] s1) {{
                t1 = Add(t, one) {condition.format(counted)} s1 = Neg(s) }}> }}"""
    model = parse(text, 21, 10)
    result, _, _ = run_rules(model, [InferTripCount])
    feeds = Feeds(values={"given": [2**63 - 1, 2**63 - 2, 2**62, 3, 0, -1], "m": [30, 2]})
    assert_equivalent(model, result, feeds)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_until(DIFFERENT, step=2), "may jump over"),
        (_until(DIFFERENT, first=""), "may start beyond"),
        (_until(DIFFERENT, first="", step=-1, start="n"), "may start beyond"),
        (_until(DIFFERENT.replace("n)", "m)")), "may start beyond"),
        (
            _until(DIFFERENT.replace("{0} = Not({0}_e)", "{0} = Identity({0}_e)")),
            "not a comparison",
        ),
        (_until(REMAINING.replace("(n,", "(m,")), "does not change by a fixed step"),
    ],
)
def test_limits_that_may_not_be_met(text: str, words: str) -> None:
    assert words in reason_of(InferTripCount, parse(text, 21, 10))


FLOAT_LIMIT = """g (float[3] x, float limit) => (float[3] y) <int64 z = {0}, int64 one = {1}> {
    k, y = Loop (, , z, x) <body = b (int64 i, bool ci, int64 t, float[3] s)
        => (bool co, int64 t1, float[3] s1) {
        t1 = Add(t, one) f = Cast<to=1>(t1) co = Less(f, limit) s1 = Add(s, s) }> }"""
DOWN = """g (float[3] x, int64 n) => (float[3] y) <int64 z = {9}, int64 one = {-1}> {
    k, y = Loop (, , z, x) <body = b (int64 i, bool ci, int64 t, float[3] s)
        => (bool co, int64 t1, float[3] s1) {
        t1 = Add(t, one) co = Less(t1, n) s1 = Add(s, s) }> }"""
WIDE_LIMIT = """g (float[3] x, int64[N] n) => (float[3] y) <int64 z = {0}, int64 one = {1}> {
    k, y = Loop (, , z, x) <body = b (int64 i, bool ci, int64 t, float[3] s)
        => (bool co, int64 t1, float[3] s1) {
        t1 = Add(t, one) c = Less(t1, n) a = Constant<value_ints=[0]>() co = Squeeze(c, a)
        s1 = Add(s, s) }> }"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (FLOAT_LIMIT, "not known to be an integer"),
        (DOWN, "moves away from the limit"),
        (WIDE_LIMIT, "not a comparison"),
    ],
)
def test_near_misses(text: str, words: str) -> None:
    assert words in reason_of(InferTripCount, parse(text))


@pytest.mark.parametrize("kind", ["int64", "int32"])
@pytest.mark.parametrize(("start", "step"), [(0, 1), (-2, 3)])
@pytest.mark.parametrize(
    ("counter", "limit"), [("[1]", "[1]"), ("[1]", ""), ("", "[1]"), ("[1,1]", "[1]")]
)
@pytest.mark.parametrize("first", ["", "go"])
def test_a_counter_that_is_the_only_element_of_a_tensor(
    kind: str, start: int, step: int, counter: str, limit: str, first: str
) -> None:
    text = f"""g (float[3] x, {kind}{limit} n) => (float[3] y, {kind}{counter} k)
        <{kind}{counter} k0 = {{{start}}}, {kind}{counter} size = {{{step}}}, int64[0] none = {{}}> {{
        c0 = Less(k0, n) go = Reshape(c0, none)
        k, y = Loop (, {first}, k0, x) <body = b (int64 i, bool ci, {kind}{counter} t, float[3] s)
            => (bool co, {kind}{counter} t1, float[3] s1) {{
            t1 = Add(t, size) c = Less(t1, n) co = Reshape(c, none)
            one = Constant<value = float {{1}}>() s1 = Add(s, one) }}> }}"""
    shape = (1,) if limit else ()
    feeds = Feeds(values={"n": [np.full(shape, v) for v in (-4, 0, 1, 2, 7)]})
    model = parse(text)
    assert_equivalent(model, _counts(model), feeds)


def test_strict_keeps_a_comparison_of_floats() -> None:
    text = FLOAT_LIMIT.replace("float limit", "int64 n")
    model = parse(text.replace("{\n    k, y", "{ limit = Cast<to=1>(n)\n    k, y", 1))
    result, trace, _ = run_rules(model, [InferTripCount])
    assert [note for commit in trace.commits() for note in commit.notes]
    assert_equivalent(model, result, FEEDS)
    words = reason_of(InferTripCount, model, Options(strict=True))
    assert "compared as a float" in words


def _checked_first(kind: str, change: str, comparison: str) -> onnx.ModelProto:
    return parse(
        f"""g (float x, {kind} st, {kind} lim, int64 m) => (float y) <{kind} v = {{1}}> {{
        c = {comparison}(st, lim)
        k, y = Loop (m, c, st, x) <body = b (int64 i, bool ci, {kind} t, float s) => (bool co, {kind} tn, float so) {{
            tn = {change}(t, v) so = Add(s, s) co = {comparison}(tn, lim) }}> }}""",
        21,
        10,
    )


@pytest.mark.parametrize(
    ("kind", "change", "comparison", "words"),
    [
        ("int64", "Sub", "Greater", "may not fit int64"),
        ("int32", "Sub", "GreaterOrEqual", "close to the lowest number of its type"),
        ("uint64", "Add", "Less", "may be larger than int64 allows"),
    ],
)
def test_limits_whose_distance_may_not_fit_int64(
    kind: str, change: str, comparison: str, words: str
) -> None:
    assert words in reason_of(InferTripCount, _checked_first(kind, change, comparison))


def _counts_up(kind: str, step: int, limit: str) -> onnx.ModelProto:
    """Counts to the input `n`, or to a constant."""
    return parse(
        f"""g (float x, {kind} n) => (float y, {kind} k)
        <bool go = {{1}}, {kind} st = {{0}}, {kind} v = {{{step}}}, {kind} fixed = {{100}},
         {kind} high = {{2147480000}}> {{
        k, y = Loop (, go, st, x) <body = b (int64 i, bool ci, {kind} t, float s)
            => (bool co, {kind} tn, float so) {{
            tn = Add(t, v) so = Neg(s) co = Less(tn, {limit}) }}> }}""",
        21,
        10,
    )


@pytest.mark.parametrize("limit", ["n", "high"])
def test_a_counter_that_may_wrap_around(limit: str) -> None:
    """From 0 by 10,000,000 it jumps over the end of int32, and meets 2,146,483,647 in the end."""
    model = _counts_up("int32", 10_000_000, limit)
    words = reason_of(InferTripCount, model)
    assert "may be close to the largest number of its type" in words


@pytest.mark.parametrize(
    ("kind", "step", "limit"),
    [("int32", 10_000_000, "fixed"), ("int32", 1, "n"), ("int32", 100, "n"), ("int64", 9, "n")],
)
def test_a_counter_that_wraps_around_late_or_never(kind: str, step: int, limit: str) -> None:
    model = _counts_up(kind, step, limit)
    assert_equivalent(model, _counts(model), Feeds(values={"n": [-3, 0, 1, 250, 1000]}))


def test_a_counter_counts_down_from_any_number_to_a_small_one() -> None:
    text = """g (float x, int64 n) => (float y) <int64 one = {1}, int64 z = {0}> {
      c = Greater(n, z)
      k, y = Loop (, c, n, x) <body = b (int64 i, bool ci, int64 t, float s) => (bool co, int64 tn, float so) {
        tn = Sub(t, one) so = Add(s, s) co = Greater(tn, z) }> }"""
    model = parse(text, 21, 10)
    feeds = Feeds(values={"n": [-(2**63), -(2**62), -1, 0, 1, 7]})
    assert_equivalent(model, _counts(model), feeds)


@pytest.mark.parametrize("given", ["n", "z"])
def test_a_default_that_the_caller_replaces(given: str) -> None:
    """The limit or the start of the counter is an input with a default."""
    inputs = "int64 n, int64 z" if given == "z" else "int64 z, int64 n"
    text = f"""g (float x, {inputs}) => (float y, int64 k) <int64 {given} = {{4}}, int64 one = {{1}}> {{
      c = Less(z, n)
      k, y = Loop (, c, z, x) <body = b (int64 i, bool ci, int64 t, float s) => (bool co, int64 tn, float so) {{
        tn = Add(t, one) so = Add(s, s) co = Less(tn, n) }}> }}"""
    model = parse(text)
    counted, x = session(_counts(model)), np.array(1.5, np.float32)
    for other, own in itertools.product([0, 2, 6], [None, 0, 3, 5]):
        feed = {"x": x, {"n": "z", "z": "n"}[given]: np.array(other)}
        if own is not None:
            feed[given] = np.array(own)
        assert_equal(session(model).run(None, feed), counted.run(None, feed))
