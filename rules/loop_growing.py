"""Tensors that each iteration makes longer are scan outputs.

y = Loop(n, , empty) { … return Concat(grown, r) }   ->   ys = Loop(n, ) { … return r }   y = Reshape(ys)
"""

from __future__ import annotations

from typing import Any

from ..rewrite import symbolic
from ..rewrite.index import Use
from ..rewrite.ir import Node, Tensor
from ..rewrite.patch import Patch
from ..rewrite.rule import Match, Miss, Rule
from ..rewrite.symbolic import Dim
from ..rewrite.views import LoopView, State
from .row_layout import Behind, collect_rows, drop_state


class CollectConcatenatedRows(Rule):
    """A tensor that each iteration only appends to is a scan output."""

    root = "Loop"
    fires = """g (float[3] x, int64 m) => (float[3] y, float[K,3] ys) {
      none = Constant<value_ints=[0,3]>() e = ConstantOfShape(none)
      y, ys = Loop (m, , x, e) <body = b (int64 i, bool ci, float[3] s, float[P,3] q)
          => (bool co, float[3] so, float[Q,3] qo) {
        co = Identity(ci) so = Add(s, s) one = Constant<value_ints=[0]>() r = Unsqueeze(so, one)
        qo = Concat<axis=0>(q, r) }> }"""
    spares = {
        "is read in the body": """g (float[1,3] x, int64 m) => (float[K,3] ys) {
      ys = Loop (m, , x) <body = b (int64 i, bool ci, float[P,3] q) => (bool co, float[Q,3] qo) {
        co = Identity(ci) one = Constant<value_ints=[0]>() r = ReduceSum<keepdims=1>(q, one)
        qo = Concat<axis=0>(q, r) }> }""",
        "may differ in shape": """g (float[N,3] x, float[0,3] e, int64 m) => (float[L,3] y, float[K,3] ys) {
      y, ys = Loop (m, , x, e) <body = b (int64 i, bool ci, float[O,3] s, float[P,3] q)
          => (bool co, float[R,3] so, float[Q,3] qo) {
        co = Identity(ci) so = Concat<axis=0>(s, s) qo = Concat<axis=0>(q, so) }> }""",
        "no state only grows": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = m.loop()
        miss = Miss("no state only grows by Concat", (), m.node)
        for number, state in enumerate(view.states):
            concat = m.producer(state.output, "Concat")
            if concat is not None and len(concat.inputs) > 1 and state.input in concat.inputs:
                try:
                    found = _collected(m, view, number, state, concat)
                    return {"node": m.node, "number": number, "state": state, **found}
                except Miss as reason:
                    miss = reason
        raise miss

    def apply(
        self,
        patch: Patch,
        node: Node,
        number: int,
        state: State,
        concat: Node,
        in_front: bool,
        axis: int,
        rank: int,
        single: bool,
        empty: bool,
        runs: bool,
    ) -> None:
        final = state.final
        assert final is not None
        row = _appended(patch, concat, in_front, axis)
        if single:
            row = patch.squeeze(row, axis, row, before=concat)
        rows = collect_rows(patch, node, row, final)
        behind = Behind(patch, final)
        ordered = behind.reversed(rows) if in_front else rows
        model = None if runs else state.initial
        if single:
            result = behind.moved(ordered, axis, rank)
            if model is not None:
                result = behind.resized(result, axis, rank, behind.count(rows), model)
        else:
            result = behind.merged(ordered, axis, rank, model)
        if not empty:
            parts = [result, state.initial] if in_front else [state.initial, result]
            result = behind.node("Concat", parts, {"axis": axis})
        patch.replace(final, result)
        drop_state(patch, node, number, state)


def _appended(patch: Patch, concat: Node, in_front: bool, axis: int) -> Tensor:
    """What one iteration adds."""
    parts = concat.inputs[:-1] if in_front else concat.inputs[1:]
    if len(parts) == 1:
        only: Tensor = parts[0]
        return only
    return patch.node("Concat", parts, [concat.outputs[0]], {"axis": axis}, concat)[0]


def _collected(m: Match, view: LoopView, number: int, state: State, concat: Node) -> dict[str, Any]:
    name = state.input.name
    m.need(state.final is not None, "nobody reads `{}`", name)
    m.need(m.index.graph_of(concat) is view.body, "{} may not run in each iteration", concat)
    last = len(concat.inputs) - 1
    readers = m.index.uses(state.input)
    m.need(len(readers) == 1, "the growing `{}` is read in the body", name)
    slot = readers[0].slot
    m.need(slot in (0, last), "`{}` grows at neither end", name, at=concat)
    again = m.index.uses(state.output) != [Use(view.body, 1 + number)]
    m.need(not again, "the growing `{}` is read in the body", state.output.name)
    parts = [t for k, t in enumerate(concat.inputs) if k != slot]
    shapes = [m.need(m.facts.shape(t), "the rank of `{}` is not known", t.name) for t in parts]
    rank = len(shapes[0])
    axis = int(concat.attrs["axis"]) % rank
    fixed = not any(m.facts.escapes(d, view.body) for shape in shapes for d in shape)
    m.need(fixed, "what is added to `{}` may differ in shape between iterations", name)
    extent: Dim = 0
    for shape in shapes:
        extent = symbolic.add(extent, shape[axis])
    start = m.need(m.facts.shape(state.initial), "the shape of `{}` is not known", name)
    agree = len(start) == rank and all(
        symbolic.eq(a, b) is True for k, (a, b) in enumerate(zip(start, shapes[0])) if k != axis
    )
    m.need(agree, "`{}` and what is added to it differ in more than one axis", name)
    runs = surely_runs(m, view)
    m.need(
        (extent == 1 and runs) or m.facts.opset >= 14,
        "before opset 14 no Reshape can be told of sizes that may be 0",
    )
    return {
        "concat": concat, "in_front": slot == last, "axis": axis, "rank": rank,
        "single": extent == 1, "empty": start[axis] == 0, "runs": runs,
    }  # fmt: skip


def surely_runs(m: Match, view: LoopView) -> bool:
    """Whether there is a first iteration."""
    if view.condition is not None and m.facts.scalar(view.condition) is not True:
        return False
    trips = None if view.trip is None else m.facts.scalar(view.trip)
    if view.trip is None:
        return True
    return trips is not None and not isinstance(trips, bool) and symbolic.positive(trips)
