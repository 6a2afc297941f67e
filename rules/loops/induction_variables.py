"""Induction variables: states that are a function of the iteration number.

   k, y = Loop(m, , k0, x) { … k …; return k + s, … }
-> y = Loop(m, , x) { … k0 + s * i …; return … }          k = k0 + s * Max(m, 0)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.fact import INT32, INT64
from ...rewrite.graph.ir import Graph, Node, Tensor
from ...rewrite.graph.views import CarriedValue, LoopView
from .counters import step_of


class InductionVariableFromIteration(Rule):
    """A state that changes by a fixed step is computed from the iteration number."""

    root = "Loop"
    fires = """g (float[3] x, int64 n, int64 z) => (float[3] y, int64 k) {
      k, y = Loop (n, , z, x) <body = b (int64 i, bool ci, int64 t, float[3] s) => (bool co, int64 tn, float[3] so) {
        two = Constant<value_int=2>() tn = Add(t, two) co = Identity(ci) f = Cast<to=1>(t) so = Add(s, f) }> }"""
    spares = {
        "no integer state": """g (float[3] x, int64 n) => (float[3] y) {
      y = Loop (n, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
        "number of iterations": """g (float[3] x, int64 n, int64 z) => (float[3] y, int64 k) {
      k, y = Loop (n, , z, x) <body = b (int64 i, bool ci, int64 t, float[3] s) => (bool co, int64 tn, float[3] so) {
        one = Constant<value_int=1>() tn = Add(t, one) so = Add(s, s) q = ReduceMax<keepdims=0>(so) f = IsNaN(q) co = Not(f) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = m.loop()
        counters: list[Counter] = []
        first: Miss | None = None
        for number, state in enumerate(view.carried):
            try:
                counters.append(_counter(m, view, number, state))
            except Miss as miss:
                if first is None or first.at is m.node:
                    first = miss
        if not counters:
            raise first or Miss(_NONE, at=m.node)
        return {"node": m.node, "counters": counters}

    def apply(self, patch: Patch, node: Node, counters: list[Counter]) -> None:
        view = LoopView(node)
        count: Tensor | None = None
        for counter in counters:
            state = counter.state
            patch.replace(state.input, _progress(patch, view.iteration, counter, view.body))
            if counter.final is None or view.trip is None:
                continue
            if count is None:
                emit = patch.builder(view.trip)
                count = emit.max(view.trip, emit.scalar(0))
            patch.replace(counter.final, _progress(patch, count, counter, None))
        patch.loop(node).drop_carried([counter.number for counter in counters])


_NONE = "no integer state changes by a fixed step"


@dataclass(frozen=True)
class Counter:
    """A state that changes by a fixed step."""

    state: CarriedValue
    number: int
    step: int
    dtype: int
    from_zero: bool
    final: Tensor | None
    """Its value after the loop, where that is read."""


def _counter(m: Match, view: LoopView, number: int, state: CarriedValue) -> Counter:
    """Raises Miss for another state, and where an opset or a type is in the way."""
    step = step_of(m, state)
    dtype = m.facts.dtype(state.initial)
    scalar = m.facts.shape(state.initial) == ()
    if step is None or dtype not in (INT32, INT64) or not scalar:
        raise Miss(_NONE, at=m.node)
    m.need(
        view.iteration_shape == (), "the iteration number is no scalar in the body", at=state.input
    )
    final = state.final if state.final is not None and m.index.use_count(state.final) else None
    if final is not None:
        m.need(
            view.trip is not None and view.never_stops_early(m.facts),
            "its final value is read, but the number of iterations is not known",
            at=state.input,
        )
        assert view.trip is not None
        m.need(m.facts.shape(view.trip) == (), "the trip count is no scalar", at=view.trip)
    from_zero = m.facts.scalar(state.initial) == 0
    return Counter(state, number, step, dtype, from_zero, final)


def _progress(patch: Patch, count: Tensor, counter: Counter, body: Graph | None) -> Tensor:
    """initial + step * count, in the type of the state, in the body or before the loop."""
    like = counter.state.initial
    add = patch.node if body is None else partial(patch.node_first, body)
    value = count
    if counter.dtype != INT64:
        value = add("Cast", [value], [like], {"to": counter.dtype})[0]
    if counter.step != 1:
        kind = np.int64 if counter.dtype == INT64 else np.int32
        factor = patch.constant(np.array(counter.step, kind), like=like, graph=body)
        value = add("Mul", [value, factor], [like])[0]
    if not counter.from_zero:
        value = add("Add", [value, like], [like])[0]
    return value
