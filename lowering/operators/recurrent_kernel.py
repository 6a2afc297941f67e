"""The recurrence of an LSTM, GRU or RNN as one kernel: the loops over rows and steps.

The kernel is generated for a layer (its directions, activations, clip and so on) and holds for any
sequence length; the batch may be fixed or not. The rows of a batch are independent, so the loop
over rows is outside and the loop over steps inside, where the state stays in the cache.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ..processor import MOST_VECTOR_BYTES, is_for_gpu, vector_bytes
from .recurrent_buffers import Buffers, Recurrence, declare_buffers
from .recurrent_cells import Rows, Step, emit_step
from .recurrent_layout import vector_lanes

_SUMS = {MOST_VECTOR_BYTES: 16}
"""Vectors of sums that are kept in registers, by the size of those; AVX-512 has 32 of them."""
_FEWER_SUMS = 12
_GROUPS = (4, 2)
"""Rows that can be taken together."""


def recurrence_kernel(recurrence: Recurrence) -> tirx.PrimFunc:
    """The kernel (x·W + Wb, R, Rb, [P], h, [c], [lengths]) -> (Y, Y_h, [Y_c]).

    At run time, a length below 0 or above the number of steps is a RuntimeError.
    """
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        buffers = declare_buffers(recurrence)
        for direction in range(len(recurrence.layer.directions)):
            _emit_direction(recurrence, buffers, direction)
    return builder.get()


def _emit_direction(recurrence: Recurrence, buffers: Buffers, direction: int) -> None:
    """All rows, several at a time where they have equally many steps.

    Then a vector of R is loaded once for all of them.
    """
    done: Any = tirx.IntImm("int64", 0)
    for together in _group_sizes(recurrence):
        groups = (buffers.rows - done) // together
        with ib.serial(groups) as group:
            first = done + group * together
            _emit_rows(_start(recurrence, buffers, direction, first, together))
        done = done + groups * together


def _group_sizes(recurrence: Recurrence) -> list[int]:
    """Numbers of rows to take together, falling to one, as far as there can be so many."""
    if recurrence.lengths:
        return [1]
    vectors = recurrence.layout.panel // vector_lanes(recurrence.dtype)
    most = _SUMS.get(vector_bytes(), _FEWER_SUMS) // vectors
    if recurrence.batch is not None:
        most = min(most, recurrence.batch)
    return [*(size for size in _GROUPS if size <= most), 1]


def _start(
    recurrence: Recurrence, buffers: Buffers, direction: int, first: Any, count: int
) -> Rows:
    """Make room for the state of some rows and fill in the initial one."""
    padded = recurrence.layout.padded

    # A thread of a GPU has memory of its own only; on a CPU, that would be the stack.
    scope = "local" if is_for_gpu() else "global"

    def room(*shape: int) -> Any:
        return ib.alloc_buffer(shape, recurrence.dtype, scope=scope)

    is_gru = recurrence.layer.op == "GRU"
    rows = Rows(
        recurrence,
        buffers,
        direction,
        first,
        count,
        hidden=room(2, count, padded),
        cell=room(count, padded) if "c" in recurrence.states else None,
        update=room(count, padded) if is_gru else None,
        reset=room(count, padded) if is_gru else None,
    )
    zero = tirx.const(0, recurrence.dtype)
    with ib.serial(count) as row, ib.serial(padded) as unit:
        # The padding starts at zero: left as found, it could be denormal and slow.
        given = [state[direction, first + row, unit] for state in buffers.initial]
        hidden, *cell = (
            tirx.if_then_else(unit < recurrence.layer.hidden, value, zero) for value in given
        )
        ib.buffer_store(rows.hidden, hidden, [0, row, unit])
        for value in cell:
            ib.buffer_store(rows.cell, value, [row, unit])
    return rows


def _emit_rows(rows: Rows) -> None:
    """The whole sequence for some rows."""
    buffers, direction = rows.buffers, rows.recurrence.layer.directions[rows.direction]
    steps = _checked_length(rows)
    with ib.serial(steps) as step:
        time = steps - 1 - step if direction.reverse else step
        emit_step(Step(rows, time, before=step % 2, after=(step + 1) % 2))
        with ib.serial(rows.count) as row, ib.serial(rows.recurrence.layer.hidden) as unit:
            place = [time, rows.direction, rows.first + row, unit]
            ib.buffer_store(buffers.sequence, rows.hidden[(step + 1) % 2, row, unit], place)
    _emit_final(rows, steps)


def _checked_length(rows: Rows) -> Any:
    """The number of steps these rows take."""
    buffers = rows.buffers
    if buffers.lengths is None:
        return buffers.steps
    length = ib.bind(tirx.Cast("int64", buffers.lengths[rows.first]))
    in_range = tirx.all(length >= 0, length <= buffers.steps)
    with ib.Assert(in_range, "sequence_lens must lie between 0 and the sequence length"):
        return length


def _emit_final(rows: Rows, steps: Any) -> None:
    """Write the last state, and zeros to the steps beyond a row's length."""
    buffers, hidden = rows.buffers, rows.recurrence.layer.hidden
    zero = tirx.const(0, rows.recurrence.dtype)
    with ib.serial(rows.count) as row, ib.serial(hidden) as unit:
        last = [rows.hidden[steps % 2, row, unit]]
        if rows.cell is not None:
            last.append(rows.cell[row, unit])
        for final, value in zip(buffers.final, last, strict=True):
            kept = value if buffers.lengths is None else tirx.Select(steps > 0, value, zero)
            ib.buffer_store(final, kept, [rows.direction, rows.first + row, unit])
    if buffers.lengths is None:
        return
    with ib.serial(buffers.steps - steps) as beyond, ib.serial(hidden) as unit:
        place = [steps + beyond, rows.direction, rows.first, unit]
        ib.buffer_store(buffers.sequence, zero, place)
