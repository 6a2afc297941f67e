"""The padded input of a convolution, copied into planes `[channel, phase, line, pitch]`.

There is a plane for each channel and each phase of the stride. In a plane, neighbouring output
positions read neighbouring elements whatever the stride and dilation, and lines follow each other.
Where the phases of an axis are interleaved, they share a plane, and the elements are `step` apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import sym, tirx
from tvm.tirx.script import builder as ib

from ..functions.lane_kernels import TRANSPOSE
from ..functions.micro_kernels import call_copy_row, call_function
from ..kernels.affine import Affine, int64, static_size
from ..kernels.emission import bound, ceil_div, for_items, prefetch
from ..products.convolution_form import Convolved, SpatialAxis

CACHE_LINE = 16
"""The float32 elements of a cache line of 64 bytes."""
COST_OF_COPY = 16
"""The time to copy an element, in multiply-adds."""
_LEAST_PREFETCHED = 16
"""Channels from which on copying a line prefetches that of the next channel."""
_TRANSPOSED = 64
"""Positions of an image with channels last that are transposed at once."""


def odd_lines(elements: Any) -> Any:
    """An odd number of cache lines, in elements, with room for `elements` of them and 16 more.

    Rows that are so far apart do not compete for the same places of a cache.
    """
    return ceil_div(elements, 2 * CACHE_LINE) * (2 * CACHE_LINE) + CACHE_LINE


@dataclass(frozen=True)
class _Source:
    """What a chunk is copied from."""

    buffer: Any
    position: Affine
    """Where a padded element of a channel is in the buffer."""


class PaddedPlanes:
    """Copies what a chunk of output positions reads into planes.

    A chunk is a part of a line where `is_line`, and a number of whole lines otherwise.
    """

    def __init__(
        self, found: Convolved, axes: Sequence[SpatialAxis], is_line: bool, source: Any,
        channels: Any, pitch: Any, plane: Any, channel_stride: Any, *, most_lines: Any,
        past_end: int, skips_padding: bool,
    ) -> None:  # fmt: skip
        """`pitch` is a number of positions, `plane` and `channel_stride` are numbers of elements,
        `most_lines` the lines of output that a chunk has at most. Vectors read `past_end` elements
        beyond the last plane. With `skips_padding`, taps that read only padding in every line of
        the chunk are never read, so that their planes stay unfilled.
        """
        self._found = found
        self._axes = list(axes)
        self._is_line = is_line
        self._source = source
        self._channels = channels
        self._pitch = pitch
        self._plane = plane
        self._channel_stride = channel_stride
        self._most_lines = most_lines
        self._past_end = past_end
        self._skips_padding = skips_padding
        self._phases = math.prod(axis.phases for axis in axes)
        # Lines of channels lie far apart; the processor prefetches only along a line.
        count = static_size(channels)
        has_many = count is None or count >= _LEAST_PREFETCHED
        self._prefetches_channels = has_many and not found.takes_channels_last

    def fill(
        self, planes: Any, values: dict[Any, Any], first: Any, count: Any, is_shared: bool
    ) -> None:
        """Emits the copies for the lines or positions from `first` on.

        `values` are those of the batch variables. Cores share the channels if `is_shared`.
        """
        found = self._found
        source = _Source(self._source, found.position)
        if found.takes_channels_last:
            source = self._with_channels_first(values, first, count, is_shared)

        def copy(channel: Any) -> None:
            here = dict(values)
            if found.channel is not None:
                here[found.channel] = channel
            with ib.serial(int64(self._phases)) as phase:
                base = bound(channel * self._channel_stride + phase * self._plane)
                if self._is_line:
                    self._copy_line(source, here, planes, base, phase, first, count)
                else:
                    self._copy_lines(source, here, planes, base, phase, first, count)
            used = bound(self._plane * self._phases)
            gap = tirx.address_of(planes[bound(channel * self._channel_stride + used)])
            call_copy_row(gap, gap, self._channel_stride - used, 0, 0, 1, zero)

        zero = tirx.const(0.0, "float32")
        if is_shared:
            for_items(self._channels, self._channels * self._channel_stride * COST_OF_COPY, copy)
        else:
            with ib.serial(self._channels) as channel:
                copy(channel)
        # What vectors read beyond the end has no meaning, but denormal numbers would cost time.
        end = tirx.address_of(planes[bound(self._channels * self._channel_stride)])
        call_copy_row(end, end, self._past_end, 0, 0, 1, zero)

    def _with_channels_first(
        self, values: dict[Any, Any], first: Any, count: Any, is_shared: bool
    ) -> _Source:
        """Copies the lines that a chunk reads of an image with channels last into a buffer, where
        each channel follows the one before it.
        """
        outer, inner = self._axes
        line, place = self._found.positions
        position, zero = self._found.position, int64(0)
        step = position.of(place)
        width = sym.Analyzer().simplify(tirx.floordiv(position.of(line), step))
        height = outer.high - outer.low
        span = (outer.taps - 1) * outer.dilation + 1
        most_lines = tirx.min(height, self._most_lines * outer.stride + span)
        room = ib.alloc_buffer((self._channels * odd_lines(most_lines * width),), "float32")
        start = first * outer.stride - outer.low
        top = bound(tirx.min(tirx.max(start, zero), height))
        end = start + (count - 1) * outer.stride + span
        lines = bound(tirx.max(tirx.min(end, height) - top, zero))
        origin = bound(position.at({**values, line: outer.low + top, place: inner.low}))
        row = bound(odd_lines(lines * width))
        total = bound(lines * width)

        def transpose(number: Any) -> None:
            begin = bound(number * _TRANSPOSED)
            call_function(
                TRANSPOSE, tirx.address_of(room[begin]),
                tirx.address_of(self._source[bound(origin + begin * step)]),
                tirx.min(total - begin, int64(_TRANSPOSED)), self._channels, row, step,
            )  # fmt: skip

        parts = bound(ceil_div(total, int64(_TRANSPOSED)))
        if is_shared:
            for_items(parts, total * self._channels * COST_OF_COPY, transpose)
        else:
            with ib.serial(parts) as number:
                transpose(number)
        coefficients = {line: width, place: int64(1)}
        if self._found.channel is not None:
            coefficients[self._found.channel] = row
        base = zero - (outer.low + top) * width - inner.low
        return _Source(room, Affine(bound(base), coefficients))

    def _residues(self, phase: Any) -> list[Any]:
        """The first padded element of a phase along each axis."""
        residues: list[Any] = []
        for axis in reversed(self._axes):
            number = tirx.floormod(phase, int64(axis.phases))
            residues.insert(0, axis.residue(number))
            phase = tirx.floordiv(phase, int64(axis.phases))
        return residues

    def _copy_line(
        self, source: _Source, values: dict[Any, Any], planes: Any, base: Any, phase: Any,
        first: Any, count: Any,
    ) -> None:  # fmt: skip
        if len(self._axes) > 1:
            # Without padding, stride and taps: all axes are one.
            start = tirx.address_of(source.buffer[source.position.at(values) + first])
            target = tirx.address_of(planes[base])
            call_copy_row(target, start, 0, count, 0, 1, self._found.fill)
            return
        (axis,) = self._axes
        (variable,) = self._found.positions
        start = bound(first * axis.stride + self._residues(phase)[0])
        extent = count + axis.reach
        self._copy_row(source, values, variable, axis, planes, base, start, extent)

    def _copy_lines(
        self, source: _Source, values: dict[Any, Any], planes: Any, base: Any, phase: Any,
        first: Any, count: Any,
    ) -> None:  # fmt: skip
        outer, inner = self._axes[-2:]
        line_variable, variable = self._found.positions[-2:]
        residues = self._residues(phase)
        lines = count + outer.reach
        pitch = self._pitch * inner.step
        if outer.is_spread and self._skips_padding:
            start = bound(first * outer.stride + residues[-2])
            end = start + (count - 1) * outer.stride
            reads = tirx.all(start < outer.high, end >= outer.low)
            lines = bound(tirx.Select(reads, lines, int64(0)))
        with ib.serial(lines) as line:
            target = bound(base + line * pitch)
            place = bound((first + line) * outer.stride + residues[-2])
            with ib.If(tirx.all(place >= outer.low, place < outer.high)):
                with ib.Then():
                    here = {**values, line_variable: place}
                    self._copy_row(
                        source, here, variable, inner, planes, target, residues[-1], pitch
                    )
                with ib.Else():
                    row = tirx.address_of(planes[target])
                    call_copy_row(row, row, pitch, 0, 0, 1, self._found.fill)
        # The last chunk may have fewer lines. What vectors read after them has no meaning, but NaN
        # would choose a slower way, and denormal numbers would cost time.
        used = bound((count + outer.reach) * pitch)
        rest = tirx.address_of(planes[bound(base + used)])
        call_copy_row(rest, rest, self._plane - used, 0, 0, 1, tirx.const(0.0, "float32"))

    def _copy_row(
        self, source: _Source, values: dict[Any, Any], variable: Any, axis: SpatialAxis,
        planes: Any, target: Any, start: Any, extent: Any,
    ) -> None:  # fmt: skip
        """Copies `extent` elements from padded position `start` on: all if the phases of the axis
        are interleaved, those at its stride otherwise.
        """
        # From an element of the plane to the next, in the padded input.
        stride = axis.stride // axis.step

        def elements_before(limit: Any) -> Any:
            """How many of the elements lie before a padded position."""
            number = ceil_div(limit - start, stride)
            return tirx.min(tirx.max(number, int64(0)), extent)

        low = bound(elements_before(axis.low))
        high = bound(tirx.max(elements_before(axis.high), low))
        origin = source.position.at({**values, variable: start + low * stride})
        if self._prefetches_channels:
            ahead = origin + source.position.of(self._found.channel)
            with ib.serial(ceil_div((high - low) * stride, CACHE_LINE)) as line:
                prefetch(source.buffer, ahead + line * CACHE_LINE, is_write=0, locality=3)
        # No element is read where the row lies in the padding: the address need not be valid.
        call_copy_row(
            tirx.address_of(planes[target]), tirx.address_of(source.buffer[origin]),
            low, high - low, extent - high, stride, self._found.fill,
        )  # fmt: skip
