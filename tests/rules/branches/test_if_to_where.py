"""Ifs that only select between cheap values become Where, for the types that have one."""

from __future__ import annotations

import pytest

from looplift.rules.branches.if_to_where import IfToWhere

from ...equivalence import ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse

_SELECTION = """g ({0}[2] x, {0}[2] z, bool c) => ({0}[2] y) {{
    y = If (c) <then_branch = t () => ({0}[2] a) {{ a = Identity(x) }},
                else_branch = e () => ({0}[2] b) {{ b = Identity(z) }}> }}"""


@pytest.mark.parametrize(
    "kind",
    ["float", "double", "float16", "int8", "int32", "int64", "uint8", "uint32", "string", "bool"],
)
def test_types_with_a_where(kind: str) -> None:
    result = rewritten(parse(_SELECTION.format(kind), 21, 10))
    assert "If" not in ops(result.model)


@pytest.mark.parametrize("kind", ["int16", "uint16", "uint64", "bfloat16"])
def test_types_without_a_where(kind: str) -> None:
    """onnxruntime would refuse the model."""
    model = parse(_SELECTION.format(kind), 21, 10)
    result, trace, _ = run_rules(model, [IfToWhere])
    assert trace.commits() == []
    assert ops(result)["If"] == 1


SELECTIONS = {
    "unknown_equal_sizes": """g (float[N] x, float[N] z, bool c) => (float[N] y) {
        y = If (c) <then_branch = t () => (float[N] a) { a = Identity(x) },
                    else_branch = e () => (float[N] b) { b = Identity(z) }> }""",
    "scalar_work": """g (float x, float z, bool c) => (float y) {
        y = If (c) <then_branch = t () => (float a) { a = Add(x, z) },
                    else_branch = e () => (float b) { b = Mul(x, z) }> }""",
    "several_results": """g (float[2] x, bool[2] z, bool c) => (float[2] y, bool[2] w) {
        n = Not(z) m = Neg(x)
        y, w = If (c) <then_branch = t () => (float[2] a, bool[2] p) { a = Identity(x) p = Identity(n) },
                       else_branch = e () => (float[2] b, bool[2] q) { b = Identity(m) q = Identity(z) }> }""",
    "constants": """g (float x, bool c) => (float y) {
        k = If (c) <then_branch = t () => (float a) <float a = {1}> { },
                    else_branch = e () => (float b) <float b = {2}> { }>
        y = Mul(k, x) }""",
    "in_a_loop": """g (float[3] x, int64 m) => (float[3] y) <int64 two = {2}> {
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
            co = Identity(ci) c = Less(i, two) u = Neg(s)
            so = If (c) <then_branch = tb () => (float[3] a) { a = Identity(u) },
                         else_branch = eb () => (float[3] bb) { bb = Identity(x) }> }> }""",
    "condition_of_one_element": """g (float[2] x, float[2] z, bool[1] c) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] a) { a = Identity(x) },
                    else_branch = e () => (float[2] b) { b = Identity(z) }> }""",
    "ranks_that_readers_broadcast": """g (float x, float[1] z, float[3] w, bool[1] c) => (float[3] y) {
        v = If (c) <then_branch = t () => (float a) { a = Identity(x) },
                    else_branch = e () => (float[1] b) { b = Div(x, z) }>
        u = Mul(w, v) y = Add(v, u) }""",
    "condition_in_the_branch": """g (float x, bool c) => (float y, bool d) {
        y, d = If (c) <then_branch = t () => (float a, bool p) { a = Identity(x) p = Not(c) },
                       else_branch = e () => (float b, bool q) { b = Neg(x) q = Identity(c) }> }""",
}  # fmt: skip


@pytest.mark.parametrize("name", SELECTIONS)
def test_becomes_a_selection(name: str) -> None:
    result = rewritten(parse(SELECTIONS[name], 21, 10), Feeds(values={"m": [0, 1, 3]}), 1e-6)
    assert "If" not in ops(result.model)


