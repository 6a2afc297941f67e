"""States that fold what iterations read: products, extrema, whether all or any are true.

    y = Loop(n, , s0) { return true, s * x_t }   ->   y = s0 * ReduceProd(x[:n], 0)

A fold of nothing is the neutral element, so a loop that does not run gives its initial state (ONNX
operator specification, ReduceProd, ReduceMax: "Reduction over an empty set of values").
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from ...rewrite.engine.rule import Match
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE
from ...rewrite.graph.ir import Tensor
from ...rewrite.graph.views import CarriedValue
from ..vectorization.independent_work import Parallel
from .closed_form import Chain, StateRule, Values, chain_of


class LoopToProduct(StateRule):
    """A state that multiplies what iterations read is a ReduceProd.

    Of floats only: onnxruntime multiplies integers as floats, which do not wrap round.
    """

    nothing = "no state is a product of what iterations read"
    types = FLOAT_OR_DOUBLE
    has_running_values = False
    fires = """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) xt = Gather(xs, i) so = Mul(xt, s) }> }"""
    spares = {
        "no state is a product": """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) xt = Gather(xs, i) a = Mul(s, s) so = Mul(a, xt) }> }""",
        "values in between": """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y, float[R,3] r) {
      y, r = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] row) {
        co = Identity(ci) xt = Gather(xs, i) so = Mul(s, xt) row = Identity(so) }> }""",
        "no operator for the type": """g (int64[T,3] xs, int64[3] s0, int64 n) => (int64[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, int64[3] s) => (bool co, int64[3] so) {
        co = Identity(ci) xt = Gather(xs, i) so = Mul(s, xt) }> }""",
    }

    def chain(self, m: Match, parallel: Parallel, state: CarriedValue) -> Chain | None:
        return chain_of(m, parallel, state, ("Mul",))

    def last(self, values: Values) -> Tensor:
        product = values.emit.reduce("ReduceProd", values.combined("Mul"), [0], 0)
        if values.starts_as(1) and values.has_full_shape():
            return product
        return values.emit("Mul", values.initial, product)


class LoopToMaximum(StateRule):
    """A state that keeps the largest of what iterations read is a ReduceMax."""

    nothing = "no state is a maximum of what iterations read"
    has_running_values = False
    op = "Max"
    reduction = "ReduceMax"
    fires = """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) xt = Gather(xs, i) so = Max(s, xt) }> }"""
    spares = {
        "values in between": """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y, float[R,3] r) {
      y, r = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] row) {
        co = Identity(ci) xt = Gather(xs, i) so = Max(s, xt) row = Identity(so) }> }""",
        "no state is a maximum": """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) xt = Gather(xs, i) a = Neg(s) so = Max(a, xt) }> }""",
    }

    def chain(self, m: Match, parallel: Parallel, state: CarriedValue) -> Chain | None:
        return chain_of(m, parallel, state, (self.op,))

    def last(self, values: Values) -> Tensor:
        emit = values.emit
        slices = values.combined(self.op)
        extreme = emit.reduce(self.reduction, slices, [0], 0)
        dtype = values.found.facts.dtype(values.initial)
        if dtype in FLOAT_OR_DOUBLE:
            extreme = _unless_nan(values, slices, extreme, helper.tensor_dtype_to_np_dtype(dtype))
        return emit(self.op, values.initial, extreme)


def _unless_nan(values: Values, slices: Tensor, extreme: Tensor, kind: np.dtype) -> Tensor:
    """NaN where a slice has one: onnxruntime's Max hands NaN on, its ReduceMax may lose it."""
    emit = values.emit
    flags = emit("Cast", emit("IsNaN", slices), to=TensorProto.INT32)
    spoiled = emit("Cast", emit.reduce("ReduceMax", flags, [0], 0), to=TensorProto.INT32)
    one = emit.constant(np.array(1, np.int32))
    return emit(
        "Where", emit("Equal", spoiled, one), emit.constant(np.array(np.nan, kind)), extreme
    )


class LoopToMinimum(LoopToMaximum):
    """A state that keeps the smallest of what iterations read is a ReduceMin."""

    nothing = "no state is a minimum of what iterations read"
    op = "Min"
    reduction = "ReduceMin"
    fires = LoopToMaximum.fires.replace("Max", "Min")
    spares = {
        words.replace("maximum", "minimum"): text.replace("Max", "Min")
        for words, text in LoopToMaximum.spares.items()
    }


class LoopToAny(StateRule):
    """A state that becomes true with what iterations read counts them."""

    nothing = "no state is true as soon as one value read is"
    types = frozenset({TensorProto.BOOL})
    op = "Or"
    fires = """g (bool[T,3] xs, bool[3] s0, int64 n) => (bool[3] y, bool[R,3] r) {
      y, r = Loop (n, , s0) <body = b (int64 i, bool ci, bool[3] s) => (bool co, bool[3] so, bool[3] row) {
        co = Identity(ci) xt = Gather(xs, i) so = Or(s, xt) row = Identity(s) }> }"""
    spares = {
        "as soon as": """g (bool[T,3] xs, bool[3] s0, int64 n) => (bool[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, bool[3] s) => (bool co, bool[3] so) {
        co = Identity(ci) xt = Gather(xs, i) so = Xor(s, xt) }> }""",
    }

    def chain(self, m: Match, parallel: Parallel, state: CarriedValue) -> Chain | None:
        return chain_of(m, parallel, state, (self.op,))

    def flags(self, values: Values) -> Tensor:
        """1 where an iteration decides the state, an int32 tensor."""
        return values.emit("Cast", values.combined(self.op), to=TensorProto.INT32)

    def joined(self, values: Values, counts: Tensor) -> Tensor:
        """The state where so many iterations decided it."""
        emit = values.emit
        return emit(
            "Or", values.initial, emit("Greater", counts, emit.constant(np.array(0, np.int32)))
        )

    def running(self, values: Values, inclusive: bool) -> Tensor:
        emit = values.emit
        attrs = {} if inclusive else {"exclusive": 1}
        counts = emit("CumSum", self.flags(values), emit.scalar(0), **attrs)
        return self.joined(values, counts)

    def last(self, values: Values) -> Tensor:
        counts = values.emit.reduce("ReduceSum", self.flags(values), [0], 0)
        return self.joined(values, counts)


class LoopToAll(LoopToAny):
    """A state that becomes false with what iterations read counts them."""

    nothing = "no state is false as soon as one value read is"
    op = "And"
    fires = LoopToAny.fires.replace("so = Or(", "so = And(")
    spares = LoopToAny.spares

    def flags(self, values: Values) -> Tensor:
        emit = values.emit
        return emit("Cast", emit("Not", values.combined("And")), to=TensorProto.INT32)

    def joined(self, values: Values, counts: Tensor) -> Tensor:
        emit = values.emit
        none = emit("Equal", counts, emit.constant(np.array(0, np.int32)))
        return emit("And", values.initial, none)
