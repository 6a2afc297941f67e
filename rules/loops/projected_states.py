"""Cells with a projection: the loop carries the state from before the projection.

    h, y = Loop(n, , 0) { … g = o * tanh(c)  h' = g·P  return h', h' }
 -> g, y = Loop(n, , 0) { h = g·P  …  g' = o * tanh(c)  return g', g'·P }   h = g·P

The product with P then precedes the products of the gates, so FuseRecurrence folds it into the
recurrent weights, R·P; the one for the outputs leaves the loop (Sak, Senior, Beaufays: Long
short-term memory recurrent neural network architectures for large scale acoustic modeling, 2014).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import helper

from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.splat import is_zero
from ...rewrite.graph.ir import Constant, Node, Tensor, Variable
from ...rewrite.graph.views import CarriedValue
from .counted_loop_checks import need_counted_loop

_SMALL_STATE = 256
_MOST_GROWTH = 2.5
"""A projection stays if the state before it has more elements than _SMALL_STATE, and more than
_MOST_GROWTH times those after it: the operator would multiply by about twice as many weights."""


@dataclass(frozen=True)
class ProjectedState:
    """A carried value that is the product of a value of the body and a constant matrix."""

    number: int
    carried: CarriedValue
    product: Node
    matrix: Constant
    features: int
    """The number of elements before the projection."""


class CarryUnprojectedState(Rule[ProjectedState]):
    """Carries the state of a cell before its projection, so that the cell has none."""

    root = ("Loop", "Scan")
    fires = """g (float[T,1,2] x) => (float[T,1,2] y) <float[2,3] w = {1, 2, 3, 4, 5, 6},
      float[2,3] r = {1, 2, 3, 4, 5, 6}, float[3,2] p = {1, 2, 3, 4, 5, 6}, float[1,2] zero = {0, 0}> {
      h, y = Scan <num_scan_inputs=1, body = b (float[1,2] hi, float[1,2] xt) => (float[1,2] ho, float[1,2] row) {
        a = MatMul(xt, w) b = MatMul(hi, r) c = Add(a, b) g = Tanh(c) ho = MatMul(g, p) row = Identity(ho) }> (zero, x) }"""
    spares = {
        "is not known to be zero": """g (float[T,1,2] x, float[1,2] h0) => (float[T,1,2] y) <float[2,3] w = {1, 2, 3, 4, 5, 6},
      float[2,3] r = {1, 2, 3, 4, 5, 6}, float[3,2] p = {1, 2, 3, 4, 5, 6}> {
      h, y = Scan <num_scan_inputs=1, body = b (float[1,2] hi, float[1,2] xt) => (float[1,2] ho, float[1,2] row) {
        a = MatMul(xt, w) b = MatMul(hi, r) c = Add(a, b) g = Tanh(c) ho = MatMul(g, p) row = Identity(ho) }> (h0, x) }""",
        "in the same iteration": """g (float[T,1,2] x) => (float[T,1,2] y) <float[2,3] w = {1, 2, 3, 4, 5, 6},
      float[2,3] r = {1, 2, 3, 4, 5, 6}, float[3,2] p = {1, 2, 3, 4, 5, 6}, float[1,2] zero = {0, 0}> {
      h, y = Scan <num_scan_inputs=1, body = b (float[1,2] hi, float[1,2] xt) => (float[1,2] ho, float[1,2] row) {
        a = MatMul(xt, w) b = MatMul(hi, r) c = Add(a, b) g = Tanh(c) ho = MatMul(g, p) row = Exp(ho) }> (zero, x) }""",
        "product of itself and constants": """g (float[T,1,2] x) => (float[T,1,2] y) <float[2,3] r = {1, 2, 3, 4, 5, 6},
      float[3,2] p = {1, 2, 3, 4, 5, 6}, float[1,2] zero = {0, 0}> {
      h, y = Scan <num_scan_inputs=1, body = b (float[1,2] hi, float[1,2] xt) => (float[1,2] ho, float[1,2] row) {
        b = MatMul(hi, r) ho = MatMul(b, p) row = Identity(ho) }> (zero, x) }""",
        "no carried value is a product": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Sin(s) }> }""",
    }

    def match(self, m: Match) -> ProjectedState:
        loop = need_counted_loop(m)
        return m.first(
            lambda number: _projected_state(m, number, loop.carried[number]),
            range(len(loop.carried)),
            "no carried value is a product of a computed value and a constant",
        )

    def apply(self, patch: Patch, found: ProjectedState) -> None:
        carried, product = found.carried, found.product
        body, home = patch.root.attrs["body"], patch.index.graph_of(patch.root)
        if patch.index.home(found.matrix) is body:
            patch.hoist_constant(found.matrix, home)
        inner = Variable(product.inputs[0].name)
        start = patch.builder(carried.input, patch.start(body))
        projected = start(product.op, inner, found.matrix, **product.attrs)
        patch.replace(carried.input, projected)
        final: Tensor = Variable(inner.name)
        if carried.final is not None and patch.index.use_count(carried.final):
            after = patch.builder_after(carried.final)
            patch.replace(carried.final, after(product.op, final, found.matrix, **product.attrs))
        initial = _zeros(patch, found)
        new = CarriedValue(initial, inner, product.inputs[0], final)
        patch.loop(patch.root).replace_carried(found.number, [new])
        patch.toward_normal_form()


