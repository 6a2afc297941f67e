"""Checks for the tests of your own rules: a rule does to its fixtures what it says.

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

from .debug.rule_docs import fixture_of, misses, run_alone, run_rules
from .rewrite.engine.engine import Engine
from .rewrite.engine.rule import Rule
from .rewrite.running.verify import verify
from .rewrite.storage.model import export_model
from .rules import PHASES


def near_misses(rule: type[Rule]) -> list[str]:
    """The keys of `spares`: for each near miss, words that the reason must contain."""
    return list(rule.spares)


def assert_fires(rule: type[Rule], text: str | None = None) -> onnx.ModelProto:
    """Asserts that a rule fires on a model in ONNX text, by default its fixture in `fires`, alone
    and together with looplift's rules. Returns the result of the rule alone.

    Both results must be valid and compute the same as the model on onnxruntime.
    """
    text = text or rule.fires
    assert text, f"{rule.name()} has no fixture in `fires`"
    model = fixture_of(rule, text)
    onnx.checker.check_model(model, full_check=True)
    engine = _without_defects(run_alone(rule, model))
    fired = [commit.rule for commit in engine.trace.commits()]
    reasons = "; ".join(str(miss) for miss, _ in misses(rule, run_rules(model)))
    assert rule.name() in fired, f"{rule.name()} does not fire: {reasons or 'no node is its root'}"
    result = _checked(model, engine)
    others = [other for phase in PHASES for other in phase.rules]
    _checked(model, run_rules(model, *others, rule))
    return result


def assert_spares(rule: type[Rule], words: str) -> str:
    """Asserts that a rule declines a near miss for a reason with these words; returns it."""
    known = ", ".join(map(repr, rule.spares)) or "none"
    assert words in rule.spares, f"{rule.name()} has no near miss {words!r}; it has {known}"
    model = fixture_of(rule, rule.spares[words])
    onnx.checker.check_model(model, full_check=True)
    engine = _without_defects(run_rules(model, rule))
    assert not engine.trace.commits(), f"{rule.name()} fires on the near miss {words!r}"
    reasons = [str(miss) for miss, _ in misses(rule, engine)]
    assert any(words in reason for reason in reasons), f"{words!r} is in none of {reasons}"
    return next(reason for reason in reasons if words in reason)


def _without_defects(engine: Engine) -> Engine:
    defects = engine.trace.defects()
    assert not defects, f"{defects[0].rule} at {defects[0].node}: {defects[0].reason}"
    return engine


def _checked(model: onnx.ModelProto, engine: Engine) -> onnx.ModelProto:
    result = export_model(_without_defects(engine).model)
    onnx.checker.check_model(result, full_check=True)
    verification = verify(model, result)
    assert verification.verified, str(verification)
    return result
