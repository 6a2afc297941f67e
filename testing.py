"""Checks for the tests of one's own rules: that a rule does to its examples what it says.

import pytest
from looplift.testing import assert_fires, assert_spares, near_misses

from my_rule.rules import MyRule

def test_fires():
    assert_fires(MyRule)

@pytest.mark.parametrize("words", near_misses(MyRule))
def test_spares(words):
    assert_spares(MyRule, words)
"""

from __future__ import annotations

import onnx

from .debug.rule_docs import misses, run_alone, run_rules
from .rewrite.engine.engine import Engine
from .rewrite.engine.rule import Rule, fixture
from .rewrite.running.verify import verify
from .rewrite.storage.model import export_model
from .rules import PHASES


def near_misses(rule: type[Rule]) -> list[str]:
    """The words by which `spares` names its models."""
    return list(rule.spares)


def assert_fires(rule: type[Rule]) -> onnx.ModelProto:
    """The rule fires on its example, alone and among looplift's rules, and what comes of it is
    valid and computes the same on onnxruntime. Returns what the rule alone makes of it.
    """
    assert rule.fires, f"{rule.name()} shows no model it fires on"
    model = fixture(rule.fires)
    onnx.checker.check_model(model, full_check=True)
    engine = _sound(run_alone(rule, model))
    fired = [commit.rule for commit in engine.trace.commits()]
    told = "; ".join(str(miss) for miss, _ in misses(rule, run_rules(model)))
    assert rule.name() in fired, f"{rule.name()} does not fire: {told or 'no node to start from'}"
    result = _checked(model, engine)
    others = [other for phase in PHASES for other in phase.rules]
    _checked(model, run_rules(model, *others, rule))
    return result


def assert_spares(rule: type[Rule], words: str) -> str:
    """The rule leaves a near miss alone, for the reason that its name says, which is returned."""
    model = fixture(rule.spares[words])
    onnx.checker.check_model(model, full_check=True)
    engine = _sound(run_rules(model, rule))
    assert not engine.trace.commits(), f"{rule.name()} fires on the near miss {words!r}"
    reasons = [str(miss) for miss, _ in misses(rule, engine)]
    assert any(words in reason for reason in reasons), f"{words!r} is in none of {reasons}"
    return next(reason for reason in reasons if words in reason)


def _sound(engine: Engine) -> Engine:
    defects = engine.trace.defects()
    assert not defects, f"{defects[0].rule} at {defects[0].node}: {defects[0].reason}"
    return engine


def _checked(model: onnx.ModelProto, engine: Engine) -> onnx.ModelProto:
    result = export_model(_sound(engine).model)
    onnx.checker.check_model(result, full_check=True)
    verification = verify(model, result)
    assert verification.verified, str(verification)
    return result
