"""Running sums: a state to which every iteration adds something.

    y, ys = Loop(n, , s0) { a = s + x_t  return true, a, a }
 -> ys = s0 + CumSum(x[:n], 0)    y = s0 + ReduceSum(x[:n], 0)

Floats are added in another order than in the loop, which changes the last digits; integers are
exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
from onnx import helper

from ...rewrite.engine.rule import Match
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE
from ...rewrite.facts.splat import has_negative_zero, is_zero
from ...rewrite.graph.ir import Constant, Tensor
from ...rewrite.graph.views import CarriedValue
from ...rewrite.symbolic import Dim
from ..vectorization.independent_work import Parallel
from .closed_form import Chain, StateRule, Values, chain_of


class LoopToSum(StateRule):
    """A state that sums up what iterations read is a ReduceSum, its running values a CumSum."""

    nothing = "no state is a sum of what iterations read"
    fires = """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y, float[R,3] r) {
      y, r = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] row) {
        co = Identity(ci) xt = Gather(xs, i) so = Add(s, xt) row = Identity(so) }> }"""
    spares = {
        "no state is a sum": """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) xt = Gather(xs, i) so = Sub(xt, s) }> }""",
        "may change in the loop": """g (float[T,3] xs, float[1] s0, int64 n) => (float[P] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[P] s) => (bool co, float[P] so) {
        co = Identity(ci) xt = Gather(xs, i) so = Add(s, xt) }> }""",
        "no operator for the type": """g (float16[T,3] xs, float16[3] s0, int64 n) => (float16[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float16[3] s) => (bool co, float16[3] so) {
        co = Identity(ci) xt = Gather(xs, i) so = Add(s, xt) }> }""",
    }

    def chain(self, m: Match, parallel: Parallel, state: CarriedValue) -> Chain | None:
        chain = chain_of(m, parallel, state, ("Add", "Sub"))
        # Its sign outlasts only -0: no operator for sums knows, all of them start at +0.
        negative = chain is not None and has_negative_zero(m.facts, state.initial)
        m.need(not negative, "{} starts at -0", state.input, at=state.initial)
        return chain

    def running(self, values: Values, inclusive: bool) -> Tensor:
        emit = values.emit
        attrs = {} if inclusive else {"exclusive": 1}
        sums = emit("CumSum", values.combined("Add"), emit.scalar(0), **attrs)
        # Of nothing but -0, the loop makes +0, and an inclusive CumSum -0.
        return self._from_start(values, sums, not inclusive)

    def too_large_to_repeat(
        self, m: Match, parallel: Parallel, chain: Chain, state: Sequence[Dim]
    ) -> Tensor | None:
        return None  # what is added again and again is multiplied

    def last(self, values: Values) -> Tensor:
        emit, terms = values.emit, values.found.chain.terms
        changing = [term for term in terms if not values.is_fixed(term)]
        parts = []
        if changing:
            total = reduce(lambda a, b: emit("Add", a, b), values.stacked(changing))
            parts.append(self._added(values, total))
        if len(changing) < len(terms):
            parts.append(self._many_times(values))
        total = reduce(lambda a, b: emit("Add", a, b), parts)
        return self._from_start(values, total, bool(changing))

    @staticmethod
    def _added(values: Values, rows: Tensor) -> Tensor:
        """The sum of stacked values.

        onnxruntime's ReduceSum adds integers as floats: past 2**53, and where the loop wraps round,
        it gives other numbers. Its CumSum does not, but has no last number where there are no rows.
        """
        emit, found = values.emit, values.found
        dtype = found.facts.dtype(values.initial)
        if dtype in FLOAT_OR_DOUBLE:
            return emit.reduce("ReduceSum", rows, [0], 0)
        if not found.runs:
            one_row = emit.concat([emit.vector(1), emit.shape(rows, 1, len(values.shape) + 1)])
            zero = Constant("value", np.zeros(1, helper.tensor_dtype_to_np_dtype(dtype)))
            rows = emit("Concat", emit("ConstantOfShape", one_row, value=zero), rows, axis=0)
        return emit("Gather", emit("CumSum", rows, emit.scalar(0)), emit.scalar(-1), axis=0)

    @staticmethod
    def _many_times(values: Values) -> Tensor:
        """The terms that no iteration changes, times the number of iterations.

        No times infinity is NaN, but a loop that does not run adds nothing.
        """
        emit, found = values.emit, values.found
        once = reduce(lambda a, b: emit("Add", a, b), values.fixed())
        count = emit.squeeze(values.count(), [0])
        dtype = found.facts.dtype(values.initial)
        product = emit("Mul", once, emit("Cast", count, to=dtype))
        if found.runs:
            return product
        zero = emit.constant(np.array(0, helper.tensor_dtype_to_np_dtype(dtype)))
        return emit("Where", emit("Less", count, emit.scalar(1)), zero, product)

    @staticmethod
    def _from_start(values: Values, sums: Tensor, starts_at_zero: bool) -> Tensor:
        """The initial state and the sums; the sums alone where they start at the same +0."""
        facts, initial = values.found.facts, values.initial
        same = starts_at_zero or facts.dtype(initial) not in FLOAT_OR_DOUBLE
        if same and is_zero(facts, initial) and values.has_full_shape():
            return sums
        return values.emit("Add", values.initial, sums)
