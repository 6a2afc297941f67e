"""Accumulators: states that each iteration adds to and that nobody reads before the end.

They give way to the rows that a Loop collects, stacked along a new axis 0. An accumulator has them
along another axis, side by side along an axis they already have, or last row first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ...rewrite.engine.builder import EMPTY_RESHAPES, Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.index import Use
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import CarriedValue, LoopView

Found = TypeVar("Found")
"""What a rule knows of an accumulator."""


@dataclass(frozen=True)
class Accumulator(Generic[Found]):
    """A state of a loop that is one."""

    state: CarriedValue
    number: int
    found: Found


class AccumulatorRule(Rule, Generic[Found]):
    """What the rules about accumulators share. A rule says which states it knows, what an iteration
    adds, and how the final state is made of what all of them added.
    """

    root = "Loop"
    nothing = ""
    """Why the rule does not fire where there is no accumulator."""

    def accumulator(
        self, m: Match, view: LoopView, number: int, state: CarriedValue
    ) -> Found | None:
        """None where a state, which has a number, is no accumulator."""
        raise NotImplementedError

    def row(self, patch: Patch, found: Found) -> Tensor:
        """What one iteration adds."""
        raise NotImplementedError

    def result(self, emit: Builder, rows: Tensor, state: CarriedValue, found: Found) -> Tensor:
        """The final state. The rows are stacked along axis 0."""
        raise NotImplementedError

    def match(self, m: Match) -> dict[str, Any]:
        view = m.loop()
        accumulators: list[Accumulator[Found]] = []
        miss = Miss(self.nothing, at=m.node)
        for number, state in enumerate(view.carried):
            try:
                found = self.accumulator(m, view, number, state)
            except Miss as reason:
                miss = reason
                continue
            if found is not None:
                accumulators.append(Accumulator(state, number, found))
        if not accumulators:
            raise miss
        return {"node": m.node, "accumulators": accumulators}

    def apply(self, patch: Patch, node: Node, accumulators: list[Accumulator[Found]]) -> None:
        rows = patch.loop(node).add_scan_outputs(
            [self.row(patch, each.found) for each in accumulators]
        )
        for each, stacked in zip(accumulators, rows):
            state = each.state
            assert state.final is not None, "its end is read"
            emit = patch.builder_after(state.final)
            patch.replace(state.final, self.result(emit, stacked, state, each.found))
            patch.replace(state.input, state.initial)  # what still reads it in the body is dead
        patch.loop(node).drop_carried([each.number for each in accumulators])


def need_only_updated(
    m: Match, view: LoopView, number: int, state: CarriedValue, update: Use
) -> None:
    """Declines where a body reads an accumulator other than to add to it, or nobody its end."""
    inner, updated = state.input, state.output
    m.need(state.final is not None, "nobody reads `{}`", inner.name)
    m.need(m.index.uses(inner) == [update], "`{}` is read in the body", inner.name)
    only_returned = m.index.uses(updated) == [Use(view.body, 1 + number)]
    m.need(only_returned, "`{}` is read in the body", updated.name)


def resized(
    emit: Builder, value: Tensor, axis: int, rank: int, extent: Tensor, model: Tensor
) -> Tensor:
    """The value in the shape of `model`, of `rank` axes, but for the size of one: no rows have no
    sizes of their own. `extent` is a vector of one number. Raises Miss before opset 14.
    """
    sizes = [emit.shape(model, 0, axis), extent, emit.shape(model, axis + 1, rank)]
    return emit.reshape(value, emit.concat(sizes))


def shaped_like(emit: Builder, rows: Tensor, model: Tensor) -> Tensor:
    """Rows in the shape of another value: no rows at all have none of their own.

    Before opset 14 a 0 in the target copies the size there, which is the number of rows, 0 too.
    """
    attrs = {"allowzero": 1} if emit.patch.opset >= EMPTY_RESHAPES else {}
    return emit("Reshape", rows, emit("Shape", model), **attrs)
