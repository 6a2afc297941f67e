"""DecomposeIntegerProduct, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from looplift.rewrite.engine.rule import Rule, fixture
from looplift.rules.contrib.integer_products import DecomposeIntegerProduct

from ...equivalence import run_rules
from .contrib_models import Arrays, assert_decomposed, assert_kept, floats, one_node

WIDTH, DEPTH = 5, 6


def _integers(dtype: Any, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng(4).integers(info.min, info.max + 1, shape).astype(dtype)


def _scale(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).uniform(0.01, 0.1, shape).astype(np.float32)


@pytest.mark.parametrize("batch", [(2, 3), (1, 1), (0, 3)])
@pytest.mark.parametrize("columns", [(), (WIDTH,)])
@pytest.mark.parametrize("right", [np.uint8, np.int8])
@pytest.mark.parametrize("full", [False, True])
def test_a_left_operand_of_floats(
    batch: tuple[int, ...], columns: tuple[int, ...], right: Any, full: bool
) -> None:
    feed: Arrays = {
        "x": floats(*batch, DEPTH),
        "w": _integers(right, DEPTH, WIDTH),
        "scale": _scale(*columns),
        "zero": _integers(right, *columns) if full else None,
        "bias": floats(WIDTH) if full else None,
    }
    assert_decomposed(one_node("DynamicQuantizeMatMul", feed, symbolic=False), feed, 1e-4)


@pytest.mark.parametrize("left", [np.uint8, np.int8])
@pytest.mark.parametrize("zeros", ["none", "left", "right", "both"])
def test_a_left_operand_of_integers(left: Any, zeros: str) -> None:
    feed: Arrays = {
        "x": _integers(left, 2, 3, DEPTH),
        "w": _integers(np.int8, DEPTH, WIDTH),
        "left_scale": _scale(),
        "right_scale": _scale(WIDTH),
        "left_zero": _integers(left) if zeros in ("left", "both") else None,
        "right_zero": _integers(np.int8, WIDTH) if zeros in ("right", "both") else None,
        "bias": floats(WIDTH),
    }
    assert_decomposed(one_node("MatMulIntegerToFloat", feed, symbolic=False), feed, 1e-4)


@pytest.mark.parametrize("dtype", [np.float16])
def test_other_types_are_kept(dtype: Any) -> None:
    feed: Arrays = {
        "x": _integers(np.uint8, 2, DEPTH),
        "w": _integers(np.uint8, DEPTH, WIDTH),
        "left_scale": _scale().astype(dtype),
        "right_scale": _scale().astype(dtype),
    }
    assert_kept(one_node("MatMulIntegerToFloat", feed, symbolic=False))


def test_a_scale_for_each_column_of_the_left_operand_is_kept() -> None:
    feed: Arrays = {
        "x": _integers(np.uint8, 2, DEPTH),
        "w": _integers(np.uint8, DEPTH, WIDTH),
        "left_scale": _scale(DEPTH),
        "right_scale": _scale(),
    }
    assert_kept(one_node("MatMulIntegerToFloat", feed, symbolic=False))


@pytest.mark.parametrize("rule", [DecomposeIntegerProduct])
def test_the_rule_alone(rule: type[Rule[Any]]) -> None:
    assert isinstance(rule.fires, str)
    _, trace, _ = run_rules(fixture(rule.fires), [rule])
    assert {commit.rule for commit in trace.commits()} == {rule.name()}
