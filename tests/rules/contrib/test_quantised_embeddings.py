"""DecomposeQEmbedLayerNormalization, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from looplift.rewrite.engine.rule import fixture
from looplift.rules.contrib.quantised_embeddings import DecomposeQEmbedLayerNormalization

from ...equivalence import run_rules
from .contrib_models import Arrays, assert_decomposed, one_node

SIZE = 8


def _operands(
    shape: tuple[int, int], dtype: Any, *, segments: bool = True, mask: bool = True
) -> Arrays:
    rng = np.random.default_rng(2)
    info = np.iinfo(dtype)

    def table(*sizes: int) -> np.ndarray:
        return rng.integers(info.min, info.max + 1, sizes).astype(dtype)

    tables = {
        "words": table(9, SIZE),
        "places": table(7, SIZE),
        "table": table(2, SIZE) if segments else None,
        "gamma": table(SIZE),
        "beta": table(SIZE),
    }
    given = [value is not None for value in tables.values()]
    scales = [np.float32(rng.uniform(0.01, 0.1)) if has else None for has in given]
    zeros = [rng.integers(info.min, info.max, (1,)).astype(dtype) if has else None for has in given]
    ids = rng.integers(0, 9, shape).astype(np.int32)
    return {
        "ids": ids,
        "segments": ids % 2 if segments else None,
        **tables,
        "mask": ids % 3 if mask else None,
        **{f"s{k}": None if s is None else np.array(s) for k, s in enumerate(scales)},
        **{f"z{k}": zero for k, zero in enumerate(zeros)},
    }


@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (0, 3), (2, 7)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("opset", [12, 17])
def test_of_embeddings(shape: tuple[int, int], dtype: Any, opset: int) -> None:
    feed = _operands(shape, dtype)
    model = one_node("QEmbedLayerNormalization", feed, 2, read=(0, 1), opset=opset, epsilon=0.01)
    assert_decomposed(model, feed, 1e-4)


@pytest.mark.parametrize(("segments", "mask"), [(False, True), (True, False), (False, False)])
def test_what_may_be_omitted(segments: bool, mask: bool) -> None:
    feed = _operands((2, 3), np.uint8, segments=segments, mask=mask)
    assert_decomposed(one_node("QEmbedLayerNormalization", feed, 2, read=(0, 1)), feed, 1e-4)


def test_the_rule_alone() -> None:
    rule = DecomposeQEmbedLayerNormalization
    assert isinstance(rule.fires, str)
    _, trace, _ = run_rules(fixture(rule.fires), [rule])
    assert {commit.rule for commit in trace.commits()} == {rule.name()}
