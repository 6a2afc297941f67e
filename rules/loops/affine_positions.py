"""Positions in the body of a Loop that are affine in the iteration number: first + step * i."""

from __future__ import annotations

from dataclasses import dataclass

from ...rewrite import symbolic
from ...rewrite.engine.rule import Match
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.iteration_bounds import simplify_in_iteration
from ...rewrite.graph.ir import Tensor
from ...rewrite.graph.views import LoopView
from ...rewrite.symbolic import Dim


@dataclass(frozen=True)
class Progression:
    """The number first + step * i in iteration i."""

    first: Dim
    step: int
    """Never 0."""


def affine(facts: Facts, loop: LoopView, number: Dim) -> Progression | None:
    """A number of the body as a function of the iteration number; None if it is not affine in it.

    `first` may be symbolic, but only in values from outside the loop.
    """
    iteration = facts.scalar(loop.iteration)
    symbol = None if iteration is None else symbolic.single_symbol(iteration)
    if symbol is None:
        return None
    first = symbolic.substitute(number, {symbol: 0})
    step = symbolic.sub(symbolic.substitute(number, {symbol: 1}), first)
    if not isinstance(step, int) or step == 0 or facts.varies_in(first, loop.body):
        return None
    same = symbolic.add(first, symbolic.mul(step, symbolic.of(symbol)))
    return Progression(first, step) if symbolic.eq(same, number) is True else None


def need_enclosing_loop(m: Match) -> LoopView:
    """The Loop in whose body the root stands. Raises Miss if it stands elsewhere or in a branch."""
    owner = m.index.owner(m.graph())
    loop = owner if owner is not None and owner.op == "Loop" else None
    view = LoopView(m.need(loop, "it is not in the body of a Loop"))
    m.need(view.iteration_shape == (), "the iteration number is not a scalar in the body")
    return view


def need_outer(m: Match, loop: LoopView, tensor: Tensor) -> None:
    """Declines for a value that may differ between iterations."""
    outside = m.index.is_outside(tensor, loop.body)
    m.need(outside, "{} is computed in the body", tensor, at=tensor)


def need_progression(m: Match, loop: LoopView, position: Dim, at: Tensor) -> Progression:
    """A position as a function of the iteration number. Raises Miss about `at` otherwise."""
    position = simplify_in_iteration(m.facts, position)
    return m.need(
        affine(m.facts, loop, position),
        "position {} does not change by a fixed step per iteration",
        position,
        at=at,
    )


def need_in_range(
    m: Match, loop: LoopView, position: Progression, extent: int, length: Dim
) -> None:
    """Declines where `extent` elements from a position on may not all be on an axis of this length.

    A Slice returns fewer elements there, and a Gather fails.
    """
    trips = m.need(
        loop.trips(m.facts),
        "the position may be outside the axis: the trip count is not known",
    )
    m.need(trips != 0, "the loop never runs")
    last = symbolic.add(position.first, symbolic.mul(position.step, symbolic.sub(trips, 1)))
    rising = position.step > 0
    lowest, highest = (position.first, last) if rising else (last, position.first)
    inside = symbolic.nonnegative(lowest) and symbolic.le(symbolic.add(highest, extent), length)
    m.need(
        inside is True,
        "the position may be outside the axis: it goes from {} to {} on an axis of length {}",
        position.first,
        last,
        length,
    )
