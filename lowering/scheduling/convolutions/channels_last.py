"""Depthwise convolutions, and sums and maxima of windows, of images with channels last.

Windows of a few positions along a line read whole vectors of channels where they are, one vector
after another, so that each line of the image is read in the order of memory. Taps that read padding
are left out: positions near an end of a line are computed one by one, with the taps that they have.

A depthwise convolution of a small image with short lines copies it into padded planes instead, one
vector of channels after another: what its windows share is then in the first-level cache, and no
position is near an end. Pooling does too little work for each element to pay for the copy.
(Channels first: `channel_lanes`.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tvm import s_tir, sym, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from ..functions.lane_kernels import (
    CHANNEL_MAXIMA,
    CHANNEL_PRODUCTS,
    CHANNEL_SUMS,
    LOWEST,
    MOST_POSITIONS,
    PRODUCTS,
)
from ..functions.micro_kernels import call_function, native_tile
from ..functions.winograd_transforms import span
from ..kernels.affine import flat, int64, product, static_size, unflattened
from ..kernels.emission import (
    bound,
    ceil_div,
    compute_block,
    even_part,
    for_items,
    is_false,
    is_true,
    pieces,
    prefetch,
    rewritten,
    unless_empty,
)
from ..kernels.nests import inlined
from ..kernels.stores import element_of
from ..products.convolution_form import (
    Convolved,
    SpatialAxis,
    convolution_with_channels_last,
    maximum_with_channels_last,
    sum_with_channels_last,
)
from .channel_lanes import LaneChunk, LaneEmission
from .window_axes import UsedAxis, taps_inside

_FORMS: dict[str, Callable[[tirx.PrimFunc], Convolved | None]] = {
    CHANNEL_MAXIMA: maximum_with_channels_last,
    CHANNEL_SUMS: sum_with_channels_last,
    CHANNEL_PRODUCTS: convolution_with_channels_last,
}
"""What finds the windows of a kernel, by the shared function that combines their elements."""
_ITEM = 1 << 16
"""Elements of an item of work, which stay in the second-level cache."""
_MOST_ELEMENTS = 1 << 18
"""Elements of an image, in the second-level cache, that are read vector by vector of channels.

Strided access to a few channels of each position of a larger one misses that cache.
"""
_SHORT = 10
"""A line is short if at least one of so many positions is near an end of it."""
_NEAR = 2
"""The largest dilation of vectors of channels: far apart, most lines of a plane are not read."""
_FEWEST_ITEMS = 2
"""Items that an image is cut into at least, for several cores."""
_COST_OF_ELEMENT = 4
"""The time to write an element, in multiply-adds."""


class ChannelsLast(ScheduleRule):  # type: ignore[misc]
    """Depthwise convolutions and pooling in NWC and NHWC, of at least a vector of channels."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        for function, form in _FORMS.items():
            found = form(kernel)
            if found is not None and _is_supported(found, function):
                emission = _Emission(kernel, found, function)
                return s_tir.Schedule(rewritten(kernel, emission.emit))
        return None


def _is_supported(found: Convolved, function: str) -> bool:
    product = found.product
    if not product.batch:
        return False
    channel = product.batch[-1]
    channels = static_size(product.extent(channel))
    if channels is None or channels < native_tile().lanes or len(found.axes) > 2:
        return False
    if product.rows or found.channel is not None:
        return False
    if function == CHANNEL_PRODUCTS:
        others = [v for v in product.batch[:-1] if v in product.a.position.coefficients]
        if others:
            return False
    # Taps that read padding are left out.
    neutral = LOWEST if function == CHANNEL_MAXIMA else 0
    is_neutral = isinstance(found.fill, tirx.FloatImm) and float(found.fill) == neutral
    if found.is_padded and not is_neutral:
        return False
    distances = [found.position.of(v) for v in (channel, found.positions[-1])]
    if [static_size(distance) for distance in distances] != [1, channels]:
        return False
    # The last positions of a line are written again.
    return found.store.is_contiguous and not found.store.is_in_place


