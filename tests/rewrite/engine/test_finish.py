"""The end of a rewrite: names, outputs and declarations are valid."""

from __future__ import annotations

from looplift import rewrite

from ...equivalence import rewritten
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
