"""Depthwise convolutions, and sums and maxima of windows: channels in vectors.

A few channels of a chunk of lines are transposed, so that each position is one vector of channels,
and copied into a padded plane. All windows then read whole vectors at any stride, dilation and
width of the image: lines of 7 positions take 7 vectors. Taps that read only padding are left out
at run time. The results are transposed back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from ..functions.lane_kernels import MAXIMA, MOST_POSITIONS, PRODUCTS, SUMS, TRANSPOSE
from ..functions.micro_kernels import call_copy_row, call_function, native_tile
from ..kernels.affine import flat, int64, static_size, unflattened
from ..kernels.emission import (
    bound,
    ceil_div,
    compute_block,
    even_part,
    for_items,
    pieces,
    rewritten,
    unless_empty,
)
from ..kernels.nests import inlined, substituted
from ..products.convolution_form import (
    Convolved,
    SpatialAxis,
    convolution_of,
    maximum_of,
    sum_of,
    windows_overlap,
)
from ..relax.packing import pack_weights
from .window_axes import (
    UsedAxis,
    extent_of_window,
    extent_of_windows,
    inside,
    taps_inside,
    with_all_taps,
    with_used_taps,
)

HAS_LONG_LINES = "looplift.has_long_lines"
"""The attribute of kernels whose lines are long where their size is unknown."""
_LONG = 256
"""Elements of a line from which on it is long."""
_FORMS: dict[str, Callable[[tirx.PrimFunc], Convolved | None]] = {
    MAXIMA: maximum_of,
    SUMS: sum_of,
    PRODUCTS: convolution_of,
}
"""What finds the windows of a kernel, by the shared function that combines their elements."""
_CACHED = 1 << 15
"""Elements of a plane, so that it stays in the second-level cache with its results."""
_ITEM_POSITIONS = 256
"""The positions of an item, which takes several vectors of channels where an image has fewer."""
_COST_OF_ELEMENT = 4
"""The time to transpose and write an element, in multiply-adds."""


class ChannelLanes(ScheduleRule):  # type: ignore[misc]
    """Depthwise convolutions and pooling in NCW and NCHW, of at least a vector of channels."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        for function, form in _FORMS.items():
            found = form(kernel)
            if found is not None:
                return _scheduled(kernel, found, function)
        return None


def _scheduled(kernel: tirx.PrimFunc, found: Convolved, function: str) -> s_tir.Schedule | None:
    if found.product.rows or found.channel is not None:
        return None
    if function == SUMS and not windows_overlap(found):
        return None  # They are added up as fast where they are.
    if _combines_long_lines(kernel, found):
        return None  # Transposing takes longer than what it saves.
    weights = found.product.a if function == PRODUCTS else None
    lane = _lane(found, weights)
    if lane is None:
        return None
    emission = LaneEmission(kernel, found, weights, lane, function)
    return s_tir.Schedule(rewritten(kernel, emission.emit))


def _combines_long_lines(kernel: tirx.PrimFunc, found: Convolved) -> bool:
    """Whether windows are columns of an image with long lines: positions fill vectors."""
    *outer, inner = found.axes
    if not outer or inner.taps > 1 or inner.stride > 1:
        return False
    size = static_size(inner.size)
    return HAS_LONG_LINES in (kernel.attrs or {}) if size is None else size >= _LONG


def _lane(found: Convolved, weights: Any) -> Any:
    """The variable of channels; None if there is no vector of them."""
    product = found.product
    lanes = native_tile().lanes
    own = [v for v in product.batch if weights is None or v in weights.position.coefficients]
    if not own or (weights is not None and len(own) > 1) or len(found.axes) > 2:
        return None
    channels = static_size(product.extent(own[-1]))
    if channels is None or channels < lanes:
        return None
    if static_size(found.position.of(found.positions[-1])) != 1:
        return None
    # Vectors of channels overlap, so some elements are written twice.
    if channels % lanes and found.store.is_in_place:
        return None
    return own[-1]


