"""Convolutions whose taps are far apart: a product for each tap, where it reads the input.

In atrous spatial pyramid pooling (Chen et al., DeepLab, 2017) taps lie 12 to 36 elements apart, and
the image may have no more lines than that: most of what most taps read is padding. Here planes have
no padding. Each tap is multiplied at the lines and columns where it reads the input, and its
products are added to the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import sym, tirx
from tvm.tirx.script import builder as ib

from ..functions.micro_kernels import call_copy_row, call_panel, share_of_next_panel
from ..kernels.affine import int64, static_size
from ..kernels.emission import bound, ceil_div, even_part, for_items, pieces
from ..products.convolution_form import Convolved, SpatialAxis
from .channel_panels import BLOCK, PanelEmission, suits_panels
from .convolution import FAR, Chunk, ConvolutionRule
from .padded_planes import COST_OF_COPY
from .window_axes import inside


class FarTaps(ConvolutionRule):
    """Convolutions in NCHW whose rows of taps are far apart, with strides of 1.

    Lines are padded, and those of the output are known to be no shorter than those of the input. As
    in `tap_products`, an infinite or NaN weight does not reach positions at which its tap reads
    padding.
    """

    def emission(self, kernel: tirx.PrimFunc, found: Convolved) -> PanelEmission | None:
        return _Emission(kernel, found) if _suits(found) else None


def _suits(found: Convolved) -> bool:
    if len(found.axes) != 2 or not suits_panels(found) or found.takes_channels_last:
        return False
    outer, inner = found.axes
    if (outer.stride, inner.stride) != (1, 1) or outer.taps == 1 or outer.dilation < FAR:
        return False
    width = inner.high - inner.low
    of_line, of_column = (found.position.of(variable) for variable in found.positions)
    gap, longer = (static_size(sym.Analyzer().simplify(n - width)) for n in (of_line, inner.size))
    are_contiguous = static_size(of_column) == 1 and gap == 0
    return found.has_zero_fill and are_contiguous and longer is not None and longer >= 0


@dataclass(frozen=True)
class _WithoutPadding(SpatialAxis):
    """The columns, whose padding the planes leave out."""

    @property
    def reach(self) -> int:
        return 0


@dataclass(frozen=True)
class _Tap:
    """The places of a chunk at which a tap reads the input."""

    number: Any
    shift: Any
    """The elements of a plane from a position to what it reads."""
    first_line: Any
    end_line: Any
    low: Any
    """The first column, and the one after the last."""
    high: Any
    is_whole: Any
    """Whether these are all columns, so that all lines are one run; 0 or 1."""

    @property
    def runs(self) -> Any:
        """The number of runs of positions that follow each other in plane and results."""
        lines = tirx.max(self.end_line - self.first_line, int64(0))
        return tirx.Select(self.is_whole == 1, tirx.min(lines, int64(1)), lines)


class _Emission(PanelEmission):
    """The kernel. A plane holds the lines that a row of taps reads, without gaps."""

    def __init__(self, kernel: tirx.PrimFunc, found: Convolved) -> None:
        outer, inner = found.axes
        super().__init__(kernel, found, [outer, _WithoutPadding(**vars(inner))])
        self._width = inner.high - inner.low

    def _most_positions(self) -> int:
        # Each row of taps reads lines of its own, which stay in the cache beside the results.
        return max(super()._most_positions() // self._axes[0].taps, self._tile.width)

    def _packed_shape(self, groups: Any) -> list[Any]:
        return [groups, self._tiles, int64(self._taps), self._channels, int64(self._tile_rows)]

    def _packed_element(self, places: Sequence[Any], f: Any) -> Any:
        group, _, tap, channel, _ = places
        return self._weight(group, f, channel, self._tap_values(tap))

    @property
    def _weight_steps(self) -> tuple[Any, Any]:
        return self._channels * self._tile.width, self._tile.width

    def _lines_of_row(self, row: Any, first: Any, count: Any) -> tuple[Any, Any]:
        """The lines of a chunk for which a row of taps reads the input."""
        outer = self._axes[0]
        return inside(outer, bound(first + row * outer.dilation), count)

    def _fill_planes(
        self, planes: Any, values: dict[Any, Any], first: Any, count: Any, is_shared: bool
    ) -> None:
        outer, inner = self._axes
        line_variable, variable = self._found.positions

        def copy(channel: Any) -> None:
            here = {**values, variable: inner.low}
            if self._found.channel is not None:
                here[self._found.channel] = channel
            with ib.serial(int64(outer.taps)) as row:
                line, end = self._lines_of_row(row, first, count)
                here[line_variable] = first + line + row * outer.dilation
                target = channel * self._channel_stride + row * self._plane + line * self._width
                call_copy_row(
                    tirx.address_of(planes[bound(target)]),
                    tirx.address_of(self._source[bound(self._found.position.at(here))]),
                    0, (end - line) * self._width, 0, 1, self._found.fill,
                )  # fmt: skip

        elements = self._channels * (count * self._width * outer.taps)
        if is_shared:
            for_items(self._channels, elements * COST_OF_COPY, copy)
        else:
            with ib.serial(self._channels) as channel:
                copy(channel)

    def _multiply(
        self, chunk: Chunk, begin: Any, end: Any, here: Any, channels: Any, scratch: Any
    ) -> None:
        outer, inner = self._axes
        tap_elements = bound(self._channels * self._tile.width)
        panel = bound((chunk.group * self._tiles + here) * (tap_elements * self._taps))
        results, zero = scratch.data, tirx.const(0.0, "float32")
        call_copy_row(results, results, (end - begin) * self._tile.width, 0, 0, 1, zero)
        blocks = bound(pieces(self._channels, int64(BLOCK)))
        depth = bound(ceil_div(self._channels, blocks))
        with ib.serial(int64(outer.taps)) as row, ib.serial(int64(inner.taps)) as column:
            tap = self._tap(chunk, begin, end, row, column)
            with ib.serial(blocks) as block, ib.serial(bound(tap.runs)) as run:
                channel = bound(block * depth)
                depth_here = bound(tirx.min(self._channels - channel, depth))
                weights = bound(panel + tap.number * tap_elements + channel * self._tile.width)
                first_line = bound(tap.first_line + run)
                last_line = tirx.Select(tap.is_whole == 1, tap.end_line - 1, first_line)
                run_begin = bound(tirx.max(begin, first_line * self._length + tap.low))
                run_end = bound(tirx.min(end, last_line * self._length + tap.high))
                gaps = first_line * (self._width - self._length)
                plane = bound(gaps + tap.shift + channel * self._channel_stride)
                self._multiply_run(
                    chunk, (begin, end), (run_begin, run_end), plane, weights, depth_here,
                    channels, scratch,
                )  # fmt: skip

    def _tap(self, chunk: Chunk, begin: Any, end: Any, row: Any, column: Any) -> _Tap:
        """Where a tap reads the input, for positions of a chunk from `begin` to before `end`."""
        inner, length = self._axes[-1], self._length
        first_line, end_line = self._lines_of_row(row, chunk.first, chunk.count)
        low, high = inside(inner, bound(column * inner.dilation), length)
        is_whole = tirx.all(high - low == length, self._width == length)
        return _Tap(
            row * inner.taps + column,
            bound(row * self._plane + column * inner.dilation - inner.low),
            bound(tirx.max(first_line, tirx.floordiv(begin, length))),
            bound(tirx.min(end_line, ceil_div(end, length))),
            low, high, bound(tirx.Cast("int64", is_whole)),
        )  # fmt: skip

    def _multiply_run(
        self, chunk: Chunk, span: tuple[Any, Any], run: tuple[Any, Any], plane: Any, weights: Any,
        depth: Any, channels: Any, scratch: Any,
    ) -> None:  # fmt: skip
        """Adds products of a block of channels to the results of a run of positions.

        The results are those of a span of positions. `plane` is what position 0 of the chunk would
        read of the first channel, if the run went so far.
        """
        tile, (begin, end), (first, last) = self._tile, span, run
        count = bound(tirx.max(last - first, int64(0)))
        rows = bound(even_part(count, int64(tile.rows)))
        passes = bound(ceil_div(end - begin, tile.rows))
        with ib.serial(ceil_div(count, tirx.max(rows, int64(1)))) as part:
            position = bound(first + part * rows)
            result = bound(position - begin)
            distance, step = share_of_next_panel(
                depth * tile.width, int64(tile.width), tirx.floordiv(result, tile.rows), passes
            )
            following = tirx.address_of(self._weights[bound(weights + distance)])
            call_panel(
                tile, static_size(self._rows), channels, bound(tirx.min(last - position, rows)),
                tirx.address_of(chunk.planes[bound(plane + position)]),
                tirx.address_of(self._weights[weights]),
                tirx.address_of(scratch[bound(result * tile.width)]),
                # The first entry of the table is 0; the others mean nothing to a single tap.
                self._table.data, depth, self._channel_stride, adds=1, a_ahead=rows,
                following=(following, step),
            )  # fmt: skip
