"""Squeeze gets axes only if one choice of them lets a run succeed."""

from __future__ import annotations

import pytest

from looplift.rewrite.engine.rule import Options
from looplift.rules.values.squeeze_axes import InferSqueezeAxes

from ...equivalence import assert_equivalent, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(sizes=(0, 1, 2, 5), most=60)
SPLIT = """g (float[N,1,3] x) => (float[N,1] a, float[N,2] b) <int64[2] parts = {1, 2}> {
    y = Squeeze(x)  a, b = Split<axis=1>(y, parts) }"""


@pytest.mark.parametrize("opset", [11, 12, 13, 21])
def test_the_only_possible_axes_are_named(opset: int) -> None:
    text = (
        SPLIT
        if opset >= 13
        else SPLIT.replace("(y, parts)", "<split=[1, 2]>(y)").replace(
            "Split<axis=1><split=[1, 2]>", "Split<axis=1, split=[1, 2]>"
        )
    )
    model = parse(text, opset, 8)
    result, trace, _ = run_rules(model, [InferSqueezeAxes])
    (commit,) = trace.commits()
    assert "always removes the axes [1]: otherwise every run fails at Split" in commit.notes[0]
    assert_equivalent(model, result, FEEDS)


def test_a_squeeze_of_no_axes_is_removed() -> None:
    text = """g (float[N,M] x) => (float[N,K] a, float[N,L] b) {
        u = Squeeze(x)  a, b = Split<axis=1, num_outputs=2>(u) }"""
    result = rewritten(parse(text, 21, 10), FEEDS)
    assert [node.op_type for node in result.model.graph.node] == ["Split"]


def test_strict_names_no_axes() -> None:
    assert "--strict" in reason_of(InferSqueezeAxes, parse(SPLIT, 21, 10), Options(strict=True))
