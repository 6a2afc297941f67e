"""Positions in the body of a loop that advance with the iteration number, and what is cut there."""

from __future__ import annotations

from dataclasses import dataclass

from ...rewrite import symbolic
from ...rewrite.engine.rule import Match
from ...rewrite.facts.iteration_bounds import simplify_in_iteration
from ...rewrite.facts.reads import axis_slices
from ...rewrite.facts.slices import AxisSlice
from ...rewrite.graph.ir import Tensor
from ...rewrite.graph.views import LoopView
from ...rewrite.symbolic import Dim

_BEHIND = 10**9
"""Converters write an end like this for "all of the axis"; without --strict no axis is longer."""


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
    outside = m.index.is_outside(tensor, view.body)
    m.need(outside, "`{}` is computed in the body", tensor.name, at=tensor)


def need_progression(m: Match, view: LoopView, position: Dim, at: Tensor) -> Progression:
    """The position as a function of the iteration number; declines where it is none."""
    position = simplify_in_iteration(m.facts, position)
    iteration = m.facts.scalar(view.iteration)
    symbol = None if iteration is None else symbolic.single_symbol(iteration)
    assert symbol is not None, "an iteration number is a symbol of its own"
    first = symbolic.substitute(position, {symbol: 0})
    step = symbolic.sub(symbolic.substitute(position, {symbol: 1}), first)
    straight = isinstance(step, int) and step != 0
    if straight and isinstance(step, int):
        again = symbolic.add(first, symbolic.mul(step, symbolic.of(symbol)))
        straight = symbolic.eq(again, position) is True and not m.facts.varies_in(first, view.body)
    m.need(straight, "position {} does not advance by a fixed step per iteration", position, at=at)
    assert isinstance(step, int)
    return Progression(first, step)


def need_cut(m: Match, shape: tuple[Dim, ...]) -> AxisSlice:
    """The cut of the only axis of which a Slice takes a part, in steps of 1 between known bounds."""
    found = m.need(axis_slices(m.facts, m.node), "its axes or steps are not known")
    m.need(all(cut.step == 1 for cut in found), "its steps are not 1")
    m.need(None not in [cut.extent for cut in found], "its bounds are not known")
    parts = [cut for cut in found if not takes_all(m, cut, shape[cut.axis])]
    m.need(len(parts) == 1, "it cuts {} axes, not one", len(parts))
    return parts[0]


def takes_all(m: Match, cut: AxisSlice, length: Dim) -> bool:
    """Whether all elements of the axis are taken, in their order."""
    if cut.is_whole(length):
        return True
    far = isinstance(cut.end, int) and cut.end >= _BEHIND and not m.options.strict
    return far and cut.start == 0 and cut.step == 1


def need_inside(m: Match, view: LoopView, found: Progression, extent: int, length: Dim) -> None:
    """Declines where `extent` elements from a position on may not all be on their axis: a Slice
    shortens what lies outside, a Gather fails there.
    """
    trips = view.trips(m.facts)
    m.need(
        trips is not None,
        "the position may be outside the axis: the number of iterations is not known",
    )
    assert trips is not None
    m.need(trips != 0, "it never runs")
    at_end = symbolic.add(found.first, symbolic.mul(found.step, symbolic.sub(trips, 1)))
    lowest, highest = (found.first, at_end) if found.step > 0 else (at_end, found.first)
    inside = symbolic.nonnegative(lowest) and symbolic.le(symbolic.add(highest, extent), length)
    m.need(
        inside is True,
        "the position may be outside the axis: it goes from {} to {} of {}",
        found.first,
        at_end,
        length,
    )