class _Emission:
    """A part of a line of an image at a time."""

    def __init__(self, kernel: tirx.PrimFunc, found: Convolved, function: str) -> None:
        self._kernel = kernel
        self._found = found
        self._product = found.product
        self._function = function
        self._lanes = native_tile().lanes
        self._channel = self._product.batch[-1]
        self._channels = int(self._product.extent(self._channel))
        *outer, self._inner = found.axes
        self._outer = outer[0] if outer else None

    def emit(self) -> None:
        vectors = packed = None
        if self._function == CHANNEL_PRODUCTS:
            weights = self._product.a
            vectors = _VectorEmission(self._kernel, self._found, weights, self._channel, PRODUCTS)
            packed = vectors.pack_weights()
        with compute_block("windows"), unless_empty(self._found.store.written):
            self._found.store.declare()
            self._source = flat(self._found.source)
            self._weights = None if packed is None else flat(packed)
            by_vectors = self._prefers_vectors()
            if vectors is None or is_false(by_vectors):
                self._items()
            elif is_true(by_vectors):
                vectors.emit_items(self._source, self._weights)
            else:
                with ib.If(by_vectors):
                    with ib.Then():
                        vectors.emit_items(self._source, self._weights)
                    with ib.Else():
                        self._items()

    def _prefers_vectors(self) -> Any:
        """Whether a depthwise convolution is faster one vector of channels after another."""
        axes = self._found.axes
        if self._taps == 1 or any(axis.dilation > _NEAR for axis in axes):
            return tirx.const(False, "bool")
        size = product([int64(self._channels), *(axis.high - axis.low for axis in axes)])
        short = _SHORT * (self._inner.taps - 1) * self._inner.dilation // self._inner.stride
        is_short = self._inner.size <= int64(max(short, MOST_POSITIONS))
        is_small = size <= int64(_MOST_ELEMENTS)
        return sym.Analyzer().simplify(tirx.all(is_short, is_small))

    @property
    def _taps(self) -> int:
        return self._inner.taps * (1 if self._outer is None else self._outer.taps)

    def _items(self) -> None:
        product, inner, outer = self._product, self._inner, self._outer
        channels = self._channels
        images = bound(product.count(product.batch[:-1]))
        length = bound(inner.size)
        # The first position whose window lies within the image, and the one after the last.
        after = inner.high - 1 - (inner.taps - 1) * inner.dilation
        self._inside = (
            bound(ceil_div(inner.low, int64(inner.stride))),
            bound(tirx.floordiv(after, int64(inner.stride)) + 1),
        )
        # An image is cut into groups of lines, or the only line into parts.
        total = length if outer is None else bound(outer.size)
        size = channels if outer is None else tirx.max(length * channels, int64(1))
        most = tirx.max(tirx.floordiv(int64(_ITEM), size), int64(1))
        part = bound(even_part(total, most, _FEWEST_ITEMS))
        parts = bound(pieces(total, tirx.max(part, int64(1))))
        positions = product.count(product.columns)
        work = product.count(product.batch) * positions * (self._taps + _COST_OF_ELEMENT)

        def item(number: Any) -> None:
            results = ib.alloc_buffer((int64(MOST_POSITIONS * channels),), "float32")
            first = bound(tirx.floormod(number, parts) * part)
            end = bound(tirx.min(first + part, total))
            image = bound(tirx.floordiv(number, parts))
            values = unflattened(product.batch[:-1], product.extent, image)
            values = {variable: bound(value) for variable, value in values.items()}
            values[self._channel] = int64(0)
            if outer is None:
                self._line(values, None, first, end, results)
                return
            with ib.serial(end - first) as offset:
                self._line(values, bound(first + offset), int64(0), length, results)

        for_items(bound(images * parts), work, item)

    def _line(
        self, values: Mapping[Any, Any], line: Any, first: Any, end: Any, results: Any
    ) -> None:
        """Computes the positions of a line from `first` to `end`."""
        low, high = self._inside
        low = bound(tirx.max(tirx.min(low, end), first))
        high = bound(tirx.max(tirx.min(high, end), low))
        whole = bound(high - low)
        tiles = bound(ceil_div(whole, int64(MOST_POSITIONS)))
        tile = bound(ceil_div(whole, tirx.max(tiles, int64(1))))
        before = bound(low - first)
        row, rows = self._taps_at(self._outer, line)
        with ib.serial(before + tiles + (end - high)) as step:
            # The last tile ends with the last position within the image.
            number = step - before
            is_tile = bound(tirx.Cast("int64", tirx.all(number >= 0, number < tiles)))
            of_tile = low + tirx.min(number * tile, whole - tile)
            alone = tirx.Select(number < 0, first + step, high + number - tiles)
            position = bound(tirx.Select(is_tile != 0, of_tile, alone))
            together = bound(tirx.Select(is_tile != 0, tile, int64(1)))
            taps = (row, rows), self._taps_at(self._inner, position)
            self._combine(results, together, (line, position), *taps, values)
            here = dict(values)
            if self._outer is not None and self._outer.column is not None:
                here[self._outer.column] = line
            with ib.serial(together) as place:
                here[self._product.columns[-1]] = bound(position + place)
                element = partial(element_of, results, bound(place * self._channels))
                self._found.store.run(here, int64(self._channels), element, self._lanes)

    def _taps_at(self, axis: SpatialAxis | None, position: Any) -> tuple[Any, Any]:
        """The first tap that reads the image for an output position, and how many do."""
        if axis is None:
            return int64(0), int64(1)
        start = bound(position * axis.stride)
        first, end = taps_inside(axis, start, start)
        return first, bound(tirx.max(end - first, int64(0)))

    def _combine(
        self,
        results: Any,
        together: Any,
        place: tuple[Any, Any],
        rows: tuple[Any, Any],
        columns: tuple[Any, Any],
        values: Mapping[Any, Any],
    ) -> None:
        """Combines the windows of some positions from a place, a line and a position, on."""
        (line, position), channels, lanes = place, self._channels, self._lanes
        inner, outer = self._inner, self._outer
        read = [position * inner.stride + columns[0] * inner.dilation]
        row_step = int64(0)
        if outer is not None:
            read.insert(0, line * outer.stride + rows[0] * outer.dilation)
            row_step = self._found.position.of(self._found.positions[0]) * outer.dilation
        places = dict(zip(self._found.positions, read, strict=True))
        source = self._source[bound(self._found.position.at({**values, **places}))]
        tap_row = inner.taps * lanes
        weights = source
        if self._weights is not None:
            weights = self._weights[bound(rows[0] * tap_row + columns[0] * lanes)]
        call_function(
            self._function, together, results.data, tirx.address_of(source),
            tirx.address_of(weights), rows[1], columns[1], channels,
            inner.stride * channels, row_step, inner.dilation * channels,
            self._taps * lanes, tap_row,
        )  # fmt: skip


