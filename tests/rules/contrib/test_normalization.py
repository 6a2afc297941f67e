"""The rules for SkipLayerNormalization and its relatives.

DecomposeSkipLayerNormalization, DecomposeRmsNormalization, DecomposeEmbedLayerNormalization.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from looplift import rewrite
from looplift.rewrite.engine.rule import Rule, fixture
from looplift.rules.contrib.normalization import (
    DecomposeEmbedLayerNormalization,
    DecomposeRmsNormalization,
    DecomposeSkipLayerNormalization,
)

from ...equivalence import run_rules
from .contrib_models import Arrays, assert_decomposed, assert_kept, floats, one_node

SHAPES = [(2, 3, 8), (1, 1, 8), (0, 3, 8), (2, 0, 8)]


def _skip(shape: tuple[int, ...], *more: str) -> dict[str, np.ndarray | None]:
    feed: dict[str, np.ndarray | None] = {"x": floats(*shape), "skip": floats(*shape)}
    return {**feed, "gamma": floats(8), **{name: floats(8) for name in more}}


@pytest.mark.parametrize("opset", [12, 17, 20])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("more", [(), ("beta",), ("beta", "bias")])
def test_of_a_sum(more: tuple[str, ...], shape: tuple[int, ...], opset: int) -> None:
    feed = _skip(shape, *more)
    model = one_node("SkipLayerNormalization", feed, 4, read=(0, 3), opset=opset, epsilon=0.01)
    assert_decomposed(model, feed, 1e-4)


@pytest.mark.parametrize("skip", [(3, 8), (1, 3, 8)])
def test_the_second_operand_may_lack_the_batch(skip: tuple[int, ...]) -> None:
    feed = {**_skip((2, 3, 8), "beta"), "skip": floats(*skip)}
    assert_decomposed(one_node("SkipLayerNormalization", feed, epsilon=0.01), feed, 1e-4)


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("more", [(), ("bias",)])
def test_of_a_sum_without_its_mean(
    more: tuple[str, ...], shape: tuple[int, ...], opset: int
) -> None:
    feed = _skip(shape, *more)
    model = one_node("SkipSimplifiedLayerNormalization", feed, 4, read=(0, 3), opset=opset)
    assert_decomposed(model, feed, 1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_without_its_mean(shape: tuple[int, ...]) -> None:
    """onnxruntime has this operator in the standard domain."""
    feed = {"x": floats(*shape), "gamma": floats(8)}
    model = one_node("SimplifiedLayerNormalization", feed, domain="", axis=-1, epsilon=0.01)
    assert_decomposed(model, feed, 1e-4)


def test_along_several_axes_it_stays() -> None:
    feed = {"x": floats(2, 3, 8), "gamma": floats(3, 8)}
    model = one_node("SimplifiedLayerNormalization", feed, domain="", axis=1)
    assert [n.op_type for n in rewrite(model).model.graph.node] == ["SimplifiedLayerNormalization"]


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_the_mean_and_the_deviation_are_not_computed(op: str) -> None:
    assert_kept(one_node(op, _skip((2, 3, 8)), 3, read=(0, 2)))


def _embedding(shape: tuple[int, ...], *omitted: str) -> Arrays:
    rng = np.random.default_rng(3)

    def numbers(end: int) -> np.ndarray:
        return rng.integers(0, end, shape).astype(np.int32)

    feed: dict[str, np.ndarray | None] = {
        "ids": numbers(9),
        "segments": numbers(2),
        "words": floats(9, 8),
        "places": floats(7, 8),
        "segment_table": floats(2, 8),
        "gamma": floats(8),
        "beta": floats(8),
        "mask": numbers(3),
        "positions": numbers(7),
    }
    return {name: None if name in omitted else value for name, value in feed.items()}


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (0, 3), (0, 9)])
@pytest.mark.parametrize(
    "omitted", [(), ("positions",), ("mask", "positions"), ("segments", "segment_table", "mask")]
)
def test_of_embeddings(omitted: tuple[str, ...], shape: tuple[int, ...], opset: int) -> None:
    feed = _embedding(shape, *omitted)
    model = one_node("EmbedLayerNormalization", feed, 3, read=(0, 1, 2), opset=opset, epsilon=0.01)
    assert_decomposed(model, feed, 1e-4)


@pytest.mark.parametrize(
    "rule",
    [DecomposeEmbedLayerNormalization, DecomposeRmsNormalization, DecomposeSkipLayerNormalization],
)
def test_the_rule_alone(rule: type[Rule[Any]]) -> None:
    texts = [rule.fires] if isinstance(rule.fires, str) else list(rule.fires)
    for text in texts:
        _, trace, _ = run_rules(fixture(text), [rule])
        assert {commit.rule for commit in trace.commits()} == {rule.name()}


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_a_skip_that_may_have_more_rows_stays(op: str) -> None:
    """The sum has the shape of the input, whatever the skip has."""
    text = f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[B,S,8] x, float[3,S,8] skip, float[8] gamma) => (float[B,S,8] y) {{
        y = com.microsoft.{op}(x, skip, gamma) }}"""
    rules = (DecomposeSkipLayerNormalization, DecomposeRmsNormalization)
    _, trace, _ = run_rules(fixture(text), rules)
    assert trace.commits() == []


def test_an_embedding_of_segments_without_segment_ids_adds_its_first_row() -> None:
    feed: Arrays = {
        "ids": np.array([[1, 2, 3]], np.int32), "words": floats(9, 8), "places": floats(7, 8),
        "table": floats(2, 8), "gamma": floats(8), "beta": floats(8),
    }  # fmt: skip
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (int32[B,S] ids, float[9,8] words, float[7,8] places, float[2,8] table, float[8] gamma,
           float[8] beta) => (float[B,S,8] y) {
        y, count = com.microsoft.EmbedLayerNormalization(ids, , words, places, table, gamma, beta) }"""
    assert_decomposed(fixture(text), feed, 1e-5)


def test_of_a_carried_value_whose_type_only_the_loop_knows() -> None:
    """The operator gives the carried value: what it gives is not known before it is decomposed."""
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[T,B,8] x, float[B,8] h, float[8] gamma, float[8] beta, int64 n) => (float[B,8] y)
        <bool go = {1}> {
        y = Loop(n, go, h) <body = b (int64 i, bool c, float[B,8] s) => (bool d, float[B,8] so) {
            d = Identity(c) xi = Gather(x, i)
            so = com.microsoft.SkipLayerNormalization(s, xi, gamma, beta) }> }"""
    result = rewrite(fixture(text), verify=True)
    assert result.report.commits["DecomposeSkipLayerNormalization"] == 1
