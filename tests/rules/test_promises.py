"""Each rule keeps its promise: translation validation of its example, and of random variants."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import onnx
import pytest

from looplift import Match, Miss, Rule
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.engine.promise import Promise
from looplift.rewrite.engine.rule import fixture
from looplift.rewrite.graph.ir import Tensor
from looplift.rewrite.running.runtime import ExecutionError, IsolatedSession, SerializedModel
from looplift.rewrite.storage.protos import nodes
from looplift.rules import PHASES

from ..fuzz.check_rewrite import is_valid
from ..fuzz.mutations import mutated
from .downgrade import downgraded
from .validation import Observed, observe

RULES = list(dict.fromkeys(rule for phase in PHASES for rule in phase.rules))
VARIANTS = 40
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name())


def broken(promise: Promise, seen: Observed, *, strict: bool) -> list[str]:
    """What was observed and is not declared."""
    declared = promise.always_accepts or ("" if strict else promise.accepts)
    found = [*seen.defects, seen.wrong]
    found += [f"another rounding with {seen.rounds}"] if seen.rounds and promise.is_exact else []
    if seen.nonfinite and not promise.nonfinite:
        found.append(f"another infinity or NaN with {seen.nonfinite}")
    if seen.accepts and not declared:
        found.append(f"runs now with {seen.accepts}")
    found += [f"relies on: {note}" for note in seen.notes if not promise.assumes]
    return [each for each in found if each]


@each_rule
def test_a_rule_keeps_its_promise(rule: type[Rule]) -> None:
    seen = observe(rule, fixture(rule.fires))
    assert seen.fired
    assert broken(rule.promise, seen, strict=False) == []


@each_rule
def test_a_rule_keeps_its_promise_under_strict(rule: type[Rule]) -> None:
    assert broken(rule.promise, observe(rule, fixture(rule.fires), strict=True), strict=True) == []


def can_be_rewritten(model: onnx.ModelProto) -> bool:
    """Whether a variant is a valid model.

    Before opset 11, both branches of an If must have the same sizes. A change to one branch may break
    that, and onnxruntime notices it only where it infers the sizes.
    """
    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    if opset < 11 and any(node.op_type == "If" for node in nodes(model.graph)):
        return False
    try:
        IsolatedSession(SerializedModel(model))
    except ExecutionError:
        return False
    return is_valid(model)


def variants(rule: type[Rule]) -> Iterator[onnx.ModelProto]:
    """Random variants of a rule's example."""
    for number in range(VARIANTS):
        random = Random(f"{rule.name()} {number}")
        model = mutated(fixture(rule.fires), random)
        if random.random() < 0.2:
            model = downgraded(model, random.choice((11, 12, 13, 15, 17, 18)))
        if can_be_rewritten(model):
            yield model


@pytest.mark.soak
@each_rule
def test_a_rule_keeps_its_promise_on_variants(rule: type[Rule]) -> None:
    fired = 0
    for number, model in enumerate(variants(rule)):
        for strict in (False, True):
            seen = observe(rule, model, strict=strict)
            fired += seen.fired
            found = broken(rule.promise, seen, strict=strict)
            assert found == [], f"variant {number}, strict {strict}\n{onnx.printer.to_text(model)}"
    assert fired >= 5


class AbsToNeg(Rule[Tensor]):
    """Replaces Abs by Neg, which is wrong for positive numbers."""

    root = "Abs"

    def match(self, m: Match) -> Tensor:
        if m.node.inputs[0].name == "spared":
            raise Miss("spared", at=m.node)
        return m.node.inputs[0]

    def apply(self, patch: Patch, found: Tensor) -> None:
        patch.replace_node(patch.root, [patch.builder(found)("Neg", found)])
        patch.toward_normal_form()


def test_a_wrong_rule_breaks_its_promise() -> None:
    model = fixture("g (float[N] x) => (float[N] y) { z = Abs(x) y = Exp(z) }")
    seen = observe(AbsToNeg, model)
    assert seen.fired
    assert "instead of" in broken(Promise(), seen, strict=False)[0]
    assert not observe(
        AbsToNeg, fixture("g (float[2] spared) => (float[2] y) { z = Abs(spared) y = Exp(z) }")
    ).fired


def test_what_is_not_declared_is_found() -> None:
    seen = Observed(fired=True, notes={"a note"}, rounds="a", nonfinite="b", accepts="c")
    assert len(broken(Promise(), seen, strict=False)) == 4
    lenient = Promise(rounds="r", nonfinite="n", assumes="s", accepts="t")
    assert broken(lenient, seen, strict=False) == []
    assert broken(lenient, seen, strict=True) == ["runs now with c"]
    assert broken(Promise("r", "n", "s", always_accepts="u"), seen, strict=True) == []
