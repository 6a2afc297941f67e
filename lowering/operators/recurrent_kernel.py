"""The kernel of a recurrent layer: the product of the inputs, and the loops of the recurrence.

The kernel is generated for a layer (its directions, activations, clip and so on) and works for any
sequence length; the batch may be fixed or not. It takes the time steps in chunks, so that the
product of the inputs of a chunk, which is a matrix product, is read back from the cache. The rows
of a batch are independent, so within a chunk the loop over rows is outside and the loop over time
steps inside, where the state stays in the cache.

Cores share the panels of the product, then the directions and rows of the batch; they wait for each
other after each of the two. Where there may be a single row in a single direction, and a time step
has enough work, they share the hidden units of each time step instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ..processor import GRAIN, MOST_VECTOR_BYTES, is_for_gpu, vector_bytes
from ..scheduling.affine import int64
from ..scheduling.emission import bound, ceil_div, for_items, pieces
from .recurrent_attributes import Activation
from .recurrent_cells import BatchRows, TimeStep, add_to, emit_time_step, keep, scope, span
from .recurrent_layout import Buffers, Chunk, Recurrence, declare_buffers, vector_lanes

_SUMS = {MOST_VECTOR_BYTES: 16}
"""The number of vectors of sums kept in registers, by the size of a register; AVX-512 has 32."""
_FEWER_SUMS = 12
"""The same for smaller registers."""
_GROUP_SIZES = (4, 2)
"""The numbers of batch rows that the recurrence can compute together."""
_PRODUCT_SUMS = {MOST_VECTOR_BYTES: 24}
"""The number of vectors of sums in the product of the inputs, by the size of a register."""
_CACHED = 1 << 18
"""Elements of the inputs that stay in the second-level cache while the weight passes over them."""


def recurrence_kernel(recurrence: Recurrence) -> tirx.PrimFunc:
    """The kernel (x, W, Wb, R, Rb, [P], h, [c], [lengths]) -> (Y, Y_h, [Y_c], product).

    The last output is scratch memory for x·W + Wb of one chunk; callers ignore it.
    A run raises RuntimeError for a length below 0 or above the number of time steps.
    """
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        buffers = declare_buffers(recurrence)
        _check_lengths(buffers)
        size = bound(tirx.max(buffers.chunk_steps, int64(1)), scope())
        # Without time steps there is one empty chunk, which copies the state.
        with ib.serial(pieces(buffers.steps, size)) as part:
            first = bound(part * size, scope())
            chunk = Chunk(first, bound(tirx.min(buffers.steps - first, size), scope()))
            _emit_input_product(recurrence, buffers, chunk)
            _emit_recurrence(recurrence, buffers, chunk)
    return builder.get()


def _emit_input_product(recurrence: Recurrence, buffers: Buffers, chunk: Chunk) -> None:
    """Emits x·W + Wb of the time steps of a chunk in all directions."""
    columns, batch = recurrence.columns, buffers.rows
    panels = int(buffers.input_bias.shape[0])
    # The same memory with time steps and batch as one axis.
    x = ib.decl_buffer((buffers.steps * batch, columns), recurrence.dtype, data=buffers.x.data)
    shape = (buffers.chunk_steps * batch, recurrence.width)
    product = ib.decl_buffer(shape, recurrence.dtype, data=buffers.product.data)
    rows, most = chunk.count * batch, _rows_per_pass(columns)

    def multiply(loop: Any) -> None:
        with ib.serial(ceil_div(rows, most)) as part:
            first = part * most
            count = tirx.min(rows - first, int64(most))
            with loop(int64(panels)) as panel:
                direction = panel // recurrence.layout.blocks
                start = bound(chunk.start(recurrence, buffers, direction) * batch, scope())
                operands = x, buffers.input_weight, buffers.input_bias, product
                _PanelProduct(*operands, panel, start).emit(first, count)

    if is_for_gpu():
        multiply(ib.serial)
    else:
        with ib.If(rows * (columns * recurrence.width) >= GRAIN):
            with ib.Then():
                multiply(ib.parallel)
            with ib.Else():
                multiply(ib.serial)


def _rows_per_pass(columns: int) -> int:
    """The number of rows that one panel of the weight is multiplied with before the next."""
    tile = _tiles(1)[0][0]
    return max(1, _CACHED // max(columns, 1) // tile) * tile


def _tiles(vectors: int) -> list[tuple[int, int]]:
    """The tiles of sums for a panel of so many vectors, as rows and vectors; the largest first."""
    sums = _PRODUCT_SUMS.get(vector_bytes(), _FEWER_SUMS)
    wide = next(width for width in (2, 3, 1) if vectors % width == 0)
    widest = next(width for width in (4, 3, 2, 1) if vectors % width == 0)
    return [(sums // 2, wide), (4, wide), (1, widest)]


@dataclass(frozen=True)
class _PanelProduct:
    """The product of the inputs with one panel of the weight."""

    x: Any
    weight: Any
    bias: Any
    product: Any
    panel: Any
    """The number of the panel."""
    start: Any
    """Row i of the product belongs to row start + i of x."""

    def emit(self, first: Any, count: Any) -> None:
        """Emits rows [first, first + count) of the product."""
        width, lanes = int(self.weight.shape[2]), vector_lanes(str(self.x.dtype))
        done: Any = int64(0)
        for rows, vectors in _tiles(width // lanes):
            groups = (count - done) // rows
            with ib.serial(width // lanes // vectors) as part, ib.serial(groups) as group:
                places = [span((part * vectors + i) * lanes, lanes) for i in range(vectors)]
                self._emit_tile(first + done + group * rows, rows, places)
            done = done + groups * rows

    def _emit_tile(self, first: Any, rows: int, places: Sequence[Any]) -> None:
        """Emits the product of a few rows with the vectors of the panel that start at `places`."""
        columns, width = (int(size) for size in self.weight.shape[1:])
        tile = list(itertools.product(range(rows), range(len(places))))
        sums = {(row, i): keep(self.bias[self.panel, 0, places[i]]) for row, i in tile}
        with ib.serial(columns) as column:
            for row, i in tile:
                weight = self.weight[self.panel, column, places[i]]
                add_to(sums[row, i], self.x[self.start + first + row, column] * weight)
        for row, i in tile:
            position = span(self.panel * width + places[i].base, int(places[i].lanes))
            ib.buffer_store(self.product, sums[row, i], [first + row, position])


def _check_lengths(buffers: Buffers) -> None:
    """Emits a check of `sequence_lens`."""
    if buffers.lengths is None:
        return
    with ib.serial(buffers.rows) as row:
        length = tirx.Cast("int64", buffers.lengths[row])
        in_range = tirx.all(length >= 0, length <= buffers.steps)
        with ib.Assert(in_range, "sequence_lens must lie between 0 and the sequence length"):
            ib.evaluate(tirx.const(0, "int32"))


def _emit_recurrence(recurrence: Recurrence, buffers: Buffers, chunk: Chunk) -> None:
    """Emits the recurrence of all groups of rows in all directions for a chunk of time steps.

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
                rows = _initialise(recurrence, buffers, chunk, direction, activations, row, size)
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
        work = chunk.count * buffers.rows * (len(directions) * recurrence.step_work)
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
    chunk: Chunk,
    direction: Any,
    activations: tuple[Activation, ...],
    first: Any,
    count: int,
) -> BatchRows:
    """Allocates the state of a group of rows, and emits its value before a chunk."""
    padded = recurrence.layout.padded

    def allocate(*shape: int) -> Any:
        return ib.alloc_buffer(shape, recurrence.dtype, scope=scope())

    is_gru = recurrence.layer.op == "GRU"
    rows = BatchRows(
        recurrence,
        buffers,
        chunk,
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
        indices = [direction, first + row, unit]
        # After the first chunk, the state is read from the outputs, where the last chunk left it.
        given = [
            tirx.if_then_else(chunk.first > 0, final[indices], initial[indices])
            for initial, final in zip(buffers.initial, buffers.final, strict=True)
        ]
        hidden, *cell = (
            tirx.if_then_else(unit < recurrence.layer.hidden, value, zero) for value in given
        )
        ib.buffer_store(rows.hidden, hidden, [0, row, unit])
        for value in cell:
            ib.buffer_store(rows.cell, value, [row, unit])
    return rows


def _emit_rows(rows: BatchRows) -> None:
    """Emits the loop over the time steps of a chunk for a group of rows."""
    buffers, chunk = rows.buffers, rows.chunk
    steps, count = buffers.steps, chunk.count
    if buffers.lengths is not None:
        steps = ib.bind(tirx.Cast("int64", buffers.lengths[rows.first]))
        count = bound(tirx.max(tirx.min(steps - chunk.first, count), int64(0)), scope())
    start = bound(chunk.start(rows.recurrence, buffers, rows.direction), scope())
    with ib.serial(count) as within:
        step = chunk.first + within
        reverse = rows.recurrence.is_reverse(rows.direction)
        time = bound(tirx.Select(reverse, steps - 1 - step, step), scope())
        product_step = bound(time - start, scope())
        emit_time_step(TimeStep(rows, product_step, before=within % 2, after=(within + 1) % 2))
        with ib.serial(rows.count) as row, ib.serial(rows.recurrence.layer.hidden) as unit:
            indices = [time, rows.direction, rows.first + row, unit]
            ib.buffer_store(buffers.sequence, rows.hidden[(within + 1) % 2, row, unit], indices)
    _emit_final(rows, steps, count)


def _emit_final(rows: BatchRows, steps: Any, count: Any) -> None:
    """Emits the copy of the state after `count` time steps, and zeros beyond a row's length."""
    buffers, hidden = rows.buffers, rows.recurrence.layer.hidden
    zero = tirx.const(0, rows.recurrence.dtype)
    with ib.serial(rows.count) as row, ib.serial(hidden) as unit:
        last = [rows.hidden[count % 2, row, unit]]
        if rows.cell is not None:
            last.append(rows.cell[row, unit])
        for final, value in zip(buffers.final, last, strict=True):
            kept = value if buffers.lengths is None else tirx.Select(steps > 0, value, zero)
            ib.buffer_store(final, kept, [rows.direction, rows.first + row, unit])
    if buffers.lengths is None:
        return
    with ib.serial(rows.chunk.count - count) as beyond, ib.serial(hidden) as unit:
        place = [rows.chunk.first + count + beyond, rows.direction, rows.first, unit]
        ib.buffer_store(buffers.sequence, zero, place)
