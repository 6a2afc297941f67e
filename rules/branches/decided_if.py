"""Ifs whose branch is known: the branch takes the If's place.

y = If(true) <then { a = Add(x, 1) }, else { … }>   ->   y = Add(x, 1)
"""

from __future__ import annotations

from dataclasses import dataclass

from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Graph


def inline_branch(patch: Patch, branch: Graph) -> None:
    """Moves a branch of the root, an If, to where the If stands, and removes the If."""
    patch.replace_node(patch.root, patch.inline(branch))


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
        assumes="the program does not want a branch that always fails",
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
        patch.note(f"takes `{found.branch.name}`: the other branch always fails ({found.failure})")
        inline_branch(patch, found.branch)


def _certain_failure(m: Match, branch: Graph) -> str | None:
    """Why a branch fails whenever it runs; None if it may succeed.

    It fails if one of its own nodes does whose result is read.
    """
    for node in m.index.nodes(branch):
        if not m.index.is_unused(node):
            reason = m.facts.failure(node)
            if reason is not None:
                return reason
    return None
