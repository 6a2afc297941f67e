"""DecomposeRotaryEmbedding, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from looplift.rewrite.engine.rule import Rule, fixture
from looplift.rules.contrib.rotary_embedding import DecomposeRotaryEmbedding

from ...equivalence import run_rules
from .contrib_models import Arrays, assert_decomposed, assert_kept, floats, one_node

SIZE, HEADS, LONGEST = 8, 3, 11


def _operands(
    batch: int, length: int, *, rank: int = 3, first: bool = False, rotated: int = SIZE
) -> Arrays:
    shape = (batch, HEADS, length, SIZE) if rank == 4 else (batch, length, HEADS * SIZE)
    places = np.random.default_rng(3).integers(0, LONGEST, (batch, length))
    angles = floats(LONGEST, rotated // 2)
    return {
        "x": floats(*shape),
        "places": np.array([2]) if first else places,
        "cosines": np.cos(angles),
        "sines": np.sin(angles),
    }


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("sizes", [(2, 5), (1, 1), (0, 3), (2, 0)])
def test_whole_heads(sizes: tuple[int, int], interleaved: int, rank: int, first: bool) -> None:
    feed = _operands(*sizes, rank=rank, first=first)
    model = one_node("RotaryEmbedding", feed, interleaved=interleaved)
    assert_decomposed(model, feed)


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_a_part_of_each_head(interleaved: int, rank: int) -> None:
    feed = _operands(2, 5, rank=rank, rotated=4)
    attributes: dict[str, Any] = {
        "rotary_embedding_dim": 4,
        "num_heads": HEADS,
        "interleaved": interleaved,
    }
    assert_decomposed(one_node("RotaryEmbedding", feed, **attributes), feed)


@pytest.mark.parametrize("opset", [12, 21])
def test_opsets(opset: int) -> None:
    feed = _operands(2, 5)
    assert_decomposed(one_node("RotaryEmbedding", feed, opset=opset), feed)


@pytest.mark.parametrize(
    "attributes", [{"is_packed_batching": 1}, {"scale": 2.0}, {"rotary_embedding_dim": 4}]
)
def test_what_is_kept(attributes: dict[str, Any]) -> None:
    assert_kept(one_node("RotaryEmbedding", _operands(2, 5), **attributes))


@pytest.mark.parametrize("rule", [DecomposeRotaryEmbedding])
def test_the_rule_alone(rule: type[Rule[Any]]) -> None:
    assert isinstance(rule.fires, str)
    _, trace, _ = run_rules(fixture(rule.fires), [rule])
    assert {commit.rule for commit in trace.commits()} == {rule.name()}
