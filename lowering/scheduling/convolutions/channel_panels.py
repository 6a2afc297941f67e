"""Convolutions with output channels in vectors: positions in register tiles.

The planes are those of every convolution. A register tile takes neighbouring positions of a line as
its rows: it computes nothing between lines, and short lines waste no lanes. Results are stored
without gaps, and transposed before they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as ib

from ..functions.lane_kernels import TRANSPOSE
from ..functions.micro_kernels import (
    MOST_ROW_STRIDE,
    call_function,
    call_panel,
    native_tile,
    share_of_next_panel,
)
from ..kernels.affine import int64, static_size
from ..kernels.emission import bound, ceil_div, even_part, pieces
from ..products.convolution_form import Convolved, SpatialAxis, are_plain
from .convolution import Chunk, ConvolutionRule, Emission
from .padded_planes import odd_lines
from .tap_products import call_tap_products
from .window_axes import taps_inside

_MOST_WASTE = 9 / 8
"""The elements of vectors of output channels by the number of output channels, at most."""
LEAST_DEPTH = 32
"""Products for an output from which on transposing it costs less than it saves."""
_MOST_COPIED = 128
"""The most inputs of a 1x1 convolution that are copied rather than transposing more outputs."""
BLOCK = 160
"""Rows of a panel of weights that stay in the first-level cache while all positions read them."""


class ChannelPanels(ConvolutionRule):
    """Convolutions of planes of float32 whose output channels fill vectors.

    Long lines fill vectors of positions as well, and need no transposition; nor do results with
    channels last.
    """

    def emission(self, kernel: tirx.PrimFunc, found: Convolved) -> PanelEmission | None:
        return PanelEmission(kernel, found) if suits_panels(found) else None


def suits_panels(found: Convolved) -> bool:
    """Whether output channels fill vectors, and pay for transposing the results if need be."""
    if len(found.axes) == 1 or prefers_positions_in_vectors(found):
        return False
    rows = static_size(found.product.count(found.product.rows))
    depth = static_size(found.product.count(found.product.reduced))
    if rows is None or not fills_vectors(rows):
        return False
    return found.gives_channels_last or depth is None or depth >= LEAST_DEPTH


def prefers_positions_in_vectors(found: Convolved) -> bool:
    """Whether a 1x1 convolution is faster with positions in vectors.

    It copies its few inputs, and does not transpose its more numerous results.
    """
    if found.gives_channels_last or not are_plain(found.axes):
        return False
    sizes = (found.product.rows, found.product.reduced)
    rows, depth = (static_size(found.product.count(variables)) for variables in sizes)
    return rows is not None and depth is not None and depth < rows and depth <= _MOST_COPIED


def fills_vectors(channels: int) -> bool:
    """Whether vectors of so many channels are mostly full."""
    lanes = native_tile().lanes
    return -(-channels // lanes) * lanes <= channels * _MOST_WASTE


def _plane_axes(found: Convolved) -> list[SpatialAxis]:
    """The axes of the planes."""
    *outer, inner = found.axes
    # A register tile reads single elements, at a stride as well. Where the taps read most phases,
    # it is cheaper to copy whole lines than to separate the phases.
    reads_most = 2 * inner.phases > inner.stride
    return [*outer, replace(inner, is_interleaved=reads_most and inner.stride <= MOST_ROW_STRIDE)]


class PanelEmission(Emission):
    """The kernel; a tile of output channels is a panel of the register tiles."""

    def __init__(
        self, kernel: tirx.PrimFunc, found: Convolved, axes: Sequence[SpatialAxis] | None = None
    ) -> None:
        super().__init__(kernel, found, native_tile(), _plane_axes(found) if axes is None else axes)
        self._tile_rows = self._tile.width

    def _result_index(self, position: Any) -> Any:
        if self._is_line:
            return position
        line, place = tirx.floordiv(position, self._pitch), tirx.floormod(position, self._pitch)
        return line * self._length + tirx.min(place, self._length)

    @property
    def _results_are_contiguous(self) -> bool:
        return self._has_even_positions

    def _tiles_over_panels(
        self, chunk: Chunk, panel: Any, panel_end: Any, tile: Any, tile_end: Any
    ) -> None:
        width = self._tile.width
        elements = self._most_row * width + self._tile.lanes
        scratch = ib.alloc_buffer((elements,), "float32")
        is_last = self._found.gives_channels_last
        results = None if is_last else ib.alloc_buffer((elements,), "float32")
        begin = bound(panel * width)
        end = bound(tirx.min(panel_end * width, chunk.positions))
        count = bound(self._result_index(end) - self._result_index(begin))
        self._out_row = bound(odd_lines(count))
        with ib.serial(tile_end - tile) as number:
            here = bound(tile + number)
            start = bound(here * width)
            channels = self._rows_of_tile(start)
            self._if_small(
                partial(self._multiply_taps, chunk, here, scratch),
                partial(self._multiply, chunk, begin, end, here, channels, scratch),
            )
            if results is None:
                self._write_vectors(chunk, start, channels, (begin, end), scratch, int64(width))
            else:
                call_function(
                    TRANSPOSE, results.data, scratch.data, count, channels, self._out_row, width
                )
                self._write(chunk, start, channels, panel, panel_end, results)

    @property
    def _reads_input(self) -> bool:
        return False

    def _multiply_taps(self, chunk: Chunk, here: Any, scratch: Any) -> None:
        """Computes the results of a panel of weights for a small image."""
        taps, elements = self._taps, self._channels * (self._taps * self._tile.width)
        weights = bound((chunk.group * self._tiles + here) * elements)
        tap_step, channel_step = self._weight_steps
        call_tap_products(
            replace(self._tile, in_planes=True), chunk.planes.data,
            tirx.address_of(self._weights[weights]), scratch.data, chunk.used_taps.data,
            channels=self._channels, positions=chunk.positions, taps=taps, tap_step=tap_step,
            channel_step=channel_step, tile_step=elements,
        )  # fmt: skip

    @property
    def _weight_steps(self) -> tuple[Any, Any]:
        """The elements from the weights of a tap, and of a channel, to those of the next."""
        return self._tile.width, self._taps * self._tile.width

    def _multiply(
        self, chunk: Chunk, begin: Any, end: Any, here: Any, channels: Any, scratch: Any
    ) -> None:
        """Computes the results of a panel of weights at positions of a chunk."""
        tile, taps = self._tile, self._taps
        weights = bound((chunk.group * self._tiles + here) * (self._channels * (taps * tile.width)))
        # Without gaps, all lines form one.
        is_one_line = int64(1)
        if not self._is_line:
            is_one_line = bound(tirx.Cast("int64", self._pitch == self._length))
        line = bound(tirx.floordiv(begin, self._pitch))
        lines = ceil_div(end, self._pitch) - line
        blocks = bound(pieces(self._channels, int64(max(BLOCK // taps, 1))))
        depth = bound(ceil_div(self._channels, blocks))
        first_result = bound(self._result_index(begin))
        passes = bound(ceil_div(self._result_index(end) - first_result, tile.rows))
        row = taps * tile.width
        row_stride = self._axes[-1].step
        planes_tile = replace(tile, in_planes=taps > 1 or row_stride > 1, row_stride=row_stride)
        with (
            ib.serial(blocks) as block,
            ib.serial(tirx.Select(is_one_line == 1, int64(1), lines)) as number,
        ):
            channel = bound(block * depth)
            depth_here = bound(tirx.min(self._channels - channel, depth))
            weights_of_block = bound(weights + channel * row)
            place = (line + number) * self._pitch
            first = bound(tirx.Select(is_one_line == 1, begin, tirx.max(begin, place)))
            last = bound(tirx.Select(is_one_line == 1, end, tirx.min(end, place + self._length)))
            count = bound(tirx.max(last - first, int64(0)))
            rows = bound(even_part(count, int64(tile.rows)))
            result_of_line = bound(self._result_index(first) - first_result)
            with ib.serial(ceil_div(count, tirx.max(rows, int64(1)))) as pass_in_line:
                position = bound(first + pass_in_line * rows)
                result = bound(result_of_line + pass_in_line * rows)
                distance, step = share_of_next_panel(
                    depth_here * row, int64(tile.width), tirx.floordiv(result, tile.rows), passes
                )
                following = tirx.address_of(self._weights[bound(weights_of_block + distance)])
                rows_here = bound(tirx.min(last - position, rows))
                plane = bound(position * row_stride + channel * self._channel_stride)

                def multiply(first_tap: Any, used_taps: Any, adds: Any) -> None:
                    shift = first_tap * tile.width
                    call_panel(
                        planes_tile, static_size(self._rows), channels, rows_here,
                        tirx.address_of(chunk.planes[plane]),
                        tirx.address_of(self._weights[bound(weights_of_block + shift)]),
                        tirx.address_of(scratch[bound(result * tile.width)]),
                        tirx.address_of(self._table[first_tap]), depth_here, self._channel_stride,
                        taps, adds=adds, following=(following, step), used_taps=used_taps,
                    )  # fmt: skip

                if self._skips_taps:
                    self._with_used_taps(chunk, position, rows_here, channel, multiply)
                else:
                    multiply(int64(0), int64(taps), channel)

    @property
    def _skips_taps(self) -> bool:
        return len(self._axes) == 2 and self._taps > 1 and self._found.has_zero_fill

    def _with_used_taps(
        self, chunk: Chunk, position: Any, count: Any, adds: Any,
        multiply: Callable[[Any, Any, Any], None],
    ) -> None:  # fmt: skip
        """Emits the products with the taps that read the input for at least one of these positions.

        Used lines of taps follow each other in memory: one call multiplies them all. Where few taps
        of each line are used, it is a call for each line.
        """
        outer, inner = self._axes
        end = bound(position + count - 1)
        first_line, last_line = (bound(tirx.floordiv(p, self._pitch)) for p in (position, end))
        starts = [(chunk.first + line) * outer.stride for line in (first_line, last_line)]
        first, after = taps_inside(outer, *starts)
        lines = bound(tirx.max(after - first, int64(0)))
        if inner.dilation == 1:  # Few positions at either end would gain from further calls.
            multiply(bound(first * inner.taps), bound(lines * inner.taps), adds)
            return
        columns = [p - first_line * self._pitch for p in (position, end)]
        left, right = taps_inside(inner, *(bound(column * inner.stride) for column in columns))
        width = bound(tirx.max(right - left, int64(0)))
        are_few = tirx.all(width < inner.taps, first_line == last_line)
        are_few = bound(tirx.Cast("int64", are_few))
        calls = bound(tirx.Select(are_few != 0, tirx.max(lines, int64(1)), int64(1)))
        shift = tirx.Select(are_few != 0, left, int64(0))
        used = tirx.Select(lines == 0, int64(0), width)
        used = bound(tirx.Select(are_few != 0, used, lines * inner.taps))
        with ib.serial(calls) as call:
            multiply(bound((first + call) * inner.taps + shift), used, bound(adds + call))
