"""The kernels of a recurrent layer: the product of all inputs, and the loops of the recurrence.

The kernels are generated for a layer (its directions, activations, clip and so on) and work for any
sequence length; the batch may be fixed or not. The rows of a batch are independent, so the loop
over rows is outside and the loop over time steps inside, where the state stays in the cache.

Cores take directions and rows of the batch, and wait for each other at the end only. Where there
may be a single row in a single direction, and a time step has enough work, they share the hidden
units of each time step instead.
"""

from __future__ import annotations

import itertools
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ..processor import GRAIN, MOST_VECTOR_BYTES, is_for_gpu, vector_bytes
from ..scheduling.affine import int64
from ..scheduling.emission import bound, for_items
from .recurrent_attributes import Activation
from .recurrent_cells import BatchRows, TimeStep, add_to, emit_time_step, keep, scope, span
from .recurrent_layout import Buffers, Recurrence, declare_buffers, vector_lanes

_SUMS = {MOST_VECTOR_BYTES: 16}
"""The number of vectors of sums kept in registers, by the size of a register; AVX-512 has 32."""
_FEWER_SUMS = 12
"""The same for smaller registers."""
_GROUP_SIZES = (4, 2)
"""The numbers of batch rows that the recurrence can compute together."""
_PRODUCT_SUMS = {MOST_VECTOR_BYTES: 24}
"""The number of vectors of sums in the product of all inputs, by the size of a register."""
_CACHED = 1 << 18
"""Elements of the inputs that stay in the second-level cache while the weight passes over them."""


