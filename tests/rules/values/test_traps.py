"""Nodes of bodies that always fail: onnxruntime must not see it in the file."""

from __future__ import annotations

import pytest
from onnx import TensorProto

from looplift.rewrite.engine.miss import Miss
from looplift.rewrite.engine.rule import Match
from looplift.rules.values.traps import FailingNodeToTrap

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse

_BODY = """g (float[6] x, int64 n) => (float[?] y)
    <int64 one = {{1}}, int64[2] parts = {{3, 4}}, int64[1] seven = {{7}}> {{
    y = Loop (n, "", x) <body = b (int64 i, bool c, float[?] s) => (bool d, float[?] r) {{
        d = Identity(c) e = SequenceConstruct(s, x) p = SequenceAt(e, one) {} }}> }}"""

_NONE = Feeds(values={"n": [0]})


def _reason(text: str, op: str) -> str:
    """Why the rule declines at the only node with an operator."""
    _, _, engine = run_rules(parse(text, 17, 8), [])
    (node,) = (node for node in engine.index.walk() if node.op == op)
    with pytest.raises(Miss) as miss:
        FailingNodeToTrap().match(Match(node, engine.facts, engine.options))
    return str(miss.value)


def test_a_loop_without_iterations_runs_and_others_fail() -> None:
    """onnxruntime knows no shape of an element of a sequence, and folds none."""
    text = _BODY.format("r = Reshape(p, seven)")
    result = rewritten(parse(text, 17, 8), _NONE)
    assert ops(result.model)["SequenceEmpty"] == 1
    edits = [e for c in result.trace.commits() if c.rule == "FailingNodeToTrap" for e in c.edits]
    assert any("always fails: Reshape: " in edit for edit in edits)
    assert_equivalent(
        parse(text, 17, 8), result.model, Feeds(values={"n": [0, 1]}), fails_alike=True
    )


def test_the_condition_does_not_depend_on_the_failure() -> None:
    """Only what the next iteration would carry does."""
    text = """g (float[6] x, int64 n, bool go) => (float[?] y) <int64[1] seven = {7}> {
        y = Loop (n, go, x) <body = b (int64 i, bool c, float[?] s) => (bool d, float[?] r) {
            r = Reshape(x, seven) d = Identity(c) }> }"""
    result = rewritten(parse(text, 17, 8), _NONE)
    (loop,) = (node for node in result.model.graph.node if node.op_type == "Loop")
    (body,) = (attribute.g for attribute in loop.attribute)
    assert body.output[0].name in {constant.name for constant in body.initializer}


@pytest.mark.parametrize(
    ("after", "operator"),
    [
        ("r = Expand(s, negative)", "Expand"),
        ("t = SequenceConstruct(s, s) r = SequenceAt(t, two)", "SequenceAt"),
        ("t = SequenceConstruct(s, s) r = SequenceAt(t, minus_three)", "SequenceAt"),
    ],
)
def test_operands_that_no_run_allows(after: str, operator: str) -> None:
    text = f"""g (float[6] x, int64 n) => (float[?] y)
        <int64[2] negative = {{1, -1}}, int64 two = {{2}}, int64 minus_three = {{-3}}> {{
        y = Loop (n, "", x) <body = b (int64 i, bool c, float[?] s) => (bool d, float[?] r) {{
            d = Identity(c) {after} }}> }}"""
    _, _, engine = run_rules(parse(text, 17, 8), [])
    for node in engine.index.walk():
        for output in node.outputs:
            engine.facts.of(output)
    assert [node.op for node in engine.facts.failures] == [operator]
    result = rewritten(parse(text, 17, 8), _NONE)
    assert_equivalent(
        parse(text, 17, 8), result.model, Feeds(values={"n": [0, 1]}), fails_alike=True
    )


