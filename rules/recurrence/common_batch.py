"""Cells whose operands have batches of different names: a learned first state with one row for all,
lengths with a name of their own for the rows.

Every operator of a cell acts row by row and broadcasts. So from the first iteration on all states
have the rows of all operands broadcast together, and the iterations compute what they would if every
operand had been broadcast before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...rewrite.engine.builder import Builder
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Tensor
from ...rewrite.symbolic import Dim
from .cells import NoCell
from .lifting import FLOATS
from .probe import cone


def open_batches(facts: Facts, steps: CountedLoop, masks: Iterable[Tensor]) -> list[Dim]:
    """The open sizes that states, slices and masks with a single open axis have there."""
    found: dict[Dim, None] = {}
    floats = [s.input for s in steps.carried] + [r.slice for r in steps.reads]
    for tensor in (*(t for t in floats if facts.dtype(t) in FLOATS), *masks):
        sizes = list(open_sizes(facts, tensor))
        if len(sizes) == 1:
            found[sizes[0]] = None
    return list(found)


def open_sizes(facts: Facts, tensor: Tensor) -> Iterator[Dim]:
    """The sizes of a value's axes that are not static."""
    return (n for n in facts.shape(tensor) or () if not isinstance(n, int))


def check_covered(
    facts: Facts, same: Sequence[Dim], operands: Sequence[Tensor], after: Sequence[Tensor]
) -> None:
    """Raises NoCell unless each of the sizes that are to be one, as far as the states `after` an
    iteration depend on it, is that of an operand.
    """
    covered = {n for tensor in operands for n in open_sizes(facts, tensor)}
    nodes, outer = cone(facts, after, set(operands))
    for tensor in (*outer, *(t for node in nodes for t in node.outputs)):
        for size in open_sizes(facts, tensor):
            if size in same and size not in covered:
                raise NoCell("the batch of {}, {}, is that of no operand of the cell", tensor, size)


@dataclass(frozen=True)
class Rows:
    """An operand of an RNN operator, and where its batch is."""

    value: Tensor
    axis: int
    rank: int
    size: Dim
    """Of the batch: equal sizes need no broadcasting."""


class CommonBatch:
    """The rows of several operands, broadcast together."""

    def __init__(self, emit: Builder, operands: Sequence[Rows]) -> None:
        self._emit = emit
        by_size = {rows.size: rows for rows in operands if rows.size != 1}
        self._size = next(iter(by_size)) if len(by_size) == 1 else None
        counts = [emit.shape(r.value, r.axis, r.axis + 1) for r in by_size.values()]
        self._count = counts[0] if counts else emit.vector(1)
        if len(counts) > 1:
            common = emit.vector(1)
            for count in counts:
                common = emit("Expand", common, count)
            self._count = emit("Shape", common)

    def spread(self, rows: Rows) -> Tensor:
        """The operand with all rows."""
        if rows.size == self._size:
            return rows.value
        emit = self._emit
        sizes = [emit.vector(1)] * rows.rank
        sizes[rows.axis] = self._count
        return emit("Expand", rows.value, emit.concat(sizes))
