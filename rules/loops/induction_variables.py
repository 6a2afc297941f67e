"""Induction variables: carried integers that change by a fixed step.

   k, y = Loop(m, , k0, x) { … k …; return k + s, … }
-> y = Loop(m, , x) { … k0 + s * i …; return … }          k = k0 + s * Max(m, 0)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...rewrite.engine.builder import Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.fact import INT32, INT64
from ...rewrite.graph.ir import Tensor
from ...rewrite.graph.views import CarriedValue, LoopView

_NO_INDUCTION_VARIABLE = "no carried integer changes by a fixed step"


@dataclass(frozen=True)
class InductionVariable:
    """A carried integer that each iteration changes by a fixed step."""

    number: int
    """Its number among the carried values."""
    step: int
    dtype: int
    rank: int
    """Its number of axes, all of size 1."""
    starts_at_zero: bool
    final: Tensor | None
    """Its final value; None where nothing reads it."""


@dataclass(frozen=True)
class InductionVariables:
    """The induction variables of a loop."""

    variables: list[InductionVariable]


class InductionVariableFromIteration(Rule[InductionVariables]):
    """Computes a carried integer that changes by a fixed step from the iteration number."""

    root = "Loop"
    fires = """g (float[3] x, int64 n, int64 z) => (float[3] y, int64 k) {
      k, y = Loop (n, , z, x) <body = b (int64 i, bool ci, int64 t, float[3] s) => (bool co, int64 tn, float[3] so) {
        two = Constant<value_int=2>() tn = Add(t, two) co = Identity(ci) f = Cast<to=1>(t) so = Add(s, f) }> }"""
    spares = {
        "no carried integer": """g (float[3] x, int64 n) => (float[3] y) {
      y = Loop (n, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
        "a condition may end the loop": """g (float[3] x, int64 n, int64 z) => (float[3] y, int64 k) {
      k, y = Loop (n, , z, x) <body = b (int64 i, bool ci, int64 t, float[3] s) => (bool co, int64 tn, float[3] so) {
        one = Constant<value_int=1>() tn = Add(t, one) so = Add(s, s) q = ReduceMax<keepdims=0>(so) f = IsNaN(q) co = Not(f) }> }""",
    }

    def match(self, m: Match) -> InductionVariables:
        view = m.loop()
        variables: list[InductionVariable] = []
        first: Miss | None = None
        for number, carried in enumerate(view.carried):
            try:
                variables.append(_induction_variable(m, view, number, carried))
            except Miss as miss:
                if first is None or first.at is m.node:
                    first = miss
        if not variables:
            raise first or Miss(_NO_INDUCTION_VARIABLE, at=m.node)
        return InductionVariables(variables)

    def apply(self, patch: Patch, found: InductionVariables) -> None:
        view = LoopView(patch.root)
        count: Tensor | None = None
        for variable in found.variables:
            carried = view.carried[variable.number]
            initial = carried.initial
            inside = patch.builder(initial, patch.start(view.body))
            patch.replace(carried.input, _value_after(inside, view.iteration, variable, initial))
            if variable.final is None or view.trip is None:
                continue
            if count is None:
                emit = patch.builder(view.trip)
                count = emit.max(view.trip, emit.scalar(0))
            outside = patch.builder(initial)
            patch.replace(variable.final, _value_after(outside, count, variable, initial))
        patch.loop(patch.root).drop_carried([v.number for v in found.variables])


def has_one_element(m: Match, tensor: Tensor) -> bool:
    """Whether a tensor is known to have one element, along any number of axes."""
    shape = m.facts.shape(tensor)
    return shape is not None and all(size == 1 for size in shape)


def increment(m: Match, carried: CarriedValue) -> int | None:
    """The constant that each iteration adds to a carried integer; None if it is 0 or there is none.

    It is negative where each iteration subtracts a number.
    """
    node = m.producer(carried.output, "Add", "Sub")
    if node is None or carried.input not in node.inputs:
        return None
    is_first = node.inputs[0] is carried.input
    other = node.inputs[1 if is_first else 0]
    keeps_shape = m.facts.shape(carried.output) == m.facts.shape(carried.input)
    value = m.facts.scalar(other) if keeps_shape and has_one_element(m, other) else None
    if not isinstance(value, int) or isinstance(value, bool) or value == 0:
        return None
    if node.op == "Add":
        return value
    return -value if is_first else None


def _induction_variable(
    m: Match, view: LoopView, number: int, carried: CarriedValue
) -> InductionVariable:
    """A carried value as an induction variable. Raises Miss if it is not one."""
    dtype = m.facts.dtype(carried.initial)
    same = m.facts.shape(carried.initial) == m.facts.shape(carried.input)
    is_single = same and has_one_element(m, carried.initial)
    step = increment(m, carried) if dtype in (INT32, INT64) and is_single else None
    step = m.need(step, _NO_INDUCTION_VARIABLE)
    m.need(
        view.iteration_shape == (),
        "the iteration number is not a scalar in the body",
        at=carried.input,
    )
    final = carried.final
    if final is not None and not m.index.use_count(final):
        final = None
    if final is not None:
        m.need(
            view.never_stops_early(m.facts),
            "the final value is read, but a condition may end the loop before its trip count",
            at=carried.input,
        )
        trip = m.need(
            view.trip,
            "the final value is read, but the loop has no trip count",
            at=carried.input,
        )
        m.need(m.facts.shape(trip) == (), "the trip count is not a scalar", at=trip)
    starts_at_zero = m.facts.scalar(carried.initial) == 0
    rank = m.facts.rank(carried.initial) or 0
    return InductionVariable(number, step, dtype, rank, starts_at_zero, final)


def _value_after(
    emit: Builder, iterations: Tensor, variable: InductionVariable, initial: Tensor
) -> Tensor:
    """An induction variable after that many iterations: initial + step * iterations."""
    value = iterations
    if variable.dtype != INT64:
        value = emit("Cast", value, to=variable.dtype)
    if variable.step != 1:
        dtype = np.int64 if variable.dtype == INT64 else np.int32
        value = emit("Mul", value, emit.constant(np.array(variable.step, dtype)))
    value = emit.unsqueeze(value, range(variable.rank))
    return value if variable.starts_at_zero else emit("Add", value, initial)
