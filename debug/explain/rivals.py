"""Finds the commits of other rules that leave a rule nothing to match at a node."""

from __future__ import annotations

from collections.abc import Iterable

from ...rewrite.engine.engine import Engine
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.rule import ANY, RULE_ERRORS, Rule
from ...rewrite.engine.trace import Commit
from ...rewrite.graph.ir import Node
from ..rule_docs import module_of


class Rivals:
    """Commits of other rules at nodes where a rule matches before, but not after them.

    Rules are tried in order, so that such a rule comes too late without ever declining.
    """

    def __init__(self, kind: type[Rule]) -> None:
        self._kind = kind
        self._matched = False
        self._commits: dict[Node, Commit] = {}

    def before(self, engine: Engine, rule: Rule, node: Node) -> None:
        """Is called before the commit of a rule at a node."""
        self._matched = type(rule) is not self._kind and self._matches(engine, node)

    def after(self, engine: Engine, commit: Commit, node: Node) -> None:
        """Is called after that commit."""
        if commit.rule == self._kind.name():
            self._commits.pop(node, None)
        elif self._matched and not (node in engine.index and self._matches(engine, node)):
            self._commits[node] = commit

    def _matches(self, engine: Engine, node: Node) -> bool:
        key = self._kind, node
        if not self._kind.is_tried_at(node) or key in engine.banned or key in engine.declined:
            return False
        try:
            return engine.match(self._kind(), node) is not None
        except (Miss, *RULE_ERRORS):
            return False

    def notes(self, nodes: Iterable[Node] = ()) -> list[str]:
        """One sentence for each other rule, with its first commit, at all nodes or at some."""
        wanted = set(nodes) or self._commits.keys()
        by_rule: dict[str, list[Commit]] = {}
        for node, commit in self._commits.items():
            if node in wanted:
                by_rule.setdefault(commit.rule, []).append(commit)
        return [self._note(rule, *commits) for rule, commits in by_rule.items()]

    def _note(self, rule: str, first: Commit, *others: Commit) -> str:
        name = self._kind.name()
        more = f" (and {len(others)} more node{'s' * (len(others) > 1)})" if others else ""
        note = f"{rule} rewrites {first.node}{more} at commit {first.number}, where {name} matches"
        if module_of(self._kind):
            note += f'; `before = "{rule}"` in {name} makes it come first'
        return note


def tried_elsewhere(kind: type[Rule], nodes: Iterable[Node]) -> list[str]:
    """A sentence with the operators that a rule is tried at, if none of the nodes is one."""
    operators = list(dict.fromkeys(node.op for node in nodes if not kind.is_tried_at(node)))
    if not operators or ANY in kind.roots():
        return []
    return [
        f"{kind.name()} is tried at {' and '.join(kind.roots())}, not at {' or '.join(operators)}"
    ]
