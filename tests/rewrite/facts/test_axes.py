"""Axes that are an attribute or an input."""

from __future__ import annotations

import pytest

from looplift.rewrite.facts.axes import named_axes

from ...small_models import parse
from ..fact_oracle import facts_of, value

SQUEEZE = "g (float[1,3,1] x, int64[2] k) => (float[3] y) <int64[2] a = {-3, 2}> { y = %s }"
UNSQUEEZE = "g (float[3] x, int64[2] k) => (float[1,3,1] y) <int64[2] a = {-3, 2}> { y = %s }"


@pytest.mark.parametrize(
    ("text", "opset", "axes"),
    [
        (SQUEEZE % "Squeeze(x, a)", 13, [0, 2]),
        (SQUEEZE % "Squeeze<axes=[-3, 2]>(x)", 12, [0, 2]),
        (UNSQUEEZE % "Unsqueeze(x, a)", 13, [0, 2]),
        (UNSQUEEZE % "Unsqueeze<axes=[-3, 2]>(x)", 12, [0, 2]),
        (SQUEEZE % "ReduceMax<keepdims=0>(x, a)", 18, [0, 2]),
        (SQUEEZE % "ReduceMax<keepdims=0, axes=[-3, 2]>(x)", 17, [0, 2]),
        (SQUEEZE % "Squeeze(x)", 12, None),
        (SQUEEZE % "Squeeze(x, k)", 13, None),
    ],
)
def test_named_axes(text: str, opset: int, axes: list[int] | None) -> None:
    facts = facts_of(parse(text, opset))
    node = facts.index.producer(value(facts, "y"))
    assert node is not None
    assert named_axes(facts, node) == axes


def test_the_rank_must_be_known() -> None:
    facts = facts_of(
        parse("g (int64[N] s, float x) => (y) { r = Reshape(x, s) y = Squeeze<axes=[0]>(r) }", 12)
    )
    node = facts.index.producer(value(facts, "y"))
    assert node is not None
    assert named_axes(facts, node) is None
