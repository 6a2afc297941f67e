"""Induction variables: states that are a function of the iteration number.

   k, y = Loop(m, , k0, x) { … k …; return k + s, … }
-> y = Loop(m, , x) { … k0 + s * i …; return … }          k = k0 + s * Max(m, 0)
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..rewrite.facts import INT64, Value
from ..rewrite.ir import Graph, Node, Tensor
from ..rewrite.patch import Patch
from ..rewrite.rule import Match, Miss, Rule
from ..rewrite.views import LoopView, State
from .loop_count import INT32, step_of
from .loop_states import without_states


class CounterFromIteration(Rule):
    """A state that grows by a fixed step is computed from the iteration number."""

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
        counted = view.trip is not None and view.never_stops_early(m.facts)
        blocked = None
        for number, state in enumerate(view.states):
            step = step_of(m, state)
            dtype = m.facts.dtype(state.initial)
            if step is None or dtype not in (INT32, INT64) or m.facts.shape(state.initial) != ():
                continue
            read = state.final is not None and m.index.use_count(state.final) > 0
            if read and not counted:
                blocked = state
                continue
            if read and view.trip is not None:
                m.need(m.facts.opset >= 12, "Max takes no integers before opset 12")
                m.need(m.facts.shape(view.trip) == (), "the trip count is no scalar", at=view.trip)
            m.need(view.iteration_shape == (), "the iteration number is no scalar in the body")
            found = {"state": state, "number": number, "step": step, "dtype": dtype}
            return {"node": m.node, "start": m.facts.scalar(state.initial), **found}
        m.need(
            blocked is None, "its final value is read, but the number of iterations is not known"
        )
        raise Miss("no integer state grows by a fixed step", (), m.node)

    def apply(
        self,
        patch: Patch,
        node: Node,
        state: State,
        number: int,
        step: int,
        dtype: int,
        start: Value,
    ) -> None:
        view = LoopView(node)
        is_zero = isinstance(start, int) and start == 0
        value = _progress(patch, view.iteration, state, step, dtype, is_zero, view.body)
        patch.replace(state.input, value)
        if state.final is not None and patch.index.use_count(state.final) and view.trip is not None:
            none = patch.constant(np.array(0, np.int64), like=state.initial)
            count = patch.node("Max", [view.trip, none], [state.initial])[0]
            final = _progress(patch, count, state, step, dtype, is_zero, None)
            patch.replace(state.final, final)
        without_states(patch, node, [number])


def _progress(
    patch: Patch,
    count: Tensor,
    state: State,
    step: int,
    dtype: int,
    from_zero: bool,
    body: Graph | None,
) -> Tensor:
    """initial + step * count, in the type of the state, in the body or before the loop."""
    like = state.initial
    add = patch.node if body is None else partial(patch.node_first, body)
    value = count
    if dtype != INT64:
        value = add("Cast", [value], [like], {"to": dtype})[0]
    if step != 1:
        kind = np.int64 if dtype == INT64 else np.int32
        factor = patch.constant(np.array(step, kind), like=like, graph=body)
        value = add("Mul", [value, factor], [like])[0]
    if not from_zero:
        value = add("Add", [value, state.initial], [like])[0]
    return value
