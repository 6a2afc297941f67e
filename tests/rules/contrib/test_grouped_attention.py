"""DecomposeGroupQueryAttention, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import looplift
from looplift.rewrite.engine.rule import Rule, fixture
from looplift.rules.contrib.grouped_attention import DecomposeGroupQueryAttention

from ...equivalence import ops, run_rules
from .contrib_models import Arrays, assert_decomposed, assert_kept, floats, one_node

KEYS, GROUP, SIZE, LONGEST = 2, 3, 16, 16
QUERIES = KEYS * GROUP


def _operands(
    length: int,
    past: int | None,
    *,
    capacity: int | None = None,
    packed: bool = False,
    rotated: int = 0,
    batch: int = 1,
    dtype: Any = np.float32,
) -> Arrays:
    """Operands for `length` new tokens after `past` earlier ones, in a buffer of `capacity`."""
    total = length + (past or 0)
    held = None if past is None else floats(2, batch, KEYS, capacity or past, SIZE).astype(dtype)
    angles = floats(LONGEST, rotated // 2).astype(dtype)

    def states(heads: int) -> np.ndarray:
        return floats(batch, length, heads * SIZE).astype(dtype)

    return {
        "q": states(QUERIES + 2 * KEYS if packed else QUERIES),
        "k": None if packed else states(KEYS),
        "v": None if packed else states(KEYS),
        "past_k": None if held is None else held[0],
        "past_v": None if held is None else held[1],
        "last": np.full(batch, total - 1, np.int32),
        "longest": np.array(total, np.int32),
        "cosines": np.cos(angles) if rotated else None,
        "sines": np.sin(angles) if rotated else None,
    }


def _model(feed: Arrays, **attributes: Any) -> onnx.ModelProto:
    """The batch is known to be 1, the number of tokens is not."""
    attributes = {"num_heads": QUERIES, "kv_num_heads": KEYS, **attributes}
    model = one_node("GroupQueryAttention", feed, 3, read=(0, 1, 2), **attributes)
    for info in model.graph.input:
        dims = info.type.tensor_type.shape.dim
        batch = feed[info.name]
        if len(dims) > 2 and batch is not None:
            dims[0].dim_value = batch.shape[0]
    return model


@pytest.mark.parametrize(
    "rotary", [{}, {"do_rotary": 1}, {"do_rotary": 1, "rotary_interleaved": 1}]
)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("length", "past"), [(5, 0), (1, 0), (1, 7), (3, 4)])
def test_prompts_and_single_tokens(
    length: int, past: int, packed: bool, rotary: dict[str, Any]
) -> None:
    feed = _operands(length, past, packed=packed, rotated=SIZE if rotary else 0)
    assert_decomposed(_model(feed, **rotary), feed, 1e-4)


@pytest.mark.parametrize(("length", "past"), [(5, 0), (1, 7), (3, 4)])
def test_a_buffer_that_is_longer_than_all_keys(length: int, past: int) -> None:
    feed = _operands(length, past, capacity=12)
    assert_decomposed(_model(feed), feed, 1e-4)


@pytest.mark.parametrize(
    "attributes",
    [
        {"local_window_size": 2},
        {"softcap": 0.5},
        {"scale": 0.3},
        {"local_window_size": 1, "softcap": 2.0},
    ],
)
@pytest.mark.parametrize(("length", "past"), [(6, 0), (1, 7)])
def test_how_keys_are_weighed(length: int, past: int, attributes: dict[str, Any]) -> None:
    feed = _operands(length, past)
    assert_decomposed(_model(feed, **attributes), feed, 1e-4)


def test_half_precision() -> None:
    feed = _operands(4, 3, dtype=np.float16)
    assert_decomposed(_model(feed), feed, 2e-2)


def test_a_batch_that_is_asserted() -> None:
    feed = _operands(2, 3)
    model = _model(feed)
    for info in model.graph.input:
        dims = info.type.tensor_type.shape.dim
        if len(dims) > 2:
            dims[0].ClearField("dim_value")
            dims[0].dim_param = "batch"
    assert_kept(model)
    assert "GroupQueryAttention" not in ops(looplift.rewrite(model, dims={"batch": 1}).model)


@pytest.mark.parametrize(
    "attributes",
    [{"smooth_softmax": 1}, {"causal": 0}, {"sliding_window_cache": 1, "local_window_size": 2}],
)
def test_what_is_kept(attributes: dict[str, Any]) -> None:
    assert_kept(_model(_operands(3, 4), **attributes))


def test_several_rows_are_kept() -> None:
    assert_kept(_model(_operands(1, 4, batch=2)))


@pytest.mark.parametrize("rule", [DecomposeGroupQueryAttention])
def test_the_rule_alone(rule: type[Rule[Any]]) -> None:
    assert isinstance(rule.fires, str)
    _, trace, _ = run_rules(fixture(rule.fires), [rule])
    assert {commit.rule for commit in trace.commits()} == {rule.name()}
