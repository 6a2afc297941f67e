"""Collects the reasons why rules do not fire at a node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..graph.ir import CONTROL_FLOW, Node, Tensor
from .engine import Engine
from .miss import Miss, Refusal, describe
from .rule import ANY, RULE_ERRORS, Match, Rule, describe_error, root_name


class CountingMatch(Match):
    """A match that counts the checks that pass."""

    __slots__ = ("passed",)

    def __init__(self, node: Node, engine: Engine) -> None:
        super().__init__(node, engine.facts, engine.options)
        self.passed = 0

    def need(
        self, fact: Any, sentence: str, *values: object, at: Node | Tensor | None = None
    ) -> Any:
        value = super().need(fact, sentence, *values, at=at)
        self.passed += 1
        return value


@dataclass(frozen=True)
class Reason:
    """Why one rule does not fire at one node."""

    rule: str
    sentence: str
    at: str
    """The value or node that the sentence is about, as text."""
    kind: type[Rule]
    phase: str
    """The first phase that has the rule."""
    passed: int
    """The number of checks that passed before one failed."""
    template: str
    """The sentence without its values, the same for all models."""
    place: Node | Tensor
    """The value or node that the sentence is about."""
    values: tuple[object, ...] = ()
    """The values in the sentence."""


def reasons_at(engine: Engine, node: Node) -> list[Reason]:
    """Why each rule that may match at a node does not fire there.

    Leaves out rules for every node where the node is an If, Loop or Scan: their reasons say nothing
    specific about control flow.
    """
    reasons = (_reason(engine, phase, kind, node) for phase, kind in _rules_at(engine, node))
    return [reason for reason in reasons if reason is not None]


def _rules_at(engine: Engine, node: Node) -> Iterator[tuple[str, type[Rule]]]:
    """The rules that may match at a node, each with the first phase that has it."""
    firsts: dict[type[Rule], str] = {}
    for phase in engine.phases:
        for kind in phase.rules:
            firsts.setdefault(kind, phase.name)
    is_control = node.op in CONTROL_FLOW and not node.domain
    for kind, name in firsts.items():
        roots = kind.roots()
        if ANY in roots:
            if not is_control:
                yield name, kind
        elif root_name(node) in roots:
            yield name, kind


def _reason(engine: Engine, phase: str, kind: type[Rule], node: Node) -> Reason | None:
    """Why a rule does not fire at a node; None if it would fire."""
    match = CountingMatch(node, engine)
    rule = kind()
    declined = engine.declined.get((kind, node))
    refused = declined if isinstance(declined, Refusal) else None

    def because(sentence: str) -> Reason:
        at = describe(node)
        return Reason(rule.name(), sentence, at, kind, phase, match.passed, sentence, node)

    try:
        rule.match(match)
    except Miss as miss:
        # Rules that only simplify may have changed what a refused rule matched. What the engine
        # refuses stays the reason: no assertion that makes the rule match again would help.
        return _of_miss(refused or miss, phase, kind, node, match.passed)
    except RULE_ERRORS as error:
        return because(describe_error("match", kind, error))
    if defect := engine.banned.get((kind, node)):
        return because(f"it fires, but its change is wrong and was undone: {defect}")
    return None if declined is None else _of_miss(declined, phase, kind, node, match.passed)


def _of_miss(miss: Miss, phase: str, kind: type[Rule], node: Node, passed: int) -> Reason:
    place = node if miss.at is None else miss.at
    return Reason(
        kind.name(), str(miss), describe(place), kind, phase, passed, miss.sentence, place,
        miss.values,
    )  # fmt: skip
