"""The effect of a rule on its own fixture: whether it removes control flow, and after how many
checks.

A rule removes or converts control flow if its fixture has other Ifs, Loops and Scans afterwards.
Any other rule only simplifies a node, so it cannot be the reason why control flow remains.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import onnx

from ...rewrite.engine.engine import Engine
from ...rewrite.engine.reasons import CountingMatch
from ...rewrite.engine.rule import RULE_ERRORS, Rule, fixture, root_name
from ...rewrite.errors import LoopliftError
from ...rewrite.graph.ir import CONTROL_FLOW, Node
from ...rewrite.storage.model import export_model
from ...rules import PHASES
from ...rules.values.dead_nodes import EliminateDeadNode, EliminateIdentity
from ..rule_docs import run_rules


@dataclass(frozen=True)
class RuleEffect:
    """What a rule does to its fixture. The defaults are for a rule without a fixture."""

    removes: bool = True
    """Whether it can make a control-flow node disappear."""
    converts: bool = False
    """Whether, alone, it only turns a control-flow operator into another one."""
    reduces: bool = True
    """Whether less control flow remains."""
    checks: int = 0
    """The checks that pass when it fires; 0 if that is not known."""


_known: dict[type[Rule], RuleEffect] = {}


def effect_of(rule: type[Rule]) -> RuleEffect:
    """Runs a rule on its fixture, once per process."""
    if rule not in _known:
        _known[rule] = _effect(rule)
    return _known[rule]


def _effect(rule: type[Rule]) -> RuleEffect:
    if not rule.fires:
        return RuleEffect()
    try:
        # ONNX text cannot express a branch that returns an outer value without an Identity.
        engine = run_rules(fixture(rule.fires), EliminateIdentity)
        checks = max((_checks(rule, node, engine) for node in engine.index.walk()), default=0)
        model = export_model(engine.model)
        before = _control_flow(run_rules(model))
        after = _control_flow(run_rules(model, rule, EliminateDeadNode))
        removes = before != after or _removes_with_others(rule, model)
        converts = before != after and before.total() == after.total()
        grows = before.total() < after.total()
        return RuleEffect(removes, converts, removes and not converts and not grows, checks)
    except LoopliftError:
        # The fixture is not ONNX text, or not a model; `looplift rules show` reports that.
        return RuleEffect()


def _removes_with_others(rule: type[Rule], model: onnx.ModelProto) -> bool:
    """Whether looplift's other rules remove more together with this one than without it."""
    others = [other for phase in PHASES for other in phase.rules if other is not rule]
    without = _control_flow(run_rules(model, *others))
    return _control_flow(run_rules(model, *others, rule)) != without


def _checks(rule: type[Rule], node: Node, engine: Engine) -> int:
    """The checks that pass where the rule fires; 0 where it declines or raises an error."""
    if root_name(node) not in rule.roots():
        return 0
    match = CountingMatch(node, engine)
    try:
        rule().match(match)
    except RULE_ERRORS:
        return 0
    return match.passed


def _control_flow(engine: Engine) -> Counter[str]:
    return Counter(node.op for node in engine.index.walk() if node.op in CONTROL_FLOW)
