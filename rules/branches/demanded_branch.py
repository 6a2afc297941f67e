"""The exporters' squeeze-If: takes the branch that every successful run takes.

    d = Shape(x)[2]
    y = If(d == 1) <then { a = Squeeze(x, 2) }, else { b = Identity(x) }>
    h = LSTM(Unsqueeze(y), …)            # X must have rank 3, so y has rank 2

If one branch makes a later node fail whatever the inputs are, every run that succeeds takes the
other one. The rule derives the facts of later nodes from each branch in turn.
"""

from __future__ import annotations

from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Graph
from ...rewrite.graph.views import IfView
from ..values.later_failures import later_failure
from .decided_if import OnlyPossibleBranch, inline_only_branch

_SQUEEZE_IF = """<int64[1] two = {2}, int64[1] one = {1}> {
      s = Shape(x)  d = Gather(s, two)  c = Equal(d, one)  q = Squeeze(c)
      v = If (q) <then_branch = t () => (float[N,C] a) { a = Squeeze(x, two) },
                  else_branch = e () => (float[N,C,L] b) { b = Identity(x) }>
"""


class InlineDemandedBranch(Rule[OnlyPossibleBranch]):
    """Replaces an If by one of its branches if the other makes a later node fail."""

    root = "If"
    promise = Promise(
        assumes="the program never needs a branch after which every run fails",
        accepts="those that take that branch",
    )
    fires = "g (float[N,C,L] x) => (float[N,M] y) " + _SQUEEZE_IF + " y = Gemm(v, v) }"
    spares = {
        "no later operator": "g (float[N,C,L] x) => (float[K] y) " + _SQUEEZE_IF + " y = Exp(v) }",
    }

    def match(self, m: Match) -> OnlyPossibleBranch:
        m.need(not m.options.strict, "--strict: a run that fails must still fail")
        view, results = m.branches(), [t for t in m.node.outputs if t.name]
        m.need(
            _results_differ(m.facts, view),
            "the facts of {} are equal in both branches, so no reader fails for just one",
            results,
        )
        failures = {taken: _failure_after(m, view.branch(taken)) for taken in (True, False)}
        for taken, failure in failures.items():
            if failure is not None and failures[not taken] is None:
                return OnlyPossibleBranch(view.branch(not taken), failure)
        raise Miss("no later operator that reads {} fails for just one branch", results, at=m.node)

    def apply(self, patch: Patch, found: OnlyPossibleBranch) -> None:
        reason = f"otherwise every run fails at {found.failure} (--strict keeps the If)"
        inline_only_branch(patch, found.branch, reason)


def _results_differ(facts: Facts, view: IfView) -> bool:
    """Whether the facts of a result differ between the branches."""
    pairs = zip(view.then.outputs, view.orelse.outputs)
    return any(facts.of(a) != facts.of(b) for a, b in pairs)


def _failure_after(m: Match, branch: Graph) -> str | None:
    """The later node that must fail if this branch is taken; None when no such node is found."""
    results = zip(m.node.outputs, branch.outputs)
    return later_failure(m, {output: m.facts.of(result) for output, result in results})