BRANCHES_THAT_STAY = {
    "shapes_differ": """g (float[2] x, float[N] z, bool c) => (float[K] y) {
        y = If (c) <then_branch = t () => (float[2] a) { a = Identity(x) },
                    else_branch = e () => (float[N] b) { b = Identity(z) }> }""",
    "ranks_differ": """g (float[1,2] x, bool c) => (float[K] y) <int64[1] zero = {0}> {
        u = Squeeze(x, zero) v = If (c) <then_branch = t () => (float[2] a) { a = Identity(u) },
                    else_branch = e () => (float[1,2] b) { b = Identity(x) }> y = Flatten<axis=0>(v) }""",
    "much_work": """g (float[100] x, bool c) => (float[100] y) {
        y = If (c) <then_branch = t () => (float[100] a) { a = Exp(x) },
                    else_branch = e () => (float[100] b) { b = Neg(x) }> }""",
    "work_of_unknown_size": """g (float[N] x, bool c) => (float[N] y) {
        y = If (c) <then_branch = t () => (float[N] a) { a = Exp(x) },
                    else_branch = e () => (float[N] b) { b = Neg(x) }> }""",
    "broadcast_that_may_fail": """g (float[3] x, float[N] z, bool c) => (float[3] y) {
        y = If (c) <then_branch = t () => (float[3] a) { a = Add(x, z) },
                    else_branch = e () => (float[3] b) { b = Identity(x) }> }""",
    "division": """g (int64 x, int64 z, bool c) => (int64 y) {
        y = If (c) <then_branch = t () => (int64 a) { a = Div(x, z) },
                    else_branch = e () => (int64 b) { b = Identity(x) }> }""",
    "gather": """g (float[2] x, int64 i, float z, bool c) => (float y) {
        y = If (c) <then_branch = t () => (float a) { a = Gather(x, i) },
                    else_branch = e () => (float b) { b = Identity(z) }> }""",
    "cast_of_text": """g (string[1] s, float[1] z, bool c) => (float[1] y) {
        y = If (c) <then_branch = t () => (float[1] a) { a = Cast<to=1>(s) },
                    else_branch = e () => (float[1] b) { b = Identity(z) }> }""",
    "random": """g (float[1] x, bool c) => (float[1] y) {
        y = If (c) <then_branch = t () => (float[1] a) { r = RandomNormal<shape=[1]>() z = Sub(r, r) a = Add(z, x) },
                    else_branch = e () => (float[1] b) { b = Identity(x) }> }""",
    "sequences": """g (float[N] x, bool c) => (float[K] y) {
        s = If (c) <then_branch = t () => (seq(float[N]) a) { a = SequenceConstruct(x) },
                    else_branch = e () => (seq(float[N]) b) { b = SequenceConstruct(x, x) }>
        y = ConcatFromSequence<axis=0>(s) }""",
    "condition_of_higher_rank": """g (float x, float z, bool[1] c) => (float y) {
        y = If (c) <then_branch = t () => (float a) { a = Identity(x) },
                    else_branch = e () => (float b) { b = Identity(z) }> }""",
    "ranks_that_a_reader_sees": """g (float x, float[1] z, bool c) => (float[K] y) {
        v = If (c) <then_branch = t () => (float a) { a = Identity(x) },
                    else_branch = e () => (float[1] b) { b = Identity(z) }>
        y = Exp(v) }""",
    "ranks_that_reach_the_result": """g (float x, float[1] z, float w, bool c) => (float[K] y) {
        v = If (c) <then_branch = t () => (float a) { a = Identity(x) },
                    else_branch = e () => (float[1] b) { b = Identity(z) }>
        y = Add(v, w) }""",
}  # fmt: skip


@pytest.mark.parametrize("name", BRANCHES_THAT_STAY)
def test_stays_an_if(name: str) -> None:
    numbers = {"division": {"z": [0, 3]}, "gather": {"i": [0, 9]}}
    feeds = Feeds(values=numbers.get(name, {}))
    result = rewritten(parse(BRANCHES_THAT_STAY[name], 21, 10), feeds, 1e-6)
    assert ops(result.model)["If"] == 1