@dataclass(frozen=True)
class LaneChunk:
    """A few output lines, or positions of a line, of a vector of channels."""

    values: dict[Any, Any]
    """Of the batch variables, with the first channel."""
    first: Any
    count: Any


@dataclass(frozen=True)
class _Region:
    """The padded lines and columns that a chunk reads, and which of them are in the image."""

    start: Any
    """The first padded line."""
    lines: Any
    top: Any
    """The first of these lines that is in the image, and the one after the last."""
    bottom: Any
    extent: Any
    """The number of padded columns."""
    low: Any
    """The first column that is in the image, and the one after the last."""
    high: Any
    count: Any
    """The number of columns that are in the image."""


class LaneEmission:
    """The kernel; an item of work is a few chunks of an image and a vector of its channels."""

    def __init__(
        self, kernel: tirx.PrimFunc, found: Convolved, weights: Any, lane: Any, function: str
    ) -> None:
        self._function = function
        """The shared function that combines the elements of windows."""
        self._kernel = kernel
        self._found = found
        self._product = found.product
        self._weights = weights
        self._lane = lane
        self._lanes = native_tile().lanes
        self._channels = int(self._product.extent(lane))
        self._groups = -(-self._channels // self._lanes)
        self._taps = math.prod(axis.taps for axis in found.axes)
        self._position = found.position

    def emit(self) -> None:
        packed = None if self._weights is None else self.pack_weights()
        with compute_block("windows"), unless_empty(self._found.store.written):
            self._found.store.declare()
            self.emit_items(flat(self._found.source), None if packed is None else flat(packed))

    def emit_items(self, source: Any, packed: Any) -> None:
        """Emits all items, with the flat input and the packed weights; None for no weights."""
        self._source, self._packed = source, packed
        self._items()

    def pack_weights(self) -> Any:
        """Packs the weights into `[group of lanes, tap, lane]`."""
        source = self._weights.buffer

        def element(group: Any, tap: Any, lane: Any) -> Any:
            values = self._tap_values(tap)
            values[self._lane] = self._first_channel(group) + lane
            return source[tuple(substituted(index, values) for index in self._weights.indices)]

        shape = (int64(self._groups), int64(self._taps), int64(self._lanes))
        return pack_weights(self._kernel, source, shape, element)

    def _first_channel(self, group: Any) -> Any:
        """The last vector of channels ends with the last channel."""
        if self._channels % self._lanes == 0:
            return group * self._lanes
        return tirx.min(group * self._lanes, int64(self._channels - self._lanes))

    def _tap_values(self, number: Any) -> dict[Any, Any]:
        taps = [axis.tap for axis in self._found.axes if axis.tap is not None]
        return unflattened(taps, self._product.extent, number)

    # --- items ---

    def _items(self) -> None:
        lanes = self._lanes
        # An expression of the kernel's own sizes (see `bound`), and room for the last whole vector.
        self._elements = tirx.max(int64(_CACHED), self._least_size()) + lanes
        self._axes = [
            with_used_taps(axis) if self._can_skip(axis) else with_all_taps(axis)
            for axis in self._found.axes
        ]
        *outer, inner = self._axes
        width = extent_of_windows(inner, inner.size)
        if outer:
            (line,) = outer
            self._pitch = bound(self._pitch_of(width))
            lines = tirx.floordiv(int64(_CACHED // lanes), self._pitch)
            most = tirx.floordiv(lines - extent_of_window(line), line.stride)
            total = line.size
        else:
            self._pitch, total = bound(width), inner.size
            most = tirx.floordiv(_CACHED // lanes - extent_of_window(inner), int64(inner.stride))
        total = bound(total)
        count = bound(even_part(total, tirx.max(most + 1, int64(1))))
        chunks = bound(pieces(total, tirx.max(count, int64(1))))
        others = [v for v in self._product.batch if not v.same_as(self._lane)]
        images = bound(self._product.count(others))
        positions = self._product.count(self._product.columns)
        work = images * self._channels * positions * (self._taps + _COST_OF_ELEMENT)
        self._fill_table()

        def combine(number: Any, plane: Any, room: Any) -> None:
            first = bound(tirx.floormod(number, chunks) * count)
            rest = bound(tirx.floordiv(number, chunks))
            group = bound(tirx.floormod(rest, int64(self._groups)))
            image = tirx.floordiv(rest, int64(self._groups))
            values = unflattened(others, self._product.extent, bound(image))
            values = {variable: bound(value) for variable, value in values.items()}
            values[self._lane] = bound(self._first_channel(group))
            chunk = LaneChunk(values, first, bound(tirx.min(total - first, count)))
            self._fill_plane(chunk, plane, room)
            self._compute(chunk, group, plane, room)

        numbers = bound(images * self._groups * chunks)
        length = count * inner.size if outer else count
        together = tirx.floordiv(int64(_ITEM_POSITIONS), tirx.max(length, int64(1)))
        together = bound(tirx.max(together, int64(1)))

        def item(index: Any) -> None:
            plane = ib.alloc_buffer((self._elements,), "float32")
            room = ib.alloc_buffer((self._elements,), "float32")
            first = bound(index * together)
            with ib.serial(bound(tirx.min(numbers - first, together))) as number:
                combine(bound(first + number), plane, room)

        for_items(bound(pieces(numbers, together)), work, item)

    def _pitch_of(self, width: Any) -> Any:
        """The distance of lines in the plane, in positions.

        A line holds the `width` that windows span, and a whole line of the input.
        """
        return tirx.max(width, self._position.of(self._found.positions[0]))

    def _least_size(self) -> Any:
        """The elements of a plane for one line of the output, or for one position of a line."""
        *outer, inner = self._found.axes
        if not outer:
            return self._lanes * extent_of_window(inner)
        width = extent_of_windows(inner, inner.size)
        return self._pitch_of(width) * (self._lanes * extent_of_window(outer[0]))

    def _can_skip(self, axis: SpatialAxis) -> bool:
        """Whether taps that read padding along an axis can be left out at run time.

        Where the size is known, `drop_unused_taps` has left them out. As in `tap_products`,
        infinite and NaN weights of such taps do not reach the output.
        """
        adds_nothing = self._function != MAXIMA and self._found.has_zero_fill
        return adds_nothing and axis.taps > 1 and static_size(axis.size) is None

    def _fill_table(self) -> None:
        """The distances to each tap from the first one, in the plane and in the weights."""
        # Of type int64, so that `merge_kernels` can make it an argument.
        self._table = ib.alloc_buffer((int64(2 * self._taps),), "int64")
        self._used_taps = bound(math.prod((axis.taps for axis in self._axes), start=int64(1)))
        with ib.serial(self._used_taps) as tap:
            number, place, weight = tap, int64(0), int64(0)
            pitch, row = int64(1), 1
            for axis in reversed(self._axes):
                index = bound(tirx.floormod(number, axis.taps))
                place = place + index * axis.dilation * pitch
                weight = weight + (axis.first + index) * row
                number = tirx.floordiv(number, axis.taps)
                pitch, row = self._pitch, row * axis.all_taps
            ib.buffer_store(self._table, place * self._lanes, [2 * tap])
            ib.buffer_store(self._table, weight * self._lanes, [2 * tap + 1])

    def _taps_of_line(self, number: Any) -> tuple[Any, Any]:
        """The first entry in the table, and the number, of the taps that an output line needs."""
        *outer, inner = self._axes
        if not outer or not self._can_skip(self._found.axes[0]):
            return int64(0), self._used_taps
        start = number * outer[0].stride
        first, end = taps_inside(outer[0], start, start)
        rows = tirx.max(end - first, int64(0))
        return bound(first * inner.taps * 2), bound(rows * inner.taps)

    # --- input ---

    def _fill_plane(self, chunk: LaneChunk, plane: Any, room: Any) -> None:
        """Transposes what a chunk reads, and copies it into the plane with its padding."""
        *outer, inner = self._axes
        if outer:
            self._fill_lines(chunk, outer[0], inner, plane, room)
        else:
            start = bound(chunk.first * inner.stride)
            extent = bound(extent_of_windows(inner, chunk.count))
            low, high = inside(inner, start, extent)
            values = {self._found.positions[0]: start + low}
            self._fill(plane, int64(0), low)
            self._copy_positions(chunk, values, plane, low, bound(high - low))
            self._fill(plane, high, extent - high)

    def _fill_lines(
        self, chunk: LaneChunk, line: UsedAxis, inner: UsedAxis, plane: Any, room: Any
    ) -> None:
        line_position, position = self._found.positions
        skips = self._can_skip(self._found.axes[0])  # Then no tap reads lines of padding.
        region = self._region(chunk, line, inner)
        top, bottom, low, count = region.top, region.bottom, region.low, region.count
        row = bound(self._position.of(line_position))
        # Either whole vectors of positions, which may overlap, or all lines as one matrix.
        vectors = ceil_div(count, self._lanes)
        is_wide = tirx.all(count >= self._lanes, vectors * (2 * self._lanes) <= count * 3)
        is_wide = bound(tirx.Cast("int64", is_wide))
        with ib.If(is_wide == 0):
            with ib.Then():
                columns = (bottom - top - 1) * row + count
                columns = tirx.Select(tirx.all(bottom > top, count > 0), columns, int64(0))
                values = {line_position: region.start + top, position: low}
                self._copy_positions(chunk, values, room, int64(0), bound(columns))
                filled, end = (top, bottom) if skips else (int64(0), region.lines)
                self._fill(plane, filled * self._pitch, (end - filled) * self._pitch)
                with ib.serial(bottom - top) as number:
                    target = bound((top + number) * self._pitch + low)
                    self._copy(plane, target, room, number * row, count)
            with ib.Else():
                self._fill_line_by_line(chunk, region, plane)

    def _region(self, chunk: LaneChunk, line: UsedAxis, inner: UsedAxis) -> _Region:
        start = bound(chunk.first * line.stride)
        lines = bound(extent_of_windows(line, chunk.count))
        extent = bound(extent_of_windows(inner, inner.size))
        top, bottom = inside(line, start, lines)
        low, high = inside(inner, int64(0), extent)
        return _Region(start, lines, top, bottom, extent, low, high, bound(high - low))

    def _fill_line_by_line(self, chunk: LaneChunk, region: _Region, plane: Any) -> None:
        line_position, position = self._found.positions
        low, high = region.low, region.high
        with ib.serial(region.lines) as number:
            target = bound(number * self._pitch)
            with ib.If(tirx.all(number >= region.top, number < region.bottom)):
                with ib.Then():
                    self._fill(plane, target, low)
                    values = {line_position: region.start + number, position: low}
                    self._copy_positions(chunk, values, plane, target + low, region.count)
                    self._fill(plane, bound(target + high), region.extent - high)
                if not self._can_skip(self._found.axes[0]):
                    with ib.Else():
                        self._fill(plane, target, region.extent)

    def _origin(self, chunk: LaneChunk, positions: Mapping[Any, Any]) -> Any:
        """Where the first channel of a chunk is in the input, at padded positions."""
        places = {
            variable: positions[variable] + axis.first * axis.dilation
            for variable, axis in zip(self._found.positions, self._axes, strict=True)
        }
        return self._position.at({**chunk.values, **places})

    def _copy_positions(
        self, chunk: LaneChunk, positions: Mapping[Any, Any], to: Any, place: Any, count: Any
    ) -> None:
        """Copies `count` positions of the input as vectors of channels, from a place on.

        Here neighbouring positions are neighbours in the input, so it transposes them.
        """
        origin = self._origin(chunk, positions)
        call_function(
            TRANSPOSE, tirx.address_of(to[bound(place * self._lanes)]),
            tirx.address_of(self._source[origin]),
            self._lanes, count, self._lanes, self._position.of(self._lane),
        )  # fmt: skip

    def _copy(self, plane: Any, place: Any, room: Any, start: Any, count: Any) -> None:
        source = tirx.address_of(room[bound(start * self._lanes)])
        target = tirx.address_of(plane[bound(place * self._lanes)])
        call_copy_row(target, source, 0, count * self._lanes, 0, 1, self._found.fill)

    def _fill(self, plane: Any, place: Any, count: Any) -> None:
        """Writes padding."""
        target = tirx.address_of(plane[bound(place * self._lanes)])
        call_copy_row(target, target, count * self._lanes, 0, 0, 1, self._found.fill)

    # --- output ---

    def _compute(self, chunk: LaneChunk, group: Any, plane: Any, room: Any) -> None:
        """Computes and writes the results of a chunk, whose input is in the plane."""
        lanes = self._lanes
        length, lines = self._line_length_and_count(chunk)
        with ib.serial(lines) as line:
            place = bound(line * length * lanes)
            self._combine(chunk, group, plane, line, length, tirx.address_of(room[place]))
        # The plane has been read.
        count = bound(lines * length)
        call_function(
            TRANSPOSE, tirx.address_of(plane[int64(0)]), tirx.address_of(room[int64(0)]),
            count, lanes, count, lanes,
        )  # fmt: skip
        self._write(chunk, plane, length, lines, count)

    def _line_length_and_count(self, chunk: LaneChunk) -> tuple[Any, Any]:
        """The number of positions of a line of a chunk, and the number of its lines."""
        if len(self._axes) == 1:
            return chunk.count, int64(1)
        return bound(self._axes[-1].size), chunk.count

    def _combine(
        self, chunk: LaneChunk, group: Any, plane: Any, number: Any, length: Any, out: Any
    ) -> None:
        """Computes line `number` of a chunk into `out`."""
        lanes = self._lanes
        *outer, inner = self._axes
        step = outer[0].stride if outer else 1
        together = bound(ceil_div(length, pieces(length, int64(MOST_POSITIONS))))
        weights = plane[int64(0)]
        if self._packed is not None:
            weights = self._packed[bound(group * (self._taps * lanes))]
        first, taps = self._taps_of_line(bound(chunk.first + number))
        call_function(
            self._function, together, out,
            tirx.address_of(plane[bound(number * (self._pitch * (step * lanes)))]),
            tirx.address_of(weights), tirx.address_of(self._table[first]), taps, length,
            inner.stride * lanes,
        )  # fmt: skip

    def _write(self, chunk: LaneChunk, results: Any, length: Any, lines: Any, count: Any) -> None:
        store, lanes = self._found.store, self._lanes
        columns = self._product.columns
        with ib.serial(int64(lanes)) as lane:
            here = dict(chunk.values)
            here[self._lane] = bound(here[self._lane] + lane)
            if len(columns) == 1 or store.flattens:
                here.update(dict.fromkeys(columns, int64(0)))
                here[columns[0]] = chunk.first
                start = bound(lane * count)
                self._run(here, count, results, start)
            else:
                with ib.serial(lines) as line:
                    here.update({columns[0]: bound(chunk.first + line), columns[-1]: int64(0)})
                    self._run(here, length, results, bound(lane * count + line * length))

    def _run(self, values: Mapping[Any, Any], count: Any, results: Any, start: Any) -> None:
        self._found.store.run(values, count, lambda k: results[start + k], self._lanes)
