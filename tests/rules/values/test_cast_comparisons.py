"""Comparisons of integers that were cast to floats compare the integers."""

from __future__ import annotations

import numpy as np
import pytest

from looplift import rewrite
from looplift.rewrite.running.runtime import SerializedModel, Session
from looplift.rules.values.cast_comparisons import CompareBeforeCast

from ...equivalence import assert_equivalent, ops, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

OPERATORS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
NUMBERS = [0, 1, -1, 7, 8, 9, -8, 2**24 - 1, 2**24, 2**24 + 1, -(2**24) - 1, 2**31 - 1, -(2**31)]
LARGE = [2**53 - 1, 2**53 + 1, 2**62 + 1, -(2**63)]


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("is_left", [True, False])
@pytest.mark.parametrize("to", [1, 11])
def test_every_number_near_a_limit(op: str, is_left: bool, to: int) -> None:
    kind, last = {1: ("float", 2**24 - 1), 11: ("double", 2**53 - 1)}[to]
    whole = [8.0, 0.0, -8.0, float(last), -float(last)]
    limits = whole if op == "Equal" else [*whole, 7.5, -0.25, -7.5]
    operands = "f, k" if is_left else "k, f"
    text = f"""g (int64[N,1] n) => (bool[N,{len(limits)}] y)
        <{kind}[{len(limits)}] k = {{{", ".join(map(repr, limits))}}}> {{
        f = Cast<to = {to}>(n) y = {op}({operands}) }}"""
    model = parse(text, 17, 8)
    after, trace, _ = run_rules(model, [CompareBeforeCast])
    assert [commit.rule for commit in trace.commits()] == ["CompareBeforeCast"]
    feed = {"n": np.array(NUMBERS + LARGE)[:, None]}
    before, now = (Session(SerializedModel(each)).run(feed, 5.0) for each in (model, after))
    np.testing.assert_array_equal(before[0], now[0])


def test_an_if_by_a_size() -> None:
    """As tf2onnx writes the condition: an assertion about the size decides it."""
    model = parse(CompareBeforeCast.fires, 21, 10)
    assert ops(rewrite(model, dims=["N=9"]).model) == {"Sin": 1}
    assert ops(rewrite(model, dims=["N>=9"]).model) == {"Sin": 1}
    assert_equivalent(model, rewrite(model).model, Feeds(sizes=(0, 8, 9)))


@pytest.mark.parametrize(
    ("limit", "opset", "reason"),
    [("nan", 17, "not exact"), ("inf", 17, "not exact"), ("8.0", 8, "before opset 9")],
)
def test_spared(limit: str, opset: int, reason: str) -> None:
    text = f"""g (int32[N] n) => (bool[N] y) <float k = {{{limit}}}> {{
        f = Cast<to = 1>(n) y = Less(f, k) }}"""
    assert reason in reason_of(CompareBeforeCast, parse(text, opset, 8))