def input_product(columns: int, panels: int, panel: int, dtype: str) -> tirx.PrimFunc:
    """The kernel (x, weight, bias) -> product for any sequence length n and batch b.

    x [n, b, columns]; weight [panels, columns, panel] and bias [panels, 1, panel], both packed;
    product [n, b, panels·panel].
    """
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        handles = [ib.arg(name, ib.handle()) for name in ("x", "weight", "bias", "product")]
        n, b = ib.int64(), ib.int64()
        x = ib.match_buffer(handles[0], (n, b, columns), dtype)
        weight = ib.match_buffer(handles[1], (panels, columns, panel), dtype)
        bias = ib.match_buffer(handles[2], (panels, 1, panel), dtype)
        product = ib.match_buffer(handles[3], (n, b, panels * panel), dtype)
        # The same memory with time steps and batch as one axis.
        rows = n * b
        x = ib.decl_buffer((rows, columns), dtype, data=x.data)
        product = ib.decl_buffer((rows, panels * panel), dtype, data=product.data)
        chunk = _row_chunk(columns)

        def multiply(loop: Any) -> None:
            with ib.serial((rows + chunk - 1) // chunk) as part:
                first = part * chunk
                count = tirx.min(rows - first, tirx.IntImm("int64", chunk))
                with loop(tirx.IntImm("int64", panels)) as block:
                    _multiply(x, weight, bias, product, block, first, count)

        if is_for_gpu():
            multiply(ib.serial)
        else:
            with ib.If(rows * (columns * panels * panel) >= GRAIN):
                with ib.Then():
                    multiply(ib.parallel)
                with ib.Else():
                    multiply(ib.serial)
    return builder.get()


def _row_chunk(columns: int) -> int:
    """The number of rows that one panel of the weight is multiplied with before the next."""
    tile = _tiles(1)[0][0]
    return max(1, _CACHED // max(columns, 1) // tile) * tile


def _tiles(vectors: int) -> list[tuple[int, int]]:
    """The tiles of sums for a panel of so many vectors, as rows and vectors; the largest first."""
    sums = _PRODUCT_SUMS.get(vector_bytes(), _FEWER_SUMS)
    wide = next(width for width in (2, 3, 1) if vectors % width == 0)
    widest = next(width for width in (4, 3, 2, 1) if vectors % width == 0)
    return [(sums // 2, wide), (4, wide), (1, widest)]


def _multiply(
    x: Any, weight: Any, bias: Any, product: Any, block: Any, first: Any, count: Any
) -> None:
    """Emits the product of `count` rows of x from `first` on with one panel of the weight."""
    panel, lanes = int(weight.shape[2]), vector_lanes(str(x.dtype))
    done: Any = tirx.IntImm("int64", 0)
    for rows, vectors in _tiles(panel // lanes):
        groups = (count - done) // rows
        with ib.serial(panel // lanes // vectors) as part, ib.serial(groups) as group:
            row = first + done + group * rows
            places = [span((part * vectors + i) * lanes, lanes) for i in range(vectors)]
            _multiply_tile(x, weight, bias, product, block, row, rows, places)
        done = done + groups * rows


def _multiply_tile(
    x: Any, weight: Any, bias: Any, product: Any, block: Any, first: Any, rows: int, places: Any
) -> None:
    """Emits the product of a few rows with the vectors of a panel that start at `places`."""
    columns, panel = (int(size) for size in weight.shape[1:])
    sums = [[keep(bias[block, 0, place]) for place in places] for _ in range(rows)]
    with ib.serial(columns) as column:
        for row, (i, place) in itertools.product(range(rows), enumerate(places)):
            add_to(sums[row][i], x[first + row, column] * weight[block, column, place])
    for row, (i, place) in itertools.product(range(rows), enumerate(places)):
        column = span(block * panel + place.base, int(place.lanes))
        ib.buffer_store(product, sums[row][i], [first + row, column])


def recurrence_kernel(recurrence: Recurrence) -> tirx.PrimFunc:
    """The kernel (x·W + Wb, R, Rb, [P], h, [c], [lengths]) -> (Y, Y_h, [Y_c]).

    A run raises RuntimeError for a length below 0 or above the number of time steps.
    """
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        buffers = declare_buffers(recurrence)
        _check_lengths(buffers)
        _emit_all(recurrence, buffers)
    return builder.get()


def _check_lengths(buffers: Buffers) -> None:
    """Emits a check of `sequence_lens`."""
    if buffers.lengths is None:
        return
    with ib.serial(buffers.rows) as row:
        length = tirx.Cast("int64", buffers.lengths[row])
        in_range = tirx.all(length >= 0, length <= buffers.steps)
        with ib.Assert(in_range, "sequence_lens must lie between 0 and the sequence length"):
            ib.evaluate(tirx.const(0, "int32"))


def _emit_all(recurrence: Recurrence, buffers: Buffers) -> None:
    """Emits the recurrence of all groups of rows in all directions.

    Rows of equal length are computed in groups, which load a vector of R once for all of them.
    """
    done: Any = int64(0)
    groups: list[tuple[int, Any, Any]] = []
    for size in _group_sizes(recurrence):
        count = bound((buffers.rows - done) // size, scope())
        groups.append((size, done, count))
        done = done + count * size
    total = bound(sum((count for _, _, count in groups), int64(0)), scope())
    directions = recurrence.layer.directions

    def group_of(direction: Any, activations: tuple[Activation, ...], number: Any) -> None:
        for size, first, count in groups:
            with ib.If(tirx.all(number >= 0, number < count)), ib.Then():
                row = first + number * size
                rows = _initialise(recurrence, buffers, direction, activations, row, size)
                _emit_rows(rows)
            number = number - count

    def item(number: Any) -> None:
        if len({direction.activations for direction in directions}) == 1:
            direction = (
                bound(number // tirx.max(total, 1), scope()) if len(directions) > 1 else int64(0)
            )
            group_of(direction, directions[0].activations, number - direction * total)
            return
        for place, direction in enumerate(directions):
            here = number - place * total
            with ib.If(tirx.all(here >= 0, here < total)), ib.Then():
                group_of(int64(place), direction.activations, here)

    count = len(directions) * total
    if is_for_gpu() or recurrence.shares_units:
        with ib.serial(count) as number:
            item(number)
    else:
        work = buffers.steps * buffers.rows * (len(directions) * recurrence.step_work)
        for_items(count, work, item)


def _group_sizes(recurrence: Recurrence) -> list[int]:
    """The sizes of the groups of rows, from the largest that fits into the registers down to 1."""
    if recurrence.lengths:
        return [1]
    vectors = recurrence.layout.panel // vector_lanes(recurrence.dtype)
    most = _SUMS.get(vector_bytes(), _FEWER_SUMS) // vectors
    if recurrence.batch is not None:
        most = min(most, recurrence.batch)
    return [*(size for size in _GROUP_SIZES if size <= most), 1]


def _initialise(
    recurrence: Recurrence,
    buffers: Buffers,
    direction: Any,
    activations: tuple[Activation, ...],
    first: Any,
    count: int,
) -> BatchRows:
    """Allocates the state of a group of rows, and emits its initialisation."""
    padded = recurrence.layout.padded

    def allocate(*shape: int) -> Any:
        return ib.alloc_buffer(shape, recurrence.dtype, scope=scope())

    is_gru = recurrence.layer.op == "GRU"
    rows = BatchRows(
        recurrence,
        buffers,
        direction,
        activations,
        first,
        count,
        hidden=allocate(2, count, padded),
        cell=allocate(count, padded) if "c" in recurrence.states else None,
        update=allocate(count, padded) if is_gru else None,
        reset=allocate(count, padded) if is_gru else None,
    )
    zero = tirx.const(0, recurrence.dtype)
    with ib.serial(count) as row, ib.serial(padded) as unit:
        # The padding starts at zero: uninitialised, it could hold denormals, which are slow.
        given = [state[direction, first + row, unit] for state in buffers.initial]
        hidden, *cell = (
            tirx.if_then_else(unit < recurrence.layer.hidden, value, zero) for value in given
        )
        ib.buffer_store(rows.hidden, hidden, [0, row, unit])
        for value in cell:
            ib.buffer_store(rows.cell, value, [row, unit])
    return rows


def _emit_rows(rows: BatchRows) -> None:
    """Emits the loop over the time steps for a group of rows."""
    buffers = rows.buffers
    steps = buffers.steps
    if buffers.lengths is not None:
        steps = ib.bind(tirx.Cast("int64", buffers.lengths[rows.first]))
    with ib.serial(steps) as step:
        time = bound(tirx.Select(_is_reverse(rows), steps - 1 - step, step), scope())
        emit_time_step(TimeStep(rows, time, before=step % 2, after=(step + 1) % 2))
        with ib.serial(rows.count) as row, ib.serial(rows.recurrence.layer.hidden) as unit:
            place = [time, rows.direction, rows.first + row, unit]
            ib.buffer_store(buffers.sequence, rows.hidden[(step + 1) % 2, row, unit], place)
    _emit_final(rows, steps)


def _is_reverse(rows: BatchRows) -> Any:
    """Whether the direction of the rows is from the end of the sequence to its start."""
    reverse = [place for place, d in enumerate(rows.recurrence.layer.directions) if d.reverse]
    return tirx.any(tirx.const(False, "bool"), *(rows.direction == place for place in reverse))


def _emit_final(rows: BatchRows, steps: Any) -> None:
    """Emits the copy of the final state to the results, and zeros beyond a row's length."""
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
