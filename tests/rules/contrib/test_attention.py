"""DecomposeMultiHeadAttention and DecomposeAttention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

from looplift.rewrite.engine.rule import Rule, fixture
from looplift.rules.contrib.attention import DecomposeAttention, DecomposeMultiHeadAttention

from ...equivalence import run_rules
from ..reasons import reason_of
from .contrib_models import Arrays, assert_decomposed, assert_kept, floats, one_node

BATCH, QUERIES, KEYS, HEADS = 2, 3, 5, 2


def _mask(*shape: int) -> np.ndarray:
    """The first key always counts: onnxruntime rounds the scores of a row without a key."""
    mask = np.random.default_rng(5).integers(0, 2, shape).astype(np.int32)
    mask[..., 0] = 1
    return mask


def _operands(queries: int = QUERIES, keys: int = KEYS, batch: int = BATCH, **more: Any) -> Arrays:
    """The operands in their order; `more` replaces omitted ones."""
    operands: dict[str, np.ndarray | None] = {
        "q": floats(batch, queries, 8),
        "k": floats(batch, keys, 8),
        "v": floats(batch, keys, 6),
        "bias": None,
        "mask": None,
        "scores": None,
        "past_k": None,
        "past_v": None,
    }
    return {**operands, **more}


OPERANDS: dict[str, Arrays] = {
    "plain": _operands(),
    "one query": _operands(1, 1, 1),
    "no query": _operands(0, 3),
    "no batch": _operands(batch=0),
    "bias": _operands(bias=floats(22)),
    "mask of keys": _operands(mask=_mask(BATCH, KEYS)),
    "mask of scores": _operands(mask=_mask(BATCH, QUERIES, KEYS)),
    "lengths": _operands(mask=np.array([1, 3], np.int32)),
    "scores": _operands(scores=floats(BATCH, HEADS, QUERIES, KEYS)),
    "scores of all heads": _operands(scores=floats(1, 1, QUERIES, KEYS)),
    "mask and scores": _operands(
        mask=_mask(BATCH, KEYS), scores=floats(BATCH, HEADS, QUERIES, KEYS)
    ),
    "heads of keys": _operands(k=floats(BATCH, HEADS, KEYS, 4), v=floats(BATCH, HEADS, KEYS, 4)),
    "earlier keys": _operands(
        v=floats(BATCH, KEYS, 8),
        past_k=floats(BATCH, HEADS, 4, 4),
        past_v=floats(BATCH, HEADS, 4, 4),
    ),
    "earlier keys and bias": _operands(
        v=floats(BATCH, KEYS, 8),
        bias=floats(24),
        past_k=floats(BATCH, HEADS, 4, 4),
        past_v=floats(BATCH, HEADS, 4, 4),
    ),
    "no earlier keys": _operands(
        v=floats(BATCH, KEYS, 8),
        past_k=floats(BATCH, HEADS, 0, 4),
        past_v=floats(BATCH, HEADS, 0, 4),
    ),
}


@pytest.mark.parametrize("case", OPERANDS)
def test_of_queries_keys_and_values(case: str) -> None:
    feed = OPERANDS[case]
    outputs = 1 if feed["past_k"] is None else 3
    model = one_node("MultiHeadAttention", feed, outputs, symbolic=False, num_heads=HEADS)
    assert_decomposed(model, feed, 1e-4)
    shown = {k: x for k, x in feed.items() if k in ("q", "k", "v")}
    model = one_node("MultiHeadAttention", shown, num_heads=HEADS)
    if feed["k"].ndim == 3:  # type: ignore[union-attr]
        assert_decomposed(model, shown, 1e-4)


def test_the_keys_and_values_are_results() -> None:
    for case in ("plain", "bias", "earlier keys"):
        feed = OPERANDS[case]
        model = one_node(
            "MultiHeadAttention", feed, 3, read=(0, 1, 2), num_heads=HEADS, symbolic=False
        )
        assert_decomposed(model, feed, 1e-4)


@pytest.mark.parametrize("attributes", [{"scale": 0.3}, {"mask_filter_value": -5.0}])
def test_attributes(attributes: dict[str, Any]) -> None:
    feed = OPERANDS["mask of keys"]
    model = one_node("MultiHeadAttention", feed, symbolic=False, num_heads=HEADS, **attributes)
    assert_decomposed(model, feed, 1e-4)


@pytest.mark.parametrize("mask", [None, _mask(BATCH, 4)])
def test_queries_that_see_no_later_key(mask: np.ndarray | None) -> None:
    feed = _operands(4, 4, mask=mask)
    model = one_node("MultiHeadAttention", feed, symbolic=False, num_heads=HEADS, unidirectional=1)
    assert_decomposed(model, feed, 1e-4)


def test_near_misses() -> None:
    kept: dict[str, tuple[Arrays, dict[str, Any]]] = {
        "earlier keys that onnxruntime ignores": (OPERANDS["earlier keys"], {}),
        "other keys than queries": (_operands(3, 5), {"unidirectional": 1}),
        "number of keys as mask": (_operands(mask=np.array([3, 5], np.int32)), {}),
        "mask and earlier keys": (
            {**OPERANDS["earlier keys"], "mask": _mask(BATCH, KEYS + 4)},
            {},
        ),
    }
    for feed, attributes in kept.values():
        assert_kept(one_node("MultiHeadAttention", feed, num_heads=HEADS, **attributes))


def _self_attention(batch: int = 2, length: int = 4, **more: np.ndarray) -> Arrays:
    operands: dict[str, np.ndarray | None] = {
        "x": floats(batch, length, 6),
        "w": floats(6, 24),
        "b": floats(24),
        "mask": None,
        "past": None,
        "scores": None,
    }
    return {**operands, **more}


SELF_ATTENTION: dict[str, tuple[Arrays, dict[str, Any]]] = {
    "plain": (_self_attention(), {}),
    "one": (_self_attention(1, 1), {}),
    "no batch": (_self_attention(0, 3), {}),
    "mask of keys": (_self_attention(mask=_mask(2, 4)), {}),
    "mask of scores": (_self_attention(mask=_mask(2, 4, 4)), {}),
    "lengths": (_self_attention(mask=np.array([1, 3], np.int32)), {}),
    "lengths of none and all": (_self_attention(mask=np.array([0, 4], np.int32)), {}),
    "ends and starts": (_self_attention(mask=np.array([4, 3, 1, 0], np.int32)), {}),
    "ends before starts": (_self_attention(mask=np.array([1, 4, 2, 9], np.int32)), {}),
    "end and start of one": (_self_attention(1, mask=np.array([3, 1], np.int32)), {}),
    "scores": (_self_attention(scores=floats(2, 2, 4, 4)), {}),
    "no later key": (_self_attention(), {"unidirectional": 1}),
    "other sizes": (_self_attention(), {"qkv_hidden_sizes": [6, 6, 12]}),
    "another scale": (_self_attention(), {"scale": 0.1}),
    "masked": (_self_attention(mask=_mask(2, 4)), {"unidirectional": 1}),
}


@pytest.mark.parametrize("case", SELF_ATTENTION)
def test_of_one_value(case: str) -> None:
    feed, attributes = SELF_ATTENTION[case]
    model = one_node("Attention", feed, symbolic=False, num_heads=2, **attributes)
    assert_decomposed(model, feed, 1e-4)
    if feed["mask"] is None and feed["scores"] is None:
        assert_decomposed(one_node("Attention", feed, num_heads=2, **attributes), feed, 1e-4)


PAST: dict[str, tuple[Arrays, dict[str, Any]]] = {
    "plain": (_self_attention(past=floats(2, 2, 2, 3, 4)), {}),
    "one": (_self_attention(1, 1, past=floats(2, 1, 2, 5, 4)), {}),
    "nothing earlier": (_self_attention(past=floats(2, 2, 2, 0, 4)), {}),
    "no later key": (_self_attention(past=floats(2, 2, 2, 3, 4)), {"unidirectional": 1}),
    "mask of keys": (_self_attention(mask=_mask(2, 7), past=floats(2, 2, 2, 3, 4)), {}),
    "lengths": (
        _self_attention(mask=np.array([2, 5], np.int32), past=floats(2, 2, 2, 3, 4)),
        {"unidirectional": 1},
    ),
    "ends and starts": (
        _self_attention(mask=np.array([2, 7, 0, 4], np.int32), past=floats(2, 2, 2, 3, 4)),
        {"unidirectional": 1},
    ),
    "masked": (
        _self_attention(mask=_mask(2, 7), past=floats(2, 2, 2, 3, 4)),
        {"unidirectional": 1},
    ),
    "no past": (_self_attention(), {"unidirectional": 1}),
}


@pytest.mark.parametrize("case", PAST)
def test_earlier_keys_and_values(case: str) -> None:
    feed, attributes = PAST[case]
    for read in ((0, 1), (0,)):
        model = one_node("Attention", feed, 2, read=read, symbolic=False, num_heads=2, **attributes)
        assert_decomposed(model, feed, 1e-4)


def test_forms_of_attention_that_stay() -> None:
    past = np.zeros((2, 2, 2, 3, 4), np.float32)
    assert_kept(one_node("Attention", _self_attention(past=past), num_heads=2))
    sizes: dict[str, Any] = {"qkv_hidden_sizes": [6, 6, 12]}
    assert_kept(one_node("Attention", _self_attention(), 2, read=(0, 1), num_heads=2, **sizes))
    mask = np.array([2, 4], np.int32)
    assert_kept(one_node("Attention", _self_attention(mask=mask), num_heads=2))


@pytest.mark.parametrize("rule", [DecomposeAttention, DecomposeMultiHeadAttention])
def test_the_rule_alone(rule: type[Rule[Any]]) -> None:
    texts = [rule.fires] if isinstance(rule.fires, str) else list(rule.fires)
    for text in texts:
        _, trace, _ = run_rules(fixture(text), [rule])
        assert {commit.rule for commit in trace.commits()} == {rule.name()}


@pytest.mark.parametrize("filter_value", [None, -5.0, 0.0])
@pytest.mark.parametrize("first", [0, 2, 4])
def test_keys_after_a_query_do_not_count_at_all(first: int, filter_value: float | None) -> None:
    """Those that a mask hides count where no other does: padding on the left."""
    mask = np.ones((BATCH, 4), np.int32)
    mask[:, :first] = 0
    feed = _operands(4, 4, v=floats(BATCH, 4, 8), mask=mask)
    given: dict[str, Any] = {} if filter_value is None else {"mask_filter_value": filter_value}
    model = one_node(
        "MultiHeadAttention", feed, symbolic=False, num_heads=HEADS, unidirectional=1, **given
    )
    assert_decomposed(model, feed, 1e-4)


def test_scores_that_are_far_apart() -> None:
    large = np.array([[[-200.0], [100.0], [200.0]]], np.float32)
    feed: Arrays = {"q": np.full((1, 3, 1), 200, np.float32), "k": large, "v": floats(1, 3, 1)}
    model = one_node("MultiHeadAttention", feed, symbolic=False, num_heads=1, unidirectional=1)
    assert_decomposed(model, feed)


@pytest.mark.parametrize(
    ("words", "operands", "heads"),
    [
        ("its attribute num_heads is 0, not a positive number", "float[B,S,8] x", 0),
        ("its attribute num_heads is -2, not a positive number", "float[B,S,8] x", -2),
        ("does not consist of floating point numbers", "int32[B,S,8] x", 2),
    ],
)
def test_what_onnxruntime_refuses_is_declined(words: str, operands: str, heads: int) -> None:
    kind = operands.split("[")[0]
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g ({operands}) => ({kind}[B,S,8] y) {{
            y = com.microsoft.MultiHeadAttention <num_heads = {heads}> (x, x, x) }}""")
    assert words in reason_of(DecomposeMultiHeadAttention, model)
