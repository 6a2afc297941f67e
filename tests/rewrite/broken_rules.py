"""Rules that do something wrong, by the words in which the engine says so."""

from __future__ import annotations

from typing import Any

from looplift import Match, Rule
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.graph.ir import Graph, Node, Variable

TEXT = """g (float[3] x, bool c) => (float[3] y, float[3] z) {
    u = Exp(x) dead = Tan(u)
    v = If (c) <then_branch = t () => (float[3] a) <float[3] w = {4, 5, 6}> { p = Mul(u, w) a = Neg(p) },
                else_branch = e () => (float[3] b) { q = Add(u, x) b = Abs(q) }>
    y = Sin(v) z = Cos(u) }"""
"""Each of them has something to do wrong here."""


class _Broken(Rule):
    """The root of rules that do something wrong."""

    root = "If"

    def match(self, m: Match) -> dict[str, Any]:
        return {"node": m.node}


class RemovesWhatIsRead(_Broken):
    """Takes out a node that is read."""

    def apply(self, patch: Patch, node: Node) -> None:
        patch.replace(node.inputs[0], patch.node("Not", [node.inputs[0]], [node.inputs[0]])[0])
        patch.remove(node)


class ReadsInsideABody(_Broken):
    """Lets the main graph read a value of a branch."""

    def apply(self, patch: Patch, node: Node) -> None:
        branch: Graph = node.attrs["then_branch"]
        patch.replace(node.outputs[0], branch.outputs[0])


class ReadsWhatNobodyDefines(_Broken):
    """Forgets to add the node whose result it uses."""

    def apply(self, patch: Patch, node: Node) -> None:
        patch.replace(node.outputs[0], Variable("nowhere"))


class InlinesBothBranches(_Broken):
    """Runs both branches and makes nothing smaller."""

    def apply(self, patch: Patch, node: Node) -> None:
        then = patch.inline(node.attrs["then_branch"])
        patch.inline(node.attrs["else_branch"])
        patch.node("If", [node.inputs[0]], like=then)
        patch.node("If", [node.inputs[0]], like=then)
        patch.replace(node.outputs[0], then[0])
        patch.remove(node)


class ReplacesBySame(_Broken):
    """Puts an equal node in a node's place, for ever."""

    root = "Sin"

    def apply(self, patch: Patch, node: Node) -> None:
        (again,) = patch.node("Sin", list(node.inputs), like=list(node.outputs))
        patch.replace(node.outputs[0], again)
        patch.remove(node)


class GivesAnotherType(_Broken):
    """Takes the condition for the result."""

    def apply(self, patch: Patch, node: Node) -> None:
        patch.replace_node(node, [node.inputs[0]])


class GivesAnotherShape(_Broken):
    """Takes a scalar for the vector it is the sum of."""

    def apply(self, patch: Patch, node: Node) -> None:
        (result,) = patch.inline(node.attrs["then_branch"])
        total = patch.node("ReduceSum", [result], [result], {"keepdims": 0})
        patch.replace_node(node, total)


class FailsHalfWay(_Broken):
    """Raises after it has changed the graph in many ways."""

    def apply(self, patch: Patch, node: Node) -> None:
        branch: Graph = node.attrs["else_branch"]
        patch.swap_branches(node)
        (result,) = patch.inline(branch)
        patch.replace(node.outputs[0], result)
        patch.constant(branch.opset, like=result)
        raise ValueError("half way")


class FailsToMatch(_Broken):
    """Raises where it should decline."""

    def match(self, m: Match) -> dict[str, Any]:
        raise KeyError("no such thing")

    def apply(self, patch: Patch) -> None:
        raise AssertionError


BROKEN: dict[type[Rule], str] = {
    RemovesWhatIsRead: "is removed but still read",
    ReadsInsideABody: "from a body that it is not in",
    ReadsWhatNobodyDefines: "which nothing defines",
    InlinesBothBranches: "makes nothing smaller",
    ReplacesBySame: "makes nothing smaller",
    GivesAnotherType: "`c` replaces `v`, but its type is bool, not float",
    GivesAnotherShape: "its rank is 0, not 1",
    FailsHalfWay: "apply raised",
    FailsToMatch: "match raised KeyError",
}