class _VectorEmission(LaneEmission):
    """A depthwise convolution of an image with channels last, one vector of them at a time."""

    def _pitch_of(self, width: Any) -> Any:
        return width  # Lines are copied by themselves.

    def _fill_lines(
        self, chunk: LaneChunk, line: UsedAxis, inner: UsedAxis, plane: Any, room: Any
    ) -> None:
        self._fill_line_by_line(chunk, self._region(chunk, line, inner), plane)

    def _copy_positions(
        self, chunk: LaneChunk, positions: Mapping[Any, Any], to: Any, place: Any, count: Any
    ) -> None:
        lanes = self._lanes
        origin = bound(self._origin(chunk, positions))
        target = bound(place * lanes)
        step = self._position.of(self._found.positions[-1])
        with ib.serial(count) as number:
            read, written = origin + number * step, target + number * lanes
            ib.buffer_store(to, self._source[span(read, lanes)], [span(written, lanes)])
            # The next vector of channels: the processor prefetches only along a line.
            prefetch(self._source, read + lanes, is_write=0, locality=2)

    def _compute(self, chunk: LaneChunk, group: Any, plane: Any, room: Any) -> None:
        columns, lanes = self._product.columns, self._lanes
        *outer, _ = self._found.axes
        length, lines = self._line_length_and_count(chunk)
        # A line is written at once: its stores overlap with the products of the next.
        with ib.serial(lines) as line:
            self._combine(chunk, group, plane, line, length, room.data)
            here = dict(chunk.values)
            if outer and outer[0].column is not None:
                here[outer[0].column] = bound(chunk.first + line)
            first = int64(0) if outer else chunk.first
            with ib.serial(length) as number:
                here[columns[-1]] = bound(first + number)
                element = partial(element_of, room, bound(number * lanes))
                self._found.store.run(here, int64(lanes), element, lanes)
