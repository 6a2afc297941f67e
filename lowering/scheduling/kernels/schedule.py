"""A schedule for any kernel on a CPU: vectors, registers and the order of loops, without tuning.

TVM legalizes an operator to plain loop nests: one multiplication at a time for a matrix product,
30 to 90 times slower than a tuned library. Here every loop nest ("block") of a kernel gets one of
four treatments, by what it computes:

- *data movement* and elementwise work with one reader becomes part of the reader;
- an elementwise block is vectorised along its last dimension;
- a reduction that runs along other dimensions than the output's last one (a matrix product, a
  convolution, a sum over rows) is tiled so that a few vectors of sums stay in registers;
- a reduction along the last dimension of what it reads (a dot product, a mean) is computed in
  lanes that are added up at the end.

What none of them fits stays as it is, and so does what reads, writes or joins truth values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import tvm
from tvm import s_tir, tirx

from ...processor import vector_bytes
from .blocks import (
    BlockLoops,
    block_loops,
    has_scalar_functions,
    has_truth_values,
    inlinable,
    reads_along,
)
from .emission import SCHEDULED

_MOST_LANES = 16
_FEWEST_LANES = 4
_REGISTERS = 8
"""Vectors of sums that are computed together: enough to hide the latency of multiply-add."""
_MOST_COLUMNS = 4
"""Vectors of sums along the last dimension."""


def schedule_kernel(
    kernel: tirx.PrimFunc, inlines: Callable[[Any, Any], bool] = inlinable
) -> tirx.PrimFunc:
    """The kernel with a schedule for a CPU; the same kernel if it has one or allows none.

    `inlines` says whether a block is computed where its one reader needs it.
    Every step keeps the meaning of the kernel, so one that TVM refuses ends the treatment of its
    block and nothing else.
    """
    if kernel.attrs and (SCHEDULED in kernel.attrs or "calling_conv" in kernel.attrs):
        return kernel
    schedule = s_tir.Schedule(kernel)
    try:
        root = schedule.get_sblock("root")
        for treat in (partial(_inline, inlines), _vectorise):
            for block in schedule.get_child_blocks(root):
                with suppress(s_tir.ScheduleError):
                    treat(schedule, block)
    except (s_tir.ScheduleError, tvm.error.InternalError):
        # There is no root, or TVM met a form that it did not foresee.
        return kernel
    return schedule.mod["main"].with_attr(SCHEDULED, True)


def _inline(inlines: Callable[[Any, Any], bool], schedule: s_tir.Schedule, block: Any) -> None:
    consumers = schedule.get_consumers(block)
    if len(consumers) == 1 and inlines(schedule.get(block), schedule.get(consumers[0])):
        schedule.compute_inline(block)


def _vectorise(schedule: s_tir.Schedule, block: Any) -> None:
    loops = block_loops(schedule, block)
    if loops is None or has_truth_values(loops.block) or has_scalar_functions(loops.block.body):
        return
    if not loops.reduced:
        _vectorise_elementwise(schedule, loops)
    elif loops.last is not None and reads_along(loops.block, loops.last):
        _tile(schedule, block, loops)
    elif reads_along(loops.block, loops.variable(loops.reduced[-1])):
        _reduce_in_lanes(schedule, loops)


def _vectorise_elementwise(schedule: s_tir.Schedule, loops: BlockLoops) -> None:
    if loops.last is None or loops.loop(loops.last) is not loops.loops[-1]:
        return
    if not reads_along(loops.block, loops.last):
        return  # TVM would load the elements of a vector one by one; LLVM knows gathers.
    lanes = _lanes(loops.extent(loops.last), loops.dtype)
    if lanes is not None:
        _, vector = schedule.split(loops.loops[-1], [None, lanes])
        schedule.vectorize(vector)


def _tile(schedule: s_tir.Schedule, block: Any, loops: BlockLoops) -> None:
    """Sums of a few rows and vectors in registers; the reduction runs around them."""
    column, width = loops.loop(loops.last), loops.extent(loops.last)
    others = [loop for loop in loops.spatial if loop is not column]
    lanes = _lanes(width, loops.dtype)
    if width is None or lanes is None:
        # Neither known nor divisible: in this order the compiler vectorises what it can.
        schedule.reorder(*others, *loops.reduced, column)
        schedule.decompose_reduction(block, loops.reduced[0])
        return
    rows = _rows(schedule, others)
    vectors = _largest_divisor(width // lanes, min(_MOST_COLUMNS, _REGISTERS // rows))
    outer, inner = schedule.split(column, [None, vectors * lanes])
    middle, vector = schedule.split(inner, [None, lanes])
    unrolled = [middle]
    if rows > 1:
        others[-1], row = schedule.split(others[-1], [None, rows])
        unrolled.insert(0, row)
    schedule.reorder(*others, outer, *loops.reduced, *unrolled, vector)
    sums = schedule.cache_write(block, 0, "local")
    schedule.reverse_compute_at(sums, outer)
    *_, column = schedule.get_loops(sums)
    stores, stored = schedule.split(column, [None, lanes])
    for whole in (stored, vector):
        schedule.vectorize(whole)
    # A buffer becomes registers only if every index into it is known.
    for repeated in (*unrolled, *schedule.get_loops(sums)[-1 - len(unrolled) : -2], stores):
        schedule.unroll(repeated)
    schedule.decompose_reduction(block, loops.reduced[0])


def _rows(schedule: s_tir.Schedule, loops: Sequence[Any]) -> int:
    """How many steps of the last loop to take together."""
    extent = schedule.get(loops[-1]).extent if loops else None
    if not isinstance(extent, tirx.IntImm):
        return 1
    return _largest_divisor(int(extent), _REGISTERS // 2)


def _reduce_in_lanes(schedule: s_tir.Schedule, loops: BlockLoops) -> None:
    lanes = _lanes(loops.extent(loops.variable(loops.reduced[-1])), loops.dtype)
    if lanes is None or len(loops.reduced) != 1 or not loops.spatial:
        return
    if not all(map(schedule.get_loops, schedule.get_child_blocks(schedule.get_sblock("root")))):
        # TVM's rfactor fails beside a block without loops.
        return
    _, lane = schedule.split(loops.reduced[0], [None, lanes])
    partials = schedule.rfactor(lane, len(loops.block.body.indices))
    *_, steps, lane = schedule.get_loops(partials)
    schedule.vectorize(lane)
    schedule.decompose_reduction(partials, steps)


def _lanes(extent: int | None, dtype: Any) -> int | None:
    """The widest vector that divides `extent`; None if none is worth it."""
    if extent is None:
        return None
    most = min(_MOST_LANES, 8 * vector_bytes() // int(dtype.bits))
    lanes = _largest_divisor(extent, most)
    return lanes if lanes >= _FEWEST_LANES else None


def _largest_divisor(number: int, most: int) -> int:
    return next(divisor for divisor in range(most, 0, -1) if number % divisor == 0)
