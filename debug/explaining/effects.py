"""What a rule's own example says of it: whether it makes control flow go, and by how many checks.

Each rule shows a model it fires on. A rule after which that model has other Ifs, Loops and Scans
than before can remove one or turn it into another; a rule that only makes them smaller cannot be
the reason why one is left.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import onnx
import onnx.parser

from ...rewrite.engine.engine import Engine
from ...rewrite.engine.reasons import CountingMatch
from ...rewrite.engine.rule import RULE_ERRORS, Phase, Rule, fixture
from ...rewrite.errors import LoopliftError
from ...rewrite.graph.ir import CONTROL_FLOW, Node
from ...rewrite.storage.model import export_model, import_model
from ...rules import PHASES
from ...rules.values.dead_nodes import EliminateDeadNode, EliminateIdentity


@dataclass(frozen=True)
class Effect:
    """What a rule does to the model it shows."""

    removes: bool = True
    """Whether it makes control flow go; taken to be so for a rule that shows no model."""
    recasts: bool = False
    """Whether alone it only turns one operator of control flow into another."""
    ends: bool = True
    """Whether there is less control flow afterwards; taken to be so likewise."""
    checks: int = 0
    """How many checks held when it fired; 0 where that is not known."""


_known: dict[type[Rule], Effect] = {}


def effect_of(rule: type[Rule]) -> Effect:
    """Runs a rule on its own example, once in a process."""
    if rule not in _known:
        _known[rule] = _effect(rule)
    return _known[rule]


def _effect(rule: type[Rule]) -> Effect:
    if not rule.fires:
        return Effect()
    try:
        # Text cannot say that a branch returns an outer value; without copies the branch does.
        engine = _finished(fixture(rule.fires), EliminateIdentity)
        checks = max((_checks(rule, node, engine) for node in engine.index.walk()), default=0)
        model = export_model(engine.model)
        before, after = (
            _control(_finished(model)),
            _control(_finished(model, rule, EliminateDeadNode)),
        )
        removes = before != after or _removes_with_others(rule, model)
        recasts = before != after and before.total() == after.total()
        grows = before.total() < after.total()
        return Effect(removes, recasts, removes and not recasts and not grows, checks)
    except (LoopliftError, onnx.parser.ParseError):
        # No ONNX, or no model: `looplift rules show` tells. What the rule itself raises there, the
        # engine takes for a defect.
        return Effect()


def _removes_with_others(rule: type[Rule], model: onnx.ModelProto) -> bool:
    """Whether looplift's other rules remove more with this one than without it."""
    others = [other for phase in PHASES for other in phase.rules if other is not rule]
    left = _control(_finished(model, *others))
    return _control(_finished(model, *others, rule)) != left


def _finished(model: onnx.ModelProto, *rules: type[Rule]) -> Engine:
    engine = Engine(import_model(model), (Phase("example", rules, ""),))
    engine.run()
    return engine


def _checks(rule: type[Rule], node: Node, engine: Engine) -> int:
    """The checks that hold where the rule fires; 0 where it does not."""
    if node.domain or node.op not in rule.roots():
        return 0
    match = CountingMatch(node, engine)
    try:
        rule().match(match)
    except RULE_ERRORS:  # a Miss, or what a user's rule raises, which is told where it is asked why
        return 0
    return match.passed


def _control(engine: Engine) -> Counter[str]:
    return Counter(node.op for node in engine.index.walk() if node.op in CONTROL_FLOW)
