"""Rules that do something wrong, by the words in which the engine says so."""

from __future__ import annotations

from looplift import Match, Rule
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.graph.ir import Graph, Node, Variable

TEXT = """g (float[3] x, bool c) => (float[3] y, float[3] z) {
    u = Exp(x) dead = Tan(u)
    v = If (c) <then_branch = t () => (float[3] a) <float[3] w = {4, 5, 6}> { p = Mul(u, w) a = Neg(p) },
                else_branch = e () => (float[3] b) { q = Add(u, x) b = Abs(q) }>
    y = Sin(v) z = Cos(u) }"""
"""Each of them has something to do wrong here."""


class _Broken(Rule[Node]):
    """The root of rules that do something wrong."""

    root = "If"

    def match(self, m: Match) -> Node:
        return m.node


class RemovesWhatIsRead(_Broken):
    """Removes a node that is read."""

    def apply(self, patch: Patch, found: Node) -> None:
        patch.replace(found.inputs[0], patch.node("Not", [found.inputs[0]], [found.inputs[0]])[0])
        patch.remove(found)


class ReadsInsideABody(_Broken):
    """Makes the main graph read a value of a branch."""

    def apply(self, patch: Patch, found: Node) -> None:
        branch: Graph = found.attrs["then_branch"]
        patch.replace(found.outputs[0], branch.outputs[0])


class ReadsWhatNobodyDefines(_Broken):
    """Forgets to add the node whose result it uses."""

    def apply(self, patch: Patch, found: Node) -> None:
        patch.replace(found.outputs[0], Variable("nowhere"))


class InlinesBothBranches(_Broken):
    """Runs both branches and makes nothing smaller."""

    def apply(self, patch: Patch, found: Node) -> None:
        then = patch.inline(found.attrs["then_branch"])
        patch.inline(found.attrs["else_branch"])
        patch.node("If", [found.inputs[0]], like=then)
        patch.node("If", [found.inputs[0]], like=then)
        patch.replace(found.outputs[0], then[0])
        patch.remove(found)


class ReplacesBySame(_Broken):
    """Replaces a node by an equal one, forever."""

    root = "Sin"

    def apply(self, patch: Patch, found: Node) -> None:
        (again,) = patch.node("Sin", list(found.inputs), like=list(found.outputs))
        patch.replace(found.outputs[0], again)
        patch.remove(found)


class GivesAnotherType(_Broken):
    """Replaces the result by the condition."""

    def apply(self, patch: Patch, found: Node) -> None:
        patch.replace_node(found, [found.inputs[0]])


class GivesAnotherShape(_Broken):
    """Replaces a vector by its sum."""

    def apply(self, patch: Patch, found: Node) -> None:
        (result,) = patch.inline(found.attrs["then_branch"])
        total = patch.node("ReduceSum", [result], [result], {"keepdims": 0})
        patch.replace_node(found, total)


class FailsHalfWay(_Broken):
    """Raises after it has changed the graph in many ways."""

    def apply(self, patch: Patch, found: Node) -> None:
        branch: Graph = found.attrs["else_branch"]
        patch.swap_branches(found)
        (result,) = patch.inline(branch)
        patch.replace(found.outputs[0], result)
        patch.constant(branch.opset, like=result)
        raise ValueError("half way")


class FailsToMatch(_Broken):
    """Raises where it should decline."""

    def match(self, m: Match) -> Node:
        raise KeyError("no such thing")

    def apply(self, patch: Patch, found: Node) -> None:
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
