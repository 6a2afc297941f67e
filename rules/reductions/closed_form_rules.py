"""Carried values that are sums, products, extrema, flags or delayed slices of what iterations read.

    y = Loop(n, , s0) { return true, s * x_t }   ->   y = s0 * ReduceProd(x[:n], 0)

The reduction of an empty sequence is the neutral element, so a loop without iterations returns its
initial value (ONNX operator specification, ReduceProd, ReduceMax: "Reduction over an empty set of
values").
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE
from ...rewrite.facts.splat import has_negative_zero, is_zero
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Constant, Tensor
from ...rewrite.graph.views import CarriedValue
from ..vectorization.independent_work import IndependentWork
from .closed_form import ChainOperands, ClosedFormRule, Operand, UpdateChain, find_chain


class LoopToSum(ClosedFormRule):
    """Replaces a carried value that adds up slices by a ReduceSum, its running values by a CumSum.

        y, ys = Loop(n, , s0) { a = s + x_t  return true, a, a }
     -> ys = s0 + CumSum(x[:n], 0)    y = s0 + ReduceSum(x[:n], 0)

    Floats are added in another order than in the loop, which changes the last digits; integers are
    exact.
    """

    promise = Promise(
        rounds="a sum in another order",
        nonfinite="sums that overflow in between",
        accepts="those that read past the end of the sequence",
    )

    no_chain = "no carried value is a sum of what iterations read"
    repeats_invariants = False
    fires = """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y, float[R,3] r) {
      y, r = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] row) {
        co = Identity(ci) xt = Gather(xs, i) so = Add(s, xt) row = Identity(so) }> }"""
    spares = {
        "no carried value is a sum": """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) xt = Gather(xs, i) so = Sub(xt, s) }> }""",
        "may change in the loop": """g (float[T,3] xs, float[1] s0, int64 n) => (float[P] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[P] s) => (bool co, float[P] so) {
        co = Identity(ci) xt = Gather(xs, i) so = Add(s, xt) }> }""",
        "no operator for the type": """g (float16[T,3] xs, float16[3] s0, int64 n) => (float16[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float16[3] s) => (bool co, float16[3] so) {
        co = Identity(ci) xt = Gather(xs, i) so = Add(s, xt) }> }""",
    }

    def chain(self, m: Match, work: IndependentWork, carried: CarriedValue) -> UpdateChain | None:
        chain = find_chain(m, work, carried, ("Add", "Sub"))
        # A sum of nothing but -0 is -0. ReduceSum and CumSum start at +0 and give +0.
        negative = chain is not None and has_negative_zero(m.facts, carried.initial)
        m.need(not negative, "{} starts at -0", carried.input, at=carried.initial)
        if chain is not None and m.facts.dtype(carried.input) in FLOAT_OR_DOUBLE:
            # Adding a large number and subtracting it again rounds.
            added = {operand.value for operand in chain.operands if not operand.negated}
            taken = (operand.value for operand in chain.operands if operand.negated)
            both = next((value for value in taken if value in added), None)
            m.need(both is None, "one iteration adds {} and subtracts it, which rounds", both)
        return chain

    def running_values(self, operands: ChainOperands, inclusive: bool) -> Tensor:
        emit = operands.emit
        attributes = {} if inclusive else {"exclusive": 1}
        sums = emit("CumSum", operands.combined("Add"), emit.scalar(0), **attributes)
        # Where all operands are -0, the loop gives +0, and an inclusive CumSum -0.
        return self._add_initial(operands, sums, starts_at_zero=not inclusive)

    def final_value(self, operands: ChainOperands) -> Tensor:
        emit = operands.emit
        sums = []
        if batched := operands.batched():
            sums.append(self._sum(operands, emit.combine("Add", batched)))
        if invariant := operands.invariant():
            sums.append(self._multiple(operands, emit.combine("Add", invariant)))
        total = emit.combine("Add", sums)
        return self._add_initial(operands, total, starts_at_zero=bool(batched))

    @staticmethod
    def _sum(operands: ChainOperands, stacked: Tensor) -> Tensor:
        """The sum of stacked values.

        onnxruntime's ReduceSum adds integers as floats, which is wrong from 2**53 on and where the
        loop overflows. Its CumSum is exact, but has no last element for an empty stack.
        """
        emit, dtype = operands.emit, operands.dtype
        if dtype in FLOAT_OR_DOUBLE:
            return emit.reduce("ReduceSum", stacked, [0], 0)
        if not operands.runs_at_least_once:
            rank = len(operands.shape)
            one_slice = emit.concat([emit.vector(1), emit.shape(stacked, 1, rank + 1)])
            zero = Constant("value", np.zeros(1, helper.tensor_dtype_to_np_dtype(dtype)))
            zeros = emit("ConstantOfShape", one_slice, value=zero)
            stacked = emit("Concat", zeros, stacked, axis=0)
        return emit("Gather", emit("CumSum", stacked, emit.scalar(0)), emit.scalar(-1), axis=0)

    @staticmethod
    def _multiple(operands: ChainOperands, once: Tensor) -> Tensor:
        """An invariant value times the trip count.

        0 times infinity is NaN, but a loop that does not run adds nothing.
        """
        emit, dtype = operands.emit, operands.dtype
        count = emit.squeeze(operands.trip_count(), [0])
        product = emit("Mul", once, emit("Cast", count, to=dtype))
        if operands.runs_at_least_once:
            return product
        zero = emit.constant(np.array(0, helper.tensor_dtype_to_np_dtype(dtype)))
        return emit("Where", emit("Less", count, emit.scalar(1)), zero, product)

    @staticmethod
    def _add_initial(operands: ChainOperands, sums: Tensor, starts_at_zero: bool) -> Tensor:
        """The initial value plus the sums; the sums alone if both start at +0."""
        facts, initial = operands.facts, operands.initial
        same = starts_at_zero or operands.dtype not in FLOAT_OR_DOUBLE
        if same and is_zero(facts, initial) and operands.combination_has_full_shape():
            return sums
        return operands.emit("Add", initial, sums)


class LoopToProduct(ClosedFormRule):
    """Replaces a carried value that multiplies slices by a ReduceProd.

    Floats only: onnxruntime multiplies integers as floats, which do not wrap around on overflow.
    """

    promise = Promise(
        rounds="a product in another order",
        nonfinite="products that overflow or vanish in between",
        accepts="those that read past the end of the sequence",
    )

    no_chain = "no carried value is a product of what iterations read"
    types = FLOAT_OR_DOUBLE
    has_running_values = False
    fires = """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) xt = Gather(xs, i) so = Mul(xt, s) }> }"""
    spares = {
        "no carried value is a product": """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) xt = Gather(xs, i) a = Mul(s, s) so = Mul(a, xt) }> }""",
        "reads running values": """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y, float[R,3] r) {
      y, r = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] row) {
        co = Identity(ci) xt = Gather(xs, i) so = Mul(s, xt) row = Identity(so) }> }""",
        "no operator for the type": """g (int64[T,3] xs, int64[3] s0, int64 n) => (int64[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, int64[3] s) => (bool co, int64[3] so) {
        co = Identity(ci) xt = Gather(xs, i) so = Mul(s, xt) }> }""",
    }

    def chain(self, m: Match, work: IndependentWork, carried: CarriedValue) -> UpdateChain | None:
        return find_chain(m, work, carried, ("Mul",))

    def final_value(self, operands: ChainOperands) -> Tensor:
        product = operands.emit.reduce("ReduceProd", operands.combined("Mul"), [0], 0)
        if operands.starts_as(1) and operands.combination_has_full_shape():
            return product
        return operands.emit("Mul", operands.initial, product)


class LoopToMaximum(ClosedFormRule):
    """Replaces a carried value that keeps the largest elements of slices by a ReduceMax."""

    promise = Promise(
        accepts="those that read past the end of the sequence",
    )

    no_chain = "no carried value is a maximum of what iterations read"
    has_running_values = False
    op = "Max"
    reduction = "ReduceMax"
    fires = """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) xt = Gather(xs, i) so = Max(s, xt) }> }"""
    spares = {
        "reads running values": """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y, float[R,3] r) {
      y, r = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] row) {
        co = Identity(ci) xt = Gather(xs, i) so = Max(s, xt) row = Identity(so) }> }""",
        "no carried value is a maximum": """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) xt = Gather(xs, i) a = Neg(s) so = Max(a, xt) }> }""",
    }

    def chain(self, m: Match, work: IndependentWork, carried: CarriedValue) -> UpdateChain | None:
        return find_chain(m, work, carried, (self.op,))

    def final_value(self, operands: ChainOperands) -> Tensor:
        emit = operands.emit
        slices = operands.combined(self.op)
        extreme = emit.reduce(self.reduction, slices, [0], 0)
        if operands.dtype in FLOAT_OR_DOUBLE:
            extreme = _with_nan(operands, slices, extreme)
        return emit(self.op, operands.initial, extreme)


def _with_nan(operands: ChainOperands, slices: Tensor, extreme: Tensor) -> Tensor:
    """The extreme of slices, NaN where a slice has NaN.

    onnxruntime's Max and Min pass NaN on; its ReduceMax and ReduceMin may lose it.
    """
    emit = operands.emit
    flags = emit("Cast", emit("IsNaN", slices), to=TensorProto.INT32)
    any_nan = emit("Cast", emit.reduce("ReduceMax", flags, [0], 0), to=TensorProto.INT32)
    is_nan = emit("Equal", any_nan, emit.constant(np.array(1, np.int32)))
    nan = emit.constant(np.array(np.nan, helper.tensor_dtype_to_np_dtype(operands.dtype)))
    return emit("Where", is_nan, nan, extreme)


class LoopToMinimum(LoopToMaximum):
    """Replaces a carried value that keeps the smallest elements of slices by a ReduceMin."""

    promise = Promise(
        accepts="those that read past the end of the sequence",
    )

    no_chain = "no carried value is a minimum of what iterations read"
    op = "Min"
    reduction = "ReduceMin"
    fires = LoopToMaximum.fires.replace("Max", "Min")
    spares = {
        words.replace("maximum", "minimum"): text.replace("Max", "Min")
        for words, text in LoopToMaximum.spares.items()
    }


class LoopToAny(ClosedFormRule):
    """Replaces a carried OR of flags by a count of those that are true."""

    promise = Promise(
        accepts="those that read past the end of the sequence",
    )

    no_chain = "no carried value becomes true as soon as an iteration reads true"
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

    def chain(self, m: Match, work: IndependentWork, carried: CarriedValue) -> UpdateChain | None:
        return find_chain(m, work, carried, (self.op,))

    def deciding(self, operands: ChainOperands) -> Tensor:
        """1 where an iteration decides the flag and 0 elsewhere, int32, stacked."""
        return operands.emit("Cast", operands.combined(self.op), to=TensorProto.INT32)

    def flag(self, operands: ChainOperands, count: Tensor) -> Tensor:
        """The flag after `count` iterations that decide it."""
        emit = operands.emit
        some = emit("Greater", count, emit.constant(np.array(0, np.int32)))
        return emit("Or", operands.initial, some)

    def running_values(self, operands: ChainOperands, inclusive: bool) -> Tensor:
        emit = operands.emit
        attributes = {} if inclusive else {"exclusive": 1}
        counts = emit("CumSum", self.deciding(operands), emit.scalar(0), **attributes)
        return self.flag(operands, counts)

    def final_value(self, operands: ChainOperands) -> Tensor:
        count = operands.emit.reduce("ReduceSum", self.deciding(operands), [0], 0)
        return self.flag(operands, count)


class LoopToAll(LoopToAny):
    """Replaces a carried AND of flags by a count of those that are false."""

    promise = Promise(
        accepts="those that read past the end of the sequence",
    )

    no_chain = "no carried value becomes false as soon as an iteration reads false"
    op = "And"
    fires = LoopToAny.fires.replace("so = Or(", "so = And(")
    spares = LoopToAny.spares

    def deciding(self, operands: ChainOperands) -> Tensor:
        emit = operands.emit
        return emit("Cast", emit("Not", operands.combined("And")), to=TensorProto.INT32)

    def flag(self, operands: ChainOperands, count: Tensor) -> Tensor:
        emit = operands.emit
        none = emit("Equal", count, emit.constant(np.array(0, np.int32)))
        return emit("And", operands.initial, none)


class DelayLineToShift(ClosedFormRule):
    """Replaces a carried value that only holds the previous slice by a shifted sequence.

       y, ys = Loop(n, , s0) { x_t = Gather(x, i)  return true, x_t, s }
    -> all = Concat(s0, x[:n])    ys = all[:-1]    y = all[-1]
    """

    promise = Promise(
        accepts="those that read past the end of the sequence",
    )

    no_chain = "no carried value holds what the previous iteration read"
    fires = """g (float[T,3] xs, float[3] s0, float[3] u0, int64 n) => (float[3] y, float[3] z) {
      y, z = Loop (n, , s0, u0) <body = b (int64 i, bool ci, float[3] s, float[3] u) => (bool co, float[3] so, float[3] uo) {
        co = Identity(ci) xt = Gather(xs, i) so = Neg(xt) d = Mul(u, s) uo = Sin(d) }> }"""
    spares = {
        "no carried value holds": """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) xt = Gather(xs, i) so = Mul(s, xt) }> }""",
        "may change": """g (float[T,3] xs, float[1] s0, int64 n) => (float[P] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[P] s) => (bool co, float[P] so) {
        co = Identity(ci) xt = Gather(xs, i) so = Neg(xt) }> }""",
    }

    def chain(self, m: Match, work: IndependentWork, carried: CarriedValue) -> UpdateChain | None:
        if carried.output not in work.batched:
            return None
        return UpdateChain((Operand(carried.output),), frozenset())

    def supports(self, dtype: int) -> bool:
        return dtype != 0

    def reads(self, index: Index, carried: CarriedValue, chain: UpdateChain) -> tuple[bool, bool]:
        return index.use_count(carried.input) > 0, False

    def running_values(self, operands: ChainOperands, inclusive: bool) -> Tensor:
        emit = operands.emit
        return emit.slice(self._all(operands), 0, slice(0, -1, 1))

    def final_value(self, operands: ChainOperands) -> Tensor:
        emit = operands.emit
        return emit("Gather", self._all(operands), emit.scalar(-1), axis=0)

    @staticmethod
    def _all(operands: ChainOperands) -> Tensor:
        """The initial value and the slices of all iterations, stacked."""
        initial = operands.emit.unsqueeze(operands.initial, [0])
        return operands.emit("Concat", initial, *operands.stacked, axis=0)
