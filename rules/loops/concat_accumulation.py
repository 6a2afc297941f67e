"""Tensors that each iteration makes longer are scan outputs.

y = Loop(n, , empty) { … return Concat(grown, r) }   ->   ys = Loop(n, ) { … return r }   y = Reshape(ys)
"""

from __future__ import annotations

from dataclasses import dataclass

from ...rewrite import symbolic
from ...rewrite.engine.builder import EMPTY_RESHAPES, NO_EMPTY_RESHAPES, Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match
from ...rewrite.graph.index import Use
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import CarriedValue, LoopView
from ...rewrite.symbolic import Dim
from .accumulation import AccumulatorRule, need_only_updated, resized


@dataclass(frozen=True)
class Growth:
    """A Concat makes a tensor longer."""

    concat: Node
    in_front: bool
    axis: int
    rank: int
    single: bool
    """Whether an iteration adds one slice."""
    empty: bool
    """Whether the tensor is empty at first."""
    runs: bool
    """Whether there surely is a first iteration."""


class ConcatToScanOutput(AccumulatorRule[Growth]):
    """A tensor that each iteration only appends to is a scan output."""

    nothing = "no state only grows by Concat"
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

    def accumulator(
        self, m: Match, view: LoopView, number: int, state: CarriedValue
    ) -> Growth | None:
        return _growth(m, view, number, state)

    def row(self, patch: Patch, found: Growth) -> Tensor:
        row = _appended(patch, found.concat, found.in_front, found.axis)
        return patch.builder(row, found.concat).squeeze(row, [found.axis] if found.single else [])

    def result(self, emit: Builder, rows: Tensor, state: CarriedValue, found: Growth) -> Tensor:
        grown = emit.reverse(rows, 0) if found.in_front else rows
        model = None if found.runs else state.initial
        grown = _laid_out(emit, grown, found.axis, found.rank, found.single, model)
        if found.empty:
            return grown
        parts = [grown, state.initial] if found.in_front else [state.initial, grown]
        return emit("Concat", *parts, axis=found.axis)


def _laid_out(
    emit: Builder, rows: Tensor, axis: int, rank: int, single: bool, model: Tensor | None
) -> Tensor:
    """Rows side by side along an axis of a value of `rank` axes, of which single ones lack that.

    The sizes of the other axes are those of `model` where given: no rows have none.
    """
    apart = emit.move_axis(rows, 0, axis, rank if single else rank + 1)
    if model is None:
        return apart if single else emit.merge_axes(apart, axis, rank + 1)
    extent = emit.shape(apart, axis, axis + 1 if single else axis + 2)
    if not single:
        extent = emit("ReduceProd", extent, keepdims=1)
    return resized(emit, apart, axis, rank, extent, model)


def _appended(patch: Patch, concat: Node, in_front: bool, axis: int) -> Tensor:
    """What one iteration adds."""
    parts = concat.inputs[:-1] if in_front else concat.inputs[1:]
    if len(parts) == 1:
        only: Tensor = parts[0]
        return only
    return patch.builder(concat.outputs[0], concat)("Concat", *parts, axis=axis)


def _growth(m: Match, view: LoopView, number: int, state: CarriedValue) -> Growth | None:
    concat, name = m.producer(state.output, "Concat"), state.input.name
    if concat is None or len(concat.inputs) < 2:
        return None
    slot = next((k for k, t in enumerate(concat.inputs) if t is state.input), None)
    if slot is None:
        return None
    m.need(m.index.graph_of(concat) is view.body, "{} may not run in each iteration", concat)
    need_only_updated(m, view, number, state, Use(concat, slot))
    last = len(concat.inputs) - 1
    m.need(slot in (0, last), "`{}` grows at neither end", name, at=concat)
    parts = [t for k, t in enumerate(concat.inputs) if k != slot]
    shapes = [m.need(m.facts.shape(t), "the rank of `{}` is not known", t.name) for t in parts]
    rank = len(shapes[0])
    axis = int(concat.attrs["axis"]) % rank
    fixed = not any(m.facts.varies_in(d, view.body) for shape in shapes for d in shape)
    m.need(fixed, "what is added to `{}` may differ in shape between iterations", name)
    extent: Dim = 0
    for shape in shapes:
        extent = symbolic.add(extent, shape[axis])
    start = m.need(m.facts.shape(state.initial), "the shape of `{}` is not known", name)
    agree = len(start) == rank and all(
        symbolic.eq(a, b) is True for k, (a, b) in enumerate(zip(start, shapes[0])) if k != axis
    )
    m.need(agree, "`{}` and what is added to it differ in more than one axis", name)
    runs = view.runs_at_least_once(m.facts)
    m.need(
        (extent == 1 and runs) or m.facts.opset >= EMPTY_RESHAPES,
        NO_EMPTY_RESHAPES,
    )
    return Growth(concat, slot == last, axis, rank, extent == 1, start[axis] == 0, runs)
