"""The end of a rewrite: names, outputs and declarations are valid."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto

from looplift import rewrite

from ...equivalence import ops, rewritten
from ...small_models import parse
from ..fact_oracle import Feeds

FEEDS = Feeds(values={"m": [0, 1, 2, 7]})


def test_outputs_that_are_equal_keep_their_names() -> None:
    model = parse("""g (int64 m, float[3] x) => (float[3] a, float[3] b) {
        a = Loop (m, , x) <body = t (int64 i, bool c, float[3] s) => (bool co, float[3] so) {
            co = Identity(c) so = Identity(s) }>
        b = Identity(a) }""")
    result = rewritten(model, FEEDS)
    assert [output.name for output in result.model.graph.output] == ["a", "b"]


def test_a_hoisted_value_gets_a_unique_name() -> None:
    """onnxruntime rejects a value with the name of a value of a later body."""
    model = parse("""g (float[T,3] x, float[3] w, int64 m) => (float[3] y, float[3] z) {
        y = Loop (m, , w) <body = t (int64 i, bool c, float[3] s) => (bool co, float[3] so) {
            co = Identity(c) v = Exp(w) u = Sin(s) so = Add(u, v) }>
        z = Loop (m, , y) <body = t (int64 i, bool c, float[3] s) => (bool co, float[3] so) {
            co = Identity(c) v = Cos(s) so = Mul(v, w) }> }""")
    rewritten(model, FEEDS, 1e-6)


def test_a_wrong_size_of_a_carried_value_is_not_written() -> None:
    """Exporters declare the size that a growing state has at first, of other states too."""
    model = parse("""g (float[3] x, float[T,3] xs, int64 m) => (float[3] y) {
        y = Loop (m, , x) <body = t (int64 i, bool c, float[0] s) => (bool co, float[K] so) {
            co = Identity(c) so = Sin(s) }> }""")
    body = rewrite(model).model.graph.node[0].attribute[0].g
    (dim,) = body.input[2].type.tensor_type.shape.dim
    assert not dim.HasField("dim_value")


def _sizes(model: onnx.ModelProto) -> list[list[int | str]]:
    return [
        [dim.dim_value or dim.dim_param for dim in output.type.tensor_type.shape.dim]
        for output in model.graph.output
    ]


def test_a_constant_of_a_branch_is_not_declared_with_another_size() -> None:
    """The loop of the second branch has no iterations, so the run fails if it takes that branch."""
    text = """g (int32[3] x, bool c) => (int32[6,3] y) <int64 n = {6}, bool f = {0}> {
        y = If (c) <then_branch = t () => (int32[6,3] a) {
            a = Loop (n, "") <body = p (int64 i, bool d) => (bool e, int32[3] r) {
                e = Identity(d) r = Neg(x) }> },
          else_branch = s () => (int32[6,3] b) {
            b = Loop (n, f) <body = q (int64 j, bool g) => (bool h, int32[3] u) {
                h = Identity(g) u = Neg(x) }> }> }"""
    result = rewrite(parse(text)).model
    assert "Loop" not in ops(result)
    onnx.checker.check_model(result, full_check=True)


def test_wrong_shapes_of_outputs_are_corrected() -> None:
    """A traced model declares the sizes of its example, whatever the inputs declare."""
    model = parse("""g (float[T,3] x) => (float[12,3] y, float[U,3] z, float[3] w, float[4] v)
        <int64[1] axis = {0}> {
        y = Exp(x)  z = Sin(x)  w = Unsqueeze(x, axis)  v = ReduceSum<keepdims=0>(x, axis) }""")
    after = rewrite(model).model
    assert _sizes(after) == [["T", 3], ["U", 3], [1, "T", 3], [3]]


def test_a_size_that_may_be_right_stays() -> None:
    model = parse("""g (float[T] x) => (float[7] y) {
        k = NonZero(x)  n = Cast<to=1>(k)  s = Squeeze(n)  y = Exp(s) }""")
    assert _sizes(rewrite(model).model) == [[7]]


def test_names_of_a_published_cell(corpus: Path) -> None:
    """The LSTM is named after the module of its cell, and its weights after the LSTM."""
    after = rewrite(corpus / "ts_fastrnns_lstm.onnx").model
    (lstm,) = (node for node in after.graph.node if node.op_type == "LSTM")
    assert lstm.name == "/l/cell/LSTM"
    assert list(lstm.input)[1:4] == [f"/l/cell/LSTM.{name}" for name in "WRB"]
    assert lstm.output[0] == "/l/cell/LSTM_output_0"
    names = [node.name for node in after.graph.node]
    assert len(set(names)) == len(names)
    assert _sizes(after)[0] == ["T", "B", 32]


def test_a_surviving_weight_keeps_its_name(corpus: Path) -> None:
    after = rewrite(corpus / "ts_convlstm.onnx").model
    assert {"c.weight", "c.bias"} <= {tensor.name for tensor in after.graph.initializer}


def test_new_inputs_of_a_scan_body_are_declared() -> None:
    """Names of sizes stay out, because in a body they mean something else."""
    model = parse("""g (float[T, 3] x, float[3] s) => (float[3] last, float[T, 3] y) {
        last, y = Scan <num_scan_inputs = 1, body = b (float[3] h, float[3] row)
            => (float[3] next, float[3] out) {
            e = Exp(row) k = MatMul(h, row) a = Mul(h, k) next = Add(a, e) out = Identity(next)
        }> (s, x) }""")
    result = rewrite(model)
    assert result.report.commits["VectorizeBeforeLoop"] == 1
    (scan,) = (node for node in result.model.graph.node if node.op_type == "Scan")
    for value in scan.attribute[0].g.input:
        declared = value.type.tensor_type
        assert declared.elem_type == TensorProto.FLOAT
        assert [dim.dim_value for dim in declared.shape.dim] == [3]


def test_a_carried_value_is_not_declared_with_another_rank_than_its_initial_value() -> None:
    """onnxruntime would put a product of rank 2 into the memory of the first sum, of rank 1."""
    model = parse("""g (float[T,B,2] x) => (float[T,B,2] y) <float s0 = {0}, float[2] a = {1, 2}, float[2] b = {3, 4}> {
        s, y = Scan <num_scan_inputs=1, body = g (float[B,2] h, float[B,2] xt) => (float[B,2] hn, float[B,2] row) {
            c = Add(h, a) d = Add(c, b) hn = Add(xt, d) row = Identity(hn) }> (s0, x) }""")
    (loop,) = (n for n in rewrite(model).model.graph.node if n.op_type in ("Loop", "Scan"))
    (body,) = (each.g for each in loop.attribute if each.name == "body")
    carried = body.input[0 if loop.op_type == "Scan" else 2]
    assert not carried.type.tensor_type.HasField("shape")


def test_a_wrong_rank_of_the_elements_of_a_sequence_is_corrected() -> None:
    """ONNX infers the rank of the elements, and rejects a model that declares another one."""
    model = parse("""g (float[N,3] x, int64 n) => (seq(float[1,3]) l) <int64[1] first = {1}> {
        e = SequenceEmpty<dtype = 1>()
        l = Loop (n, , e) <body = b (int64 i, bool c, seq(float[1,3]) q)
            => (bool co, seq(float[1,3]) qo) {
            co = Identity(c) row = Unsqueeze(x, first) qo = SequenceInsert(q, row) }> }""")
    after = rewrite(model).model
    (output,) = after.graph.output
    assert not output.type.sequence_type.elem_type.tensor_type.HasField("shape")
    onnx.checker.check_model(after, full_check=True)
