"""Slices of one element, at a position that depends on the iteration, are Gathers.

x_t = Slice(x, i, i + 1)    ->    x_t = Unsqueeze(Gather(x, i))
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..rewrite import symbolic
from ..rewrite.elements import numbers
from ..rewrite.inference.slicing import FAR
from ..rewrite.ir import Node
from ..rewrite.patch import Patch
from ..rewrite.rule import Match, Rule
from ..rewrite.symbolic import Dim
from ..rewrite.views import LoopView
from .loop_reads import Progression, loop_around, need_outer, need_progression


class ReadOneSlice(Rule):
    """A Slice of one element, at a position that depends on the iteration, is a Gather."""

    root = "Slice"
    fires = """g (float[T,3] x, float[1,3] s0) => (float[1,3] y) {
      zero = Constant<value_ints=[0]>() one = Constant<value_ints=[1]>()
      all = Shape(x) t = Gather(all, zero) n = Squeeze(t)
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[1,3] s) => (bool co, float[1,3] so) {
        k = Unsqueeze(i, zero) e = Add(k, one) xt = Slice(x, k, e, zero)
        co = Identity(ci) so = Max(s, xt) }> }"""
    spares = {
        "may be outside": """g (float[T,3] x, float[1,3] s0, int64 n) => (float[P,3] y) {
      zero = Constant<value_ints=[0]>() one = Constant<value_ints=[1]>()
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[P,3] s) => (bool co, float[P,3] so) {
        k = Unsqueeze(i, zero) e = Add(k, one) xt = Slice(x, k, e, zero)
        co = Identity(ci) so = Concat<axis=0>(s, xt) }> }""",
        "more than one": """g (float[9,3] x, float[2,3] s0) => (float[2,3] y) {
      zero = Constant<value_ints=[0]>() two = Constant<value_ints=[2]>() n = Constant<value_int=4>()
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[2,3] s) => (bool co, float[2,3] so) {
        k = Unsqueeze(i, zero) e = Add(k, two) xt = Slice(x, k, e, zero)
        co = Identity(ci) so = Max(s, xt) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = loop_around(m)
        m.need(len(m.node.inputs) > 2, "before opset 10 the bounds of a Slice are attributes")
        x = m.node.inputs[0]
        need_outer(m, view, x)
        shape = m.need(m.facts.shape(x), "the rank of `{}` is not known", x.name, at=x)
        axis, position = _moving_axis(m, shape)
        found = need_progression(m, view, position, m.node.inputs[1])
        _need_inside(m, view, found, shape[axis])
        result = m.facts.shape(m.node.outputs[0])
        found_one = result is not None and symbolic.eq(result[axis], 1) is not False
        m.need(found_one, "there is nothing to read: axis {} of `{}` is empty", axis, x.name, at=x)
        return {"node": m.node, "view": view, "axis": axis, "slot": _slot_of(m, axis, len(shape))}

    def apply(self, patch: Patch, node: Node, view: LoopView, axis: int, slot: int) -> None:
        old = node.outputs[0]
        number = patch.constant(np.array(slot, np.int64), like=node.inputs[1])
        position = patch.node("Gather", [node.inputs[1], number], [node.inputs[1]])[0]
        read = patch.node("Gather", [node.inputs[0], position], [old], {"axis": axis})[0]
        patch.replace(old, patch.unsqueeze(read, axis, old))
        patch.remove(node)
        patch.toward_normal_form()


def _slice_axes(m: Match, rank: int) -> list[int]:
    """The axes a Slice cuts."""
    inputs = m.node.inputs
    if len(inputs) > 3 and inputs[3].name:
        given = m.need(numbers(m.facts, inputs[3]), "its axes are not known")
        known = [a % rank for a in given if isinstance(a, int)]
        m.need(len(known) == len(given), "its axes are not known")
        return known
    return list(range(len(m.need(numbers(m.facts, inputs[1]), "its bounds are not known"))))


def _slot_of(m: Match, axis: int, rank: int) -> int:
    return _slice_axes(m, rank).index(axis)


def _moving_axis(m: Match, shape: tuple[Dim, ...]) -> tuple[int, Dim]:
    """The only axis that is cut, to one element at a known position; the others stay whole."""
    given = m.node.inputs
    steps = given[4] if len(given) > 4 and given[4].name else None
    plain = steps is None or set(numbers(m.facts, steps) or ()) == {1}
    m.need(plain, "its steps are not 1")
    starts = m.need(numbers(m.facts, given[1]), "its bounds are not known")
    ends = m.need(numbers(m.facts, given[2]), "its bounds are not known")
    cut = [
        (axis, start, symbolic.sub(end, start))
        for axis, start, end in zip(_slice_axes(m, len(shape)), starts, ends)
        if not (start == 0 and _reaches_end(end, shape[axis]))
    ]
    m.need(len(cut) == 1, "it cuts {} axes, not one", len(cut))
    axis, start, extent = cut[0]
    m.need(extent == 1, "it takes more than one element: {}", extent)
    return axis, start


def _reaches_end(end: Dim, length: Dim) -> bool:
    return (isinstance(end, int) and end >= FAR) or symbolic.le(length, end) is True


def _need_inside(m: Match, view: LoopView, found: Progression, length: Dim) -> None:
    """A Slice shortens what lies outside, a Gather fails there."""
    trips = None if view.trip is None else m.facts.scalar(view.trip)
    m.need(
        trips is not None,
        "the position may be outside the axis: the number of iterations is not known",
    )
    assert trips is not None
    at_end = symbolic.add(found.first, symbolic.mul(found.step, symbolic.sub(trips, 1)))
    lowest, highest = (found.first, at_end) if found.step > 0 else (at_end, found.first)
    m.need(
        symbolic.nonnegative(lowest) and symbolic.lt(highest, length) is True,
        "the position may be outside the axis: it goes from {} to {} of {}",
        found.first,
        at_end,
        length,
    )
