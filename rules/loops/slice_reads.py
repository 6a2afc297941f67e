"""Reads of one slice per iteration, in one spelling: `Gather(x, iteration)`.

x_t = Gather(x, n - 1 - i)    ->    r = x[::-1]    x_t = Gather(r, i)
"""

from __future__ import annotations

from typing import Any

from ...rewrite import symbolic
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.elements import element
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import LoopView
from ...rewrite.symbolic import Dim
from .iteration_positions import Progression, loop_around, need_outer, need_progression


class GatherAtIteration(Rule):
    """A Gather whose position advances with the iteration number reads at that number itself.

    What is read is sliced or turned round before the loop.
    """

    root = "Gather"
    fires = """g (float[T,3] x, float[3] s0) => (float[3] y) {
      zero = Constant<value_int=0>() one = Constant<value_int=1>() all = Shape(x)
      n = Gather(all, zero) last = Sub(n, one)
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        k = Sub(last, i) xt = Gather(x, k) co = Identity(ci) so = Max(s, xt) }> }"""
    spares = {
        "already": """g (float[T,3] x, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        xt = Gather(x, i) co = Identity(ci) so = Max(s, xt) }> }""",
        "is not known to stay": """g (float[T,3] x, float[3] s0, int64 n) => (float[3] y) {
      zero = Constant<value_int=0>() one = Constant<value_int=1>() all = Shape(x)
      t = Gather(all, zero) last = Sub(t, one)
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        k = Sub(last, i) xt = Gather(x, k) co = Identity(ci) so = Max(s, xt) }> }""",
        "does not advance": """g (float[T,3] x, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        k = Mul(i, i) xt = Gather(x, k) co = Identity(ci) so = Max(s, xt) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = loop_around(m)
        x, position = m.node.inputs
        m.need(position is not view.iteration, "it reads at the iteration number already")
        need_outer(m, view, x)
        shape = m.facts.shape(position)
        single = shape is not None and all(size == 1 for size in shape)
        m.need(single, "position `{}` is not one number", position.name, at=position)
        assert shape is not None
        where = element(m.facts, position, (0,) * len(shape))
        m.need(where is not None, "position `{}` is not known", position.name, at=position)
        assert where is not None
        found = need_progression(m, view, where, position)
        rank = m.need(m.facts.shape(x), "the rank of `{}` is not known", x.name, at=x)
        axis = m.node.attrs.get("axis", 0) % len(rank)
        order = _order(m, view, found, rank[axis], x)
        return {"node": m.node, "view": view, "axis": axis, "order": order, "more": len(shape)}

    def apply(
        self, patch: Patch, node: Node, view: LoopView, axis: int, order: slice, more: int
    ) -> None:
        x = node.inputs[0]
        if order != slice(0, None, 1):
            x = patch.builder(x, view.node).slice(x, axis, order)
        emit = patch.builder(node.outputs[0])
        read = emit("Gather", x, view.iteration, axis=axis)
        patch.replace(node.outputs[0], emit.unsqueeze(read, range(axis, axis + more)))
        patch.remove(node)
        patch.toward_normal_form()


def _order(m: Match, view: LoopView, found: Progression, length: Dim, x: Tensor) -> slice:
    """The slice that puts the elements into the order in which they are read.

    A position outside the axis must stay outside: the run fails there. Positions below zero count
    from the end (ONNX operator specification, Gather).
    """
    first, step = found.first, found.step
    if step > 0:
        m.need(isinstance(first, int), "the first position {} is not a known number", first)
        assert isinstance(first, int)
        m.need(first >= 0, "the first position {} counts from the end", first)
        return slice(first, None, step)
    if isinstance(first, int) and first < 0:
        # A Slice starts at the first element where its start lies before it.
        inside = first == -1 or symbolic.le(-first, length) is True
        m.need(inside, "the first position {} may be outside `{}` of {}", first, x.name, length)
        return slice(first, None, step)
    last = symbolic.sub(length, 1)
    m.need(
        symbolic.eq(first, last) is True,
        "the first position {} is not the last of `{}`, {}",
        first,
        x.name,
        last,
    )
    trips = view.trips(m.facts)
    lowest = (
        None if trips is None else symbolic.add(first, symbolic.mul(step, symbolic.sub(trips, 1)))
    )
    m.need(
        lowest is not None and symbolic.nonnegative(lowest),
        "the position is not known to stay within `{}`: it starts at {} and takes {} steps of {}",
        x.name,
        first,
        "an unknown number of" if trips is None else trips,
        step,
    )
    return slice(-1, None, step)