def test_an_operand_that_lacks_an_axis_of_its_equation() -> None:
    """onnxruntime does not load it where it sees the rank, and crashes where it does not."""
    text = _BODY.format('r = Einsum<equation = "ij,j->i">(p, s)')
    result = rewritten(parse(text, 17, 8), _NONE)
    edits = [e for c in result.trace.commits() if c.rule == "FailingNodeToTrap" for e in c.edits]
    assert any("always fails: Einsum: operand 0 of ij,j->i must have rank 2" in e for e in edits)


@pytest.mark.parametrize("position", [-2, -1, 0, 1])
def test_the_first_and_last_elements_of_a_sequence(position: int) -> None:
    text = f"""g (float[6] x, int64 n) => (float[?] y) <int64 at = {{{position}}}> {{
        y = Loop (n, "", x) <body = b (int64 i, bool c, float[?] s) => (bool d, float[?] r) {{
            d = Identity(c) u = Neg(s) t = SequenceConstruct(s, u) r = SequenceAt(t, at) }}> }}"""
    _, _, engine = run_rules(parse(text, 17, 8), [])
    (read,) = (node for node in engine.index.walk() if node.op == "SequenceAt")
    assert engine.facts.failure(read) is None
    rewritten(parse(text, 17, 8), Feeds(values={"n": [0, 1, 3]}))


@pytest.mark.parametrize("strict", [False, True])
def test_every_result_of_the_node(strict: bool) -> None:
    text = _BODY.format("a, b = Split<axis = 0>(p, parts) t = Add(a, b) r = Add(t, s)")
    result = rewritten(parse(text, 13, 7), _NONE, strict=strict)
    assert ops(result.model)["SequenceAt"] >= 1
    assert_equivalent(parse(text, 13, 7), result.model, _NONE, fails_alike=True)


def test_both_branches_inside_a_loop() -> None:
    text = _BODY.format(
        "r = If (c) <then_branch = t () => (float[?] u) { u = Reshape(x, seven) }, "
        "else_branch = e () => (float[?] q) { m = Neg(x) q = Reshape(m, seven) }>"
    )
    result = rewritten(parse(text, 17, 8), _NONE)
    assert "If" not in ops(result.model)
    assert_equivalent(parse(text, 17, 8), result.model, _NONE, fails_alike=True)


@pytest.mark.parametrize(
    "after", ["t = Mul(c, p)", "m = Mul(c, p) u = Abs(m) a = Mul(u, p) t = Neg(u)"]
)
def test_a_node_that_fails_in_the_first_iteration(after: str) -> None:
    """Its operands may have other shapes in later iterations, but there are none.

    Split makes the shape of p known, and the body declares a false one for t.
    """
    text = f"""g (float[A,12] x, float[B,3] c0, int64 n) => (float[B,3] y)
        <int64[2] parts = {{3, 3}}, int64 at = {{0}}> {{
        y = Loop(n, "", c0) <body = b (int64 i, bool ci, float[B,3] c) => (bool co, float[B,3] z) {{
            co = Identity(ci) s = SplitToSequence<axis = 0>(x, parts) p = SequenceAt(s, at)
            {after} z = Identity(t) }}> }}"""
    fixed = {"A": 6}
    result = rewritten(parse(text, 17, 8), Feeds(fixed=fixed, values={"n": [0]}))
    assert "FailingNodeToTrap" in [commit.rule for commit in result.trace.commits()]
    feeds = Feeds(fixed=fixed, values={"n": [0, 1]})
    assert_equivalent(parse(text, 17, 8), result.model, feeds, fails_alike=True)


