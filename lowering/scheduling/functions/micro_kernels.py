"""Micro-kernels: register tiles of a sum of products, shared by all kernels of a module.

A micro-kernel computes `out[r, v] = sum(a[r, k] * b[k, v] for k)` for a few rows r and a few
vectors of columns v, with all sums in registers. It takes strides and trip counts at run time, so
that one function serves every product of a module, and one every convolution: LLVM compiles it
once. Kernels call it by name; `link_micro_kernels` adds the functions that a module calls.

The scheme is that of Goto and van de Geijn (Anatomy of High-Performance Matrix Multiplication,
2008): vectors of b are loaded, elements of a are broadcast.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import sym, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ...processor import vector_bytes
from ..kernels.affine import int64
from ..kernels.emission import bound, ceil_div, prefetch
from .lane_kernels import TRANSPOSE
from .shared_functions import ANY_SHAPE, function_frame, noinline
from .winograd_transforms import span

ROWS_OF_KNOWN_STRIDES = 12
"""The most rows whose sums stay in registers where one of the strides of `a` and `b` is a known
multiple of the other.

LLVM then addresses both by one index, loads more elements early, and spills the sums of larger
tiles. Functions for more rows are not inlined, so that their spills do not affect smaller ones.
"""
MOST_ROW_STRIDE = 32
"""The largest row stride of a tile: patches of images are at most that far apart."""
_AHEAD = 1 << 10
"""Elements from the weights that are multiplied to those that are prefetched.

They fill a page, at whose end the processor's own prefetching stops.
"""


@dataclass(frozen=True)
class Tile:
    """The size of register tiles for a processor."""

    lanes: int
    """Elements of a vector register."""
    vectors: int
    """Vectors of columns."""
    rows: int
    """The most rows."""
    in_planes: bool = False
    """Whether the table has places in `a` rather than in `b`, see `call_tile`."""
    row_stride: int = 1
    """The distance in `a` between neighbouring rows, for a tile in planes. It is a constant of the
    function: for a distance known only at run time, LLVM runs out of registers."""

    def __post_init__(self) -> None:
        assert self.in_planes or self.row_stride == 1, "only tiles in planes have a row stride"

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.lanes * self.vectors

    @property
    def size(self) -> str:
        """The part of a micro-kernel's name that tells tiles apart."""
        planes = f"planes_{self.row_stride}_" if self.in_planes else ""
        return f"{planes}{self.lanes}x{self.vectors}"


def native_tile() -> Tile:
    """The tile for float32 on the processor of the target in scope.

    The sums take up most of the registers: 28 of the 32 of AVX-512, 12 of the 16 of AVX2, and 24 of
    the 32 of NEON.
    """
    lanes = vector_bytes() // 4
    return Tile(lanes, 2, {16: 14, 8: 6, 4: 12}[lanes])


def narrow_tile() -> Tile:
    """The tile for the last columns, if they are no more than a vector."""
    return replace(native_tile(), vectors=1)


