"""Asks rules once more why they do not fire at a node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..graph.ir import Node, Tensor
from .edits import CONTROL
from .rule import ANY, RAISED, Match, Miss, Rule, describe, raised

if TYPE_CHECKING:
    from .engine import Engine


class CountingMatch(Match):
    """A match that counts the checks that hold."""

    __slots__ = ("passed",)

    def __init__(self, node: Node, engine: Engine) -> None:
        super().__init__(node, engine.facts, engine.options)
        self.passed = 0

    def need(
        self, fact: Any, sentence: str, *values: object, at: Node | Tensor | None = None
    ) -> Any:
        held = super().need(fact, sentence, *values, at=at)
        self.passed += 1
        return held


@dataclass(frozen=True)
class Reason:
    """Why one rule does not fire at one node."""

    rule: str
    sentence: str
    at: str
    """The value or node the sentence speaks of."""
    kind: type[Rule]
    phase: str
    """The first phase that has the rule."""
    passed: int
    """Checks that held before the one that failed."""
    template: str
    """The sentence without its values: equal for all models."""
    place: Node | Tensor
    """What `at` describes."""
    values: tuple[object, ...] = ()
    """What the sentence speaks of besides."""


def reasons_at(engine: Engine, node: Node) -> list[Reason]:
    """Why each rule that may start from a node does not fire there.

    Rules that look at every node say nothing of an If, Loop or Scan in particular: only other nodes
    are told of them.
    """
    asked = (_reason(engine, phase, kind, node) for phase, kind in _rules_at(engine, node))
    return [reason for reason in asked if reason is not None]


def _rules_at(engine: Engine, node: Node) -> Iterator[tuple[str, type[Rule]]]:
    firsts: dict[type[Rule], str] = {}
    for phase in engine.phases:
        for kind in phase.rules:
            firsts.setdefault(kind, phase.name)
    is_control = node.op in CONTROL and not node.domain
    for kind, name in firsts.items():
        roots = kind.roots()
        if ANY in roots:
            if not is_control:
                yield name, kind
        elif node.op in roots and not node.domain:
            yield name, kind


def _reason(engine: Engine, phase: str, kind: type[Rule], node: Node) -> Reason | None:
    """None for a rule that would fire."""
    match = CountingMatch(node, engine)
    rule = kind()

    def told(sentence: str) -> Reason:
        at = describe(node)
        return Reason(rule.name(), sentence, at, kind, phase, match.passed, sentence, node)

    try:
        rule.match(match)
    except Miss as miss:
        return _of_miss(miss, phase, kind, node, match.passed)
    except RAISED as error:
        return told(raised("match", kind, error))
    if defect := engine.banned.get((kind, node)):
        return told(f"it fires, but its change is wrong and was undone: {defect}")
    declined = engine.declined.get((kind, node))
    return None if declined is None else _of_miss(declined, phase, kind, node, match.passed)


def _of_miss(miss: Miss, phase: str, kind: type[Rule], node: Node, passed: int) -> Reason:
    place = node if miss.at is None else miss.at
    return Reason(
        kind.name(), str(miss), describe(place), kind, phase, passed, miss.sentence, place,
        miss.values,
    )  # fmt: skip
