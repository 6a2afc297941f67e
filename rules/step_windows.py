"""Windows that move along an axis: all of them are gathered at once, in front of the loop.

w = Slice(x, i, i + 4)   ->   W = Gather(x, [[0, 1, 2, 3], [1, 2, 3, 4], …])    w = Gather(W, i)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..rewrite import symbolic
from ..rewrite.facts import Facts
from ..rewrite.ir import Node, Tensor
from ..rewrite.patch import Patch
from ..rewrite.rule import Match, Rule
from ..rewrite.steps import Steps, steps_of
from ..rewrite.symbolic import Dim
from .loop_reads import loop_around, need_outer, need_progression
from .step_emit import OLDEST, Emit, iteration_numbers

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


class WindowsInFront(Rule):
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
        view = loop_around(m)
        m.need(m.facts.opset >= OLDEST, "operators before opset {} take axes in other ways", OLDEST)
        need_outer(m, view, m.node.inputs[0])
        steps = m.need(steps_of(m.facts, view.node), "the loop may end early")
        axis, start, extent = _moving_axis(m)
        m.need(isinstance(extent, int), "it takes {} elements, not a fixed number", extent)
        assert isinstance(extent, int)
        m.need(1 < extent <= _WIDEST, "it takes {} elements", extent)
        found = need_progression(m, view, start, m.node.inputs[1])
        m.need(found.step > 0, "the window moves back")
        first = found.first
        m.need(isinstance(first, int) and first >= 0, "the first position {} is not known", first)
        assert isinstance(first, int)
        shape = m.facts.shape(m.node.inputs[0])
        assert shape is not None
        window = Window(axis, len(shape), first, found.step, extent)
        _need_inside(m, steps, window, shape[axis])
        return {"node": m.node, "steps": steps, "facts": m.facts, "window": window}

    def apply(self, patch: Patch, node: Node, steps: Steps, facts: Facts, window: Window) -> None:
        assert steps.iteration is not None, "only a Loop has a number to compute positions from"
        emit = _EmitBefore(patch, node.outputs[0], steps.node)
        starts = iteration_numbers(emit, facts, steps)
        if window.step != 1:
            starts = emit("Mul", starts, emit.number(window.step))
        offsets = window.first + np.arange(window.extent, dtype=np.int64)
        positions = emit("Add", emit.unsqueezed(starts, [1]), emit.array(offsets))
        all_windows = emit("Gather", node.inputs[0], positions, axis=window.axis)
        stacked = emit.moved(all_windows, window.axis, 0, window.rank + 1)
        read = patch.node("Gather", [stacked, steps.iteration], [node.outputs[0]], {"axis": 0})[0]
        patch.replace(node.outputs[0], read)
        patch.remove(node)
        patch.toward_normal_form()


class _EmitBefore(Emit):
    """New nodes before the loop around the root of a patch."""

    def __init__(self, patch: Patch, like: Tensor, loop: Node) -> None:
        super().__init__(patch, like)
        self._loop = loop

    def _make(self, op: str, inputs: Any, like: Any, attrs: Any) -> list[Tensor]:
        return self.patch.node(op, inputs, like, attrs, before=self._loop)

    def array(self, values: np.ndarray) -> Tensor:
        home = self.patch.index.graph_of(self._loop)
        return self.patch.constant(values, like=self.like, graph=home)


def _moving_axis(m: Match) -> tuple[int, Dim, Dim]:
    """The only axis that is cut, where the cut begins, and how many elements it takes."""
    node, facts = m.node, m.facts
    rank = m.need(facts.rank(node.inputs[0]), "the rank of {} is not known", node.inputs[0])
    starts, ends = _bounds(m, 1), _bounds(m, 2)
    axes = list(range(len(starts)))
    if len(node.inputs) > 3 and node.inputs[3].name:
        given = m.need(_numbers(m, 3), "the axes are not known")
        axes = [a % rank for a in given]
    if len(node.inputs) > 4 and node.inputs[4].name:
        m.need(set(m.need(_numbers(m, 4), "the steps are not known")) == {1}, "it skips elements")
    m.need(len(axes) == 1, "it cuts {} axes, not one", len(axes))
    return axes[0], starts[0], symbolic.sub(ends[0], starts[0])


def _bounds(m: Match, slot: int) -> list[Dim]:
    values = m.facts.of(m.node.inputs[slot]).values
    known = [v for v in values or () if v is not None and not isinstance(v, bool)]
    m.need(
        bool(known) and values is not None and len(known) == len(values), "its bounds are not known"
    )
    return known


def _numbers(m: Match, slot: int) -> list[int] | None:
    array = m.facts.constant(m.node.inputs[slot])
    return None if array is None else [int(v) for v in array.reshape(-1)]


def _need_inside(m: Match, steps: Steps, window: Window, length: Dim) -> None:
    """A Slice shortens what lies outside, a Gather fails there."""
    count = steps.count
    m.need(count is not None, "the windows may be outside the axis: their number is not known")
    assert count is not None
    last = symbolic.add(window.first, symbolic.mul(window.step, symbolic.sub(count, 1)))
    end = symbolic.add(last, window.extent)
    m.need(
        symbolic.le(end, length),
        "the windows may be outside the axis: they go up to {} of {}",
        end,
        length,
    )
