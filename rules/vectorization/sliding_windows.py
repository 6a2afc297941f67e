"""Sliding windows: a Slice that moves with the iteration number reads one of many windows.

    w = Slice(x, i, i + 4)   ->   W = Gather(x, [[0, 1, 2, 3], [1, 2, 3, 4], …])    w = Gather(W, i)

The windows of all iterations are gathered at once, before the loop. If there is only one window, it
may be larger than the axis; it is then the whole axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...rewrite import symbolic
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop, counted_loop
from ...rewrite.graph.ir import Tensor
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

MAX_WIDTH = 64
"""The most elements of a window. The stacked windows hold each element of x as many times."""


@dataclass(frozen=True)
class SlidingWindow:
    """Iteration i reads `width` elements of an axis from `start + stride * i` on."""

    loop: CountedLoop
    iteration: Tensor
    axis: int
    rank: int
    start: int
    stride: int
    width: int
    may_be_short: bool
    """Whether the axis may be shorter than the only window."""


class VectorizeSlidingWindows(Rule[SlidingWindow]):
    """Replaces a moving Slice by a read of one of many windows, gathered before the loop."""

    root = "Slice"
    promise = Promise(
        rounds="products of all iterations are computed at once",
        accepts="those that read past the end of the sequence",
    )
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

    def match(self, m: Match) -> SlidingWindow:
        view = need_enclosing_loop(m)
        x = m.node.inputs[0]
        need_outer(m, view, x)
        loop = m.need(counted_loop(m.facts, view.node), "the loop may end early")
        shape = m.need(m.facts.shape(x), "the rank of {} is not known", x, at=x)
        cut, start, extent = need_moving_slice(m, shape)
        width = extent if isinstance(extent, int) else None
        width = m.need(width, "it takes {} elements, not a fixed number", extent)
        sentence = "it takes {} elements, not between 2 and {}"
        m.need(1 < width <= MAX_WIDTH, sentence, width, MAX_WIDTH)
        found = need_progression(m, view, start, m.node.inputs[1])
        m.need(found.step > 0, "the window moves towards the start of the axis")
        first = found.first if isinstance(found.first, int) and found.first >= 0 else None
        first = m.need(first, "the first position {} is not known to be in range", found.first)
        length = shape[cut.axis]
        short = first == 0 and _only_single_window_is_short(m, view, found, width, length)
        if not short:
            need_in_range(m, view, found, width, length)
        return SlidingWindow(
            loop, view.iteration, cut.axis, len(shape), first, found.step, width, short
        )

    def apply(self, patch: Patch, found: SlidingWindow) -> None:
        node, loop, axis = patch.root, found.loop, found.axis
        x, window = node.inputs[0], node.outputs[0]
        emit = patch.builder(window, loop.node)
        starts = emit.iteration_numbers(loop)
        if found.stride != 1:
            starts = emit("Mul", starts, emit.scalar(found.stride))
        if found.may_be_short:
            length = emit.shape(x, axis, axis + 1)
            width = emit.squeeze(emit.min(length, emit.vector(found.width)), [0])
            offsets = emit("Range", emit.scalar(0), width, emit.scalar(1))
        else:
            offsets = emit.constant(found.start + np.arange(found.width, dtype=np.int64))
        positions = emit("Add", emit.unsqueeze(starts, [1]), offsets)
        windows = emit("Gather", x, positions, axis=axis)
        stacked = emit.move_axis(windows, axis, 0, found.rank + 1)
        patch.replace(window, patch.builder(window)("Gather", stacked, found.iteration, axis=0))
        patch.remove(node)
        patch.toward_normal_form()


def _only_single_window_is_short(
    m: Match, view: LoopView, found: Progression, width: int, length: Dim
) -> bool:
    """Whether all windows fit the axis, except a single one where the axis is shorter than it.

    The trip count must be a function of `length`, which is a symbol: all windows must fit where it
    is at least `width`, and there must be at most one iteration where it is smaller.
    """
    trips, symbol = view.trips(m.facts), symbolic.single_symbol(length)
    lowest = None if symbol is None else symbol.low
    if trips is None or symbol is None or lowest is None or not 0 <= lowest < width:
        return False
    longer = {symbol: symbolic.add(symbolic.fresh("beyond"), width)}
    last = symbolic.mul(found.step, symbolic.sub(symbolic.substitute(trips, longer), 1))
    if not symbolic.le(symbolic.add(last, width), longer[symbol]):
        return False
    shorter = (symbolic.substitute(trips, {symbol: size}) for size in range(lowest, width))
    return all(symbolic.le(count, 1) for count in shorter)
