"""The canonical form of conditions: none outside, the constant true inside."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from looplift import Phase, rewrite
from looplift.rules.loops.loop_condition import (
    ConditionIsTrueInBody,
    ConditionToTripCount,
    EliminateTrueCondition,
    EliminateUnreachableTripCount,
    FoldLoopCondition,
)
from looplift.rules.values.constants import ConstantToInitializer

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(values={"m": [0, 1, 2, 7], "c": [True, False]})

BODY = """y = Loop (m, {first}, x) <body = b (int64 i, bool ci, float[3] s)
    => (bool co, float[3] so) {{ {condition} so = Add(s, s) }}>"""
SPELLINGS = {
    "returned as it is": "co = Identity(ci)",
    "constant": "co = Constant<value = bool {1}>()",
    "negated twice": "q = Not(ci) co = Not(q)",
    "and true": "u = Constant<value = bool {1}>() co = And(ci, u)",
    "known from sizes": "k = Shape(x) n = Size(k) o = Constant<value_int=1>() co = Equal(n, o)",
}


def _loop(model: onnx.ModelProto) -> onnx.NodeProto:
    found: onnx.NodeProto = next(n for n in model.graph.node if n.op_type == "Loop")
    return found


def _model(condition: str, first: str = "") -> onnx.ModelProto:
    text = BODY.format(first=first, condition=condition)
    return parse(f"g (float[3] x, int64 m, bool c) => (float[3] y) <bool t = {{1}}> {{ {text} }}")


@pytest.mark.parametrize("first", ["", "t"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_for_loop_has_no_condition(spelling: str, first: str) -> None:
    result = rewritten(_model(SPELLINGS[spelling], first), FEEDS)
    loop = _loop(result.model)
    body = loop.attribute[0].g
    assert list(loop.input[:2]) == ["m", first]
    (always,) = (t for t in body.initializer if t.name == body.output[0].name)
    assert numpy_helper.to_array(always).all()
    assert [node.op_type for node in body.node] == ["Add"]


def _starts_always(model: onnx.ModelProto) -> bool:
    """Whether the first condition of the loop is a constant true: a file keeps one if it had one."""
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    condition = constants.get(_loop(model).input[1])
    return condition is not None and bool(condition.all())


VECTOR_LOOP = """g (float[3] x, int64{count} m, bool{first} c, bool{later} d)
    => (float[3] y, float[K, 3] rows) {{ y, rows = Loop (m, c, x) <
      body = b (int64 i, bool{first} ci, float[3] s)
        => (bool{first} co, float[3] so, float[3] row) {{
        {condition} so = Add(s, s) row = Neg(s) }}>
}}"""


@pytest.mark.parametrize("later", ["co = Identity(ci)", "co = Identity(c)", "co = Identity(d)"])
@pytest.mark.parametrize("shapes", [("", "", ""), ("[1]", "", ""), ("", "[1]", "[1]")])
def test_a_condition_from_outside_becomes_part_of_the_trip_count(
    later: str, shapes: tuple[str, str, str]
) -> None:
    count, first, last = shapes
    text = VECTOR_LOOP.format(count=count, first=first, later=last, condition=later)
    model = parse(text)
    values = {
        "m": [np.reshape(m, [1] * (count != "")) for m in (-1, 0, 1, 2, 7)],
        "c": [np.reshape(c, [1] * (first != "")) for c in (True, False)],
        "d": [np.reshape(d, [1] * (last != "")) for d in (True, False)],
    }
    result, trace, _ = run_rules(model, [ConditionIsTrueInBody, ConditionToTripCount])
    assert trace.defects() == []
    assert _starts_always(result)
    assert ops(result)["Where"] == (2 if "(d)" in later else 1)
    assert_equivalent(model, result, Feeds(values=values, most=60))
    rewritten(model, Feeds(values=values, most=60))


def test_a_loop_that_ends_after_one_iteration_has_a_trip_count() -> None:
    model = _model("f = Constant<value = bool {0}>() co = And(ci, f)", "c")
    result = rewritten(model, FEEDS)
    assert _starts_always(result.model)


def test_a_loop_that_may_not_start_gets_a_closed_form() -> None:
    model = parse("""g (float[7] x, int64 m, bool c) => (float y) <float zero = {0.0}> {
      y = Loop (m, c, zero) <body = b (int64 i, bool ci, float s) => (bool co, float so) {
        co = Identity(ci) e = Gather(x, i) f = Exp(e) so = Add(s, f) }> }""")
    assert "Loop" not in ops(rewritten(model, FEEDS, 1e-5).model)


def test_the_condition_in_a_body_is_true() -> None:
    text = """g (float[3] x, int64 m, bool c) => (float[3] y, bool[K] r) {
        y, r = Loop (m, c, x) <body = b (int64 i, bool ci, float[3] s)
            => (bool co, float[3] so, bool q) {
            q = Not(ci) f = Cast<to=1>(ci) so = Add(s, f) co = Identity(ci) }> }"""
    result = rewritten(parse(text), FEEDS)
    assert "Not" not in ops(result.model)


def test_a_condition_of_shape_1_keeps_its_shape_in_a_scan_output() -> None:
    text = """g (float[3] x, int64 m, bool[1] c) => (float[3] y, bool[K,L] r) {
        y, r = Loop (m, c, x) <body = b (int64 i, bool[1] ci, float[3] s)
            => (bool[1] co, float[3] so, bool[1] q) {
            q = Not(ci) so = Add(s, s) co = Identity(ci) }> }"""
    rewritten(parse(text), Feeds(values={"m": [0, 1, 3], "c": [[True], [False]]}))


def test_a_condition_that_is_always_false_becomes_the_constant_false() -> None:
    model = _model("f = Constant<value = bool {0}>() co = And(ci, f)")
    result, trace, _ = run_rules(model, [FoldLoopCondition])
    assert [commit.rule for commit in trace.commits()] == ["FoldLoopCondition"]
    assert_equivalent(model, result, FEEDS)


@pytest.mark.parametrize(
    ("rule", "condition", "first", "words"),
    [
        (ConditionIsTrueInBody, "co = Identity(c)", "", "does not read its condition"),
        (EliminateTrueCondition, "co = Identity(ci)", "c", "not known to be true"),
        (EliminateTrueCondition, "co = Identity(ci)", "", "no first condition"),
        (ConditionToTripCount, "co = Identity(ci)", "", "its conditions are true"),
        (FoldLoopCondition, "co = Identity(c)", "", "the condition `co` is not known"),
    ],
)
def test_near_misses(rule: type, condition: str, first: str, words: str) -> None:
    assert words in reason_of(rule, _model(condition, first))


def _until(trip: str, condition: str, start: str = "") -> onnx.ModelProto:
    return parse(f"""g (float[N] x, int64 n) => (float[N] y, float[K,N] r)
        <int64 far = {{{2**63 - 1}}}, int64 near = {{{2**62 - 1}}}, bool no = {{0}}> {{
        y, r = Loop ({trip}, {start}, x) <body = b (int64 i, bool ci, float[N] s)
            => (bool co, float[N] so, float[N] row) {{
            f = Cast<to=1>(i) so = Add(s, f) row = Neg(so) {condition} }}> }}""")


@pytest.mark.parametrize("start", ["", "no"])
def test_a_trip_count_that_is_too_large_to_reach_is_removed(start: str) -> None:
    model = _until("far", "co = Less(i, n)", start)
    result, trace, _ = run_rules(model, [EliminateUnreachableTripCount])
    assert [commit.rule for commit in trace.commits()] == ["EliminateUnreachableTripCount"]
    assert _loop(result).input[0] == ""
    assert_equivalent(model, result, Feeds(sizes=(0, 1, 2, 7), values={"n": [0, 1, 2, 7]}))


@pytest.mark.parametrize(
    ("trip", "condition", "words"),
    [
        ("n", "co = Less(i, n)", "trip count n can be reached"),
        ("near", "co = Less(i, n)", f"trip count {2**62 - 1} can be reached"),
        ("", "co = Less(i, n)", "has no trip count"),
        ("far", "co = Constant<value = bool {1}>()", "without its trip count it never ends"),
    ],
)
def test_trip_counts_that_stay(trip: str, condition: str, words: str) -> None:
    assert words in reason_of(EliminateUnreachableTripCount, _until(trip, condition))


def test_a_condition_without_a_rank_can_be_dropped() -> None:
    """onnxruntime needs the shape of a condition that nothing outside gives."""
    before = parse(
        """g (bool x, bool more) => (bool y) <int64 two = {2}> {
        yes = Constant<value = bool {1}>()
        y = Loop (two, yes, x) <body = b (int64 i, bool[] c, bool s) => (bool co, bool so) {
            co = Identity(c) so = Identity(more) }> }""",
        13,
        10,
    )
    loop = before.graph.node[1]
    loop.attribute[0].g.input[1].type.tensor_type.ClearField("shape")
    result = rewrite(
        before, rules=[Phase("p", (EliminateTrueCondition, ConstantToInitializer), "")], verify=True
    )
    assert result.report.commits["EliminateTrueCondition"] == 1
    assert result.verification is not None
    assert result.verification.verified
