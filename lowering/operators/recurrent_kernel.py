"""The kernel of a recurrent layer: the product of the inputs, and the loops of the recurrence.

The kernel is generated for a layer (its directions, activations, clip and so on) and works for any
sequence length; the batch may be fixed or not. It takes the time steps in chunks, so that the
product of the inputs of a chunk, which is a matrix product, is read back from the cache. The batch
is cut into blocks of up to 32 rows. The loops over a chunk are, from the outside, those over blocks
of rows, time steps, panels of the recurrent weight, and register tiles of up to 4 rows: a panel is
loaded once in a time step for all rows of a block.

Cores share the panels of the product, then the directions and blocks of rows; they wait for each
other after each of the two. Where a time step has enough work, they share its hidden units instead:
each core then reads a part of the weight, which its second-level cache may hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ..processor import GRAIN, MOST_VECTOR_BYTES, vector_bytes
from ..scheduling.kernels.affine import int64
from ..scheduling.kernels.emission import bound, ceil_div, even_part, for_items, pieces
from .recurrent_attributes import Activation
from .recurrent_cells import (
    BatchRows,
    RowTiles,
    TimeStep,
    add_to,
    emit_time_step,
    keep,
    span,
)
from .recurrent_layout import Buffers, Chunk, Recurrence, declare_buffers, vector_lanes

_SUMS = {MOST_VECTOR_BYTES: 24}
"""The number of vectors of sums kept in registers, by the size of a register; AVX-512 has 32."""
_FEWER_SUMS = 12
"""The same for smaller registers."""
_TILE_ROWS = (4, 2)
"""The numbers of batch rows that a register tile of the recurrence can have."""
_MOST_ROWS = 32
"""The rows of a block at most, whose state of up to some 1,000 hidden units stays in the cache.

