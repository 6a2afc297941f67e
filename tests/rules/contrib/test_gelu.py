"""DecomposeGelu: the Gelu operators of com.microsoft."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from looplift import rewrite
from looplift.rewrite.engine.rule import Rule, fixture
from looplift.rules.contrib.gelu import DecomposeGelu

from ...equivalence import ops, run_rules
from .contrib_models import assert_decomposed, floats, one_node

SHAPES = [(2, 3, 5), (1, 1, 5), (0, 3, 5)]


@pytest.mark.parametrize("opset", [12, 17, 20])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", ["Gelu", "FastGelu", "QuickGelu"])
def test_of_one_operand(op: str, shape: tuple[int, ...], opset: int) -> None:
    feed = {"x": floats(*shape) * 3}
    assert_decomposed(one_node(op, feed, opset=opset), feed)


@pytest.mark.parametrize("opset", [12, 20])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", ["BiasGelu", "FastGelu"])
def test_of_a_sum(op: str, shape: tuple[int, ...], opset: int) -> None:
    feed = {"x": floats(*shape), "bias": floats(5)}
    assert_decomposed(one_node(op, feed, opset=opset), feed)


def test_of_a_quick_gelu_with_another_factor() -> None:
    feed = {"x": floats(2, 3)}
    assert_decomposed(one_node("QuickGelu", feed, alpha=0.5), feed)


@pytest.mark.parametrize("op", ["Gelu", "FastGelu", "QuickGelu"])
def test_constants_have_the_type_of_the_operand(op: str) -> None:
    model = one_node(op, {"x": floats(2, 3).astype(np.float16)}, opset=17)
    result = rewrite(model).model
    types = {t.data_type for t in result.graph.initializer}
    assert types == {onnx.TensorProto.FLOAT16}
    assert all(not node.domain for node in result.graph.node)


def test_the_standard_operator_is_used_where_the_opset_has_it() -> None:
    assert ops(rewrite(one_node("Gelu", {"x": floats(2, 3)}, opset=20)).model) == {"Gelu": 1}


@pytest.mark.parametrize("rule", [DecomposeGelu])
def test_the_rule_alone(rule: type[Rule[Any]]) -> None:
    texts = [rule.fires] if isinstance(rule.fires, str) else list(rule.fires)
    for text in texts:
        _, trace, _ = run_rules(fixture(text), [rule])
        assert {commit.rule for commit in trace.commits()} == {rule.name()}
