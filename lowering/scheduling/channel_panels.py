"""Convolutions with output channels in vectors: positions in register tiles.

The planes are those of every convolution. A register tile takes neighbouring positions of a line as
its rows, so that it computes no results between lines, and few lines that are no vector long cost
no more than others. Results are transposed before they are written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from .affine import int64
from .convolution import Chunk, Emission, odd_lines
from .convolution_form import Convolved, convolution_of, static_size
from .emission import bound, ceil_div, pieces, rewritten
from .lane_kernels import TRANSPOSE
from .micro_kernels import call_function, call_panel, native_tile, part_ahead
from .nests import inlined

_MOST_WASTE = 9 / 8
"""The elements of vectors of output channels by the number of output channels, at most."""
_LEAST_DEPTH = 64
"""Products for an output from which on transposing it costs less than it saves."""
_BLOCK = 160
"""Rows of a panel of weights that stay in the first-level cache while all positions read them."""


class ChannelPanels(ScheduleRule):  # type: ignore[misc]
    """Convolutions of planes of float32 whose output channels fill vectors.

    Long lines fill vectors of positions as well, and need no transposition.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        found = convolution_of(kernel)
        if found is None or not _suits(found):
            return None
        return s_tir.Schedule(rewritten(kernel, _Emission(kernel, found).emit))


def _suits(found: Convolved) -> bool:
    if len(found.axes) == 1:
        return False
    rows = static_size(found.product.count(found.product.rows))
    depth = static_size(found.product.count(found.product.reduced))
    return rows is not None and fills_vectors(rows) and (depth is None or depth >= _LEAST_DEPTH)


def fills_vectors(channels: int) -> bool:
    """Whether vectors of so many channels are mostly full."""
    lanes = native_tile().lanes
    return -(-channels // lanes) * lanes <= channels * _MOST_WASTE


class _Emission(Emission):
    """The kernel; a tile of output channels is a panel of the register tiles."""

    def __init__(self, kernel: tirx.PrimFunc, found: Convolved) -> None:
        super().__init__(kernel, found, native_tile())
        self._tile_rows = self._tile.width

    def _result_place(self, position: Any) -> Any:
        if self._is_line:
            return position
        line, place = (
            divide(position, self._pitch) for divide in (tirx.floordiv, tirx.floormod)
        )  # fmt: skip
        return line * self._length + tirx.min(place, self._length)

    @property
    def _results_follow(self) -> bool:
        return self._found.store.flattens

    def _tiles_over_panels(
        self, chunk: Chunk, panel: Any, panel_end: Any, tile: Any, tile_end: Any
    ) -> None:
        width = self._tile.width
        elements = self._most_row * width + self._tile.lanes
        scratch = ib.alloc_buffer((elements,), "float32")
        results = ib.alloc_buffer((elements,), "float32")
        begin = bound(panel * width)
        end = bound(tirx.min(panel_end * width, chunk.positions))
        start_place = bound(self._result_place(begin))
        count = bound(self._result_place(end) - start_place)
        self._out_row = bound(odd_lines(count))
        with ib.serial(tile_end - tile) as number:
            here = bound(tile + number)
            start = bound(here * width)
            channels = bound(tirx.min(self._rows - start, int64(width)))
            self._multiply(chunk, begin, end, here, channels, scratch)
            call_function(
                TRANSPOSE, results.data, scratch.data, count, channels, self._out_row, width
            )
            self._write(chunk, start, channels, panel, panel_end, results)

    def _multiply(
        self, chunk: Chunk, begin: Any, end: Any, here: Any, channels: Any, scratch: Any
    ) -> None:
        """Computes the results of a panel at positions of a chunk."""
        tile, taps = self._tile, self._taps
        weights = bound((chunk.group * self._tiles + here) * (self._channels * (taps * tile.width)))
        # Lines without anything between them are one.
        has_gaps = int64(0)
        if not self._is_line:
            has_gaps = bound(tirx.Cast("int64", self._pitch > self._length))
        line = bound(tirx.floordiv(begin, self._pitch))
        lines = ceil_div(end, self._pitch) - line
        blocks = bound(pieces(self._channels, int64(max(_BLOCK // taps, 1))))
        depth = bound(ceil_div(self._channels, blocks))
        start_place = bound(self._result_place(begin))
        passes = bound(ceil_div(self._result_place(end) - start_place, tile.rows))
        row = taps * tile.width
        with (
            ib.serial(blocks) as block,
            ib.serial(tirx.Select(has_gaps == 0, int64(1), lines)) as number,
        ):
            channel = bound(block * depth)
            panel = bound(weights + channel * row)
            place = (line + number) * self._pitch
            first = bound(tirx.Select(has_gaps == 0, begin, tirx.max(begin, place)))
            last = bound(tirx.Select(has_gaps == 0, end, tirx.min(end, place + self._length)))
            count = bound(tirx.max(last - first, int64(0)))
            rows = bound(ceil_div(count, pieces(count, int64(tile.rows))))
            result = bound(self._result_place(first) - start_place)
            with ib.serial(ceil_div(count, tirx.max(rows, int64(1)))) as which:
                position = bound(first + which * rows)
                to = bound(result + which * rows)
                number_of_pass = tirx.floordiv(to, tile.rows)
                distance, step = part_ahead(depth * row, int64(tile.width), number_of_pass, passes)
                call_panel(
                    replace(tile, in_planes=taps > 1), static_size(self._rows), channels,
                    bound(tirx.min(last - position, rows)),
                    tirx.address_of(chunk.planes[bound(position + channel * self._channel_stride)]),
                    tirx.address_of(self._weights[panel]),
                    tirx.address_of(scratch[bound(to * tile.width)]),
                    self._table.data, bound(tirx.min(self._channels - channel, depth)),
                    self._channel_stride, taps, adds=channel,
                    following=(tirx.address_of(self._weights[bound(panel + distance)]), step),
                )  # fmt: skip
