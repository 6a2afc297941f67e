"""Convolutions of 3x3 taps by Winograd's F(2x2, 3x3): 16 products in place of 36.

The planes are those of a convolution of 4x4 taps at stride 2, whose positions are squares of four
outputs. Their input is transformed panel by panel; the products of its 16 points with those of the
weights are computed by the same register tiles as every convolution.

Rounding errors are relative to the largest of the 4x4 elements that a square reads. An infinity or
NaN in the input reaches only the outputs that read it: a chunk that contains one, or a number above
a quarter of the largest, is computed tap by tap, with the taps that the transformed weights give
back. An infinite weight makes every output of its channel NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from .affine import int64
from .convolution import Chunk, Emission, odd_lines
from .convolution_form import Convolved, convolution_of, static_size
from .emission import bound, ceil_div, for_items, rewritten
from .micro_kernels import call_copy_row, call_function, call_tile, native_tile
from .nests import inlined
from .packing import is_constant_operand
from .winograd_transforms import INPUT, OUTPUT, POINTS, TAPS, transformed_taps

_SQUARE = POINTS * POINTS
_CHANNELS = 16
"""Channels of input and of output from which on the transforms cost less than they save."""
_WEIGHTS = 512 * 512
"""Products of both numbers of channels up to which the larger weights are read fast enough."""
_CACHED = 1 << 17
"""Elements of transformed input that a chunk keeps in the second-level cache."""
_CORNERS = ((0, 1), (POINTS - 1, -1), (_SQUARE - POINTS, -1), (_SQUARE - 1, 1))
"""The point that only one output of a square reads, and the sign it has there, by output."""


class Winograd(ScheduleRule):  # type: ignore[misc]
    """Convolutions of 3x3 taps at stride 1 whose weights are constant."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        found = convolution_of(kernel)
        if found is None or not _suits(kernel, found):
            return None
        emission = _Emission(kernel, found)
        return s_tir.Schedule(rewritten(kernel, emission.emit))


def _suits(kernel: tirx.PrimFunc, found: Convolved) -> bool:
    """Whether a convolution has 3x3 taps, constant weights, and enough channels."""
    if len(found.axes) != 2 or not is_constant_operand(kernel, found.product.a.buffer):
        return False
    if any((a.taps, a.stride, a.dilation) != (3, 1, 1) or a.column is None for a in found.axes):
        return False
    rows = static_size(found.product.count(found.product.rows))
    channels = 1 if found.channel is None else static_size(found.product.extent(found.channel))
    if rows is None or channels is None:
        return False
    return min(rows, channels) >= _CHANNELS and rows * channels <= _WEIGHTS


