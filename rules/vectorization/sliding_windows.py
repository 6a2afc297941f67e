"""Windows that move along an axis: all of them are gathered at once, in front of the loop.

w = Slice(x, i, i + 4)   ->   W = Gather(x, [[0, 1, 2, 3], [1, 2, 3, 4], …])    w = Gather(W, i)

A single window may be larger than the axis: it is all of the axis then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...rewrite import symbolic
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop, counted_loop
from ...rewrite.graph.ir import Node
from ...rewrite.graph.views import LoopView
from ...rewrite.symbolic import Dim
from ..loops.affine_positions import (
    Progression,
    need_enclosing_loop,
    need_in_range,
    need_outer,
    need_progression,
)
from ..loops.slice_reads import need_moving_slice

_WIDEST = 64
"""Elements of a window: each element of x is held that many times."""


@dataclass(frozen=True)
class Window:
    """`first + step * i` and the `extent - 1` elements behind it."""

    axis: int
    rank: int
    first: int
    step: int
    extent: int
    may_be_short: bool
    """Whether the axis may be shorter than the only window."""


class VectorizeSlidingWindows(Rule):
    """A Slice of several elements, at a position that advances, reads one of many windows."""

    root = "Slice"
    fires = """g (float[9,3] x) => (float[6,3] y) {
      zero = Constant<value_ints=[0]>() four = Constant<value_ints=[4]>() n = Constant<value_int=6>() t = Constant<value=bool {1}>()
      y = Loop (n, t) <body = b (int64 i, bool ci) => (bool co, float[3] r) {
        k = Unsqueeze(i, zero) e = Add(k, four) w = Slice(x, k, e, zero)
        co = Identity(ci) r = ReduceMax<keepdims=0>(w, zero) }> }"""
    spares = {
        "may be outside": """g (float[T,3] x, int64 n) => (float[R,3] y) {
      zero = Constant<value_ints=[0]>() four = Constant<value_ints=[4]>() t = Constant<value=bool {1}>()
      y = Loop (n, t) <body = b (int64 i, bool ci) => (bool co, float[3] r) {
        k = Unsqueeze(i, zero) e = Add(k, four) w = Slice(x, k, e, zero)
        co = Identity(ci) r = ReduceMax<keepdims=0>(w, zero) }> }""",
        "not a fixed number": """g (float[9,3] x) => (float[6,3] y) {
      zero = Constant<value_ints=[0]>() four = Constant<value_ints=[4]>() n = Constant<value_int=6>() t = Constant<value=bool {1}>()
      y = Loop (n, t) <body = b (int64 i, bool ci) => (bool co, float[3] r) {
        k = Unsqueeze(i, zero) e = Add(k, four) w = Slice(x, zero, e, zero)
        co = Identity(ci) r = ReduceMax<keepdims=0>(w, zero) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = need_enclosing_loop(m)
        need_outer(m, view, m.node.inputs[0])
        steps = m.need(counted_loop(m.facts, view.node), "the loop may end early")
        x = m.node.inputs[0]
        shape = m.need(m.facts.shape(x), "the rank of {} is not known", x, at=x)
        cut, start, extent = need_moving_slice(m, shape)
        m.need(isinstance(extent, int), "it takes {} elements, not a fixed number", extent)
        assert isinstance(extent, int)
        m.need(1 < extent <= _WIDEST, "it takes {} elements", extent)
        found = need_progression(m, view, start, m.node.inputs[1])
        m.need(found.step > 0, "the window moves back")
        first = found.first
        m.need(isinstance(first, int) and first >= 0, "the first position {} is not known", first)
        assert isinstance(first, int)
        short = first == 0 and _only_one_is_short(m, view, found, extent, shape[cut.axis])
        if not short:
            need_in_range(m, view, found, extent, shape[cut.axis])
        window = Window(cut.axis, len(shape), first, found.step, extent, short)
        return {"node": m.node, "steps": steps, "window": window}

    def apply(self, patch: Patch, node: Node, steps: CountedLoop, window: Window) -> None:
        assert steps.iteration is not None, "only a Loop has a number to compute positions from"
        emit = patch.builder(node.outputs[0], steps.node)
        starts = emit.iteration_numbers(steps)
        if window.step != 1:
            starts = emit("Mul", starts, emit.scalar(window.step))
        if window.may_be_short:
            length = emit.shape(node.inputs[0], window.axis, window.axis + 1)
            extent = emit.squeeze(emit.min(length, emit.vector(window.extent)), [0])
            offsets = emit("Range", emit.scalar(0), extent, emit.scalar(1))
        else:
            offsets = emit.constant(window.first + np.arange(window.extent, dtype=np.int64))
        positions = emit("Add", emit.unsqueeze(starts, [1]), offsets)
        all_windows = emit("Gather", node.inputs[0], positions, axis=window.axis)
        stacked = emit.move_axis(all_windows, window.axis, 0, window.rank + 1)
        read = patch.node("Gather", [stacked, steps.iteration], [node.outputs[0]], {"axis": 0})[0]
        patch.replace(node.outputs[0], read)
        patch.remove(node)
        patch.toward_normal_form()


def _only_one_is_short(
    m: Match, view: LoopView, found: Progression, extent: int, length: Dim
) -> bool:
    """Whether an axis with room for a window has room for all, and a shorter one, which there may
    be, is that of a loop that runs once at most.
    """
    trips, size = view.trips(m.facts), symbolic.single_symbol(length)
    low = None if size is None else size.low
    if trips is None or size is None or low is None or not 0 <= low < extent:
        return False
    longer = {size: symbolic.add(symbolic.fresh("beyond"), extent)}
    last = symbolic.mul(found.step, symbolic.sub(symbolic.substitute(trips, longer), 1))
    if not symbolic.le(symbolic.add(last, extent), longer[size]):
        return False
    shorter = (symbolic.substitute(trips, {size: n}) for n in range(low, extent))
    return all(symbolic.le(count, 1) for count in shorter)
