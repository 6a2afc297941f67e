"""Depthwise convolutions and maxima of windows: channels in vectors.

A few channels of a chunk of lines are transposed, so that each position is one vector of channels,
and copied into a padded plane. All windows then read whole vectors at any stride, dilation and
width of the image: lines of 7 positions take 7 vectors. The results are transposed back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from .affine import Affine, affine, flat, int64, unflattened
from .convolution_form import Convolved, SpatialAxis, convolution_of, maximum_of, static_size
from .emission import bound, ceil_div, compute_block, even_part, for_items, pieces, rewritten
from .lane_kernels import MAXIMA, MOST_POSITIONS, SUMS, TRANSPOSE
from .micro_kernels import call_copy_row, call_function, native_tile
from .nests import inlined, substituted
from .packing import pack_weights

_CACHED = 1 << 15
"""Elements of a plane, so that it stays in the second-level cache with its results."""
_COST_OF_ELEMENT = 4
"""The time to transpose and write an element, in multiply-adds."""


class ChannelLanes(ScheduleRule):  # type: ignore[misc]
    """Depthwise convolutions and max pooling in NCW and NCHW, of at least a vector of channels."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        found = maximum_of(kernel)
        weights = None
        if found is None:
            found = convolution_of(kernel)
            if found is None or found.product.rows or found.channel is not None:
                return None
            weights = found.product.a
        lane = _lane(found, weights)
        if lane is None:
            return None
        return s_tir.Schedule(rewritten(kernel, _Emission(kernel, found, weights, lane).emit))


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
    if static_size(_position(found).of(found.positions[-1])) != 1:
        return None
    # Vectors of channels overlap, so some elements are written twice.
    if channels % lanes and found.store.is_in_place:
        return None
    return own[-1]


def _position(found: Convolved) -> Affine:
    """Where an element of the padded input is, in the batch variables and its position."""
    variables = [*found.product.batch, *found.positions]
    position = affine(list(found.source.shape), found.source_indices, variables)
    assert position is not None, "the padded operand is read at affine positions"
    return position


@dataclass(frozen=True)
class _Chunk:
    """A few output lines, or positions of a line, of a vector of channels."""

    values: dict[Any, Any]
    """Of the batch variables, with the first channel."""
    first: Any
    count: Any


