"""Convolutions: output positions in vectors, output channels in register tiles.

The padded input is copied chunk by chunk into planes, one for each phase of the stride, in which
neighbouring output positions read neighbouring elements whatever the stride and dilation. Rows of a
plane follow each other, so that a vector of positions may run over the end of a row: odd widths
fill vectors, and the few results between rows are left out when the output is written. Weights are
packed into tiles of output channels once. Depthwise convolutions, with one output channel in a
group, take a tile of one row and twice as many vectors.

An image whose size is unknown until run time may turn out to be small. It is multiplied tap by tap,
without the taps that read only padding (`tap_products`); one of a single tap is read where it is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tvm import s_tir, sym, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from ..functions.lane_kernels import TRANSPOSE
from ..functions.micro_kernels import (
    Tile,
    call_function,
    call_panels,
    channel_tile,
    line_tile,
    native_tile,
)
from ..kernels.affine import flat, int64, product, static_size, unflattened
from ..kernels.emission import (
    bound,
    ceil_div,
    compute_block,
    even_part,
    even_start,
    for_items,
    pieces,
    rewritten,
    unless_empty,
)
from ..kernels.nests import inlined, substituted
from ..products.convolution_form import (
    Convolved,
    SpatialAxis,
    are_plain,
    convolution_of,
    convolution_with_channels_last,
)
from ..relax.packing import or_zero, pack_weights
from .padded_planes import CACHE_LINE, PaddedPlanes, odd_lines
from .tap_products import (
    LISTED,
    MOST_POSITIONS,
    call_gather_taps,
    call_tap_products,
    can_be_small,
)

_CACHED = 1 << 18
"""Elements of the input that a chunk keeps in the second-level cache."""
_CACHED_BESIDE_WEIGHTS = 1 << 20
"""The same beside so many weights that cores share them: each chunk reads all weights again."""
_NEAR = 6 << 10
"""Elements of the input that stay in the first-level cache while tiles of channels pass over."""
_MOST_POSITIONS = 512
"""Positions of a chunk, so that the sums of a few tiles stay in the second-level cache."""
_TOGETHER = 4
"""Tiles of output channels that pass over a panel one after another."""
FAR = 8
"""The distance of taps, in lines of the output, from which each tap gets its own copy of the lines
it reads: a chunk has fewer lines than that."""
_SHARED = 1 << 20
"""Weights from which on cores share the tiles of a chunk, because each chunk reads all weights."""
_BLOCKS = 2
"""The most blocks that the tiles of a single chunk are cut into.

Each copies the input itself, so that no core waits for another.
"""
_ITEMS = 8
"""Items of work that a kernel is cut into at least, if it has so many tiles."""


class ConvolutionRule(ScheduleRule, ABC):  # type: ignore[misc]
    """A schedule rule for convolutions on CPUs; a subclass knows one kind of them."""

    @abstractmethod
    def emission(self, kernel: tirx.PrimFunc, found: Convolved) -> Any | None:
        """What emits the convolution; None for one of another kind."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        found = convolution_of(kernel) or image_convolution(kernel)
        emission = None if found is None else self.emission(kernel, found)
        return None if emission is None else s_tir.Schedule(rewritten(kernel, emission.emit))


class Convolution(ConvolutionRule):
    """Convolutions of float32 in NCW, NCHW or NCDHW, of any stride, dilation, group and size."""

    def emission(self, kernel: tirx.PrimFunc, found: Convolved) -> Emission:
        is_depthwise = static_size(found.product.count(found.product.rows)) == 1
        return Emission(kernel, found, line_tile() if is_depthwise else native_tile())


def image_convolution(kernel: tirx.PrimFunc) -> Convolved | None:
    """The convolution that a kernel computes into an image of lines with channels last.

    It reads neighbouring positions, or all channels of each position.
    """
    found = convolution_with_channels_last(kernel)
    if found is None or not found.product.rows or len(found.axes) != 2:
        return None
    reads_neighbours = static_size(found.position.of(found.positions[-1])) == 1
    return found if reads_neighbours or found.takes_channels_last else None


