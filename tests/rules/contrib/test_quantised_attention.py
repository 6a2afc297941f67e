"""DecomposeQAttention, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from looplift.rewrite.engine.rule import fixture
from looplift.rules.contrib.quantised_attention import DecomposeQAttention

from ...equivalence import run_rules
from .contrib_models import Arrays, assert_decomposed, assert_kept, floats, one_node

BATCH, LENGTH, DEPTH, HEADS, SIZE = 2, 3, 6, 2, 4
WIDTH = 3 * HEADS * SIZE


def _operands(
    batch: int = BATCH, length: int = LENGTH, *, weights: Any = np.uint8, columns: bool = False,
    **more: np.ndarray | None,
) -> Arrays:  # fmt: skip
    """Operands with scales and zero points for the whole matrix, or for each column."""
    rng = np.random.default_rng(3)
    info, shape = np.iinfo(weights), (WIDTH,) if columns else ()
    operands = {
        "x": rng.integers(0, 256, (batch, length, DEPTH)).astype(np.uint8),
        "w": rng.integers(info.min, info.max + 1, (DEPTH, WIDTH)).astype(weights),
        "bias": floats(WIDTH),
        "x_scale": np.array(0.01, np.float32),
        "w_scale": rng.uniform(0.005, 0.02, shape).astype(np.float32),
        "mask": None,
        "x_zero": np.array(120, np.uint8),
        "w_zero": rng.integers(info.min // 2, info.max // 2, shape).astype(weights),
        "past": None,
    }
    return {**operands, **more}


CASES: dict[str, tuple[Arrays, dict[str, Any]]] = {
    "plain": (_operands(), {}),
    "one row": (_operands(1, 1), {}),
    "signed weights": (_operands(weights=np.int8), {}),
    "columns": (_operands(columns=True), {}),
    "no zero points": (_operands(x_zero=None, w_zero=None), {}),
    "only that of the data": (_operands(w_zero=None), {}),
    "mask of keys": (_operands(mask=np.array([[1, 1, 0], [1, 0, 0]], np.int32)), {}),
    "lengths": (_operands(mask=np.array([1, 3], np.int32)), {}),
    "no later keys": (_operands(), {"unidirectional": 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_operands_and_attributes(case: str) -> None:
    feed, attributes = CASES[case]
    model = one_node("QAttention", feed, symbolic=case != "lengths", num_heads=HEADS, **attributes)
    assert_decomposed(model, feed, 1e-4)


@pytest.mark.parametrize("past", [0, 2])
def test_earlier_keys_and_values(past: int) -> None:
    feed = _operands(past=floats(2, BATCH, HEADS, past, SIZE))
    model = one_node(
        "QAttention", feed, 2, read=(0, 1), symbolic=False, num_heads=HEADS, unidirectional=1
    )
    assert_decomposed(model, feed, 1e-4)


def test_what_is_kept() -> None:
    feed = _operands(past=floats(2, BATCH, HEADS, 2, SIZE))
    assert_kept(one_node("QAttention", feed, symbolic=False, num_heads=HEADS))
    assert_kept(one_node("QAttention", _operands(), num_heads=HEADS, do_rotary=1))


def test_the_rule_alone() -> None:
    assert isinstance(DecomposeQAttention.fires, str)
    _, trace, _ = run_rules(fixture(DecomposeQAttention.fires), [DecomposeQAttention])
    assert {commit.rule for commit in trace.commits()} == {DecomposeQAttention.name()}
