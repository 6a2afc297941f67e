"""Outputs of an If that nothing reads, or that are the same outer value in both branches."""

from __future__ import annotations

from looplift.rules.branches.branch_outputs import (
    EliminateDeadBranchOutputs,
    ForwardEqualBranchOutputs,
)
from looplift.rules.values.dead_nodes import EliminateIdentity

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...small_models import parse


def _if(then: str, other: str, results: int = 1, kind: str = "float[3]") -> str:
    names = ", ".join(f"y{i}" for i in range(results))
    declared = ", ".join(f"{kind} r{i}" for i in range(results))
    outputs = ", ".join(f"{kind} y{i}" for i in range(results))
    return f"""g (float[3] x, bool c) => ({outputs}) {{ z = Cos(x)
        {names} = If (c) <then_branch = t () => ({declared}) {{ {then} }},
                          else_branch = e () => ({declared}) {{ {other} }}> }}"""


class TestDeadOutputs:
    TEXT = """g (float[2] x, bool c) => (float[2] y) {
        z, y, w = If (c)
            <then_branch = t () => (float[2] a, float[2] b, float[2] d) { u = Exp(x) a = Neg(u) b = Abs(u) d = Sin(x) },
             else_branch = e () => (float[2] p, float[2] q, float[2] r) { p = Cos(x) q = Log(x) r = Identity(q) }> }"""

    def test_only_outputs_that_are_read_are_computed(self) -> None:
        result = rewritten(parse(self.TEXT, 21, 10), tolerance=1e-6)
        assert ops(result.model) == {"If": 1, "Exp": 1, "Abs": 1, "Log": 1}

    def test_the_rule_alone_leaves_the_bodies(self) -> None:
        result, trace, _ = run_rules(parse(self.TEXT, 21, 10), [EliminateDeadBranchOutputs])
        assert len(trace.commits()) == 1
        (node,) = result.graph.node
        assert list(node.output) == ["y"]
        assert_equivalent(parse(self.TEXT, 21, 10), result, tolerance=1e-6)

    def test_removing_copies_keeps_the_outputs(self) -> None:
        result, _, _ = run_rules(parse(self.TEXT, 21, 10), [EliminateIdentity])
        assert_equivalent(parse(self.TEXT, 21, 10), result, tolerance=1e-6)


class TestEqualOutputs:
    def test_one_of_two_results(self) -> None:
        text = _if("r0 = Identity(z) r1 = Exp(x)", "r0 = Identity(z) r1 = Log(x)", 2)
        result = rewritten(parse(text, 21, 10), tolerance=1e-6)
        (node,) = [n for n in result.model.graph.node if n.op_type == "If"]
        assert list(node.output) == ["y1"]

    def test_all_results(self) -> None:
        text = _if("r0 = Identity(z) r1 = Identity(x)", "r0 = Identity(z) r1 = Identity(x)", 2)
        assert "If" not in ops(rewritten(parse(text, 21, 10), tolerance=1e-6).model)

    def test_equal_constants(self) -> None:
        text = """g (float[3] x, bool c) => (float[3] y, float[3] w) {
            w, k = If (c) <then_branch = t () => (float[3] a, float[3] r) <float[3] r = {1,2,3}> { a = Exp(x) },
                           else_branch = e () => (float[3] b, float[3] q) <float[3] q = {1,2,3}> { b = Log(x) }>
            y = Add(x, k) }"""
        result = rewritten(parse(text, 21, 10), tolerance=1e-6)
        (node,) = [n for n in result.model.graph.node if n.op_type == "If"]
        assert len(node.output) == 1

    def test_values_of_different_name_stay(self) -> None:
        text = _if("r0 = Identity(z) r1 = Exp(x)", "r0 = Identity(x) r1 = Log(x)", 2)
        result, trace, _ = run_rules(
            parse(text, 21, 10), [EliminateIdentity, ForwardEqualBranchOutputs]
        )
        assert not [c for c in trace.commits() if c.rule == "ForwardEqualBranchOutputs"]
        assert_equivalent(parse(text, 21, 10), result, tolerance=1e-6)

    def test_outputs_of_the_model_that_are_an_input(self) -> None:
        text = """g (float[3] x, bool c) => (float[3] y, float[3] w) {
            y, w = If (c) <then_branch = t () => (float[3] a, float[3] r) { a = Identity(x) r = Exp(x) },
                           else_branch = e () => (float[3] b, float[3] q) { b = Identity(x) q = Log(x) }> }"""
        rewritten(parse(text, 21, 10), tolerance=1e-6)

    def test_two_outputs_of_the_model_that_are_one_value(self) -> None:
        text = """g (float[3] x, bool c) => (float[3] y, float[3] w, float[3] v) {
            u = Neg(x)
            y, w, v = If (c) <then_branch = t () => (float[3] a, float[3] r, float[3] p) {
                                  a = Identity(u) r = Identity(u) p = Exp(x) },
                              else_branch = e () => (float[3] b, float[3] q, float[3] o) {
                                  b = Identity(u) q = Identity(u) o = Log(x) }> }"""
        result = rewritten(parse(text, 21, 10), tolerance=1e-6)
        assert result.report.commits["ForwardEqualBranchOutputs"] == 1
