"""Tensors that each iteration appends to become scan outputs.

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
from .accumulation import AccumulatorRule, need_only_updated, with_sizes_of


@dataclass(frozen=True)
class Growth:
    """The Concat that appends to a tensor."""

    concat: Node
    at_front: bool
    """Whether new elements precede those of earlier iterations."""
    axis: int
    rank: int
    single: bool
    """Whether an iteration appends one element along the axis."""
    starts_empty: bool
    runs_at_least_once: bool
    """Whether the loop has at least one iteration."""


class ConcatToScanOutput(AccumulatorRule[Growth]):
    """Turns a tensor that each iteration only appends to into a scan output."""

    no_accumulator = "no carried value only grows by Concat"
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
        "may differ in shape": """g (float[N,3] x, float[0,3] e, int64 m) => (float[L,3] y, float[K,3] ys) <int64[2] twice = {2, 1}> {
      y, ys = Loop (m, , x, e) <body = b (int64 i, bool ci, float[O,3] s, float[P,3] q)
          => (bool co, float[R,3] so, float[Q,3] qo) {
        co = Identity(ci) so = Tile(s, twice) qo = Concat<axis=0>(q, so) }> }""",
        "no carried value only grows": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
    }

    def update(self, m: Match, view: LoopView, number: int, carried: CarriedValue) -> Growth | None:
        concat, name = m.producer(carried.output, "Concat"), carried.input
        if concat is None or len(concat.inputs) < 2:
            return None
        slot = next((k for k, t in enumerate(concat.inputs) if t is carried.input), None)
        if slot is None:
            return None
        m.need(m.index.graph_of(concat) is view.body, "{} may not run in each iteration", concat)
        need_only_updated(m, view, number, carried, Use(concat, slot))
        last = len(concat.inputs) - 1
        m.need(slot in (0, last), "{} grows at neither end", name, at=concat)
        parts = [t for k, t in enumerate(concat.inputs) if k != slot]
        shapes = [m.need(m.facts.shape(t), "the rank of {} is not known", t) for t in parts]
        rank = len(shapes[0])
        axis = int(concat.attrs["axis"]) % rank
        fixed = not any(m.facts.varies_in(d, view.body) for shape in shapes for d in shape)
        m.need(fixed, "the elements appended to {} may differ in shape between iterations", name)
        extent: Dim = 0
        for shape in shapes:
            extent = symbolic.add(extent, shape[axis])
        start = m.need(m.facts.shape(carried.initial), "the shape of {} is not known", name)
        agree = len(start) == rank and all(
            symbolic.eq(a, b) is True for k, (a, b) in enumerate(zip(start, shapes[0])) if k != axis
        )
        m.need(agree, "{} and the elements appended to it differ in more than one axis", name)
        runs = view.runs_at_least_once(m.facts)
        keeps_sizes = (extent == 1 and runs) or m.facts.opset >= EMPTY_RESHAPES
        m.need(keeps_sizes, NO_EMPTY_RESHAPES)
        return Growth(concat, slot == last, axis, rank, extent == 1, start[axis] == 0, runs)

    def added(self, patch: Patch, update: Growth) -> Tensor:
        concat = update.concat
        parts = concat.inputs[:-1] if update.at_front else concat.inputs[1:]
        emit = patch.builder(concat.outputs[0], concat)
        whole: Tensor = parts[0] if len(parts) == 1 else emit("Concat", *parts, axis=update.axis)
        return patch.builder(whole, concat).squeeze(whole, [update.axis] if update.single else [])

    def result(
        self, emit: Builder, stacked: Tensor, carried: CarriedValue, update: Growth
    ) -> Tensor:
        ordered = emit.reverse(stacked, 0) if update.at_front else stacked
        grown = _joined(emit, ordered, update, carried.initial)
        if update.starts_empty:
            return grown
        parts = [grown, carried.initial] if update.at_front else [carried.initial, grown]
        return emit("Concat", *parts, axis=update.axis)


def _joined(emit: Builder, stacked: Tensor, update: Growth, initial: Tensor) -> Tensor:
    """Concatenates what the iterations appended along the axis of the Concat.

    The other sizes are those of the initial value where there may be no iteration.
    """
    axis, rank, single = update.axis, update.rank, update.single
    moved = emit.move_axis(stacked, 0, axis, rank if single else rank + 1)
    if update.runs_at_least_once:
        return moved if single else emit.merge_axes(moved, axis, rank + 1)
    length = emit.shape(moved, axis, axis + 1 if single else axis + 2)
    if not single:
        length = emit("ReduceProd", length, keepdims=1)
    return with_sizes_of(emit, moved, axis, rank, length, initial)
