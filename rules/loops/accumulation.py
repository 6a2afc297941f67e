"""Accumulators: carried values that each iteration adds to and that nothing else reads in the body.

A scan output takes the place of an accumulator. It holds what the iterations added, stacked along a
new axis 0. The accumulator may hold that along another axis, concatenated along an axis that it
already has, or in reverse order; nodes after the loop bring the scan output to that form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...rewrite.engine.builder import EMPTY_RESHAPES, Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.index import Use
from ...rewrite.graph.ir import Tensor
from ...rewrite.graph.views import CarriedValue, LoopView

Update = TypeVar("Update")
"""What a rule knows about the update of an accumulator."""


@dataclass(frozen=True)
class Accumulator(Generic[Update]):
    """A carried value that is an accumulator."""

    number: int
    """Its number among the carried values."""
    update: Update


@dataclass(frozen=True)
class Accumulators(Generic[Update]):
    """The accumulators of a loop."""

    each: list[Accumulator[Update]]


class AccumulatorRule(Rule[Accumulators[Update]], ABC, Generic[Update]):
    """Turns accumulators into scan outputs; a subclass knows one kind of accumulator.

    The subclass recognises the update, names the value that an iteration adds, and builds the final
    value from what all iterations added.
    """

    root = "Loop"
    no_accumulator = ""
    """Why the rule does not fire on a loop without such a carried value."""

    @abstractmethod
    def update(self, m: Match, view: LoopView, number: int, carried: CarriedValue) -> Update | None:
        """The update of a carried value; None for another kind of carried value.

        Raises Miss for an accumulator that the rule cannot handle.
        """

    @abstractmethod
    def added(self, patch: Patch, update: Update) -> Tensor:
        """The value that one iteration adds."""

    @abstractmethod
    def result(
        self, emit: Builder, stacked: Tensor, carried: CarriedValue, update: Update
    ) -> Tensor:
        """The final value. `stacked` holds what the iterations added, along a new axis 0."""

    def match(self, m: Match) -> Accumulators[Update]:
        view = m.loop()

        def accumulator(number: int) -> Accumulator[Update] | None:
            update = self.update(m, view, number, view.carried[number])
            return None if update is None else Accumulator(number, update)

        return Accumulators(m.every(accumulator, range(len(view.carried)), self.no_accumulator))

    def apply(self, patch: Patch, found: Accumulators[Update]) -> None:
        loop, carried = patch.loop(patch.root), patch.loop(patch.root).carried
        added = [self.added(patch, each.update) for each in found.each]
        for each, stacked in zip(found.each, loop.add_scan_outputs(added)):
            value = carried[each.number]
            if value.final is not None:
                emit = patch.builder_after(value.final)
                patch.replace(value.final, self.result(emit, stacked, value, each.update))
            # Only the update still reads the accumulator, and nothing reads the update.
            patch.replace(value.input, value.initial)
        loop.drop_carried([each.number for each in found.each])


def need_only_updated(
    m: Match, view: LoopView, number: int, carried: CarriedValue, update: Use
) -> Tensor:
    """The final value of an accumulator that the body reads only to update it.

    Raises Miss if the body has another read of it, or if the loop does not return it.
    """
    inner, updated = carried.input, carried.output
    final = m.need(carried.final, "nothing reads the final value of {}", inner)
    m.need(m.index.uses(inner) == [update], "{} is read in the body", inner)
    only_returned = m.index.uses(updated) == [Use(view.body, 1 + number)]
    m.need(only_returned, "{} is read in the body", updated)
    return final


def with_sizes_of(
    emit: Builder, value: Tensor, axis: int, rank: int, length: Tensor, model: Tensor
) -> Tensor:
    """Reshapes a value to the sizes of `model`, except for one axis.

    An empty scan output does not have the right sizes. `rank` is the rank of `model`, and `length`
    a vector with the size of the axis. Raises Miss before opset 14.
    """
    sizes = [emit.shape(model, 0, axis), length, emit.shape(model, axis + 1, rank)]
    return emit.reshape(value, emit.concat(sizes))


def with_shape_of(emit: Builder, value: Tensor, model: Tensor) -> Tensor:
    """Reshapes a value to the shape of `model`, which an empty scan output does not have.

    Before opset 14, a 0 in the target copies the size of the value, which is the number of
    iterations: also 0.
    """
    attrs = {"allowzero": 1} if emit.patch.opset >= EMPTY_RESHAPES else {}
    return emit("Reshape", value, emit("Shape", model), **attrs)
