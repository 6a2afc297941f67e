"""The iteration number that a loop body takes as a vector of one element."""

from __future__ import annotations

import onnx
import pytest

from looplift import rewrite
from looplift.rules.loops.iteration_number import IterationNumberToScalar

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse

FEEDS = Feeds(values={"m": [0, 1, 2, 7]})

BODIES = {
    "reads a slice": "xt = Gather(x, i) so = Max(s, xt) r = Neg(so)",
    "reads at i + 1 - 1": "a = Add(i, one) k = Sub(a, one) xt = Gather(x, k) so = Max(s, xt) r = Neg(so)",
    "reads a range": "e = Add(i, one) xt = Slice(x, i, e, zero) so = Max(s, xt) r = Neg(so)",
    "squeezes": "k = Squeeze(i) q = Gather(x, k) xt = Reshape(q, row) so = Max(s, xt) r = Neg(so)",
    "computes with it": "f = Cast<to = 1>(i) so = Add(s, f) r = Mul(so, f)",
    "uses its shape": "h = Shape(i) f = Cast<to = 1>(h) so = Add(s, f) r = Mul(so, f)",
}
VECTORS = "<int64[1] zero = {0}, int64[1] one = {1}, int64[2] row = {1, 3}>"
MODEL = """g (float[7, 3] x, float[1, 3] s0, int64 m) => (float[1, 3] y, float[K, 1, 3] rows) {vectors} {{
  y, rows = Loop (m, , s0) <body = b (int64[1] i, bool ci, float[1, 3] s)
    => (bool co, float[1, 3] so, float[1, 3] r) {{ co = Identity(ci) {body} }}>
}}"""


def _loop(model: onnx.ModelProto) -> onnx.NodeProto:
    found: onnx.NodeProto = next(n for n in model.graph.node if n.op_type == "Loop")
    return found


@pytest.mark.parametrize("opset", [11, 17, 21])
@pytest.mark.parametrize("body", BODIES)
def test_the_body_takes_a_scalar(body: str, opset: int) -> None:
    model = parse(MODEL.format(vectors=VECTORS, body=BODIES[body]), opset)
    result, trace, _ = run_rules(model, [IterationNumberToScalar])
    assert trace.defects() == []
    assert [commit.rule for commit in trace.commits()] == ["IterationNumberToScalar"]
    number = _loop(result).attribute[0].g.input[0].type.tensor_type
    assert number.HasField("shape")
    assert not number.shape.dim
    assert_equivalent(model, result, FEEDS)


def test_the_iteration_number_may_be_a_result() -> None:
    model = parse("""g (int64 m) => (int64[1] last, int64[K, 1] all) <int64[1] none = {-1}> {
      last, all = Loop (m, , none) <body = b (int64[1] i, bool ci, int64[1] s)
        => (bool co, int64[1] so, int64[1] r) { co = Identity(ci) so = Identity(i) r = Identity(i) }>
    }""")
    result, _, _ = run_rules(model, [IterationNumberToScalar])
    assert_equivalent(model, result, FEEDS)
    rewritten(model, FEEDS)


@pytest.mark.parametrize("body", ["reads a slice", "reads at i + 1 - 1", "squeezes"])
def test_such_a_loop_is_as_good_as_another(body: str) -> None:
    """All slices are read, so the maximum of the slices is a closed form."""
    model = parse(f"""g (float[T, 3] x, float[1, 3] s0) => (float[1, 3] y) {VECTORS} {{
      all = Shape(x) n = Gather(all, zero)
      y = Loop (n, , s0) <body = b (int64[1] i, bool ci, float[1, 3] s)
        => (bool co, float[1, 3] so) {{ co = Identity(ci) {BODIES[body]} }}>
    }}""")
    assert "Loop" not in ops(rewritten(model, FEEDS).model)


def test_a_while_loop_takes_a_scalar_too() -> None:
    model = parse("""g (float[7, 3] x, float[1, 3] s0, int64 m) => (float[1, 3] y) {
      y = Loop (m, , s0) <body = b (int64[1] i, bool ci, float[1, 3] s)
        => (bool co, float[1, 3] so) {
          xt = Gather(x, i) so = Add(s, xt) most = ReduceMax<keepdims = 0>(so)
          limit = Constant<value_float = 2.0>() co = Less(most, limit) }>
    }""")
    result = rewritten(model, FEEDS)
    assert not _loop(result.model).attribute[0].g.input[0].type.tensor_type.shape.dim


def test_reads_far_from_the_iteration_number_are_tried_again() -> None:
    """The loop reads backwards, at a position that several nodes compute."""
    model = parse("""g (float[T, 3] x, float[3] s0) => (float[3] y) <int64 axis = {0}> {
      all = Shape(x) n = Gather(all, axis)
      y = Loop (n, , s0) <body = b (int64[1] i, bool ci, float[3] s) => (bool co, float[3] so)
        <int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] next = {1}> {
          scalar = Squeeze(i, first) last = Sub(zero, one) back = Sub(last, scalar)
          start = Unsqueeze(back, first) row = Slice(x, start, next, first)
          xt = Squeeze(row, first) t = Tanh(s) so = Add(t, xt) co = Identity(ci) }>
    }""")
    result = rewritten(model, FEEDS)
    assert result.report.commits["GatherAtIteration"] == 1
    assert not rewrite(result.model).report.commits
