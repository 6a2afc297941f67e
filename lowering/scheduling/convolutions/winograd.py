"""Convolutions of 3x3 taps by Winograd's F(2x2, 3x3): 16 products in place of 36.

The planes are those of a convolution of 4x4 taps at stride 2, whose positions are squares of four
outputs. Their input is transformed panel by panel; the products of its 16 points with those of the
weights are computed by the same register tiles as every convolution.

Rounding errors are relative to the largest of the 4x4 elements that a square reads. An infinity or
NaN in the input reaches only the outputs that read it: a chunk that contains one, or a number above
a quarter of the largest, is computed with the taps that the transformed weights give back. An
infinite weight makes every output of its channel NaN, except in small images, which are multiplied
by the taps themselves (`tap_products`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as ib

from ..functions.lane_kernels import TRANSPOSE
from ..functions.micro_kernels import (
    call_copy_row,
    call_function,
    call_panel,
    call_tile,
    native_tile,
    share_of_next_panel,
)
from ..functions.winograd_transforms import INPUT, OUTPUT, POINTS, TAPS, transformed_taps
from ..kernels.affine import int64, static_size
from ..kernels.emission import bound, ceil_div, even_part, for_items
from ..kernels.stores import element_of
from ..products.convolution_form import Convolved
from ..relax.packing import is_constant_operand
from .convolution import Chunk, ConvolutionRule, Emission
from .padded_planes import odd_lines
from .tap_products import call_tap_products

_SQUARE = POINTS * POINTS
_CHANNELS = 32
"""The fewest input and output channels for which the transforms of a large image cost less than
they save."""
_MOST_CACHED_WEIGHTS = 256 * 256
"""Input times output channels up to which a cache holds the transformed weights, of 4 MiB. Images
of unknown size with more channels are assumed to be small, as in the last layers of a ResNet."""
_COST_OF_WEIGHT, _COST_OF_FAR_WEIGHT = 12, 26
"""The cost of reading a weight from the cache and from memory, in multiply-adds: 7x7 positions pay
off for 256 channels on an EPYC (Zen 4), and not for 512 on a Xeon (Sapphire Rapids)."""
_COST_OF_TRANSFORM = 240
"""The time to transform a channel of the input or the output of a square, in multiply-adds."""
_CACHED = 1 << 18
"""Elements of transformed input that a chunk keeps in the second-level cache."""
_POSITIONS = 96
"""Squares whose products stay in the second-level cache, while weights are read from the next."""
_CORNERS = ((0, 1), (POINTS - 1, -1), (_SQUARE - POINTS, -1), (_SQUARE - 1, 1))
"""The point that only one output of a square reads, and the sign it has there, by output."""


class Winograd(ConvolutionRule):
    """Convolutions of 3x3 taps at stride 1 whose weights are constant."""

    def emission(self, kernel: tirx.PrimFunc, found: Convolved) -> _Emission | None:
        return _Emission(kernel, found) if _suits(kernel, found) else None


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
    if min(rows, channels) < _CHANNELS:
        return False
    return not _costs_more_than_it_saves(found, rows, channels)


def _costs_more_than_it_saves(found: Convolved, rows: int, channels: int) -> bool:
    """Whether the transforms, and reading 16 weights in place of 9, take longer than the products
    that are saved.
    """
    sizes = [static_size(axis.size) for axis in found.axes]
    positions, squares = 1, 1
    for size in sizes:
        if size is None:
            return rows * channels > _MOST_CACHED_WEIGHTS
        positions, squares = positions * size, squares * -(-size // 2)
    weights_of_tap = rows * channels
    saved = (9 * positions - _SQUARE * squares) * weights_of_tap
    is_cached = weights_of_tap <= _MOST_CACHED_WEIGHTS
    cost = _COST_OF_WEIGHT if is_cached else _COST_OF_FAR_WEIGHT
    cost_of_weights = cost * (_SQUARE - 9) * weights_of_tap
    return saved < cost_of_weights + _COST_OF_TRANSFORM * squares * (rows + channels)


class _Emission(Emission):
    """The kernel of a convolution of 3x3 taps at stride 1.

    A tile of output channels is a panel of the register tiles, whose rows are positions.
    """

    def __init__(self, kernel: tirx.PrimFunc, found: Convolved) -> None:
        squares = [
            replace(axis, size=tirx.floordiv(axis.size + 1, int64(2)), taps=POINTS, stride=2)
            for axis in found.axes
        ]
        super().__init__(kernel, found, native_tile(), squares)
        self._tile_rows = self._tile.width

    # --- weights ---

    def _packed_shape(self, groups: Any) -> list[Any]:
        return [groups, self._tiles, int64(self._matrices), self._channels, int64(self._tile_rows)]

    @property
    def _matrices(self) -> int:
        """How many matrices are packed: one for each point, and for each tap of small images."""
        return _SQUARE + (9 if self._multiplies_taps else 0)

    def _packed_element(self, places: Sequence[Any], f: Any) -> Any:
        group, _, point, channel, _ = places

        def tap(*numbers: Any) -> Any:
            axes = zip(self._found.axes, numbers, strict=True)
            taps = {
                axis.tap: int64(number) if isinstance(number, int) else number
                for axis, number in axes
            }
            return self._weight(group, f, channel, taps)

        pair = (tirx.floordiv(point, int64(POINTS)), tirx.floormod(point, int64(POINTS)))
        transformed = transformed_taps(tap, pair)
        if not self._multiplies_taps:
            return transformed
        number = tirx.max(point - _SQUARE, int64(0))
        itself = tap(tirx.floordiv(number, int64(3)), tirx.floormod(number, int64(3)))
        return tirx.Select(point < _SQUARE, transformed, itself)

    # --- items ---

    def _most_positions(self) -> int:
        channels = static_size(self._channels) or 1
        # Each chunk reads all weights again.
        most = 4 * _CACHED if self._has_large_weights() else _CACHED
        panels = most // (_SQUARE * channels * self._tile.width)
        return max(panels, 1) * self._tile.width

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

    def _copy_input(
        self, values: dict[Any, Any], first: Any, count: Any, used_taps: Any, is_shared: bool
    ) -> Any:
        width = self._tile.width
        panels = bound(ceil_div(count * self._pitch, width))
        # Points are `[point, channel, position]`, at distances that do not compete for cache lines.
        self._row = bound(odd_lines(panels * width))
        self._point = bound(odd_lines(self._channels * self._row))
        elements = odd_lines(self._channels * self._most_row) * _SQUARE
        self._points = ib.alloc_buffer((elements,), "float32")
        self._panels = panels
        self._has_nan = ib.alloc_buffer((1,), "int64")
        ib.buffer_store(self._has_nan, int64(0), [int64(0)])
        return super()._copy_input(values, first, count, used_taps, is_shared)

    def _fill_planes(
        self, planes: Any, values: dict[Any, Any], first: Any, count: Any, is_shared: bool
    ) -> None:
        super()._fill_planes(planes, values, first, count, is_shared)
        width, lanes, panels = self._tile.width, self._tile.lanes, self._panels
        finite = ib.alloc_buffer((self._channels * lanes,), "float32")
        zero = tirx.const(0.0, "float32")

        def transform(channel: Any) -> None:
            call_function(
                INPUT, tirx.address_of(planes[bound(channel * self._channel_stride)]),
                tirx.address_of(self._points[bound(channel * self._row)]),
                tirx.address_of(finite[bound(channel * lanes)]),
                self._plane, self._pitch, panels, width, self._point,
            )  # fmt: skip

        work = self._channels * panels * (width * _SQUARE * 2)
        if is_shared:
            for_items(self._channels, work, transform)
        else:
            with ib.serial(self._channels) as channel:
                transform(channel)
        with ib.serial(self._channels * lanes) as k:
            differs = tirx.Select(finite[k] == zero, int64(0), int64(1))
            ib.buffer_store(self._has_nan, self._has_nan[int64(0)] | differs, [int64(0)])

    # --- output ---

    def _tiles_over_panels(
        self, chunk: Chunk, panel: Any, panel_end: Any, tile: Any, tile_end: Any
    ) -> None:
        width, lanes = self._tile.width, self._tile.lanes
        products = ib.alloc_buffer((_SQUARE * self._products_of_point,), "float32")
        taps = ib.alloc_buffer((self._channels * (2 * 9 * width),), "float32")
        squares = ib.alloc_buffer((4 * _POSITIONS * width,), "float32")
        # The epilogue reads whole vectors.
        results = ib.alloc_buffer((4 * _POSITIONS * width + lanes,), "float32")
        begin = bound(panel * width)
        end = bound(tirx.min(panel_end * width, chunk.positions))
        part = bound(tirx.max(even_part(end - begin, int64(_POSITIONS)), int64(1)))
        with ib.serial(tile_end - tile) as number:
            here = bound(tile + number)
            start = bound(here * width)
            channels = self._rows_of_tile(start)
            weights = bound(
                (chunk.group * self._tiles + here) * (self._channels * (self._matrices * width))
            )
            with ib.If(self._has_nan[int64(0)] != 0), ib.Then():
                call_function(
                    TAPS, tirx.address_of(self._weights[weights]), taps.data, self._channels, width
                )
            with ib.serial(ceil_div(end - begin, part)) as which:
                first = bound(begin + which * part)
                count = bound(tirx.min(end - first, part))

                def multiply() -> None:
                    with ib.If(self._has_nan[int64(0)] == 0):
                        with ib.Then():
                            self._multiply_points(first, count, channels, weights, products)
                        with ib.Else():
                            self._convolve(chunk, first, count, taps, products)
                    call_function(
                        OUTPUT, products.data, squares.data, self._products_of_point,
                        count * (2 * width), count,
                    )  # fmt: skip

                self._if_small(
                    partial(self._multiply_taps, chunk, here, count, products, squares), multiply
                )
                if self._found.gives_channels_last:
                    self._write_squares(chunk, start, channels, first, count, squares)
                else:
                    call_function(
                        TRANSPOSE, results.data, squares.data, count * 4, channels, count * 4, width
                    )
                    self._write_squares(chunk, start, channels, first, count, results)

    def _multiply_taps(
        self, chunk: Chunk, here: Any, count: Any, products: Any, squares: Any
    ) -> None:
        """Computes a small image, and writes it as `OUTPUT` does."""
        width = self._tile.width
        of_tap = self._channels * width
        tile = chunk.group * self._tiles + here
        weights = bound((tile * self._matrices + _SQUARE) * of_tap)
        height, length = (axis.size for axis in self._found.axes)
        call_tap_products(
            self._tile, chunk.planes.data, tirx.address_of(self._weights[weights]),
            products.data, chunk.used_taps.data, channels=self._channels, positions=height * length,
            taps=9, tap_step=of_tap, channel_step=int64(width), tile_step=of_tap * self._matrices,
        )  # fmt: skip
        with ib.serial(height) as y, ib.serial(length) as x:
            square = tirx.floordiv(y, int64(2)) * self._pitch + tirx.floordiv(x, int64(2))
            lower, right = (tirx.floormod(number, int64(2)) for number in (y, x))
            target = bound(((lower * count + square) * 2 + right) * width)
            source = bound((y * length + x) * width)
            with ib.serial(int64(width)) as k:
                ib.buffer_store(squares, products[source + k], [target + k])

    @property
    def _products_of_point(self) -> int:
        """From the products of a point to the next, so that they do not compete for cache lines."""
        return _POSITIONS * self._tile.width + 16

    def _row_tiles(self, count: Any) -> tuple[Any, Any]:
        """The number of register tiles for some positions, and their rows."""
        rows = bound(even_part(count, int64(self._tile.rows)))
        return ceil_div(count, tirx.max(rows, int64(1))), rows

    def _multiply_points(
        self, first: Any, count: Any, channels: Any, weights: Any, products: Any
    ) -> None:
        """Multiplies the points of some positions by those of the weights."""
        width = self._tile.width
        tiles, rows = self._row_tiles(count)
        tiles = bound(tiles)
        with ib.serial(int64(_SQUARE)) as point, ib.serial(tiles) as number:
            place = bound(number * rows)
            a = bound(point * self._point + first + place)
            b = bound(weights + point * (self._channels * width))
            panel_elements = self._channels * width
            distance, step = share_of_next_panel(panel_elements, int64(width), number, tiles)
            out = bound(point * self._products_of_point + place * width)
            call_panel(
                self._tile, static_size(self._rows), channels,
                bound(tirx.min(count - place, rows)), tirx.address_of(self._points[a]),
                tirx.address_of(self._weights[b]), tirx.address_of(products[out]),
                self._table.data, self._channels, self._row,
                following=(tirx.address_of(self._weights[bound(b + distance)]), step),
            )  # fmt: skip

    def _convolve(self, chunk: Chunk, first: Any, count: Any, taps: Any, products: Any) -> None:
        """Sums the taps of each output, and writes the sums as the points that only it reads."""
        width, depth = self._tile.width, self._channels
        zero = tirx.const(0.0, "float32")
        call_copy_row(
            products.data, products.data, int64(_SQUARE * self._products_of_point), 0, 0, 1, zero
        )
        tiles, rows = self._row_tiles(count)
        for number, (point, sign) in enumerate(_CORNERS):
            with ib.serial(tiles) as tile, ib.serial(int64(9)) as tap:
                place = bound(tile * rows)
                shift = self._table[1 + 9 * number + tap]
                call_tile(
                    self._tile, bound(tirx.min(count - place, rows)),
                    tirx.address_of(chunk.planes[bound(first + place + shift)]),
                    tirx.address_of(taps[bound((sign < 0) * (depth * (9 * width)) + tap * width)]),
                    tirx.address_of(products[point * self._products_of_point + place * width]),
                    self._table.data, (depth, int64(1)), (self._channel_stride, int64(0)),
                    int64(9 * width), int64(width), bound(tap),
                )  # fmt: skip

    def _write_squares(
        self, chunk: Chunk, start: Any, rows: Any, begin: Any, count: Any, results: Any
    ) -> None:
        """Writes the results of some rows at a range of positions."""
        store, lanes = self._found.store, self._tile.lanes
        outer, inner = (axis.column for axis in self._found.axes)
        height, length = (axis.size for axis in self._found.axes)
        end = bound(begin + count)
        line = bound(tirx.floordiv(begin, self._pitch))
        # With channels last, each position has a vector of channels.
        is_last = self._found.gives_channels_last
        with (
            ib.serial(int64(1) if is_last else rows) as row,
            ib.serial(ceil_div(end, self._pitch) - line) as number,
        ):
            here = {**chunk.values, **self._unflattened(self._product.rows, start + row)}
            place = bound((line + number) * self._pitch)
            low = bound(tirx.max(begin - place, int64(0)))
            high = bound(tirx.min((end - place) * 2, length))
            top = bound((chunk.first + line + number) * 2)
            with ib.serial(tirx.min(height - top, int64(2))) as lower:
                here.update({outer: top + lower, inner: bound(low * 2)})
                origin = bound(((row * 2 + lower) * count + place + low - begin) * 2)
                elements = bound(tirx.max(high - low * 2, int64(0)))
                if is_last:
                    with ib.serial(elements) as k:
                        there = {**here, inner: bound(low * 2 + k)}
                        vector = bound((origin + k) * self._tile.width)
                        store.run(there, rows, partial(element_of, results, vector), lanes)
                else:
                    store.run(here, elements, partial(element_of, results, origin), lanes)