class _Emission:
    def __init__(self, kernel: tirx.PrimFunc, found: Convolved, weights: Any, lane: Any) -> None:
        self._kernel = kernel
        self._found = found
        self._product = found.product
        self._weights = weights
        self._lane = lane
        self._lanes = native_tile().lanes
        self._channels = int(self._product.extent(lane))
        self._groups = -(-self._channels // self._lanes)
        self._taps = math.prod(axis.taps for axis in found.axes)
        self._position = _position(found)

    def emit(self) -> None:
        packed = None if self._weights is None else self._pack_weights()
        with compute_block("windows"):
            self._found.store.declare()
            self._source = flat(self._found.source)
            self._packed = None if packed is None else flat(packed)
            self._items()

    def _pack_weights(self) -> Any:
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
        lanes, found = self._lanes, self._found
        *outer, inner = found.axes
        width = _span(inner, inner.size)
        if outer:
            (line,) = outer
            # A line of the plane has room for one of the input.
            row = self._position.of(found.positions[0])
            pitch = tirx.max(width, row)
            least = _extent(line)
            lines = tirx.floordiv(int64(_CACHED // lanes), bound(pitch))
            most = tirx.floordiv(lines - least, line.stride)
            total, size = line.size, pitch * (lanes * least)
        else:
            pitch, total = width, inner.size
            most = int64((_CACHED // lanes - _extent(inner)) // inner.stride)
            size = int64(lanes * _extent(inner))
        self._pitch = bound(pitch)
        # An expression of the kernel's own sizes (see `bound`), and room for the last whole vector.
        self._elements = tirx.max(int64(_CACHED), size) + lanes
        total = bound(total)
        count = bound(even_part(total, tirx.max(most + 1, int64(1))))
        chunks = bound(pieces(total, tirx.max(count, int64(1))))
        others = [v for v in self._product.batch if not v.same_as(self._lane)]
        images = bound(self._product.count(others))
        positions = self._product.count(self._product.columns)
        work = images * self._channels * positions * (self._taps + _COST_OF_ELEMENT)
        self._fill_table()

        def item(number: Any) -> None:
            first = bound(tirx.floormod(number, chunks) * count)
            rest = bound(tirx.floordiv(number, chunks))
            group = bound(tirx.floormod(rest, int64(self._groups)))
            image = tirx.floordiv(rest, int64(self._groups))
            values = unflattened(others, self._product.extent, bound(image))
            values = {variable: bound(value) for variable, value in values.items()}
            values[self._lane] = bound(self._first_channel(group))
            chunk = _Chunk(values, first, bound(tirx.min(total - first, count)))
            plane = ib.alloc_buffer((self._elements,), "float32")
            room = ib.alloc_buffer((self._elements,), "float32")
            self._fill_plane(chunk, plane, room)
            self._compute(chunk, group, plane, room)

        for_items(images * self._groups * chunks, work, item)

    def _fill_table(self) -> None:
        """The distance from the first tap to each tap in the plane."""
        # Of type int64, so that `merge_kernels` can make it an argument.
        self._table = ib.alloc_buffer((int64(self._taps),), "int64")
        axes = self._found.axes
        pitches = [self._pitch, int64(1)][-len(axes) :]
        with ib.serial(int64(self._taps)) as tap:
            number, place = tap, int64(0)
            for axis, pitch in reversed(list(zip(axes, pitches, strict=True))):
                index = tirx.floormod(number, int64(axis.taps))
                place = place + index * axis.dilation * pitch
                number = tirx.floordiv(number, int64(axis.taps))
            ib.buffer_store(self._table, place * self._lanes, [tap])

    # --- input ---

    def _fill_plane(self, chunk: _Chunk, plane: Any, room: Any) -> None:
        """Transposes what a chunk reads, and copies it into the plane with its padding."""
        *outer, inner = self._found.axes
        if outer:
            self._fill_lines(chunk, outer[0], inner, plane, room)
        else:
            start = bound(chunk.first * inner.stride)
            extent = bound(_span(inner, chunk.count))
            low, high = _inside(inner, start, extent)
            values = {self._found.positions[0]: start + low}
            self._fill(plane, int64(0), low)
            self._transpose(chunk, values, plane, low, bound(high - low))
            self._fill(plane, high, extent - high)

    def _fill_lines(
        self, chunk: _Chunk, line: SpatialAxis, inner: SpatialAxis, plane: Any, room: Any
    ) -> None:
        line_position, position = self._found.positions
        start = bound(chunk.first * line.stride)
        lines = bound(_span(line, chunk.count))
        top, bottom = _inside(line, start, lines)
        extent = bound(_span(inner, inner.size))
        low, high = _inside(inner, int64(0), extent)
        row = bound(self._position.of(line_position))
        count = bound(high - low)
        # Either whole vectors of positions, which may overlap, or all lines as one matrix.
        vectors = ceil_div(count, self._lanes)
        is_wide = tirx.all(count >= self._lanes, vectors * (2 * self._lanes) <= count * 3)
        is_wide = bound(tirx.Cast("int64", is_wide))
        with ib.If(is_wide == 0), ib.Then():
            columns = (bottom - top - 1) * row + count
            columns = tirx.Select(tirx.all(bottom > top, count > 0), columns, int64(0))
            values = {line_position: start + top, position: low}
            self._transpose(chunk, values, room, int64(0), bound(columns))
        with ib.serial(lines) as number:
            target = bound(number * self._pitch)
            with ib.If(tirx.all(number >= top, number < bottom)):
                with ib.Then():
                    self._fill(plane, target, low)
                    with ib.If(is_wide == 0):
                        with ib.Then():
                            self._copy(plane, target + low, room, (number - top) * row, count)
                        with ib.Else():
                            values = {line_position: start + number, position: low}
                            self._transpose(chunk, values, plane, target + low, count)
                    self._fill(plane, bound(target + high), extent - high)
                with ib.Else():
                    self._fill(plane, target, extent)

    def _transpose(
        self, chunk: _Chunk, positions: Mapping[Any, Any], to: Any, place: Any, count: Any
    ) -> None:
        """Transposes `count` positions of the input into vectors from a place on."""
        origin = self._position.at({**chunk.values, **positions})
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

    def _compute(self, chunk: _Chunk, group: Any, plane: Any, room: Any) -> None:
        lanes = self._lanes
        *outer, inner = self._found.axes
        length = inner.size if outer else chunk.count
        length = bound(length)
        lines = chunk.count if outer else int64(1)
        step = outer[0].stride if outer else 1
        together = bound(ceil_div(length, pieces(length, int64(MOST_POSITIONS))))
        name, weights = MAXIMA, plane[int64(0)]
        if self._packed is not None:
            name, weights = SUMS, self._packed[bound(group * (self._taps * lanes))]
        with ib.serial(lines) as line:
            call_function(
                name, together, tirx.address_of(room[bound(line * length * lanes)]),
                tirx.address_of(plane[bound(line * (self._pitch * (step * lanes)))]),
                tirx.address_of(weights), self._table.data, self._taps, length,
                inner.stride * lanes,
            )  # fmt: skip
        # The plane has been read.
        count = bound(lines * length)
        call_function(
            TRANSPOSE, tirx.address_of(plane[int64(0)]), tirx.address_of(room[int64(0)]),
            count, lanes, count, lanes,
        )  # fmt: skip
        self._write(chunk, plane, length, lines, count)

    def _write(self, chunk: _Chunk, results: Any, length: Any, lines: Any, count: Any) -> None:
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


def _extent(axis: SpatialAxis) -> int:
    """The elements that the window of one position spans."""
    return (axis.taps - 1) * axis.dilation + 1


def _span(axis: SpatialAxis, count: Any) -> Any:
    """The elements that the windows of some positions span; none for no positions."""
    return tirx.max(count - 1, int64(0)) * axis.stride + _extent(axis)


def _inside(axis: SpatialAxis, start: Any, extent: Any) -> tuple[Any, Any]:
    """The part of `extent` padded positions from `start` on that is not padding."""
    low = bound(tirx.min(tirx.max(axis.low - start, int64(0)), extent))
    if axis.high is None:
        return low, extent
    return low, bound(tirx.max(tirx.min(axis.high - start, extent), low))