A smaller batch has two blocks, so that two cores have work: in each block all of the weight is read
once more in a time step. More cores have work where there are more rows, or where they share units.
"""
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
        size = bound(tirx.max(buffers.chunk_steps, int64(1)))
        # Without time steps there is one empty chunk, which copies the state.
        with ib.serial(pieces(buffers.steps, size)) as number:
            first = bound(number * size)
            chunk = Chunk(first, bound(tirx.min(buffers.steps - first, size)))
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
        with ib.serial(ceil_div(rows, most)) as number:
            first = number * most
            count = tirx.min(rows - first, int64(most))
            with loop(int64(panels)) as panel:
                direction = panel // recurrence.layout.blocks
                start = bound(chunk.start(recurrence, buffers, direction) * batch)
                operands = x, buffers.input_weight, buffers.input_bias, product
                _PanelProduct(*operands, panel, start).emit(first, count)

    with ib.If(rows * (columns * recurrence.width) >= GRAIN):
        with ib.Then():
            multiply(ib.parallel)
        with ib.Else():
            multiply(ib.serial)


def _rows_per_pass(columns: int) -> int:
    """The number of rows that one panel of the weight is multiplied with before the next."""
    tile = _tiles(1)[0][0]
    return max(1, _CACHED // max(columns, 1) // tile) * tile


def _most_sums() -> int:
    """The number of vectors of sums kept in registers, for the target in scope."""
    return _SUMS.get(vector_bytes(), _FEWER_SUMS)


def _tiles(vectors: int) -> list[tuple[int, int]]:
    """The tiles of sums for a panel of so many vectors, as rows and vectors; the largest first."""
    sums = _most_sums()
    wide = next(width for width in (2, 3, 1) if vectors % width == 0)
    widest = next(width for width in (4, 3, 2, 1) if vectors % width == 0)
    most = (sums // max(wide, 2), wide)
    return list(dict.fromkeys([most, (4, wide), (1, widest)]))


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
            tiles = (count - done) // rows
            with ib.serial(width // lanes // vectors) as across, ib.serial(tiles) as down:
                places = [span((across * vectors + i) * lanes, lanes) for i in range(vectors)]
                self._emit_tile(first + done + down * rows, rows, places)
            done = done + tiles * rows

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
    """Emits the recurrence of all rows in all directions for a chunk of time steps."""
    sizes = _tile_rows(recurrence)
    most = _most_rows(recurrence, sizes)
    # Two cores have equally many blocks of rows.
    multiple = 1 if recurrence.shares_units else 2
    tiles_per_block = even_part(ceil_div(buffers.rows, sizes[0]), int64(most // sizes[0]), multiple)
    together = bound(tirx.max(tiles_per_block, int64(1)) * sizes[0])
    row_blocks = bound(ceil_div(buffers.rows, together))
    directions = recurrence.layer.directions

    def emit_row_block(direction: Any, activations: tuple[Activation, ...], number: Any) -> None:
        first = bound(number * together)
        count = bound(tirx.min(buffers.rows - first, together))
        tiles = _cut_into_tiles(sizes, count)
        rows = _allocate(
            recurrence, buffers, chunk, direction, activations, first, count, tiles, most
        )
        _emit_initial_state(rows)
        _emit_rows(rows)

    def item(number: Any) -> None:
        if len({direction.activations for direction in directions}) == 1:
            direction: Any = int64(0)
            if len(directions) > 1:
                direction = bound(number // tirx.max(row_blocks, 1))
            emit_row_block(direction, directions[0].activations, number - direction * row_blocks)
            return
        for place, direction in enumerate(directions):
            here = number - place * row_blocks
            with ib.If(tirx.all(here >= 0, here < row_blocks)), ib.Then():
                emit_row_block(int64(place), direction.activations, here)

    count = len(directions) * row_blocks
    if recurrence.shares_units:
        with ib.serial(count) as number:
            item(number)
    else:
        work = chunk.count * buffers.rows * (len(directions) * recurrence.step_work)
        for_items(count, work, item)


def _tile_rows(recurrence: Recurrence) -> list[int]:
    """The numbers of rows of register tiles, from the largest that fits down to 1."""
    most = _most_sums() // (recurrence.layout.panel // vector_lanes(recurrence.dtype))
    if recurrence.batch is not None:
        most = min(most, recurrence.batch)
    return [*(rows for rows in _TILE_ROWS if rows <= most), 1]


def _most_rows(recurrence: Recurrence, sizes: Sequence[int]) -> int:
    """The rows of a block at most."""
    most = _MOST_ROWS if recurrence.batch is None else min(recurrence.batch, _MOST_ROWS)
    return max(-(-most // sizes[0]), 1) * sizes[0]


def _cut_into_tiles(sizes: Sequence[int], count: Any) -> list[RowTiles]:
    """Cuts rows into register tiles of these sizes, as many as possible of each."""
    tiles: list[RowTiles] = []
    done: Any = int64(0)
    for size in sizes:
        number = bound((count - done) // size)
        tiles.append(RowTiles(size, done, number))
        done = done + number * size
    return tiles


def _allocate(
    recurrence: Recurrence,
    buffers: Buffers,
    chunk: Chunk,
    direction: Any,
    activations: tuple[Activation, ...],
    first: Any,
    count: Any,
    tiles: Sequence[RowTiles],
    most: int,
) -> BatchRows:
    """Allocates the state of a block of at most `most` rows."""
    padded = recurrence.layout.padded

    def allocate(*shape: int) -> Any:
        return ib.alloc_buffer(shape, recurrence.dtype)

    is_gru = recurrence.layer.op == "GRU"
    return BatchRows(
        recurrence,
        buffers,
        chunk,
        direction,
        activations,
        first,
        count,
        tiles,
        bound(chunk.start(recurrence, buffers, direction)),
        hidden=allocate(2, most, padded),
        cell=allocate(most, padded) if "c" in recurrence.states else None,
        update=allocate(most, padded) if is_gru else None,
        reset=allocate(most, padded) if is_gru else None,
    )


def _emit_initial_state(rows: BatchRows) -> None:
    """Emits the state before a chunk."""
    recurrence, buffers = rows.recurrence, rows.buffers
    zero = tirx.const(0, recurrence.dtype)
    with ib.serial(rows.count) as row, ib.serial(recurrence.layout.padded) as unit:
        # The padding starts at zero: uninitialised, it could hold denormals, which are slow.
        indices = [rows.direction, rows.first + row, unit]
        # After the first chunk, the state is read from the outputs, where the last chunk left it.
        given = [
            tirx.if_then_else(rows.chunk.first > 0, final[indices], initial[indices])
            for initial, final in zip(buffers.initial, buffers.final, strict=True)
        ]
        hidden, *cell = (
            tirx.if_then_else(unit < recurrence.layer.hidden, value, zero) for value in given
        )
        ib.buffer_store(rows.hidden, hidden, [0, row, unit])
        for value in cell:
            ib.buffer_store(rows.cell, value, [row, unit])


def _emit_rows(rows: BatchRows) -> None:
    """Emits the loop over the time steps of a chunk for rows of the batch."""
    buffers, chunk = rows.buffers, rows.chunk
    count = chunk.count
    if buffers.lengths is not None:
        longest = ib.alloc_buffer((1,), "int64", layout=None)
        zero = int64(0)
        ib.buffer_store(longest, zero, [zero])
        with ib.serial(rows.count) as row:
            ib.buffer_store(longest, tirx.max(longest[zero], rows.length(row)), [zero])
        count = bound(_steps_in_chunk(chunk, longest[zero]))
    with ib.serial(count) as within:
        after = (within + 1) % 2
        step = TimeStep(rows, bound(chunk.first + within), before=within % 2, after=after)
        emit_time_step(step)
        with ib.serial(rows.count) as row, _if_within(step, row):
            time = bound(step.time(row))
            with ib.serial(rows.recurrence.layer.hidden) as unit:
                indices = [time, rows.direction, rows.first + row, unit]
                ib.buffer_store(buffers.sequence, rows.hidden[after, row, unit], indices)
    _emit_final(rows, count)


def _steps_in_chunk(chunk: Chunk, length: Any) -> Any:
    """How many time steps of a chunk a row of some length has."""
    return tirx.max(tirx.min(length - chunk.first, chunk.count), int64(0))


@contextmanager
def _if_within(step: TimeStep, row: Any) -> Iterator[None]:
    """A frame for what is emitted for a row only if it has the time step."""
    if step.rows.buffers.lengths is None:
        yield
        return
    with ib.If(step.is_within(row)), ib.Then():
        yield


def _emit_final(rows: BatchRows, count: Any) -> None:
    """Emits the copy of the state after `count` time steps, and zeros beyond a row's length."""
    buffers, hidden, chunk = rows.buffers, rows.recurrence.layer.hidden, rows.chunk
    zero = tirx.const(0, rows.recurrence.dtype)
    with ib.serial(rows.count) as row, ib.serial(hidden) as unit:
        last = [rows.hidden[count % 2, row, unit]]
        if rows.cell is not None:
            last.append(rows.cell[row, unit])
        for final, value in zip(buffers.final, last, strict=True):
            kept = (
                value if buffers.lengths is None else tirx.Select(rows.length(row) > 0, value, zero)
            )
            ib.buffer_store(final, kept, [rows.direction, rows.first + row, unit])
    if buffers.lengths is None:
        return
    with ib.serial(rows.count) as row:
        done = bound(_steps_in_chunk(chunk, rows.length(row)))
        with ib.serial(chunk.count - done) as beyond, ib.serial(hidden) as unit:
            place = [chunk.first + done + beyond, rows.direction, rows.first + row, unit]
            ib.buffer_store(buffers.sequence, zero, place)
