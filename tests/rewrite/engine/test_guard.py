"""Edits outside of a patch raise where they happen, are named, and leave the graph as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from looplift import Match, Phase, Rule, rewrite
from looplift.debug.bisect import bisect, render
from looplift.debug.model_checks import OutputCheck
from looplift.debug.report.build import build
from looplift.debug.report.numeric import Runs
from looplift.debug.verify_commits import verify_commits
from looplift.request import Request
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.graph.index import Use
from looplift.rewrite.graph.ir import Constant, Node

from ...small_models import parse

TEXT = """g (float[N] x, float[N] z) => (float[1,N] y, float[N] k) <float[1] w = {2}> {
    a = Add(x, w) n = Neg(a) u = Unsqueeze(n, zero) y = Identity(u) k = Mul(z, n)
    zero = Constant<value_ints = [0]>() }"""

EDITS: dict[str, Callable[[Match], Any]] = {
    "operator": lambda m: setattr(m.node, "op", "Abs"),
    "operator of another node": lambda m: setattr(m.graph().nodes[0], "op", "Abs"),
    "name of a value": lambda m: setattr(m.node.outputs[0], "name", "zz"),
    "declaration": lambda m: setattr(m.node.inputs[0], "info", None),
    "inputs": lambda m: m.node.inputs.clear(),
    "one input": lambda m: m.node.inputs.__setitem__(0, m.node.outputs[0]),
    "slice of inputs": lambda m: m.node.inputs.__delitem__(slice(0, 1)),
    "list of inputs": lambda m: setattr(m.node, "inputs", []),
    "outputs": lambda m: m.node.outputs.append(m.node.inputs[0]),
    "attribute": lambda m: m.node.attrs.update(axis=7),
    "list in an attribute": lambda m: _axes(m).append(1),
    "nodes": lambda m: m.graph().nodes.clear(),
    "outputs of the graph": lambda m: m.graph().outputs.reverse(),
    "initializers": lambda m: m.graph().initializers.pop(),
    "values": lambda m: setattr(m.graph().initializers[0], "values", np.zeros(1, np.float32)),
    "content of values": lambda m: m.graph().initializers[0].values.fill(7),
    "removal in the index": lambda m: m.index.remove_node(m.node),
    "redirect in the index": lambda m: m.index.redirect(
        Use(m.node, 0), m.node.inputs[0], m.node.outputs[0]
    ),
    "constant in the index": lambda m: m.index.add_constant(Constant("c", np.zeros(1)), m.graph()),
    "deletion": lambda m: delattr(m.node, "op"),
}


def _axes(m: Match) -> list[int]:
    nodes: list[Node] = m.graph().nodes
    axes: list[int] = next(n for n in nodes if n.op == "Constant").attrs["value_ints"]
    return axes


def model() -> onnx.ModelProto:
    return parse(TEXT, 21, 10)


def editing(edit: Callable[[Match], Any], in_apply: bool, declines: bool) -> Phase:
    class Editing(Rule[Match]):
        """Edits the graph without a patch."""

        root = "Neg"

        def match(self, m: Match) -> Match:
            if not in_apply:
                edit(m)
            m.need(not declines, "declined")
            return m

        def apply(self, patch: Patch, found: Match) -> None:
            edit(found)
            patch.toward_normal_form()

    return Phase("evil", (Editing,), "")


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize(
    ("in_apply", "declines"),
    [(False, False), (False, True), (True, False)],
    ids=["match", "match that declines", "apply"],
)
def test_is_refused_and_named(edit: Callable[[Match], Any], in_apply: bool, declines: bool) -> None:
    result = rewrite(model(), rules=[editing(edit, in_apply, declines)])
    assert result.model == rewrite(model(), rules=()).model
    (defect,) = result.report.defects
    assert defect.startswith("Editing at Neg")
    assert "edited outside of a patch" in defect or "read-only" in defect
    assert "test_guard.py:" in defect


def test_the_edit_of_a_rule_that_fails_does_not_survive() -> None:
    def edit_and_fail(m: Match) -> None:
        try:
            m.node.op = "Abs"
        finally:
            raise ValueError("later")

    result = rewrite(model(), rules=[editing(edit_and_fail, False, False)])
    assert result.model == rewrite(model(), rules=()).model
    assert "later" in result.report.defects[0]


def test_new_objects_may_be_edited() -> None:
    class Fresh(Rule[Node]):
        """Replaces a Neg by a Neg that is made first."""

        root = "Neg"

        def match(self, m: Match) -> Node:
            node = Node("Mul", inputs=m.node.inputs)
            node.op = "Neg"
            node.inputs.append(m.node.outputs[0])
            node.inputs.pop()
            return node

        def apply(self, patch: Patch, found: Node) -> None:
            patch.replace(
                patch.root.outputs[0], patch.node(found.op, found.inputs, patch.root.outputs)[0]
            )
            patch.remove(patch.root)
            patch.toward_normal_form()

    result = rewrite(model(), rules=[Phase("p", (Fresh,), "")], step_limit=1)
    assert not result.report.defects
    assert len(result.trace.commits()) == 1


class CheatingRule(Rule[Node]):
    """Edits the graph without the guard, as malicious code can."""

    root = "Neg"

    def match(self, m: Match) -> Node:
        m.node.__dict__["op"] = "Abs"
        m.need(None, "declined")
        return m.node


class TestResultIsComparedWithTheFile:
    """What an edit without a commit changes is found, though no commit is to blame."""

    request_ = Request.of(model(), phases=[Phase("evil", (CheatingRule,), "")])

    def test_verify(self) -> None:
        result = verify_commits(self.request_)
        assert result.status == 1
        assert result.bad is not None
        assert result.bad.rule == "the end of the rewrite"

    def test_bisect(self) -> None:
        result = bisect(self.request_, OutputCheck.of(self.request_))
        assert result.status == 1
        assert "although there is no commit" in str(render(result, "m")[1])

    def test_report(self) -> None:
        assert build(self.request_, "m", runs=Runs.ALL).status == 1
