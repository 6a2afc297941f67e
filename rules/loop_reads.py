"""Reads of one slice per iteration, in one spelling: `Gather(x, iteration)`.

x_t = Gather(x, n - 1 - i)    ->    r = x[::-1]    x_t = Gather(r, i)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..rewrite import symbolic
from ..rewrite.elements import element
from ..rewrite.ir import Node, Tensor
from ..rewrite.patch import Patch
from ..rewrite.rule import Match, Rule
from ..rewrite.symbolic import Dim
from ..rewrite.views import LoopView

_LAST = np.iinfo(np.int64).max
_BEFORE_FIRST = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Progression:
    """A position that is first + step * iteration."""

    first: Dim
    step: int


def loop_around(m: Match) -> LoopView:
    """The Loop in whose body the root node stands, not within a branch of it."""
    owner = m.index.owner(m.graph())
    m.need(owner is not None and owner.op == "Loop", "it is not in the body of a Loop")
    assert owner is not None
    view = LoopView(owner)
    m.need(view.iteration_shape == (), "the iteration number is no scalar in the body")
    return view


def need_outer(m: Match, view: LoopView, tensor: Tensor) -> None:
    """Declines for what may differ between iterations."""
    home = m.index.home(tensor)
    m.need(
        home is not None and not m.index.encloses(view.body, home),
        "`{}` is computed in the body",
        tensor.name,
        at=tensor,
    )


def need_progression(m: Match, view: LoopView, position: Dim, at: Tensor) -> Progression:
    """The position as a function of the iteration number; declines where it is none."""
    iteration = m.facts.scalar(view.iteration)
    symbol = None if iteration is None else symbolic.single_symbol(iteration)
    assert symbol is not None, "an iteration number is a symbol of its own"
    first = symbolic.substitute(position, {symbol: 0})
    step = symbolic.sub(symbolic.substitute(position, {symbol: 1}), first)
    straight = isinstance(step, int) and step != 0
    if straight and isinstance(step, int):
        again = symbolic.add(first, symbolic.mul(step, symbolic.of(symbol)))
        straight = symbolic.eq(again, position) is True and not m.facts.escapes(first, view.body)
    m.need(straight, "position {} does not advance by a fixed step per iteration", position, at=at)
    assert isinstance(step, int)
    return Progression(first, step)


class ReadAtIteration(Rule):
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
        x = rearranged(patch, view.node, node.inputs[0], axis, order)
        old = node.outputs[0]
        read = patch.node("Gather", [x, view.iteration], [old], {"axis": axis})[0]
        for _ in range(more):
            read = patch.unsqueeze(read, axis, old)
        patch.replace(old, read)
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
        return slice(first, None, step)
    last = symbolic.sub(length, 1)
    m.need(
        symbolic.eq(first, last) is True,
        "the first position {} is not the last of `{}`, {}",
        first,
        x.name,
        last,
    )
    trips = None if view.trip is None else m.facts.scalar(view.trip)
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


def rearranged(patch: Patch, loop: Node, x: Tensor, axis: int, order: slice) -> Tensor:
    """x[order] along an axis, computed before a loop."""
    if order == slice(0, None, 1):
        return x
    end = _LAST if order.step > 0 else _BEFORE_FIRST
    home = patch.index.graph_of(loop)
    numbers = [
        patch.constant(np.array([value], np.int64), like=x, graph=home)
        for value in (order.start, end, axis, order.step)
    ]
    return patch.node("Slice", [x, *numbers], [x], before=loop)[0]