class _Emission(Emission):
    """The kernel of a convolution of 3x3 taps at stride 1."""

    def __init__(self, kernel: tirx.PrimFunc, found: Convolved) -> None:
        squares = [
            replace(axis, size=tirx.floordiv(axis.size + 1, int64(2)), taps=POINTS, stride=2)
            for axis in found.axes
        ]
        super().__init__(kernel, found, native_tile(), squares)

    # --- weights ---

    def _packed_shape(self, groups: Any) -> list[Any]:
        return [groups, self._tiles, int64(_SQUARE), self._channels, int64(self._tile_rows)]

    def _packed_element(self, places: Sequence[Any], f: Any) -> Any:
        group, _, point, channel, _ = places

        def tap(*numbers: int) -> Any:
            axes = zip(self._found.axes, numbers, strict=True)
            taps = {axis.tap: int64(number) for axis, number in axes}
            return self._weight(group, f, channel, taps)

        point = (tirx.floordiv(point, int64(POINTS)), tirx.floormod(point, int64(POINTS)))
        return transformed_taps(tap, point)

    # --- items ---

    def _most_positions(self) -> int:
        channels = static_size(self._channels) or 1
        # Each chunk reads all weights again.
        most = 8 * _CACHED if self._has_large_weights() else _CACHED
        panels = most // (_SQUARE * channels * self._tile.width)
        return max(panels, 1) * self._tile.width

    @property
    def _point_stride(self) -> Any:
        """From a point of a panel to the next, so that points do not compete for cache lines."""
        return odd_lines(self._channels * self._tile.width)

    def _fill_table(self) -> None:
        """0 for the products of points, then the distances to the taps of each output."""
        self._table = ib.alloc_buffer((1 + 4 * 9,), "int64")
        ib.buffer_store(self._table, int64(0), [int64(0)])
        with ib.grid(*map(int64, (2, 2, 3, 3))) as (a, b, i, j):
            y, x = a + i, b + j
            phase = tirx.floormod(y, int64(2)) * 2 + tirx.floormod(x, int64(2))
            shift = tirx.floordiv(y, int64(2)) * self._pitch + tirx.floordiv(x, int64(2))
            place = ((a * 2 + b) * 3 + i) * 3 + j + 1
            ib.buffer_store(self._table, phase * self._plane + shift, [place])

    # --- input ---

    def _copy_input(self, values: dict[Any, Any], first: Any, count: Any, is_shared: bool) -> Any:
        planes = super()._copy_input(values, first, count, is_shared)
        width, lanes = self._tile.width, self._tile.lanes
        panels = bound(ceil_div(count * self._pitch, width))
        most = ceil_div(self._most_row, width)
        elements = most * _SQUARE * self._point_stride
        self._points = ib.alloc_buffer((elements,), "float32")
        finite = ib.alloc_buffer((self._channels * lanes,), "float32")
        zero = tirx.const(0.0, "float32")

        def transform(channel: Any) -> None:
            call_function(
                INPUT, tirx.address_of(planes[bound(channel * self._channel_stride)]),
                tirx.address_of(self._points[bound(channel * width)]),
                tirx.address_of(finite[bound(channel * lanes)]),
                self._plane, self._pitch, panels,
                self._point_stride * _SQUARE, self._point_stride,
            )  # fmt: skip

        work = self._channels * panels * (width * _SQUARE * 2)
        if is_shared:
            for_items(self._channels, work, transform)
        else:
            with ib.serial(self._channels) as channel:
                transform(channel)
        self._has_nan = ib.alloc_buffer((1,), "int64")
        ib.buffer_store(self._has_nan, int64(0), [int64(0)])
        with ib.serial(self._channels * lanes) as k:
            differs = tirx.Select(finite[k] == zero, int64(0), int64(1))
            ib.buffer_store(self._has_nan, self._has_nan[int64(0)] | differs, [int64(0)])
        return planes

    # --- output ---

    def _tiles_over_panels(
        self, chunk: Chunk, panel: Any, panel_end: Any, tile: Any, tile_end: Any
    ) -> None:
        rows, together, width = self._tile_rows, self._together, self._tile.width
        most_line = odd_lines(2 * self._most_row)
        products = ib.alloc_buffer((together * _SQUARE * rows * width,), "float32")
        taps = ib.alloc_buffer((self._channels * (together * 2 * 9 * rows),), "float32")
        scratch = ib.alloc_buffer(
            (most_line * (2 * together * rows) + self._tile.lanes,), "float32"
        )
        line = bound(odd_lines((panel_end - panel) * (2 * width)))
        with ib.serial(ceil_div(tile_end - tile, together)) as number:
            first = bound(tile + number * together)
            tiles = bound(tirx.min(tile_end - first, int64(together)))
            start = bound(first * rows)
            count = bound(tirx.min(self._rows - start, tiles * rows))
            weights = bound(
                (chunk.group * self._tiles + first) * (self._channels * (_SQUARE * rows))
            )
            with ib.If(self._has_nan[int64(0)] != 0), ib.Then():
                self._recover_taps(tiles, weights, taps)
            with ib.serial(panel_end - panel) as place:
                with ib.If(self._has_nan[int64(0)] == 0):
                    with ib.Then():
                        self._multiply_points(panel + place, start, tiles, weights, products)
                    with ib.Else():
                        self._convolve(chunk, panel + place, start, tiles, taps, products)
                with ib.serial(count) as row:
                    tile_ = tirx.floordiv(row, int64(rows)) * (_SQUARE * rows)
                    source = bound((tile_ + tirx.floormod(row, int64(rows))) * width)
                    target = bound(row * (2 * line) + place * (2 * width))
                    call_function(
                        OUTPUT, tirx.address_of(products[source]),
                        tirx.address_of(scratch[target]), rows * width, line,
                    )  # fmt: skip
            self._write_squares(chunk, start, count, panel, panel_end, scratch, line)

    def _multiply_points(
        self, panel: Any, start: Any, tiles: Any, weights: Any, products: Any
    ) -> None:
        """Multiplies the points of a panel by those of the weights."""
        rows, width, channels = self._tile_rows, self._tile.width, self._channels
        with ib.serial(int64(_SQUARE)) as point, ib.serial(tiles) as offset:
            here = bound(tirx.min(self._rows - start - offset * rows, int64(rows)))
            a = bound(weights + (offset * _SQUARE + point) * (channels * rows))
            b = bound((panel * _SQUARE + point) * self._point_stride)
            out = bound((offset * _SQUARE + point) * (rows * width))
            call_tile(
                self._tile, here, tirx.address_of(self._weights[a]),
                tirx.address_of(self._points[b]), tirx.address_of(products[out]),
                self._table.data, (channels, int64(1)),
                (int64(rows), int64(rows)), int64(width), int64(width),
            )  # fmt: skip

    def _recover_taps(self, tiles: Any, weights: Any, taps: Any) -> None:
        rows, channels = self._tile_rows, self._channels
        with ib.serial(tiles) as offset:
            points = bound(weights + offset * (channels * (_SQUARE * rows)))
            target = bound(offset * (channels * (2 * 9 * rows)))
            call_function(
                TAPS, tirx.address_of(self._weights[points]), tirx.address_of(taps[target]),
                channels, int64(rows),
            )  # fmt: skip

    def _convolve(
        self, chunk: Chunk, panel: Any, start: Any, tiles: Any, taps: Any, products: Any
    ) -> None:
        """Sums the taps of each output, and writes the sums as the points that only it reads."""
        rows, width, channels = self._tile_rows, self._tile.width, self._channels
        everything = tirx.address_of(products[int64(0)])
        zero = tirx.const(0.0, "float32")
        call_copy_row(everything, everything, tiles * (_SQUARE * rows * width), 0, 0, 1, zero)
        with ib.serial(tiles) as offset:
            here = bound(tirx.min(self._rows - start - offset * rows, int64(rows)))
            for number, (point, sign) in enumerate(_CORNERS):
                a = bound((offset * 2 + (sign < 0)) * (channels * (9 * rows)))
                out = bound((offset * _SQUARE + point) * (rows * width))
                table = tirx.address_of(self._table[int64(1 + 9 * number)])
                call_tile(
                    self._tile, here, tirx.address_of(taps[a]),
                    tirx.address_of(chunk.planes[bound(panel * width)]),
                    tirx.address_of(products[out]), table, (channels, int64(9)),
                    (int64(9 * rows), int64(rows)), self._channel_stride, int64(width),
                )  # fmt: skip

    def _write_squares(
        self, chunk: Chunk, start: Any, rows: Any, panel: Any, panel_end: Any, scratch: Any,
        line_stride: Any,
    ) -> None:  # fmt: skip
        """Writes the results of some rows at a range of panels."""
        store, lanes = self._found.store, self._tile.lanes
        outer, inner = (axis.column for axis in self._found.axes)
        height, length = (axis.size for axis in self._found.axes)
        begin = bound(panel * self._tile.width)
        end = bound(tirx.min(panel_end * self._tile.width, chunk.positions))
        line = bound(tirx.floordiv(begin, self._pitch))
        with ib.serial(rows) as row, ib.serial(ceil_div(end, self._pitch) - line) as number:
            here = {**chunk.values, **self._unflattened(self._product.rows, start + row)}
            place = bound((line + number) * self._pitch)
            low = bound(tirx.max(begin - place, int64(0)))
            high = bound(tirx.min((end - place) * 2, length))
            top = bound((chunk.first + line + number) * 2)
            with ib.serial(tirx.min(height - top, int64(2))) as lower:
                here.update({outer: top + lower, inner: bound(low * 2)})
                origin = bound((row * 2 + lower) * line_stride + (place + low - begin) * 2)
                count = bound(tirx.max(high - low * 2, int64(0)))
                store.run(here, count, lambda k: scratch[origin + k], lanes)
