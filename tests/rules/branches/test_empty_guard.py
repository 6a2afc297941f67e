"""InlineBranchRightForEmpty: Ifs that treat an empty value apart without need."""

from __future__ import annotations

import pytest

from looplift.rules.branches.empty_guard import InlineBranchRightForEmpty

from ...equivalence import ops, rewritten
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(sizes=(0, 1, 2, 5))

CONDITIONS = {
    "number of elements": "count = Size(boxes) c = Equal(count, zero)",
    "product of sizes": "sizes = Shape(boxes) count = ReduceProd<keepdims = 0>(sizes)"
    " c = Equal(zero, count)",
    "one size": "sizes = Shape(boxes) count = Gather(sizes, zero) c = Equal(count, zero)",
    "not empty": "count = Size(boxes) d = Equal(count, zero) c = Not(d)",
    "more than none": "count = Size(scores) c = Greater(count, zero)",
    "none is less": "count = Size(scores) c = Less(zero, count)",
}
EMPTY = "() => (int64[0] a) <int64[0] a = {}> { }"
# As torchvision.ops.batched_nms: boxes of other classes are moved apart.
SUPPRESSION = """() => (int64[M] b) <int64[1] ax0 = {0}, int64[1] ax1 = {1}, int64[1] two = {2},
    int64[1] many = {100}, float[1] most = {0.5}, float one = {1}> {
  top = ReduceMax<keepdims = 0>(boxes) more = Add(top, one) far = Mul(labels, more)
  column = Unsqueeze(far, ax1) apart = Add(boxes, column) x = Unsqueeze(apart, ax0)
  s0 = Unsqueeze(scores, ax0) s = Unsqueeze(s0, ax0) chosen = NonMaxSuppression(x, s, many, most)
  k = Gather<axis = 1>(chosen, two) b = Squeeze(k, ax1) }"""


def _model(condition: str, when_empty: str = EMPTY, otherwise: str = SUPPRESSION) -> str:
    first, second = when_empty, otherwise
    if condition in ("not empty", "more than none", "none is less"):
        first, second = second, first
    return f"""g (float[N, 4] boxes, float[N] scores, float[N] labels) => (int64[K] y)
      <int64 zero = {{0}}> {{ {CONDITIONS[condition]}
      y = If (c) <then_branch = t {first}, else_branch = e {second}> }}"""


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_guard_of_a_suppression_is_removed(condition: str, opset: int) -> None:
    result = rewritten(parse(_model(condition), opset), FEEDS)
    assert "If" not in ops(result.model)
    assert ops(result.model)["NonMaxSuppression"] == 1
    rewritten(parse(_model(condition), opset), FEEDS, strict=True)


NEAR_MISSES = {
    "other than int64": (
        "() => (int64[1] a) <int64[1] a = {-1}> { }",
        SUPPRESSION,
        "branches differ",
    ),
    "a value that may fail": (
        EMPTY,
        """() => (int64[M] b) <int64[1] zero1 = {0}> {
            s = Gather(scores, zero1) l = Mul(s, labels) b = Cast<to = 7>(l) }""",
        "may fail for no elements",
    ),
    "a Reshape": (
        EMPTY,
        """() => (int64[M] b) <int64[2] shape = {-1, 4}, int64[1] flat = {-1}> {
            s = Reshape(scores, flat) b = Cast<to = 7>(s) }""",
        "may fail for no elements",
    ),
}


@pytest.mark.parametrize(
    ("when_empty", "otherwise", "words"), NEAR_MISSES.values(), ids=NEAR_MISSES
)
def test_near_misses(when_empty: str, otherwise: str, words: str) -> None:
    model = parse(_model("one size", when_empty, otherwise))
    assert words in reason_of(InlineBranchRightForEmpty, model)
    rewritten(model, FEEDS)


def test_another_size_may_be_zero() -> None:
    """No element of x says nothing of its first axis."""
    text = """g (float[N, M] x) => (float[K, L] y) <int64 zero = {0}> {
      count = Size(x) c = Equal(count, zero)
      y = If (c) <then_branch = t () => (float[0, 0] a) <int64[2] s = {0, 0}> {
                    a = ConstantOfShape(s) },
                  else_branch = e () => (float[P, Q] b) { b = Exp(x) }> }"""
    assert "If" in ops(rewritten(parse(text), FEEDS).model)
