from __future__ import annotations

import re

import pytest

from looplift.rules.loops.first_iteration import SplitFirstIteration

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(values={"n": [0, 1, 2, 5]})
SOME = Feeds(sizes=(1, 2, 5))
"""Empty scan outputs of the original have sizes of 0 along all open axes."""


def _model(condition: str, then: str = "e = Exp(s) p = Neg(e)", other: str = "q = Tanh(s)") -> str:
    return f"""g (float[T,3] x, int64 n, float[3] s0) => (float[3] y, float[R,3] ys)
      <int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}> {{
      y, ys = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] r) {{
        co = Identity(ci) {condition}
        so = If (c) <then_branch = t () => (float[3] p) {{ {then} }},
                     else_branch = e () => (float[3] q) {{ {other} }}>
        r = Mul(so, so) }}> }}"""


@pytest.mark.parametrize(
    "condition",
    [
        "c = Equal(i, zero)",
        "d = Equal(zero, i) c = Not(d)",
        "c = Greater(i, zero)",
        "c = GreaterOrEqual(i, one)",
        "c = Less(i, one)",
        "c = LessOrEqual(i, zero)",
        "c = Cast<to = 9>(i)",
        "k = Cast<to = 6>(i) z = Cast<to = 6>(zero) c = Equal(k, z)",
        "j = Mul(i, two) c = Less(j, one)",
        "j = Sub(one, i) c = Equal(j, one)",
    ],
)
def test_conditions_on_the_first_iteration(condition: str) -> None:
    model = parse(_model(condition))
    split, trace, _ = run_rules(model, [SplitFirstIteration])
    assert [commit.rule for commit in trace.commits()] == ["SplitFirstIteration"]
    assert ops(split)["Loop"] == 2
    assert_equivalent(model, split, FEEDS)
    result = rewritten(model, FEEDS).model
    assert "If" not in ops(result)


@pytest.mark.parametrize(
    "condition",
    [
        "c = Less(i, two)",
        "c = Equal(i, one)",
        "j = Mod(i, two) c = Equal(j, zero)",
        "m = ReduceMax<keepdims = 0>(s) f = Cast<to = 7>(m) c = Equal(f, zero)",
        "k = Sub(n, one) c = Equal(i, k)",
        "k = Cast<to = 1>(i) z = Cast<to = 1>(zero) c = Equal(k, z)",
    ],
)
def test_other_conditions(condition: str) -> None:
    words = reason_of(SplitFirstIteration, parse(_model(condition)))
    assert "no If asks for the first iteration" in words
    rewritten(parse(_model(condition)), FEEDS)


@pytest.mark.parametrize("opset", [12, 17])
def test_a_recurrence_that_begins_with_an_encoded_state(opset: int) -> None:
    """The second loop becomes an RNN."""
    model = parse(
        """g (float[T,B,3] x) => (float[R,B,3] ys)
      <float[3,3] w = {1, 2, -1, 0, 1, 1, 0.5, 0, -1}, float[3,3] r = {0, 1, -1, 0.5, 1, 0, 0, 0, -1},
       int64 zero = {0}, int64[1] one = {1}, int64[1] far = {9}> {
      sizes = Shape(x) n = Gather(sizes, zero) shape = Slice(sizes, one, far)
      h0 = ConstantOfShape(shape)
      z, ys = Loop (n, , h0) <body = b (int64 i, bool ci, float[B,3] h) => (bool co, float[B,3] ho, float[B,3] o) {
        co = Identity(ci) xt = Gather(x, i) c = Equal(i, zero)
        ho = If (c) <then_branch = t () => (float[B,3] p) { p = MatMul(xt, w) },
                     else_branch = e () => (float[B,3] q) {
                       a = MatMul(xt, w) b = MatMul(h, r) s = Add(a, b) q = Tanh(s) }>
        o = Identity(ho) }> }""",
        opset,
    )
    counts = ops(rewritten(model, SOME, 1e-5).model)
    assert counts["RNN"] == 1
    assert "If" not in counts


def test_scan_outputs_without_slices() -> None:
    """onnxruntime does not know their shape where the second loop does not run."""
    text = _model("c = Equal(i, zero)", "p = Gather(x, i)", "xt = Gather(x, i) q = Max(s, xt)")
    text = text.replace("[3]", "[B]").replace(",3]", ",B]").replace("int64 n, ", "")
    counted = "{ all = Shape(x) n = Gather(all, zero) y, ys"
    model = parse(re.sub(r"{\s+y, ys", counted, text, count=1))
    split, trace, _ = run_rules(model, [SplitFirstIteration])
    assert trace.commits()
    assert_equivalent(model, split, Feeds())
    rewritten(model, SOME)


def test_a_loop_of_many_nodes_is_not_duplicated() -> None:
    many = " ".join(f"v{k + 1} = Sin(v{k})" for k in range(200))
    model = parse(_model(f"c = Equal(i, zero) v0 = Identity(s) {many}", "p = Neg(v200)"))
    assert "more than the 200" in reason_of(SplitFirstIteration, model)
