"""The exporters' squeeze-If: the branch that every successful run takes.

    d = Shape(x)[2]
    y = If(d == 1) <then { a = Squeeze(x, 2) }, else { b = Identity(x) }>
    h = LSTM(Unsqueeze(y), …)            # X must have rank 3, so y has rank 2

If one branch makes a later node fail whatever the inputs are, every run that succeeds takes the
other one. Later nodes are judged by the facts that follow from each branch in turn.
"""

from __future__ import annotations

from typing import Any

from ...rewrite.engine.miss import Miss, describe
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Graph, Node
from .decided_if import take_branch
from .demanded_ranks import later_failure

_SQUEEZE_IF = """<int64[1] two = {2}, int64[1] one = {1}> {
      s = Shape(x)  d = Gather(s, two)  c = Equal(d, one)  q = Squeeze(c)
      v = If (q) <then_branch = t () => (float[N,C] a) { a = Squeeze(x, two) },
                  else_branch = e () => (float[N,C,L] b) { b = Identity(x) }>
"""


class InlineDemandedBranch(Rule):
    """An If one branch of which makes every later run fail becomes the other branch."""

    root = "If"
    fires = "g (float[N,C,L] x) => (float[N,M] y) " + _SQUEEZE_IF + " y = Gemm(v, v) }"
    spares = {
        "no later operator": "g (float[N,C,L] x) => (float[K] y) " + _SQUEEZE_IF + " y = Exp(v) }",
    }

    def match(self, m: Match) -> dict[str, Any]:
        m.need(not m.options.strict, "--strict: a branch is not ruled out by failing")
        view = m.branches()
        m.need(
            _branches_differ(m.facts, m.node),
            "the same is known of {} in both branches: no reader fails for just one",
            [t for t in m.node.outputs if t.name],
        )
        reasons = {taken: _failure_after(m, view.branch(taken)) for taken in (True, False)}
        for taken, reason in reasons.items():
            if reason is not None and reasons[not taken] is None:
                return {"node": m.node, "branch": view.branch(not taken), "reason": reason}
        results = [t for t in m.node.outputs if t.name]
        raise Miss("no later operator that reads {} fails for just one branch", results, at=m.node)

    def apply(self, patch: Patch, node: Node, branch: Graph, reason: str) -> None:
        patch.note(
            f"{describe(node)} always takes `{branch.name}`: otherwise every run fails at {reason}"
        )
        take_branch(patch, node, branch)


def _branches_differ(facts: Facts, node: Node) -> bool:
    pairs = zip(node.attrs["then_branch"].outputs, node.attrs["else_branch"].outputs)
    return any(facts.of(a) != facts.of(b) for a, b in pairs)


def _failure_after(m: Match, branch: Graph) -> str | None:
    """The node that must fail when this branch is taken; None when no such node is found."""
    results = zip(m.node.outputs, branch.outputs)
    return later_failure(m, {output: m.facts.of(result) for output, result in results})
