"""Ifs whose branch is known: the branch takes the If's place.

y = If(true) <then { a = Add(x, 1) }, else { … }>   ->   y = Add(x, 1)
"""

from __future__ import annotations

from dataclasses import dataclass

from ...rewrite.engine.miss import Miss, describe
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Graph, Node, Tensor
from ...rewrite.graph.views import IfView

_MOST_VALUES = 64
"""The most values that a search for ignored inputs visits, in each direction."""


def inline_branch(patch: Patch, branch: Graph) -> None:
    """Moves a branch of the root, an If, to where the If stands, and removes the If."""
    patch.replace_node(patch.root, patch.inline(branch))


def inline_only_branch(patch: Patch, branch: Graph, reason: str) -> None:
    """Inlines a branch of the root, an If whose condition is not known, and notes the reason.

    The note also names the inputs of the model that nothing reads any more.
    """
    label, condition = describe(patch.root), IfView(patch.root).condition
    inline_branch(patch, branch)
    ignored = [f"`{tensor.name}`" for tensor in _unread_inputs(patch.index, condition)]
    verb = "is" if len(ignored) == 1 else "are"
    effect = f"; {' and '.join(ignored)} {verb} now ignored" if ignored else ""
    patch.note(f"{label} always takes `{branch.name}`, because {reason}{effect}")


def _unread_inputs(index: Index, tensor: Tensor) -> list[Tensor]:
    """The inputs of the model that a value is computed from and that no output depends on.

    Searches near the value only.
    """
    found, waiting, seen = [], [tensor], {tensor}
    while waiting and len(seen) < _MOST_VALUES:
        value = waiting.pop()
        node = index.producer(value)
        if node is None and value in index.root.inputs and not _reaches_an_output(index, value):
            found.append(value)
        operands = [] if node is None else [*node.inputs, *index.captures(node)]
        waiting += [each for each in operands if each not in seen]
        seen.update(operands)
    return found


def _reaches_an_output(index: Index, tensor: Tensor) -> bool:
    """Whether an output of the model, or of any body, may depend on a value."""
    waiting, seen = [tensor], {tensor}
    while waiting:
        if len(seen) > _MOST_VALUES:
            return True
        for use in index.uses(waiting.pop()):
            if not isinstance(use.reader, Node):
                return True
            waiting += [each for each in use.reader.outputs if each not in seen]
            seen.update(use.reader.outputs)
    return False


class InlineDecidedIf(Rule[Graph]):
    """Replaces an If whose condition is known by the branch that it takes."""

    root = "If"
    fires = """g (float[1,3] x) => (float[3] y) <int64 z = {0}, int64 one = {1}> {
      s = Shape(x)  d = Gather(s, z)  c = Equal(d, one)
      y = If (c) <then_branch = t () => (float[3] a) <int64[1] ax = {0}> { a = Squeeze(x, ax) },
                  else_branch = e () => (float[3] b) <int64[1] m = {3}> { b = Reshape(x, m) }> }"""
    spares = {
        "is not known": """g (float[N,3] x) => (float[M] y) <int64 z = {0}, int64 one = {1}> {
      s = Shape(x)  d = Gather(s, z)  c = Equal(d, one)
      y = If (c) <then_branch = t () => (float[3] a) <int64[1] ax = {0}> { a = Squeeze(x, ax) },
                  else_branch = e () => (float[K] b) <int64[1] m = {-1}> { b = Reshape(x, m) }> }""",
    }

    def match(self, m: Match) -> Graph:
        view = m.branches()
        taken = m.facts.scalar(view.condition)
        m.need(
            isinstance(taken, bool),
            "the condition `{}` is not known before the run",
            view.condition.name,
            at=view.condition,
        )
        return view.branch(bool(taken))

    def apply(self, patch: Patch, found: Graph) -> None:
        inline_branch(patch, found)


@dataclass(frozen=True)
class OnlyPossibleBranch:
    """The only branch of an If with which a run can succeed."""

    branch: Graph
    failure: str
    """Why the other branch always fails, or makes a later node fail."""


class InlineOnlyPossibleBranch(Rule[OnlyPossibleBranch]):
    """Replaces an If by one of its branches if the other branch always fails."""

    root = "If"
    promise = Promise(
        assumes="the program never needs a branch that always fails",
        accepts="those that take that branch",
    )
    fires = """g (float[2,3] x, bool c) => (float[M] y) {
      y = If (c) <then_branch = t () => (float[7] a) <int64[1] m = {7}> { a = Reshape(x, m) },
                  else_branch = e () => (float[6] b) <int64[1] m = {6}> { b = Reshape(x, m) }> }"""
    spares = {
        "may succeed": """g (float[N,3] x, bool c) => (float[M] y) {
      y = If (c) <then_branch = t () => (float[3] a) <int64[1] ax = {0}> { a = Squeeze(x, ax) },
                  else_branch = e () => (float[K] b) <int64[1] m = {-1}> { b = Reshape(x, m) }> }""",
    }

    def match(self, m: Match) -> OnlyPossibleBranch:
        m.need(not m.options.strict, "--strict: a run that fails must still fail")
        view = m.branches()
        for taken in (True, False):
            failure = _certain_failure(m, view.branch(taken))
            if failure is not None:
                other = view.branch(not taken)
                m.need(_certain_failure(m, other) is None, "both branches always fail")
                return OnlyPossibleBranch(other, failure)
        raise Miss("each branch may succeed, whatever {} is", view.condition, at=m.node)

    def apply(self, patch: Patch, found: OnlyPossibleBranch) -> None:
        inline_only_branch(patch, found.branch, f"the other branch always fails ({found.failure})")


def _certain_failure(m: Match, branch: Graph) -> str | None:
    """Why a branch fails whenever it runs; None if it may succeed.

    It fails if one of its own nodes always fails and is computed (see `Index.is_computed`).
    """
    for node in m.index.nodes(branch):
        reason = m.facts.failure(node)
        if reason is not None and m.index.is_computed(node):
            return reason
    return None
