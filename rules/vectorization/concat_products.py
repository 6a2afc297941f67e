"""Splits products of concatenated values into a part known before the loop and the rest.

    y, s = Loop(n, , s) { x_t = Gather(x, i)  g = Concat(x_t, s)·W + b  … }
 -> P = x·W1 + b
    y, s = Loop(n, , s) { P_t = Gather(P, i)  g = s·W2 + P_t  … }

Cells concatenate their input and their state, and decoders also what they attend to. This rule
splits the product in the body; VectorizeBeforeLoop then moves the product with x before the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Constant, Node, Tensor, optional
from ..loops.counted_loop_checks import need_counted_loop
from .independent_work import IndependentWork, need_independent_work

_MIN_WEIGHTS = 1024
"""The fewest weights that must leave the loop if the body keeps as many nodes."""


@dataclass(frozen=True)
class ConcatProduct:
    """The product of a concatenation and a constant matrix."""

    product: Node
    matrix: Constant
    bias_sum: Node | None
    """The Add of a bias, if it is the only reader of a MatMul."""
    bias: Tensor | None
    known: list[Tensor]
    """The parts that depend on no carried value."""
    rest: list[Tensor]
    known_rows: list[int]
    """The rows of the matrix that the known parts are multiplied by."""
    rest_rows: list[int]


class SplitProductOfConcat(Rule[list[ConcatProduct]]):
    """Splits products of concatenations, so that parts known before the loop can leave it."""

    root = ("Loop", "Scan")
    promise = Promise(
        rounds="the sum of two products instead of one product",
        nonfinite="a product that overflows before it cancels",
    )
    fires = """g (float[T,1,2] x, float[1,3] s0) => (float[1,3] s) <float[5,3] w = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.1, -0.2, 0.3, -0.4, 0.5, -0.6}> {
      s = Scan <num_scan_inputs=1, body = b (float[1,3] si, float[1,2] xt) => (float[1,3] so) {
        c = Concat<axis=1>(xt, si) p = MatMul(c, w) so = Sin(p) }> (s0, x) }"""
    spares = {
        "no product of a concatenation": """g (float[T,1,2] x, float[1,3] s0) => (float[1,3] s) <float[3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[2,3] v = {1, 2, 3, 4, 5, 6}> {
      s = Scan <num_scan_inputs=1, body = b (float[1,3] si, float[1,2] xt) => (float[1,3] so) {
        p = MatMul(xt, v) q = MatMul(si, w) r = Add(p, q) so = Sin(r) }> (s0, x) }""",
        "depend on carried values": """g (float[1,2] x, float[1,3] s0, int64 n) => (float[1,3] s) <float[6,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}> {
      s = Loop (n, , s0) <body = b (int64 i, bool ci, float[1,3] si) => (bool co, float[1,3] so) {
        co = Identity(ci) t = Tanh(si) c = Concat<axis=1>(t, si) p = MatMul(c, w) so = Sin(p) }> }""",
    }

    def match(self, m: Match) -> list[ConcatProduct]:
        loop = need_counted_loop(m)
        none = "there is no product of a concatenation and a constant"
        products = []
        for node in m.index.nodes_in_order(loop.body):
            if not node.domain and node.op in ("MatMul", "Gemm"):
                concat = m.producer(node.inputs[0], "Concat")
                if concat is not None and m.index.graph_of(concat) is loop.body:
                    products.append((node, concat))
        m.need(bool(products), none)
        work = need_independent_work(m)
        return m.every(lambda product: _concat_product(m, work, *product), products, none)

    def apply(self, patch: Patch, found: list[ConcatProduct]) -> None:
        # In reverse order, because a part of one product may be computed from another product.
        for product in reversed(found):
            self._split(patch, product)
        patch.toward_normal_form()

    def _split(self, patch: Patch, found: ConcatProduct) -> None:
        product = found.product
        last = product if found.bias_sum is None else found.bias_sum
        emit = patch.builder(product.outputs[0], last)
        matrix = found.matrix.values
        if product.attrs.get("transB", 0):
            matrix = matrix.T
        factors = [
            (_joined(emit, parts), emit.constant(np.ascontiguousarray(matrix[rows])))
            for parts, rows in ((found.known, found.known_rows), (found.rest, found.rest_rows))
        ]
        known = emit("MatMul", *factors[0])
        if found.bias is not None:
            known = emit("Add", known, found.bias)
        rest, weights = factors[1]
        if product.op == "Gemm":
            result = emit("Gemm", rest, weights, known)
        else:
            result = emit("Add", emit("MatMul", rest, weights), known)
        patch.replace(last.outputs[0], result)
        for node in dict.fromkeys((last, product)):
            patch.remove(node)


def _concat_product(m: Match, work: IndependentWork, node: Node, concat: Node) -> ConcatProduct:
    """The product of a concatenation, with its parts. Raises Miss if it cannot be split."""
    matrix = node.inputs[1]
    if not isinstance(matrix, Constant) or matrix.overridable:
        raise Miss("{} is not a constant", matrix, at=node)
    m.need(matrix.values.ndim == 2, "{} is not a matrix", matrix)
    m.need(m.index.use_count(concat.outputs[0]) == 1, "{} is read elsewhere", concat)
    shape = m.need(m.facts.shape(concat.outputs[0]), "the rank of {} is not known", concat)
    m.need(len(shape) >= 2, "{} is a vector", concat.outputs[0])
    axis = int(concat.attrs["axis"])
    m.need(axis in (-1, len(shape) - 1), "{} is not along the last axis", concat)
    known: list[Tensor] = []
    rest: list[Tensor] = []
    known_rows: list[int] = []
    rest_rows: list[int] = []
    first = 0
    for part in concat.inputs:
        width = (m.facts.shape(part) or (None,))[-1]
        if not isinstance(width, int):
            raise Miss("the number of features of {} is not known", part, at=concat)
        same = symbolic.equal_shapes((m.facts.shape(part) or ())[:-1], shape[:-1])
        m.need(same, "{} is not known to have the same batch as the other parts", part)
        if work.is_independent(m.index, part):
            known.append(part)
            known_rows.extend(range(first, first + width))
        else:
            rest.append(part)
            rest_rows.extend(range(first, first + width))
        first += width
    m.need(bool(known), "all parts of {} depend on carried values", concat)
    m.need(bool(rest), "no part of {} depends on a carried value", concat)
    bias_sum, bias = _bias(m, work, node)
    features = matrix.values.shape[0 if node.attrs.get("transB", 0) else 1]
    smaller = len(rest) == 1 or bias is not None or node.op == "Gemm"
    many = len(known_rows) * features >= _MIN_WEIGHTS
    m.need(smaller or many, "splitting {} would not make the body smaller", node)
    return ConcatProduct(node, matrix, bias_sum, bias, known, rest, known_rows, rest_rows)


def _bias(m: Match, work: IndependentWork, node: Node) -> tuple[Node | None, Tensor | None]:
    """The Add of a bias, as in `ConcatProduct.bias_sum`, and the bias; None for what is missing.

    Raises Miss if the bias or the form of a Gemm prevents the split.
    """
    if node.op == "Gemm":
        plain = all(float(node.attrs.get(name, 1.0)) == 1.0 for name in ("alpha", "beta"))
        m.need(plain and not node.attrs.get("transA", 0), "{} is scaled or transposed", node)
        bias = optional(node.inputs, 2)
        independent = bias is None or work.is_independent(m.index, bias)
        m.need(independent, "the bias of {} depends on a carried value", node)
        return None, bias
    uses = m.index.uses(node.outputs[0])
    reader = uses[0].reader if len(uses) == 1 else None
    if not isinstance(reader, Node) or reader.domain or reader.op != "Add":
        return None, None
    a, b = reader.inputs
    bias = b if a is node.outputs[0] else a
    shape, result = m.facts.shape(bias), m.facts.shape(node.outputs[0])
    is_vector = shape is not None and len(shape) <= 1 and result is not None
    inside = m.index.graph_of(reader) is work.loop.body
    usable = is_vector and inside and work.is_independent(m.index, bias)
    return (reader, bias) if usable else (None, None)


def _joined(emit: Builder, parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else emit("Concat", *parts, axis=-1)
