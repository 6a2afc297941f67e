"""Convolutions whose taps are far apart: a product for each tap, where it reads the input.

In atrous spatial pyramid pooling (Chen et al., DeepLab, 2017) taps lie 12 to 36 elements apart, and
the image may have no more lines than that: most of what most taps read is padding. Here planes have
no padding. Each tap is multiplied at the lines and columns where it reads the input, and its
products are added to the results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm import sym, tirx
from tvm.tirx.script import builder as ib

from .affine import int64, static_size
from .channel_panels import BLOCK, PanelEmission, suits_panels
from .convolution import FAR, Chunk, ConvolutionRule
from .convolution_form import Convolved, SpatialAxis
from .emission import bound, ceil_div, even_part, for_items, pieces
from .micro_kernels import call_copy_row, call_panel, share_of_next_panel
from .window_axes import inside


class FarTaps(ConvolutionRule):
    """Convolutions in NCHW whose lines of taps are far apart, of strides 1.

    Lines are padded, and those of the output are at least as long as those of the input.
    """

    def emission(self, kernel: tirx.PrimFunc, found: Convolved) -> PanelEmission | None:
        return _Emission(kernel, found) if _suits(found) else None


def _suits(found: Convolved) -> bool:
    if len(found.axes) != 2 or not suits_panels(found) or found.takes_channels_last:
        return False
    outer, inner = found.axes
    if (outer.stride, inner.stride) != (1, 1) or outer.taps == 1 or outer.dilation < FAR:
        return False
    is_zero = isinstance(found.fill, tirx.FloatImm) and float(found.fill.value) == 0
    width = inner.high - inner.low
    of_line, of_column = (found.position.of(variable) for variable in found.positions)
    gap, longer = (static_size(sym.Analyzer().simplify(n - width)) for n in (of_line, inner.size))
    are_contiguous = static_size(of_column) == 1 and gap == 0
    return is_zero and are_contiguous and longer is not None and longer >= 0


@dataclass(frozen=True)
class _WithoutPadding(SpatialAxis):
    """The columns, whose padding the planes leave out."""

    @property
    def phases(self) -> int:
        return 1

    @property
    def reach(self) -> int:
        return 0


class _Emission(PanelEmission):
    """The kernel. A plane holds the lines that a line of taps reads, without gaps."""

    def __init__(self, kernel: tirx.PrimFunc, found: Convolved) -> None:
        outer, inner = found.axes
        axes = [replace(outer, is_spread=True), _WithoutPadding(**vars(inner))]
        super().__init__(kernel, found, axes)
        self._width = inner.high - inner.low

    def _most_positions(self) -> int:
        # Each line of taps reads lines of its own.
        return max(super()._most_positions() // self._axes[0].taps, self._tile.width)

    def _packed_shape(self, groups: Any) -> list[Any]:
        return [groups, self._tiles, int64(self._taps), self._channels, int64(self._tile_rows)]

    def _packed_element(self, places: Any, f: Any) -> Any:
        group, _, tap, channel, _ = places
        return self._weight(group, f, channel, self._tap_values(tap))

    @property
    def _weight_steps(self) -> tuple[Any, Any]:
        return self._channels * self._tile.width, self._tile.width

    def _lines_of_tap(self, tap: Any, first: Any, count: Any) -> tuple[Any, Any]:
        """The lines of a chunk for which a line of taps reads the input."""
        outer = self._axes[0]
        return inside(outer, bound(first + tap * outer.dilation), count)

    def _fill_planes(
        self, planes: Any, values: dict[Any, Any], first: Any, count: Any, is_shared: bool
    ) -> None:
        outer, inner = self._axes
        line_variable, variable = self._found.positions

        def copy(channel: Any) -> None:
            here = {**values, variable: inner.low}
            if self._found.channel is not None:
                here[self._found.channel] = channel
            with ib.serial(int64(outer.taps)) as tap:
                line, end = self._lines_of_tap(tap, first, count)
                here[line_variable] = first + line + tap * outer.dilation
                target = channel * self._channel_stride + tap * self._plane + line * self._width
                call_copy_row(
                    tirx.address_of(planes[bound(target)]),
                    tirx.address_of(self._source[bound(self._found.position.at(here))]),
                    0, (end - line) * self._width, 0, 1, self._found.fill,
                )  # fmt: skip

        if is_shared:
            for_items(self._channels, self._channels * (count * self._width * outer.taps), copy)
        else:
            with ib.serial(self._channels) as channel:
                copy(channel)

    def _multiply(
        self, chunk: Chunk, begin: Any, end: Any, here: Any, channels: Any, scratch: Any
    ) -> None:
        outer, inner = self._axes
        tile, length = self._tile, self._length
        of_tap = bound(self._channels * tile.width)
        weights = bound((chunk.group * self._tiles + here) * (of_tap * self._taps))
        results = scratch.data
        zero = self._found.fill
        call_copy_row(results, results, (end - begin) * tile.width, 0, 0, 1, zero)
        blocks = bound(pieces(self._channels, int64(BLOCK)))
        depth = bound(ceil_div(self._channels, blocks))
        passes = bound(ceil_div(end - begin, tile.rows))
        with ib.serial(int64(outer.taps)) as tap_line, ib.serial(int64(inner.taps)) as tap:
            line, line_end = self._lines_of_tap(tap_line, chunk.first, chunk.count)
            low, high = inside(inner, bound(tap * inner.dilation), length)
            # Where a tap reads whole lines, they form one.
            is_whole = tirx.all(high - low == length, self._width == length)
            is_whole = bound(tirx.Cast("int64", is_whole))
            start = bound(tirx.max(line, tirx.floordiv(begin, length)))
            stop = bound(tirx.min(line_end, ceil_div(end, length)))
            runs = tirx.Select(is_whole == 1, tirx.min(stop - start, int64(1)), stop - start)
            number = tap_line * inner.taps + tap
            shift = bound(tap_line * self._plane + tap * inner.dilation - inner.low)
            with ib.serial(blocks) as block, ib.serial(runs) as run:
                channel = bound(block * depth)
                depth_here = bound(tirx.min(self._channels - channel, depth))
                of_block = bound(weights + number * of_tap + channel * tile.width)
                here_line = bound(start + run)
                last_line = tirx.Select(is_whole == 1, stop - 1, here_line)
                first = bound(tirx.max(begin, here_line * length + low))
                last = bound(tirx.min(end, last_line * length + high))
                count = bound(tirx.max(last - first, int64(0)))
                rows = bound(even_part(count, int64(tile.rows)))
                with ib.serial(ceil_div(count, tirx.max(rows, int64(1)))) as part:
                    position = bound(first + part * rows)
                    place = position + here_line * (self._width - length) + shift
                    plane = bound(place + channel * self._channel_stride)
                    result = bound(position - begin)
                    distance, step = share_of_next_panel(
                        depth_here * tile.width, int64(tile.width),
                        tirx.floordiv(result, tile.rows), passes,
                    )  # fmt: skip
                    following = tirx.address_of(self._weights[bound(of_block + distance)])
                    call_panel(
                        tile, static_size(self._rows), channels,
                        bound(tirx.min(last - position, rows)),
                        tirx.address_of(chunk.planes[plane]),
                        tirx.address_of(self._weights[of_block]),
                        tirx.address_of(scratch[bound(result * tile.width)]), self._table.data,
                        depth_here, self._channel_stride, adds=1, a_ahead=rows,
                        following=(following, step),
                    )  # fmt: skip