def channel_tile() -> Tile:
    """The tile for few positions, whose columns are the output channels of a native tile."""
    tile = native_tile()
    vectors = -(-tile.rows // tile.lanes)
    rows = tile.rows * tile.vectors // max(tile.vectors, vectors)
    return Tile(tile.lanes, vectors, rows, in_planes=True)


def line_tile() -> Tile:
    """The tile for products of a single row: as many sums as hide the latency of multiply-add."""
    return Tile(native_tile().lanes, 4, 1)


def call_tile(
    tile: Tile,
    rows: Any,
    a: Any,
    b: Any,
    out: Any,
    table: Any,
    counts: tuple[Any, Any],
    a_strides: tuple[Any, Any],
    b_stride: Any,
    out_row: Any,
    adds: Any = 0,
    a_ahead: Any = 0,
    following: tuple[Any, Any] | None = None,
) -> None:
    """Emits a call of the micro-kernel for convolutions.

    It computes `out[r * out_row + v]`, the sum over i < counts[0] and j < counts[1] of
    `a[i * a_strides[0] + j * a_strides[1] + r * tile.row_stride] * b[i * b_stride + table[j] + v]`.
    A tile `in_planes` has `table[j]` and `j * a_strides[1]` in each other's place; only such a tile
    may have a row stride other than 1. Where `adds` is not 0, the sum is added to what `out` holds.

    `following` is an address and a step: for the n-th pair (i, j), a tile of several rows
    prefetches the element n * step after the address. If it is not in planes, it also prefetches
    the elements that lie `a_ahead` after those of `a` that it reads.
    """
    address, step = (b, 0) if following is None else following
    numbers = [*counts, *a_strides, b_stride, out_row, adds, a_ahead, step]
    call_function(f"{TILE}{tile.size}", rows, a, b, out, table, address, *numbers)


def call_product(
    tile: Tile, columns: int | None, here: Any, rows: Any, a: Any, b: Any, out: Any,
    count: Any, a_strides: tuple[Any, Any], b_stride: Any,
    ahead: tuple[Any, Any],
) -> Any:  # fmt: skip
    """Emits a call of the micro-kernel for matrix products; returns the distance of rows of `out`.

    With it as `out_row`, `out[r * out_row + v]` becomes the sum over k < count of
    `a[r * a_strides[0] + k * a_strides[1]] * b[k * b_stride + v]`. Of `columns` in all panels, if
    their number is known, this one has `here`. For each k the call prefetches the cache line of
    `b[ahead[0] + k * ahead[1]]`: of the two lines of a row on AVX-512, the processor fetches the
    other by itself.
    """
    distance, step = ahead
    addresses = (a, b, out, _moved(b, distance))
    numbers = (count, *a_strides, b_stride, step)

    def call(kind: Tile) -> None:
        name = f"{PRODUCT}{kind.size}"
        # Whole tiles, which are most, need no selection.
        with ib.If(rows == kind.rows):
            with ib.Then():
                whole = _product_arguments(kind, addresses, numbers)
                call_function(f"{name}_{kind.rows}", *whole)
            with ib.Else():
                call_function(name, rows, *addresses, *numbers)

    return _with_fitting_tile(tile, columns, here, call)


def _with_fitting_tile(
    tile: Tile, columns: int | None, here: Any, call: Callable[[Tile], None]
) -> Any:
    """Emits `call` with the tile for a panel, a narrow one for a vector of columns at most.

    Of `columns` in all panels, this one has `here`. Returns the width of the tile.
    """
    if columns is None or not 0 < columns % tile.width <= tile.lanes:
        call(tile)
        return int64(tile.width)
    if columns <= tile.lanes:
        call(narrow_tile())
        return int64(tile.lanes)
    with ib.If(here > tile.lanes):
        with ib.Then():
            call(tile)
        with ib.Else():
            call(narrow_tile())
    return bound(tirx.Select(here > tile.lanes, int64(tile.width), int64(tile.lanes)))


def rows_ahead(tile: Tile, b_stride: Any) -> tuple[Any, Any]:
    """The distance and the step of rows that lie `_AHEAD` elements after those that are read."""
    return b_stride * (_AHEAD // tile.width), b_stride


def share_of_next_panel(
    panel_elements: Any, row_elements: Any, number: Any, passes: Any
) -> tuple[Any, Any]:
    """The distance and the step of what one of several passes over a panel of weights prefetches.

    It is the pass's share of the next panel, which follows in memory: an element with each row that
    the pass reads. The distance is that from the panel's first element to the first of the share.
    A single pass prefetches its own panel, `_AHEAD` elements before it reads them.
    """
    begin = panel_elements + tirx.floordiv(number * panel_elements, passes)
    distance = tirx.Select(passes > 1, begin, int64(_AHEAD))
    simplify = sym.Analyzer().simplify
    return bound(simplify(distance)), bound(simplify(ceil_div(row_elements, passes)))


def call_panel(
    tile: Tile, columns: int | None, here: Any, rows: Any, a: Any, b: Any, out: Any, zero: Any,
    depth: Any, a_stride: Any, taps: int = 1, adds: Any = 0, a_ahead: Any = 0,
    following: tuple[Any, Any] | None = None, used_taps: Any = None,
) -> None:  # fmt: skip
    """Emits a call that multiplies `a[k * a_stride + r]`, for rows r, by a panel `b[k, v]`.

    Of `columns` in all panels, this one has `here`; the others of its width are 0. `zero` is the
    address of a 0. With taps, it multiplies `a[k * a_stride + table[t] + r * tile.row_stride]` by
    `b[k, t, v]`, and `zero` is the address of the table. If `used_taps` is given, only that many
    taps are multiplied. `adds`, `a_ahead` and `following` are those of `call_tile`.
    """
    counts = depth, int64(taps) if used_taps is None else used_taps
    width = int64(tile.width)
    strides = (a_stride, int64(tile.width if tile.in_planes else 0))

    def call(kind: Tile) -> None:
        kind = replace(kind, in_planes=tile.in_planes, row_stride=tile.row_stride)
        call_tile(
            kind, rows, a, b, out, zero, counts, strides, width * taps, width, adds, a_ahead,
            following,
        )  # fmt: skip

    _with_fitting_tile(tile, columns, here, call)


def call_panels(
    tile: Tile, weights: Any, planes: Any, out: Any, table: Any, *, panels: Any, positions: Any,
    tiles: Any, rows: Any, tile_rows: int, channels: Any, taps: int, depth: Any,
    channel_stride: Any, out_row: Any, most_few: int,
) -> None:  # fmt: skip
    """Emits a call that multiplies panels of positions by tiles of output channels.

    `out[row * out_row + position]` becomes the sum over channels c and taps t of
    `planes[c * channel_stride + table[t] + position] * weights[row // tile_rows, c, t, row %
    tile_rows]`. There are `rows` output channels in all and `positions` of the positions; the last
    panel and the last tile may have fewer than others. `depth` channels of a panel are read before
    the next tile. A last panel of at most `most_few` positions takes vectors of output channels,
    which reach past the end of the weights.
    """
    arguments = [
        weights, planes, out, table, panels, positions, tiles, rows, tile_rows, channels, taps,
        depth, channel_stride, out_row, most_few,
    ]  # fmt: skip
    call_function(f"{PANELS}{tile.size}", *arguments)


def _argument(value: Any) -> Any:
    return tirx.IntImm("int64", value) if isinstance(value, int) else value


def call_function(name: str, *arguments: Any) -> None:
    """Emits a call of another shared function."""
    ib.evaluate(tirx.call_extern("int32", name, *map(_argument, arguments)))


def call_copy_row(
    target: Any, source: Any, before: Any, count: Any, after: Any, stride: Any, fill: Any
) -> None:
    """Emits a call that writes a padded row.

    It writes `before` times `fill`, `count` elements of the source at a stride, and `after` times
    `fill`. `target` and `source` are addresses.
    """
    call_function(COPY_ROW, target, source, before, count, after, stride, fill)


COPY_ROW = "looplift_copy_row"
TILE, PRODUCT, PANELS = "looplift_tile_", "looplift_product_", "looplift_panels_"
_TILE_NUMBERS = ("count_i", "count_j", "a_i", "a_j", "b_i", "out_row", "adds", "a_ahead", "step")
_TILE_POINTERS = ("a", "b", "out", "table", "following")
_PRODUCT_NUMBERS = ("count", "a_row", "a_k", "b_k", "step")
_PRODUCT_POINTERS = ("a", "b", "out", "following")
_ROWS_OF_POINTER = 3
"""Rows of a product that are read at strides from one pointer.

With an address for each row, LLVM has no registers for all of them, and moves sums to memory
in every step.
"""


def _parameters(pointers: Iterable[str], numbers: Iterable[str]) -> tuple[list[Any], list[Any]]:
    """Pointers to float32, or to int64 for a table, and numbers."""
    handles = [ib.handle("int64" if name == "table" else "float32") for name in pointers]
    arguments = [ib.arg(name, handle) for name, handle in zip(pointers, handles, strict=True)]
    return arguments, [ib.arg(name, ib.int64()) for name in numbers]


def selector(name: str, tile: Tile, selection: Callable[..., None]) -> tirx.PrimFunc:
    """The function that calls the micro-kernel for a number of rows."""
    with IRBuilder() as builder, function_frame():
        rows = ib.arg("rows", ib.int64())

        def select(arguments: list[Any], first: int = 1, last: int = tile.rows) -> None:
            if first == last:
                ib.evaluate(tirx.call_extern("int32", f"{name}_{first}", *arguments))
                return
            middle = (first + last + 1) // 2
            with ib.If(rows < middle):
                with ib.Then():
                    select(arguments, first, middle - 1)
                with ib.Else():
                    select(arguments, middle, last)

        selection(tile, select)
    return noinline(builder.get())


def select_tile(tile: Tile, select: Callable[[list[Any]], None]) -> None:
    """Emits the selection for `selector` of what `call_tile` calls."""
    pointers, numbers = _parameters(_TILE_POINTERS, _TILE_NUMBERS)
    select([*pointers, *numbers])


def select_product(tile: Tile, select: Callable[[list[Any]], None]) -> None:
    """Emits the selection for `selector` of what `call_product` calls."""
    pointers, numbers = _parameters(_PRODUCT_POINTERS, _PRODUCT_NUMBERS)
    select(_product_arguments(tile, pointers, numbers))


def _product_arguments(tile: Tile, addresses: Sequence[Any], numbers: Sequence[Any]) -> list[Any]:
    """The arguments of the function for a number of rows."""
    a, *others = addresses
    a_row = numbers[_PRODUCT_NUMBERS.index("a_row")]
    parts = [_moved(a, row * a_row) for row in range(0, tile.rows, _ROWS_OF_POINTER)]
    return [*parts, *others, *numbers]


def _moved(address: Any, elements: Any) -> Any:
    """An address that lies a number of elements after another."""
    return tirx.handle_add_byte_offset(address, elements * 4)


class _Sums:
    """The sums of a tile, in registers: a buffer becomes one if every index into it is known."""

    def __init__(self, tile: Tile, rows: int) -> None:
        self._lanes = tile.lanes
        places = itertools.product(range(rows), range(tile.vectors))
        self._buffers = {place: ib.alloc_buffer((tile.lanes,), "float32") for place in places}
        self._whole = self._span(tirx.IntImm("int64", 0))

    def _span(self, first: Any) -> Any:
        return tirx.Ramp(first, tirx.IntImm("int64", 1), self._lanes)

    def clear(self) -> None:
        """Emits zeros."""
        nothing = tirx.Broadcast(tirx.const(0.0, "float32"), self._lanes)
        for buffer in self._buffers.values():
            ib.buffer_store(buffer, nothing, [self._whole])

    def load(self, out: Any, out_row: Any) -> None:
        """Emits loads of the sums."""
        for (row, vector), buffer in self._buffers.items():
            place = self._span(row * out_row + vector * self._lanes)
            ib.buffer_store(buffer, out[place], [self._whole])

    def add(self, element: Callable[[int], Any], b: Any, first: Any) -> None:
        """Emits the addition of products of `element(row)` with the vectors of b from `first`."""
        for (row, vector), buffer in self._buffers.items():
            factor = tirx.Broadcast(element(row), self._lanes)
            product = factor * b[self._span(first + vector * self._lanes)]
            ib.buffer_store(buffer, buffer[self._whole] + product, [self._whole])

    def add_all(self, others: _Sums) -> None:
        """Emits the addition of other sums of as many rows."""
        for buffer, other in zip(self._buffers.values(), others._buffers.values(), strict=True):
            ib.buffer_store(buffer, buffer[self._whole] + other[self._whole], [self._whole])

    def store(self, out: Any, out_row: Any) -> None:
        """Emits stores of the sums."""
        for (row, vector), buffer in self._buffers.items():
            place = self._span(row * out_row + vector * self._lanes)
            ib.buffer_store(out, buffer[self._whole], [place])


def _chains(tile: Tile, rows: int) -> int:
    """How many sums of each element are added up at the end, as many as hide the latency."""
    return max(8 // (rows * tile.vectors), 1) if tile.rows > 1 else 1


def tile_function(tile: Tile, rows: int) -> tirx.PrimFunc:
    """What `call_tile` calls, for a number of rows."""
    with IRBuilder() as builder, function_frame():
        pointers, numbers = _parameters(_TILE_POINTERS, _TILE_NUMBERS)
        count_i, count_j, a_i, a_j, b_i, out_row, adds, a_ahead, step = numbers
        a, b, out, table, following = (
            ib.decl_buffer(ANY_SHAPE, "int64" if name == "table" else "float32", data=pointer)
            for name, pointer in zip(_TILE_POINTERS, pointers, strict=True)
        )
        sums, *others = (_Sums(tile, rows) for _ in range(_chains(tile, rows)))
        with ib.If(adds == 0):
            with ib.Then():
                sums.clear()
            with ib.Else():
                sums.load(out, out_row)

        def add(to: _Sums, i: Any, j: Any) -> None:
            steps = (table[j], j * a_j) if tile.in_planes else (j * a_j, table[j])
            first, of_b = i * a_i + steps[0], i * b_i + steps[1]
            to.add(lambda row: a[first + row * tile.row_stride], b, of_b)
            if tile.rows > 1:
                prefetch(following, (i * count_j + j) * step, is_write=0, locality=2)
            if tile.rows > 1 and not tile.in_planes:
                prefetch(a, first + a_ahead, is_write=0, locality=2)

        groups: Any = int64(0)
        together = len(others) + 1
        if others:
            groups = bound(tirx.floordiv(count_i, together))
            for chain in others:
                chain.clear()
            with ib.serial(groups) as group, ib.serial(count_j) as j:
                for number, chain in enumerate((sums, *others)):
                    add(chain, group * together + number, j)
            for chain in others:
                sums.add_all(chain)
        with ib.serial(count_i - groups * together) as i, ib.serial(count_j) as j:
            add(sums, groups * together + i, j)
        sums.store(out, out_row)
    function = builder.get()
    return noinline(function) if rows > ROWS_OF_KNOWN_STRIDES else function


def panels_function(tile: Tile) -> tirx.PrimFunc:
    """What `call_panels` calls."""
    few, is_line = channel_tile(), tile.rows == 1
    with IRBuilder() as builder, function_frame():
        names = (
            "panels", "positions", "tiles", "rows", "tile_rows", "channels", "taps", "depth",
            "channel_stride", "out_row", "most_few",
        )  # fmt: skip
        pointers, numbers = _parameters(("a", "b", "out", "table"), names)
        weights, planes, out = (
            ib.decl_buffer(ANY_SHAPE, "float32", data=pointer) for pointer in pointers[:3]
        )
        table = pointers[3]
        panels, positions, tiles, rows, tile_rows, channels, taps, depth, *rest = numbers
        channel_stride, out_row, most_few = rest
        tap_rows = bound(taps * tile_rows)
        last = bound(positions - (panels - 1) * tile.width)
        is_few = bound(tirx.Cast("int64", tirx.all(last > 0, last <= most_few)))

        def rows_of(offset: Any) -> Any:
            return bound(tirx.min(rows - offset * tile_rows, tile_rows))

        with (
            ib.serial(tirx.floordiv(channels + depth - 1, depth)) as block,
            ib.serial(panels - is_few) as panel,
            ib.serial(tiles) as offset,
        ):
            channel = bound(block * depth)
            start = bound(panel * tile.width)
            target = bound(start + offset * tile_rows * out_row)

            here = bound((offset * channels + channel) * tap_rows)
            # After the last channels, those of the next tiles follow. A single panel prefetches its
            # own weights.
            passes = bound(panels - is_few)
            depth_here = bound(tirx.min(channels - channel, depth))
            is_last = tirx.all(channel + depth >= channels, passes > 1)
            gap = tirx.Select(is_last, (tiles - 1) * channels * tap_rows, int64(0))
            distance, step = share_of_next_panel(depth_here * tap_rows, tile_rows, panel, passes)

            def multiply(tile: Tile) -> None:
                call_tile(
                    tile, rows_of(offset), tirx.address_of(weights[here]),
                    tirx.address_of(planes[bound(start + channel * channel_stride)]),
                    tirx.address_of(out[target]), table,
                    (depth_here, taps), (tap_rows, tile_rows),
                    channel_stride, out_row, channel, _AHEAD,
                    (tirx.address_of(weights[bound(here + gap + distance)]), step),
                )  # fmt: skip

            if is_line:
                multiply(tile)
            else:
                with ib.If(positions - start > tile.lanes):
                    with ib.Then():
                        multiply(tile)
                    with ib.Else():
                        multiply(narrow_tile())
        if not is_line:
            start = bound((panels - 1) * tile.width)
            with ib.If(is_few != 0), ib.Then(), ib.serial(tiles) as offset:
                sums = ib.alloc_buffer((few.rows * few.width,), "float32")
                here = bound(offset * channels * tap_rows)
                call_tile(
                    few, last, tirx.address_of(planes[start]), tirx.address_of(weights[here]),
                    sums.data, table, (channels, taps), (channel_stride, tile_rows), tap_rows,
                    few.width, following=(tirx.address_of(weights[here + _AHEAD]), tile_rows),
                )  # fmt: skip
                target = bound(start + offset * tile_rows * out_row)
                call_function(
                    TRANSPOSE, tirx.address_of(out[target]), sums.data, last, rows_of(offset),
                    out_row, few.width,
                )  # fmt: skip
    return noinline(builder.get())


def product_function(tile: Tile, rows: int) -> tirx.PrimFunc:
    """What `call_product` calls, for a number of rows.

    It is not inlined: in its caller it would be wrong, see `noinline`. Each number of rows has a
    function of its own: in one for all, LLVM shares their last instructions and keeps the sums in
    memory.
    """
    with IRBuilder() as builder, function_frame():
        names = [f"a{row}" for row in range(0, tile.rows, _ROWS_OF_POINTER)]
        pointers, numbers = _parameters([*names, *_PRODUCT_POINTERS[1:]], _PRODUCT_NUMBERS)
        count, a_row, a_k, b_k, step = numbers
        buffers = [ib.decl_buffer(ANY_SHAPE, "float32", data=pointer) for pointer in pointers]
        *parts, b, out, following = buffers
        sums = _Sums(tile, rows)
        sums.clear()

        with ib.serial(count) as k:

            def element(row: int) -> Any:
                part, inside = divmod(row, _ROWS_OF_POINTER)
                return parts[part][k * a_k + inside * a_row]

            sums.add(element, b, k * b_k)
            prefetch(following, k * step, is_write=0, locality=2)
        sums.store(out, tile.width)
    return noinline(builder.get())


def copy_row_function(lanes: int) -> tirx.PrimFunc:
    """What `call_copy_row` calls. LLVM would unroll the loop over rows if it were inlined."""
    with IRBuilder() as builder, function_frame():
        pointers, numbers = _parameters(
            ("target", "source"), ("before", "count", "after", "stride")
        )
        before, count, after, stride = numbers
        fill = ib.arg("fill", ib.float32())
        target, source = (
            ib.decl_buffer(ANY_SHAPE, "float32", data=pointer) for pointer in pointers
        )

        def write_fill(first: Any, number: Any) -> None:
            # Most rows have one element of padding at most, which is faster without a call.
            with ib.If(number > 0), ib.Then():
                ib.buffer_store(target, fill, [first])
                with ib.serial(number - 1) as k:
                    ib.buffer_store(target, fill, [first + 1 + k])

        def copy_vector(size: int, first: Any, shift: int) -> None:
            """Copies `size` elements at a stride of 2.

            They are read as a vector of two strides, which starts `shift` elements before them.
            """
            pairs = source[span(first * 2 - shift, 2 * size)]
            every_second = tirx.Shuffle([pairs], list(range(shift, 2 * size, 2)))
            ib.buffer_store(target, every_second, [span(before + first, size)])

        def copy_strided(sizes: Sequence[int]) -> None:
            """Copies at a stride: vectors of the largest size below `count` if it is 2."""
            if not sizes:
                with ib.serial(count) as k:
                    ib.buffer_store(target, source[k * stride], [before + k])
                return
            size, *smaller = sizes
            with ib.If(tirx.all(stride == 2, count > size)):
                with ib.Then():
                    with ib.serial(tirx.floordiv(count - 1, size)) as k:
                        copy_vector(size, k * size, 0)
                    # The last vector ends with the last element: none after it may be read.
                    copy_vector(size, count - size, 1)
                with ib.Else():
                    copy_strided(smaller)

        write_fill(tirx.IntImm("int64", 0), before)
        with ib.If(stride == 1):
            with ib.Then(), ib.serial(count) as k:
                ib.buffer_store(target, source[k], [before + k])
            with ib.Else():
                copy_strided([size for size in (lanes, lanes // 2, lanes // 4) if size >= 4])
        write_fill(before + count, after)
    return noinline(builder.get())
