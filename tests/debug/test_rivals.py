from __future__ import annotations

import re

import pytest

from looplift import Match, Phase, Rule
from looplift.debug.explain.explain import explain
from looplift.plugins import insert_phases
from looplift.request import Request
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.engine.rule import fixture
from looplift.rewrite.graph.ir import Node
from looplift.rules import PHASES
from looplift.rules.loops.induction_variables import InductionVariableFromIteration

from .explained import shown


class TestRulesThatComeFirst:
    """InductionVariableFromIteration drops one of the two values that the Loop carries."""

    NOTE = (
        "InductionVariableFromIteration rewrites Loop of `k`, `y` at commit {}, where Stops "
        'matches; `before = "InductionVariableFromIteration"` in Stops makes it come first'
    )

    @staticmethod
    def request(before_it: str = "") -> Request:
        class Stops(Rule[Node]):
            """Lets a Loop that carries two values run no iteration, which is wrong but short."""

            __module__ = "my_rules"
            root = "Loop"
            before = before_it

            def match(self, m: Match) -> Node:
                m.need(len(m.carried()) == 2, "{} values are carried", len(m.carried()))
                return m.node

            def apply(self, patch: Patch, found: Node) -> None:
                for value, initial in zip(found.outputs, found.inputs[2:], strict=True):
                    patch.replace(value, initial)
                patch.remove(found)

        phases = insert_phases(PHASES, (Phase("mine", (Stops,), "Mine."),))
        return Request.of(fixture(InductionVariableFromIteration.fires), phases=phases)

    @pytest.mark.parametrize("node", ["", "k"])
    def test_the_commit_and_the_remedy(self, node: str) -> None:
        found = explain(self.request(), node, "Stops")
        note = found.rule_notes[-1]
        number = re.findall(r"commit (\d+)", note)[0]
        assert note == self.NOTE.format(number)
        assert f"note: {note}" in shown(found)

    def test_the_remedy_helps(self) -> None:
        found = explain(self.request("InductionVariableFromIteration"), rule="Stops")
        assert (found.rule_notes, found.remaining) == ([], [])

    def test_another_node(self) -> None:
        """The Add that computes `k` now is no root of the rule."""
        found = explain(self.request(), "k", "Stops")
        assert found.rule_notes[0] == "Stops is tried at Loop, not at Add"

    def test_a_node_that_remains_and_is_no_root(self) -> None:
        """Nothing would be said of the If otherwise."""
        model = fixture("""g (bool c, float[N,N] x) => (float[N,N] y) {
            y = If (c) <then_branch = t () => (float[N,N] a) { a = MatMul(x, x) },
                        else_branch = e () => (float[N,N] b) { b = Softmax(x) }> }""")
        found = explain(Request.of(model), rule="LoopToScan")
        assert [node.op for node in found.remaining] == ["If"]
        assert found.rule_notes == ["LoopToScan is tried at Loop, not at If"]

    def test_a_rule_of_looplift(self) -> None:
        """The note has no remedy: a user does not reorder the rules of looplift."""
        name = "InductionVariableFromIteration"
        (note,) = explain(self.request(name), rule=name).rule_notes
        assert re.fullmatch(
            rf"Stops rewrites Loop of `k`, `y` at commit \d, where {name} matches", note
        )
