"""Nodes that compute the same are merged."""

from __future__ import annotations

import pytest

from looplift import rewrite
from looplift.rules.loops.loop_invariant_code_motion import HoistLoopInvariantCode
from looplift.rules.loops.unrolling import UnrollShortLoop
from looplift.rules.values.common_subexpressions import EliminateCommonSubexpression
from looplift.rules.values.constants import DeduplicateConstants

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse

MERGED = {
    "attributes": ("g (float[2,3] x) => (float[3,2] y) { a = Transpose<perm=[1,0]>(x) b = Transpose<perm=[1,0]>(x) y = Add(a, b) }", "Transpose"),
    "constants_by_content": (
        "g (float[2] x) => (float[2] y) <float[2] k = {1,2}, float[2] l = {1,2}> { a = Mul(x, k) b = Mul(x, l) y = Add(a, b) }",
        "Mul",
    ),
    "in_a_branch_and_outside": (
        """g (float[2] x, bool c) => (float[2] y) { u = Exp(x)
        y = If (c) <then_branch = t () => (float[2] a) { v = Exp(x) a = Neg(v) },
                    else_branch = e () => (float[2] b) { w = Sin(x) b = Mul(w, u) }> }""",
        "Exp",
    ),
    "in_a_loop_and_outside": (
        """g (float[2] x, int64 m) => (float[2] y, float[2] u) { u = Exp(x)
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[2] s) => (bool co, float[2] so) {
            co = Identity(ci) v = Exp(x) so = Add(s, v) }> }""",
        "Exp",
    ),
    "chains": (
        """g (float[2] x) => (float[2] y) { a = Exp(x) b = Neg(a) c = Exp(x) d = Neg(c) y = Add(b, d) }""",
        "Neg",
    ),
    "several_results": (
        """g (float[4] x) => (float[2] y) { a, b = Split<num_outputs=2>(x) c, d = Split<num_outputs=2>(x) y = Add(a, d) }""",
        "Split",
    ),
    "equal_ifs": (
        """g (float[2] x, bool c) => (float[2] y) {
        u = If (c) <then_branch = t () => (float[2] a) { a = Exp(x) }, else_branch = e () => (float[2] b) { b = Log(x) }>
        v = If (c) <then_branch = t2 () => (float[2] p) { p = Exp(x) }, else_branch = e2 () => (float[2] q) { q = Log(x) }>
        y = Add(u, v) }""",
        "If",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MERGED)
def test_merged(name: str) -> None:
    text, op = MERGED[name]
    feeds = Feeds(values={"m": [0, 2]})
    result, trace, _ = run_rules(
        parse(text, 21, 10), [DeduplicateConstants, EliminateCommonSubexpression]
    )
    assert trace.defects() == []
    assert ops(result)[op] == 1
    assert_equivalent(parse(text, 21, 10), result, feeds, 1e-6)
    rewritten(parse(text, 21, 10), feeds, 1e-6)


MANY = range(40)


def test_all_equal_readers_of_a_value_with_many_readers_are_merged() -> None:
    nodes = " ".join(f"a{k} = Exp(x) b{k} = LeakyRelu<alpha=0.{k % 4 + 1}>(x)" for k in MANY)
    sums = " ".join(f"c{k + 1} = Add(c{k}, a{k}) d{k + 1} = Mul(d{k}, b{k})" for k in MANY)
    text = f"""g (float[2] x, float[2] c0, float[2] d0) => (float[2] c40, float[2] d40) {{
        {nodes} {sums} }}"""
    result, trace, _ = run_rules(parse(text, 21, 10), [EliminateCommonSubexpression])
    assert trace.defects() == []
    assert ops(result) == {"Exp": 1, "LeakyRelu": 4, "Add": 40, "Mul": 40}
    assert_equivalent(parse(text, 21, 10), result, Feeds(), 1e-6)


def test_a_node_that_leaves_a_loop_replaces_a_later_one_of_many_readers() -> None:
    """The later node is not visited again: the one that moves has to find it."""
    model = parse("""g (float[N,3] x, float[N,3] s) => (float[P,Q] y, int64[2] z, float[N,3] w)
            <int64 five = {5}> {
        y = Loop(five, "", s) <body = b (int64 i, bool c, float[N,3] u) => (bool d, float[N,3] v) {
            d = Identity(c) t = Shape(x) e = Expand(u, t) f = Mul(e, x) g = Sub(x, f) v = Sin(g) }>
        a = Shape(x) z = Neg(a) w = Neg(x) }""")
    result, trace, _ = run_rules(
        model, (UnrollShortLoop, HoistLoopInvariantCode, EliminateCommonSubexpression)
    )
    assert trace.defects() == []
    assert ops(result)["Shape"] == 1


def test_nodes_in_later_bodies_are_merged_but_not_across_branches() -> None:
    branches = " ".join(
        f"""a{k + 1} = If (c) <then_branch = t () => (float[2] p) {{ e = Exp(x) p = Add(a{k}, e) }},
            else_branch = f () => (float[2] q) {{ d = Neg(x) q = Add(a{k}, d) }}>"""
        for k in MANY
    )
    for around, last, left in (("u = Exp(x)", "Add(a40, u)", 1), ("", "Neg(a40)", len(MANY))):
        text = f"g (float[2] x, bool c, float[2] a0) => (float[2] y) {{ {around} {branches} y = {last} }}"
        model = parse(text, 21, 10)
        result, trace, _ = run_rules(model, [EliminateCommonSubexpression])
        assert trace.defects() == []
        assert ops(result)["Exp"] == left


def test_equal_nodes_are_merged_beside_one_whose_result_is_an_output() -> None:
    model = parse("g (float[2] x) => (float[2] y, float[2] z) { a = Exp(x) b = Exp(x) y = Add(a, b) z = Exp(x) }", 21, 10)  # fmt: skip
    result, _, _ = run_rules(model, [EliminateCommonSubexpression])
    assert ops(result) == {"Exp": 2, "Add": 1}


KEPT = {
    "other_attributes": "g (float[2,2] x) => (float[2,2] y) { a = Softmax<axis=0>(x) b = Softmax<axis=1>(x) y = Add(a, b) }",
    "attribute_absent": "g (float[2,2] x) => (float[2,2] y) { a = LeakyRelu<alpha=0.5>(x) b = LeakyRelu(x) y = Add(a, b) }",
    "order_of_operands": "g (float[2] x, float[2] z) => (float[2] y) { a = Sub(x, z) b = Sub(z, x) y = Mul(a, b) }",
    "random": "g (float[2] x) => (float[2] y) { a = RandomNormalLike(x) b = RandomNormalLike(x) y = Sub(a, b) }",
    "random_inside": """g (float[2] x, bool c) => (float[2] y) {
        u = If (c) <then_branch = t () => (float[2] a) { a = RandomNormalLike(x) }, else_branch = e () => (float[2] b) { b = Log(x) }>
        v = If (c) <then_branch = t2 () => (float[2] p) { p = RandomNormalLike(x) }, else_branch = e2 () => (float[2] q) { q = Log(x) }>
        y = Sub(u, v) }""",
    "training_dropout": """g (float[2] x, bool t) => (float[2] y) <float r = {0.5}> { a = Dropout(x, r, t) b = Dropout(x, r, t) y = Sub(a, b) }""",
    "in_two_branches": """g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] a) { v = Exp(x) a = Neg(v) },
                    else_branch = e () => (float[2] b) { w = Exp(x) b = Abs(w) }> }""",
    "outputs_of_the_model": "g (float[2] x) => (float[2] y, float[2] z) { y = Exp(x) z = Exp(x) }",
    "other_domain": "g (float[2] x) => (float[2] y) { a = com.microsoft.Gelu(x) b = Gelu(x) y = Sub(a, b) }",
    "other_body": """g (float[2] x, bool c) => (float[2] y) {
        u = If (c) <then_branch = t () => (float[2] a) { a = Exp(x) }, else_branch = e () => (float[2] b) { b = Log(x) }>
        v = If (c) <then_branch = t2 () => (float[2] p) { p = Exp(x) }, else_branch = e2 () => (float[2] q) { q = Sin(x) }>
        y = Add(u, v) }""",
    "other_result_of_body": """g (float[2] x, bool c) => (float[2] y) {
        u = If (c) <then_branch = t () => (float[2] a) { d = Exp(x) a = Neg(d) }, else_branch = e () => (float[2] b) { b = Log(x) }>
        v = If (c) <then_branch = t2 () => (float[2] p) { p = Exp(x) f = Neg(p) }, else_branch = e2 () => (float[2] q) { q = Log(x) }>
        y = Add(u, v) }""",
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    model = parse(KEPT[name], 21, 10)
    model.opset_import.add(domain="com.microsoft", version=1)
    _, trace, _ = run_rules(model, [EliminateCommonSubexpression])
    assert trace.defects() == []
    assert trace.commits() == []


@pytest.mark.parametrize("name", ["random", "random_inside", "training_dropout"])
def test_two_random_nodes_stay_two_in_a_whole_rewrite(name: str) -> None:
    model = parse(KEPT[name], 21, 10)
    result = rewrite(model)
    drawn = ops(model).get("RandomNormalLike", 0) + ops(model).get("Dropout", 0)
    assert (
        ops(result.model).get("RandomNormalLike", 0) + ops(result.model).get("Dropout", 0) == drawn
    )


def test_a_dead_random_node_does_not_make_a_body_impure() -> None:
    """Only the nodes that are left in a body decide whether it is pure."""
    body = """<body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        drawn = RandomNormal<shape=[3]>() so = Exp(s) co = Identity(ci) }>"""
    text = f"""g (float[3] x, int64 m) => (float[3] y) {{
        a = Loop (m, , x) {body} b = Loop (m, , x) {body} y = Add(a, b) }}"""
    assert ops(rewritten(parse(text, 21, 10)).model)["Loop"] == 1