def _projected_state(m: Match, number: int, carried: CarriedValue) -> ProjectedState | None:
    """The carried value if it is a projection, else None. Raises Miss if the projection must stay."""
    product = m.producer(carried.output, "MatMul") or m.producer(carried.output, "Gemm")
    body = m.node.attrs["body"]
    if product is None or m.index.graph_of(product) is not body:
        return None
    source, matrix = product.inputs[:2]
    computed = m.index.producer(source)
    if not isinstance(matrix, Constant) or matrix.overridable or computed is None:
        return None
    if m.index.graph_of(computed) is not body:
        return None
    # The state before the projection would be a projection, too, and so on.
    linear = _is_product_of(m, source, carried.input)
    m.need(not linear, "{} is a product of itself and constants", carried.input)
    plain = len(product.inputs) == 2 and not product.attrs.get("transA", 0)
    m.need(plain, "{} adds a bias to the projection", product)
    m.need(matrix.values.ndim == 2, "{} is not a matrix", matrix)
    m.need(bool(np.isfinite(matrix.values).all()), "{} has elements that are not finite", matrix)
    m.need(is_zero(m.facts, carried.initial), "{} is not known to be zero", carried.initial)
    for use in m.index.uses(carried.output):
        is_copy = isinstance(use.reader, Node) and use.reader.op == "Identity"
        is_returned = use.reader is body or is_copy
        m.need(is_returned, "{} is also read in the same iteration", carried.output)
    sizes = matrix.values.shape
    features, kept = sizes[::-1] if product.attrs.get("transB", 0) else sizes
    shape = m.facts.shape(carried.initial) or (None,)
    fits = shape[-1] == kept and (product.op == "MatMul" or len(shape) == 2)
    m.need(fits, "{} is not known to have the shape of the projection", carried.initial)
    grows = features > max(_SMALL_STATE, _MOST_GROWTH * kept)
    many = "{} has {} elements before its projection and {} after it, so the projection saves work"
    m.need(not grows, many, carried.output, features, kept)
    return ProjectedState(number, carried, product, matrix, int(features))


def _is_product_of(m: Match, value: Tensor, state: Tensor) -> bool:
    """Whether a value is a state, as it is or multiplied by matrices."""
    while value is not state:
        node = m.producer(value, "MatMul", "Gemm", "Identity")
        if node is None:
            return False
        value = node.inputs[0]
    return True


def _zeros(patch: Patch, found: ProjectedState) -> Tensor:
    """The initial state before the projection, with the batch of the initial value."""
    initial = found.carried.initial
    emit, rank = patch.builder(initial), patch.facts.rank(initial) or 0
    sizes = emit.concat([emit.shape(initial, 0, rank - 1), emit.vector(found.features)])
    kind = helper.tensor_dtype_to_np_dtype(patch.facts.dtype(initial))
    return emit("ConstantOfShape", sizes, value=Constant("zero", np.zeros(1, kind)))
