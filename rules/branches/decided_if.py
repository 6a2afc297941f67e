"""Ifs whose branch is known: the branch takes the If's place.

y = If(true) <then { a = Add(x, 1) }, else { … }>   ->   y = Add(x, 1)
"""

from __future__ import annotations

from typing import Any

from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Graph, Node


def take_branch(patch: Patch, node: Node, branch: Graph) -> None:
    """Moves a branch to where its If stands and removes the If."""
    patch.replace_node(node, patch.inline(branch))


class InlineDecidedIf(Rule):
    """An If whose condition is known becomes the branch that is taken."""

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

    def match(self, m: Match) -> dict[str, Any]:
        view = m.branches()
        taken = m.facts.scalar(view.condition)
        m.need(
            isinstance(taken, bool),
            "the condition `{}` is not known before the run",
            view.condition.name,
            at=view.condition,
        )
        return {"node": m.node, "branch": view.branch(bool(taken))}

    def apply(self, patch: Patch, node: Node, branch: Graph) -> None:
        take_branch(patch, node, branch)


class InlineOnlyPossibleBranch(Rule):
    """An If one branch of which always fails becomes the other branch."""

    root = "If"
    fires = """g (float[2,3] x, bool c) => (float[M] y) {
      y = If (c) <then_branch = t () => (float[7] a) <int64[1] m = {7}> { a = Reshape(x, m) },
                  else_branch = e () => (float[6] b) <int64[1] m = {6}> { b = Reshape(x, m) }> }"""
    spares = {
        "may succeed": """g (float[N,3] x, bool c) => (float[M] y) {
      y = If (c) <then_branch = t () => (float[3] a) <int64[1] ax = {0}> { a = Squeeze(x, ax) },
                  else_branch = e () => (float[K] b) <int64[1] m = {-1}> { b = Reshape(x, m) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        m.need(not m.options.strict, "--strict: a branch is not ruled out by failing")
        view = m.branches()
        for taken in (True, False):
            reason = _sure_failure(m, view.branch(taken))
            if reason is not None:
                m.need(
                    _sure_failure(m, view.branch(not taken)) is None, "both branches always fail"
                )
                return {"node": m.node, "branch": view.branch(not taken), "reason": reason}
        raise Miss("each branch may succeed, whatever {} is", view.condition, at=m.node)

    def apply(self, patch: Patch, node: Node, branch: Graph, reason: str) -> None:
        patch.note(f"takes `{branch.name}`: the other branch always fails ({reason})")
        take_branch(patch, node, branch)


def _sure_failure(m: Match, branch: Graph) -> str | None:
    """Why a branch fails whenever it runs: one of its own nodes, whose result is used, does."""
    for node in m.index.nodes(branch):
        if not m.index.is_unused(node):
            reason = m.facts.failure(node)
            if reason is not None:
                return reason
    return None
