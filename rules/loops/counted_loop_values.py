"""What the iterations of a counted loop read and leave, and how many they are, outside the loop."""

from __future__ import annotations

import numpy as np

from ...rewrite.engine.builder import Builder
from ...rewrite.facts import symbolic
from ...rewrite.facts.counted_loop import SliceRead, CountedLoop
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Tensor
from ...rewrite.graph.views import ScanOutput


def count_vector(emit: Builder, steps: CountedLoop) -> Tensor:
    """The number of iterations, an int64 vector of one element."""
    if isinstance(steps.count, int):
        return emit.ints(max(steps.count, 0))
    if steps.trip is None:
        read = steps.reads[0]
        return emit.dims(read.sequence, read.axis, read.axis + 1)
    count = emit("Reshape", steps.trip, emit.ints(1))
    if steps.count is not None and symbolic.nonnegative(steps.count):
        return count
    return emit.maximum(count, emit.ints(0))


def all_slices(emit: Builder, facts: Facts, steps: CountedLoop, read: SliceRead) -> Tensor:
    """What the iterations read, in their order, stacked along axis 0."""
    shape = facts.shape(read.sequence)
    assert shape is not None, "the view holds only reads of known rank"
    slices = read.sequence
    if not is_read_whole(steps, shape[read.axis]):
        end = count_vector(emit, steps)
        slices = emit("Slice", slices, emit.ints(0), end, emit.ints(read.axis))
    slices = emit.moved(slices, read.axis, 0, len(shape))
    return emit.reversed(slices, 0) if read.reverse else slices


def is_read_whole(steps: CountedLoop, length: symbolic.Dim) -> bool:
    """Whether the iterations read all of an axis: no run reads beyond its end."""
    if steps.trip is None:
        return True
    if steps.count is None:
        return False
    return symbolic.eq(symbolic.maximum(steps.count, 0), length) is True


def iteration_numbers(emit: Builder, steps: CountedLoop) -> Tensor:
    """0, 1, … as an int64 vector."""
    if isinstance(steps.count, int):
        return emit.array(np.arange(max(steps.count, 0), dtype=np.int64))
    count = emit.squeezed(count_vector(emit, steps), [0])
    return emit("Range", emit.number(0), count, emit.number(1))


def placed(emit: Builder, rows: Tensor, row: ScanOutput, rank: int | None) -> Tensor:
    """Rows stacked along axis 0, put where a Scan stacks them; `rank` is that of a row."""
    if row.reverse:
        rows = emit.reversed(rows, 0)
    if row.axis == 0:
        return rows
    assert rank is not None, "the rank of a row is known"
    return emit.moved(rows, 0, row.axis, rank + 1)
