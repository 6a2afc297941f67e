"""VectorizeBeforeLoop moves what depends on slice reads alone before the loop."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest

from looplift.rewrite.engine.rule import Options
from looplift.rules.values.dead_nodes import EliminateDeadNode, EliminateIdentity
from looplift.rules.vectorization.before_loop import VectorizeBeforeLoop

from ...equivalence import assert_equivalent, ops, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..bodies import body_of, body_ops
from ..reasons import reason_of

LENGTHS = Feeds(sizes=(1, 2, 7))
COUNTS = Feeds(sizes=(7,), values={"n": [0, 1, 2, 7]})
WEIGHTS = "float[3,3] w = {1, -2, 3, 0.5, 0.25, -1, 2, 1, 0}, int64[1] zero = {0}"


def _scan(work: str) -> onnx.ModelProto:
    """A carried value s, slices x, and `work`, which makes the next value so."""
    return parse(f"""g (float[T,3] xs, float[3] s0) => (float[3] y) <{WEIGHTS}> {{
        y = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] x) => (float[3] so) {{
            {work} }}> (s0, xs) }}""")


def _loop(work: str, inputs: str = "float[T,3] xs") -> onnx.ModelProto:
    """Likewise a Loop of n iterations."""
    return parse(f"""g ({inputs}, float[3] s0, int64 n) => (float[3] y) <{WEIGHTS}> {{
        y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {{
            co = Identity(ci) x = Gather(xs, i) {work} }}> }}""")


def _vectorized(model: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
    """The model after one commit of the rule, which computes the same."""
    result, trace, _ = run_rules(model, [EliminateDeadNode, EliminateIdentity, VectorizeBeforeLoop])
    assert trace.defects() == []
    assert [c.rule for c in trace.commits()].count("VectorizeBeforeLoop") == 1
    assert_equivalent(model, result, feeds, 1e-5)
    return result


def test_a_scan_keeps_what_depends_on_the_carried_value() -> None:
    result = _vectorized(_scan("p = MatMul(x, w) e = Exp(p) a = Sin(s) so = Add(a, e)"), LENGTHS)
    assert body_ops(result) == {"Sin": 1, "Add": 1}
    assert len(body_of(result).input) == 2  # the slices of xs are no longer read


def test_a_loop_reads_slices_of_the_results() -> None:
    result = _vectorized(_loop("p = MatMul(x, w) e = Exp(p) a = Sin(s) so = Add(a, e)"), COUNTS)
    assert body_ops(result) == {"Gather": 1, "Sin": 1, "Add": 1}


def test_an_invariant_result_is_read_as_it_is() -> None:
    """The shape of a slice is the same in every iteration."""
    work = "k = Shape(x) f = Cast<to=1>(k) e = Exp(x) a = Mul(s, f) so = Add(a, e)"
    result = _vectorized(_scan(work), LENGTHS)
    assert body_ops(result) == {"Mul": 1, "Add": 1}
    assert len(body_of(result).input) == 2


def test_functions_of_the_iteration_number() -> None:
    work = "f = Cast<to=1>(i) g = Sin(f) h = Exp(g) p = Mul(h, x) q = Neg(p) a = Mul(s, s) so = Add(a, q)"
    result = _vectorized(_loop(work), COUNTS)
    assert body_ops(result) == {"Gather": 1, "Mul": 1, "Add": 1}


def test_a_node_stays_if_its_operands_are_cheaper_to_read() -> None:
    """The body reads x anyway, so Neg would be replaced by another Gather; the product is worth it."""
    work = "g = Neg(x) p = MatMul(x, w) a = Mul(s, x) b = Mul(a, g) c = Sin(b) so = Add(c, p)"
    result = _vectorized(_loop(work), COUNTS)
    assert "MatMul" not in body_ops(result)
    assert "MatMul" in ops(result)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ("p = Mul(s, x) so = Sin(p)", "no node depends on slice reads alone"),
        ("e = Exp(x) p = Mul(s, x) so = Add(p, e)", "no fewer nodes"),
        ("p = NonZero(x) f = Cast<to=1>(p) r = ReduceSum<keepdims=0>(f) so = Mul(s, r)",
         "no batching rule for NonZero"),
    ],
)  # fmt: skip
def test_near_misses(work: str, words: str) -> None:
    assert words in reason_of(VectorizeBeforeLoop, _loop(work))


def test_large_results_stay() -> None:
    """All of them at once would not fit the caches."""
    model = parse("""g (float[T,1] xs, float s0) => (float y) <int64[1] many = {70000}> {
        y = Scan <num_scan_inputs=1, body = b (float s, float[1] x) => (float so) {
            e = Expand(x, many) t = Sin(s) p = Mul(e, t) so = ReduceMax<keepdims=0>(p) }> (s0, xs) }""")
    assert "70000 elements from 1" in reason_of(VectorizeBeforeLoop, model)


def test_what_may_fail_stays_if_the_loop_may_not_run() -> None:
    """K may not be 3; if the loop does not run, nothing fails."""
    model = parse("""g (float[T,K] xs, float[3,3] v, float[3] s0, int64 n) => (float[3] y) {
        y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
            co = Identity(ci) x = Gather(xs, i) p = MatMul(x, v) a = Sin(s) so = Add(a, p) }> }""")
    assert "may differ, and the loop may not run" in reason_of(VectorizeBeforeLoop, model)


def test_a_loop_that_may_end_early_stays() -> None:
    work = "e = Exp(x) f = Sin(e) so = Add(s, f)"
    model = _loop(work)
    body = body_of(model)
    body.node[0].CopyFrom(onnx.helper.make_node("Cast", ["z"], ["co"], to=onnx.TensorProto.BOOL))
    body.node.insert(0, onnx.helper.make_node("ReduceMax", ["s"], ["z"], keepdims=0))
    assert "may end early" in reason_of(VectorizeBeforeLoop, model)


def test_strictly_every_read_must_be_in_range() -> None:
    """The loop fails where n is larger than the length of xs; the product would not."""
    model = _loop("p = MatMul(x, w) a = Sin(s) so = Add(a, p)")
    reason = reason_of(VectorizeBeforeLoop, model, Options(strict=True))
    assert "may have fewer slices" in reason


TRANSPOSED = "Transpose<perm=[1,0,2]>(x)"


@pytest.mark.parametrize(
    ("dtype", "sequence", "stays"),
    [("float16", TRANSPOSED, True), ("float16", "Neg(x)", False), ("float", TRANSPOSED, False)],
)
def test_half_precision_products_of_transposed_tensors_stay(
    dtype: str, sequence: str, stays: bool
) -> None:
    """onnxruntime 1.31 crashes when it loads such a product."""
    text = f"""g ({dtype}[B,T,2] x, {dtype}[B,2] s0) => ({dtype}[B,2] y) <{dtype}[2,2] w = {{1, 2, 3, 4}}> {{
        t = {sequence}
        y = Scan <num_scan_inputs=1, body = b ({dtype}[B,2] s, {dtype}[B,2] xt) => ({dtype}[B,2] so) {{
            p = MatMul(xt, w) e = Exp(p) a = Sin(s) so = Add(a, e) }}> (s0, t) }}"""
    result, _, _ = run_rules(parse(text), [VectorizeBeforeLoop])
    assert ("MatMul" in body_ops(result)) == stays
    assert onnxruntime.InferenceSession(result.SerializeToString())