@dataclass(frozen=True)
class Chunk:
    """A number of output positions of one image and group."""

    values: dict[Any, Any]
    """Of the batch variables."""
    group: Any
    first: Any
    """The first position along a line, or the first line."""
    count: Any
    """The number of positions, or of lines."""
    positions: Any
    """The number of positions in the planes, with those between lines."""
    planes: Any
    """The copied input. Of a small image: what each used tap reads, see `gather_taps`, and
    nothing where it is read where it is."""
    used_taps: Any
    """The list of the taps that read an element of a small image; None where no image is multiplied
    tap by tap."""


class Emission:
    """The kernel of a convolution.

    An item of work is a chunk of output positions and a block of tiles of output channels. It
    copies the part of the padded input that it reads into planes `[channel, phase, line, pitch]`,
    which stay in the second-level cache while all its tiles pass over them.
    """

    def __init__(
        self, kernel: tirx.PrimFunc, found: Convolved, tile: Tile,
        axes: Sequence[SpatialAxis] | None = None,
    ) -> None:  # fmt: skip
        """`axes` are those of the planes, if they differ from those of the convolution. Only a
        subclass that reads planes at their `step` may give interleaved ones.
        """
        self._pads_weights = False
        self._kernel = kernel
        self._found = found
        self._product = found.product
        self._tile = tile
        self._axes = found.axes if axes is None else list(axes)
        if len(self._axes) == 2 and self._axes[0].dilation // self._axes[0].stride >= FAR:
            self._axes = [replace(self._axes[0], is_spread=True), self._axes[1]]
        product_ = found.product
        channel = found.channel
        self._channels = int64(1) if channel is None else product_.extent(channel)
        self._taps = math.prod(axis.taps for axis in self._axes)
        self._phases = math.prod(axis.phases for axis in self._axes)
        self._rows = product_.count(product_.rows)
        count = static_size(self._rows)
        if count is None:
            self._tile_rows = tile.rows
        else:
            tiles = -(-count // tile.rows)
            self._tile_rows = -(-count // tiles)
        self._is_line = self._positions_follow()

    def _positions_follow(self) -> bool:
        """Whether all output positions follow each other in input and output: one long line."""
        if not self._has_even_positions:
            return False
        return len(self._axes) == 1 or are_plain(self._axes)

    @property
    def _has_even_positions(self) -> bool:
        """Whether the positions of an image follow each other at one distance in the output."""
        return self._found.store.is_even(self._product.columns)

    def emit(self) -> None:
        weights = self._pack_weights()
        with compute_block("convolution"), unless_empty(self._found.store.written):
            self._found.store.declare()
            self._weights = flat(weights)
            self._source = flat(self._found.source)
            self._items()

    # --- weights ---

    def _pack_weights(self) -> Any:
        """Packs the weights into `[group, tile, channel, tap, row]`."""
        rows = self._tile_rows
        self._tiles = pieces(self._rows, rows)
        groups = self._product.count(self._groups)
        shape = [sym.Analyzer().simplify(size) for size in self._packed_shape(groups)]

        def element(*places: Any) -> Any:
            f = places[1] * rows + places[-1]
            return or_zero(self._packed_element(places, f), f, self._rows, rows)

        source = self._product.a.buffer
        self._pads_weights = not self._is_depthwise and all(
            isinstance(size, tirx.IntImm) for size in shape
        )
        # Room for a vector of output channels that begins in the last row.
        room = channel_tile().width if self._pads_weights else 0
        return pack_weights(self._kernel, source, shape, element, room=room)

    def _packed_shape(self, groups: Any) -> list[Any]:
        taps, rows = int64(self._taps), int64(self._tile_rows)
        return [groups, self._tiles, self._channels, taps, rows]

    def _packed_element(self, places: Sequence[Any], f: Any) -> Any:
        """The packed weight at some places, which is for output channel f."""
        group, _, channel, tap, _ = places
        return self._weight(group, f, channel, self._tap_values(tap))

    def _weight(self, group: Any, f: Any, channel: Any, taps: dict[Any, Any]) -> Any:
        values = self._unflattened(self._groups, group) | taps
        values.update(self._unflattened(self._product.rows, f))
        if self._found.channel is not None:
            values[self._found.channel] = channel
        operand = self._product.a
        return operand.buffer[tuple(substituted(index, values) for index in operand.indices)]

    @property
    def _groups(self) -> list[Any]:
        """The batch variables that the weights depend on."""
        coefficients = self._product.a.position.coefficients
        return [v for v in self._product.batch if v in coefficients]

    @property
    def _images(self) -> list[Any]:
        """The other batch variables."""
        return [v for v in self._product.batch if v not in self._groups]

    def _unflattened(self, variables: Sequence[Any], number: Any) -> dict[Any, Any]:
        return unflattened(variables, self._product.extent, number)

    def _tap_values(self, number: Any) -> dict[Any, Any]:
        values = {}
        for axis in reversed(self._axes):
            if axis.tap is not None:
                values[axis.tap] = tirx.floormod(number, int64(axis.taps))
            number = tirx.floordiv(number, int64(axis.taps))
        return values

    # --- items ---

    def _items(self) -> None:
        product_, tile = self._product, self._tile
        groups = bound(product_.count(self._groups))
        images = bound(product_.count(self._images))
        sizes = [axis.size for axis in self._axes]
        width = self._axes[-1]
        if self._multiplies_taps or self._reads_input:
            positions = product([axis.size for axis in self._found.axes])
            # Few enough for a single panel. An image without positions may have lines.
            of_taps = min(MOST_POSITIONS, tile.width)
            most = of_taps if self._multiplies_taps else channel_tile().rows
            is_small = tirx.all(positions > 0, positions <= most)
            self._is_small = bound(tirx.Cast("int64", is_small))
        most = self._most_positions()
        is_shared = self._is_shared()
        multiple = bound(self._chunk_multiple(is_shared, product(sizes)))
        if self._is_line:
            # A chunk is a part of the line.
            length = product(sizes)
            part = bound(even_part(length, most, multiple))
            chunk = tirx.min(ceil_div(part, tile.width) * tile.width, length)
            reach = width.reach if len(self._axes) == 1 else 0
            pitch, lines, total = chunk + reach, int64(1), length
            self._lines_at_most = int64(1)
            longest, most_positions = chunk, int64(-(-most // tile.width) * tile.width)
            most_copied = most_positions + reach
        else:
            # A chunk is a number of whole lines.
            # An empty image has lines, too; TVM divides by the pitch.
            length, longest_line = sizes[-1], tirx.max(width.extent, int64(1))
            pitch = longest_line
            if self._multiplies_taps:  # The positions of a small image follow each other.
                pitch = tirx.Select(self._is_small != 0, tirx.max(length, int64(1)), pitch)
            pitch = bound(pitch)
            total, reach = product(sizes[:-1]), self._axes[-2].reach
            lines_at_most = tirx.max(tirx.floordiv(int64(most), pitch), int64(1))
            # At least as many, in the kernel's own sizes: it is for the size of a buffer.
            of_image = tirx.floordiv(int64(most), tirx.max(length, int64(1)))
            self._lines_at_most = tirx.max(of_image, int64(1))
            chunk = bound(even_part(total, lines_at_most, multiple))
            lines, longest = chunk + reach, chunk * pitch
            most_positions = tirx.max(int64(most), longest_line)
            most_copied = most_positions + longest_line * reach
        # Odd numbers of cache lines, so that neither channels nor rows compete for the same ones.
        step = self._axes[-1].step
        channel_stride = odd_lines(lines * pitch * (step * self._phases))
        out_row = odd_lines(ceil_div(longest, tile.width) * tile.width)
        self._together = 1 if self._is_depthwise else _TOGETHER
        # Sizes of buffers are expressions of the kernel's own sizes (see `bound`), and simple ones:
        # TVM takes seconds over others. Vectors of the last positions reach past the end, and the
        # epilogue reads whole vectors, too.
        most_stride = odd_lines(most_copied * (step * self._phases))
        if self._multiplies_taps:
            most_stride = tirx.max(most_stride, int64(MOST_POSITIONS * self._count_of_taps))
        self._most_row = odd_lines(ceil_div(most_positions, tile.width) * tile.width)
        self._plane_elements = self._channels * most_stride + 2 * tile.width
        self._out_elements = self._most_row * (self._together * self._tile_rows) + tile.lanes
        self._length, self._pitch, self._out_row = bound(length), bound(pitch), bound(out_row)
        self._plane = bound(lines * pitch * step)
        self._channel_stride = bound(channel_stride)
        total, chunk = bound(total), bound(chunk)
        chunks = bound(pieces(total, tirx.max(chunk, int64(1))))
        blocks = int64(1)
        if not is_shared and not self._is_depthwise:
            few = tirx.min(int64(_BLOCKS), tirx.max(self._tiles, int64(1)))
            blocks = bound(tirx.Select(images * groups * chunks == 1, few, int64(1)))
        work = images * groups * self._rows * product(sizes) * self._channels * self._taps
        self._padded = PaddedPlanes(
            self._found, self._axes, self._is_line, self._source, self._channels, self._pitch,
            self._plane, self._channel_stride, most_lines=self._lines_at_most,
            past_end=2 * tile.width, skips_padding=self._skips_taps,
        )  # fmt: skip
        self._fill_table()

        def item(number: Any) -> None:
            block = bound(tirx.floormod(number, blocks))
            number = bound(tirx.floordiv(number, blocks))
            first = bound(tirx.floormod(number, chunks) * chunk)
            rest = bound(tirx.floordiv(number, chunks))
            group = bound(tirx.floormod(rest, groups))
            image = bound(tirx.floordiv(rest, groups))
            count = bound(tirx.min(total - first, chunk))
            values = {
                **self._unflattened(self._images, image), **self._unflattened(self._groups, group)
            }  # fmt: skip
            values = {variable: bound(value) for variable, value in values.items()}
            used_taps = None
            if self._multiplies_taps:
                used_taps = ib.alloc_buffer((LISTED,), "int64")
            planes = self._copy_input(values, first, count, used_taps, is_shared)
            positions = count if self._is_line else bound(count * self._pitch)
            panels = bound(ceil_div(positions, tile.width))
            tiles = bound(self._tiles)
            here = Chunk(values, group, first, count, positions, planes, used_taps)
            if is_shared:
                self._shared(here, panels, tiles)
            else:
                start, end = (even_start(block + k, blocks, tiles) for k in (0, 1))
                self._tiles_over_panels(here, int64(0), panels, start, end)

        if is_shared:
            with ib.serial(images * groups * chunks) as number:
                item(number)
        else:
            for_items(images * groups * chunks * blocks, work, item)

    def _chunk_multiple(self, is_shared: bool, positions: Any) -> Any:
        """What the number of chunks should be a multiple of, so that two cores have equally many.

        Each chunk reads all weights: few positions are one chunk, whose tiles are cut into blocks.
        """
        if is_shared:
            return int64(1)
        if self._is_depthwise:
            return int64(2)
        return tirx.Select(positions >= int64(2 * self._tile.width), int64(2), int64(1))

    @property
    def _skips_taps(self) -> bool:
        """Whether each tile leaves out the taps that read only padding."""
        return False

    @property
    def _is_depthwise(self) -> bool:
        return self._tile_rows == 1

    # --- small images ---

    @property
    def _count_of_taps(self) -> int:
        return math.prod(axis.taps for axis in self._found.axes)

    @property
    def _multiplies_taps(self) -> bool:
        """Whether small images are multiplied tap by tap."""
        known = (self._rows, self._channels, self._product.count(self._groups))
        is_known = all(static_size(number) is not None for number in known)
        return is_known and not self._is_depthwise and can_be_small(self._found)

    @property
    def _reads_input(self) -> bool:
        """Whether small images of one tap are read where they are: by tiles that read no vectors of
        them.
        """
        if self._is_depthwise or self._found.takes_channels_last:
            return False
        size = static_size(product([axis.size for axis in self._axes]))
        if size is not None and size > channel_tile().rows:
            return False
        return self._is_line and are_plain(self._axes) and self._pads_weights

    def _if_small(self, small: Callable[[], None], other: Callable[[], None]) -> None:
        """Emits one of two ways to compute, for a small image or for another."""
        if not (self._multiplies_taps or self._reads_input):
            other()
            return
        with ib.If(self._is_small != 0):
            with ib.Then():
                small()
            with ib.Else():
                other()

    def _gather_taps(self, values: dict[Any, Any], planes: Any, used_taps: Any) -> None:
        """Gathers what the taps read of a small image."""
        position = self._found.position
        call_gather_taps(
            self._found, position, tirx.address_of(self._source[bound(position.at(values))]),
            planes.data, used_taps.data, self._channels,
        )  # fmt: skip

    def _sums_of_taps(self, chunk: Chunk, first_tile: Any, tiles: Any, scratch: Any) -> None:
        """Computes a few tiles for a small image, with output channels in vectors."""
        rows, tile = self._tile_rows, channel_tile()
        elements = self._channels * (self._taps * rows)
        with ib.serial(tiles) as offset:
            sums = ib.alloc_buffer((max(MOST_POSITIONS, tile.rows) * tile.width,), "float32")
            number = bound(first_tile + offset)
            weights = bound((chunk.group * self._tiles + number) * elements)
            call_tap_products(
                tile, chunk.planes.data, tirx.address_of(self._weights[weights]), sums.data,
                chunk.used_taps.data, channels=self._channels, positions=chunk.positions,
                taps=self._taps, tap_step=rows, channel_step=self._taps * rows,
                tile_step=elements,
            )  # fmt: skip
            here = bound(tirx.min(self._rows - number * rows, int64(rows)))
            target = tirx.address_of(scratch[bound(offset * rows * self._out_row)])
            call_function(
                TRANSPOSE, target, sums.data, chunk.positions, here, self._out_row, tile.width
            )

    def _most_positions(self) -> int:
        """How many positions a chunk has at most."""
        # Of spread taps, a chunk reads little more than the planes with elements of the input.
        phases = math.prod(axis.phases * axis.step for axis in self._axes if not axis.is_spread)
        per_position = (static_size(self._channels) or 256) * phases
        cached = _CACHED_BESIDE_WEIGHTS if self._is_shared() else _CACHED
        most = max(self._tile.width, cached // per_position)
        return most if self._is_depthwise else min(most, _MOST_POSITIONS)

    def _is_shared(self) -> bool:
        """Whether the tiles of one chunk run on several cores, rather than chunks."""
        rows, channels = static_size(self._rows), static_size(self._channels)
        if rows is None or channels is None:
            return True
        return rows > self._tile_rows and rows * channels * self._taps > _SHARED

    def _has_large_weights(self) -> bool:
        """Whether the weights do not stay in the second-level cache."""
        rows, channels = static_size(self._rows), static_size(self._channels)
        return rows is None or channels is None or rows * channels * self._taps > _CACHED // 2

    def _shared(self, chunk: Chunk, panels: Any, tiles: Any) -> None:
        """Cuts the panels and tiles of a chunk into items."""
        groups = pieces(tiles, int64(self._together))
        if self._has_large_weights():
            # Each part of the panels would read all weights again.
            blocks = bound(tirx.min(groups, int64(_ITEMS)))
            parts = bound(tirx.min(panels, pieces(int64(_ITEMS), blocks)))
        else:
            parts = bound(tirx.min(panels, int64(_ITEMS)))
            blocks = bound(tirx.min(groups, pieces(int64(_ITEMS), tirx.max(parts, int64(1)))))
        work = self._rows * chunk.positions * self._channels * self._taps

        def item(number: Any) -> None:
            part, block = tirx.floormod(number, parts), tirx.floordiv(number, parts)
            panel, panel_end = (even_start(part + k, parts, panels) for k in (0, 1))
            tile, end = (even_start(block + k, blocks, groups) * self._together for k in (0, 1))
            self._tiles_over_panels(chunk, panel, panel_end, tile, bound(tirx.min(end, tiles)))

        for_items(parts * blocks, work, item)

    # --- input ---

    def _copy_input(
        self, values: dict[Any, Any], first: Any, count: Any, used_taps: Any, is_shared: bool
    ) -> Any:
        """Copies what a chunk reads into a new buffer, unless it is read where it is."""
        planes = ib.alloc_buffer((self._plane_elements,), "float32")

        def small() -> None:
            if self._multiplies_taps:
                self._gather_taps(values, planes, used_taps)

        self._if_small(small, lambda: self._fill_planes(planes, values, first, count, is_shared))
        return planes

    def _fill_planes(
        self, planes: Any, values: dict[Any, Any], first: Any, count: Any, is_shared: bool
    ) -> None:
        """Copies what a chunk reads into planes by channel and phase."""
        self._padded.fill(planes, values, first, count, is_shared)

    def _fill_table(self) -> None:
        """The distance from the first tap to each tap in the planes."""
        # Of type int64, so that `merge_kernels` can make it an argument.
        self._table = ib.alloc_buffer((int64(self._taps),), "int64")
        if self._taps == 1:
            ib.buffer_store(self._table, int64(0), [int64(0)])
            return
        pitches = [int64(1)]
        if len(self._axes) > 1:
            pitches.insert(0, self._pitch * self._axes[-1].step)
        with ib.grid(*[int64(axis.taps) for axis in self._axes]) as taps:
            taps = list(taps) if len(self._axes) > 1 else [taps]
            tap: Any = int64(0)
            phase: Any = int64(0)
            shift: Any = int64(0)
            for index, axis, pitch in zip(taps, self._axes, pitches, strict=True):
                tap = tap * axis.taps + index
                phase = phase * axis.phases + tirx.floormod(index, int64(axis.phases))
                shift = shift + axis.shift(index) * pitch
            ib.buffer_store(self._table, phase * self._plane + shift, [tap])

    # --- output ---

    def _tiles_over_panels(
        self, chunk: Chunk, panel: Any, panel_end: Any, tile: Any, tile_end: Any
    ) -> None:
        """Computes and writes a range of tiles of output channels at a range of panels."""
        rows, together = self._tile_rows, self._together
        scratch = ib.alloc_buffer((self._out_elements,), "float32")
        with ib.serial(ceil_div(tile_end - tile, together)) as number:
            first_tile = bound(tile + number * together)
            tiles = bound(tirx.min(tile_end - first_tile, int64(together)))
            of_small = self._sums_of_taps if self._multiplies_taps else self._sums_of_input
            self._if_small(
                partial(of_small, chunk, first_tile, tiles, scratch),
                partial(self._sums, chunk, panel, panel_end, first_tile, tiles, scratch),
            )
            start = bound(first_tile * rows)
            count = bound(tirx.min(self._rows - start, tiles * rows))
            self._write(chunk, start, count, panel, panel_end, scratch)

    def _sums(
        self, chunk: Chunk, panel: Any, panel_end: Any, first_tile: Any, tiles: Any, scratch: Any
    ) -> None:
        """Computes a few tiles; a panel of the input stays in the cache while they pass over it."""
        start = bound(panel * self._tile.width)
        self._multiply_panels(
            chunk, tirx.address_of(chunk.planes[start]), self._channel_stride, panel_end - panel,
            chunk.positions - start, first_tile, tiles, scratch,
        )  # fmt: skip

    def _sums_of_input(self, chunk: Chunk, first_tile: Any, tiles: Any, scratch: Any) -> None:
        """Computes a few tiles for a small image that is read where it is: one panel of a chunk."""
        position = self._found.position
        source = tirx.address_of(self._source[bound(position.at(chunk.values))])
        channel = self._found.channel
        stride = int64(0) if channel is None else position.of(channel)
        self._multiply_panels(
            chunk, source, stride, int64(1), chunk.positions, first_tile, tiles, scratch
        )

    def _multiply_panels(
        self, chunk: Chunk, planes: Any, channel_stride: Any, panels: Any, positions: Any,
        first_tile: Any, tiles: Any, scratch: Any,
    ) -> None:  # fmt: skip
        """Multiplies panels of the planes at an address by a few tiles of weights."""
        rows = self._tile_rows
        weights = (chunk.group * self._tiles + first_tile) * self._channels * (self._taps * rows)
        call_panels(
            self._tile, tirx.address_of(self._weights[bound(weights)]), planes, scratch.data,
            self._table.data, panels=panels, positions=positions, tiles=tiles,
            rows=self._rows - first_tile * rows, tile_rows=rows, channels=self._channels,
            taps=self._taps, depth=self._depth(), channel_stride=channel_stride,
            out_row=self._out_row, most_few=channel_tile().rows if self._pads_weights else 0,
        )  # fmt: skip

    def _depth(self) -> int:
        """How many channels of a panel are read before the next tile."""
        *outer, last = self._axes
        taps = math.prod(axis.taps for axis in outer)
        near = taps * last.phases * (self._tile.width + last.reach + CACHE_LINE)
        most = max(_NEAR // near, 1)
        channels = static_size(self._channels)
        return most if channels is None else max(-(-channels // -(-channels // most)), 1)

    def _result_index(self, position: Any) -> Any:
        """The number of results before that of a position of the planes."""
        return position

    @property
    def _results_are_contiguous(self) -> bool:
        """Whether all results of a channel follow each other, as the output has them."""
        return self._is_line

    def _write(
        self, chunk: Chunk, start: Any, rows: Any, panel: Any, panel_end: Any, scratch: Any
    ) -> None:
        """Writes the results of some rows at a range of panels."""
        store, lanes = self._found.store, self._tile.lanes
        columns = self._product.columns
        begin = bound(panel * self._tile.width)
        end = bound(tirx.min(panel_end * self._tile.width, chunk.positions))
        first_result = bound(self._result_index(begin))
        if self._found.gives_channels_last:
            count = bound(self._result_index(end) - first_result)
            results = ib.alloc_buffer((self._out_elements,), "float32")
            call_function(TRANSPOSE, results.data, scratch.data, rows, count, rows, self._out_row)
            self._write_vectors(chunk, start, rows, (begin, end), results, rows)
            return
        with ib.serial(rows) as row:
            here = {**chunk.values, **self._unflattened(self._product.rows, start + row)}
            results = bound(row * self._out_row)
            if self._results_are_contiguous:
                first = chunk.first if self._is_line else chunk.first * self._length
                here.update(dict.fromkeys(columns[:-1], int64(0)))
                here[columns[-1]] = bound(first + first_result)
                count = bound(self._result_index(end) - first_result)
                following = None
                if self._product.rows:
                    following = {**here, **self._unflattened(self._product.rows, start + row + 1)}
                store.run(here, count, lambda k: scratch[results + k], lanes, following)
                return
            line = bound(tirx.floordiv(begin, self._pitch))
            with ib.serial(ceil_div(end, self._pitch) - line) as number:
                place = bound((line + number) * self._pitch)
                low = bound(tirx.max(begin - place, int64(0)))
                high = tirx.min(end - place, self._length)
                outer = [a.column for a in self._axes[:-1] if a.column is not None]
                here.update(self._unflattened(outer, chunk.first + line + number))
                here[columns[-1]] = low
                origin = bound(results + self._result_index(place + low) - first_result)
                count = bound(tirx.max(high - low, int64(0)))
                store.run(here, count, lambda k: scratch[origin + k], lanes)

    def _rows_of_tile(self, start: Any) -> Any:
        """The output channels of the tile that begins with one."""
        count = static_size(self._rows)
        if count is not None and count % self._tile_rows == 0:
            return int64(self._tile_rows)
        return bound(tirx.min(self._rows - start, int64(self._tile_rows)))

    def _write_vectors(
        self, chunk: Chunk, start: Any, rows: Any, span: tuple[Any, Any], results: Any, step: Any
    ) -> None:
        """Writes vectors of output channels, for positions of the planes from one to another.

        The results of neighbouring positions lie `step` elements apart.
        """
        begin, end = span
        first_result = bound(self._result_index(begin))
        of_rows = self._unflattened(self._product.rows, start)

        def write(place: Any, values: dict[Any, Any], count: Any) -> None:
            """Writes `count` positions, whose results begin at a place."""
            with ib.serial(count) as number:
                last = self._product.columns[-1]
                here = {**chunk.values, **of_rows, **values, last: bound(values[last] + number)}
                origin = bound((place + number) * step)
                self._found.store.run(here, rows, lambda k: results[origin + k], self._tile.lanes)

        if self._is_line:
            values = {column: int64(0) for column in self._product.columns}
            values[self._product.columns[-1]] = bound(chunk.first + begin)
            write(int64(0), values, end - begin)
            return
        line = bound(tirx.floordiv(begin, self._pitch))
        with ib.serial(ceil_div(end, self._pitch) - line) as number:
            place = bound((line + number) * self._pitch)
            low = bound(tirx.max(begin - place, int64(0)))
            high = tirx.min(end - place, self._length)
            outer = [a.column for a in self._axes[:-1] if a.column is not None]
            values = self._unflattened(outer, chunk.first + line + number)
            values[self._product.columns[-1]] = low
            origin = bound(self._result_index(place + low) - first_result)
            write(origin, values, bound(tirx.max(high - low, int64(0))))