@pytest.mark.parametrize("after", ["k = Shape(r)", "v = Neg(r) k = Shape(v)"])
def test_a_failure_that_the_optimizer_removes_ends_no_loop(after: str) -> None:
    """The shape is known, and all that computes its elements is removed; s grows meanwhile."""
    text = f"""g (float[6] x, int64 n, float[2] s0) => (float[?] y, int64[?,1] z, float[?] w)
        <int64[1] seven = {{7}}, int64 at = {{0}}> {{
        y, z = Loop(n, "", s0) <body = b (int64 i, bool c, float[?] s)
            => (bool d, float[?] t, int64[1] k) {{
            d = Identity(c) q = SequenceConstruct(x) p = SequenceAt(q, at)
            r = Reshape(p, seven) {after} t = Concat<axis = 0>(s, x) }}>
        all = Shape(y) w = ConstantOfShape(all) }}"""
    result = rewritten(parse(text, 17, 8), Feeds(values={"n": [0, 1, 3]}))
    assert "FailingNodeToTrap" not in [commit.rule for commit in result.trace.commits()]


def test_a_value_that_the_body_returns_and_computes_before_the_failure() -> None:
    """The next iteration would read it after the failure, but there is none."""
    text = """g (float[5,2] x, float[B,4] h0, int64 n) => (float[B,4] y, float[C,B,2] z)
        <int64 at = {0}> {
        y, z = Loop(n, "", h0) <body = b (int64 i, bool ci, float[B,4] h)
            => (bool co, float[B,4] ho, float[B,2] r) {
            co = Identity(ci) s = Add(h, h) ho = Identity(s) q = SequenceConstruct(x)
            p = SequenceAt(q, at) u = Neg(s) t = MatMul(u, p) r = Relu(t) }> }"""
    result = rewritten(parse(text, 17, 8), Feeds(values={"n": [0]}))
    assert not result.report.defects
    assert_equivalent(
        parse(text, 17, 8), result.model, Feeds(values={"n": [0, 1]}), fails_alike=True
    )


def test_the_main_graph_keeps_its_error() -> None:
    text = "g (float[6] x) => (float[?] y) <int64[1] shape = {7}> { y = Reshape(x, shape) }"
    assert "not in a body" in _reason(text, "Reshape")


def test_a_failure_that_nothing_reads() -> None:
    text = _BODY.format("dead = Reshape(x, seven) r = Identity(s)")
    assert "nothing reads" in _reason(text, "Reshape")


def test_a_failure_whose_shape_alone_is_read() -> None:
    """onnxruntime's optimizer knows the shape, and removes the node that fails."""
    text = _BODY.format("t = Reshape(x, seven) u = Shape(t) r = Cast<to = 1>(u)")
    assert "only the shape" in _reason(text, "Reshape")


def test_opsets_without_sequences() -> None:
    text = """g (float[6] x, int64 n) => (float[?] y) <int64[1] seven = {7}> {
        y = Loop (n, "", x) <body = b (int64 i, bool c, float[?] s) => (bool d, float[?] r) {
            d = Identity(c) r = Reshape(x, seven) }> }"""
    model = parse(text, 10, 5)
    result, trace, _ = run_rules(model, [FailingNodeToTrap])
    assert not trace.commits()
    assert not trace.defects()
    assert "SequenceAt" not in ops(result)


def test_types_of_which_onnxruntime_has_no_sequences() -> None:
    text = _BODY.format(
        f"z = Cast<to = {TensorProto.BFLOAT16}>(x) v = Reshape(z, seven) r = Cast<to = 1>(v)"
    )
    assert "has the type" in _reason(text, "Reshape")


def test_constants_of_a_body_that_always_fails_are_folded() -> None:
    """The rule leaves nothing that folding has to avoid, so that a second rewrite changes nothing."""
    text = """g (float[6] x, int64 n) => (float[?] y) <int64[1] a = {3}, int64[1] b = {4}> {
        seven = Add(a, b)
        y = Loop (n, "", x) <body = b (int64 i, bool c, float[?] s) => (bool d, float[?] r) {
            d = Identity(c) r = Reshape(x, seven) }> }"""
    result = rewritten(parse(text, 17, 8), _NONE)
    assert not rewritten(result.model, _NONE).report.commits
    assert "Add" not in ops(result.model)
