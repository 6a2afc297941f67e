"""Convolutions of a single tap: output channels in vectors, positions in register tiles.

    out[channel, position] = sum(input[k, position] * weight[k, channel] for k)

The positions of a line of the input follow each other, which is the layout in which register tiles
take their rows: nothing is copied, and on AVX-512 a plane of 49 positions takes four tiles. The
results are transposed before they are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as ib

from ..functions.lane_kernels import TRANSPOSE
from ..functions.micro_kernels import (
    ROWS_OF_KNOWN_STRIDES,
    call_function,
    call_panel,
    native_tile,
    share_of_next_panel,
)
from ..kernels.affine import Affine, affine, flat, int64, static_size, unflattened
from ..kernels.emission import (
    bound,
    ceil_div,
    compute_block,
    even_part,
    even_start,
    for_items,
    pieces,
    unless_empty,
)
from ..kernels.nests import substituted
from ..products.convolution_form import Convolved, are_plain
from ..relax.packing import is_constant_operand, or_zero, pack_weights
from .channel_panels import LEAST_DEPTH, fills_vectors, prefers_positions_in_vectors
from .convolution import ConvolutionRule
from .padded_planes import odd_lines

_POSITIONS = 240
"""Positions of a chunk at most, so that its results stay in the first-level cache."""
_ITEMS = 8
"""Items of work that the output channels of a chunk are cut into."""
_BLOCK = 64
"""Input channels that all positions of a chunk are multiplied by before the next.

Lines of the input lie far from each other: the processor keeps the addresses of as many pages.
"""
_AHEAD = 32
"""Positions after those that are multiplied now, whose inputs are prefetched."""


class Pointwise(ConvolutionRule):
    """Convolutions of a single tap without strides and padding, with constant weights."""

    def emission(self, kernel: tirx.PrimFunc, found: Convolved) -> _Emission | None:
        return _Emission(kernel, found) if _suits(kernel, found) else None


def _suits(kernel: tirx.PrimFunc, found: Convolved) -> bool:
    product = found.product
    if found.channel is None or not found.store.flattens:
        return False
    if not is_constant_operand(kernel, product.a.buffer):
        return False
    if any(v in product.a.position.coefficients for v in product.batch):
        return False  # groups
    if prefers_positions_in_vectors(found):
        return False
    depth, channels = (
        static_size(s) for s in (product.extent(found.channel), product.count(product.rows))
    )
    if not are_plain(found.axes) or depth is None or channels is None or depth < LEAST_DEPTH:
        return False
    return fills_vectors(channels)


class _Emission:
    def __init__(self, kernel: tirx.PrimFunc, found: Convolved) -> None:
        self._kernel = kernel
        self._found = found
        self._product = found.product
        self._tile = native_tile()
        self._channels = int(self._product.count(self._product.rows))
        self._depth = int(self._product.extent(found.channel))
        self._panels = -(-self._channels // self._tile.width)
        variables = [*self._product.batch, found.channel, *found.positions]
        position = affine(list(found.source.shape), found.source_indices, variables)
        assert position is not None, "the operand is read at affine positions"
        self._position: Affine = position

    def emit(self) -> None:
        packed = self._pack_weights()
        with compute_block("pointwise"), unless_empty(self._found.store.written):
            self._found.store.declare()
            self._packed = flat(packed)
            self._source = flat(self._found.source)
            self._table = ib.alloc_buffer((1,), "int64")
            ib.buffer_store(self._table, int64(0), [int64(0)])
            self._items()

    def _pack_weights(self) -> Any:
        """Packs the weights into `[panel, input channel, output channel]`."""
        source = self._product.a.buffer
        width = self._tile.width

        def element(panel: Any, k: Any, lane: Any) -> Any:
            channel = panel * width + lane
            values = {self._found.channel: k, **self._row_values(channel)}
            indices = [substituted(index, values) for index in self._product.a.indices]
            return or_zero(source[tuple(indices)], channel, int64(self._channels), width)

        shape = (int64(self._panels), int64(self._depth), int64(width))
        return pack_weights(self._kernel, source, shape, element)

    def _row_values(self, channel: Any) -> dict[Any, Any]:
        return unflattened(self._product.rows, self._product.extent, channel)

    def _items(self) -> None:
        product = self._product
        images = bound(product.count(product.batch))
        positions = bound(product.count(product.columns))
        blocks = min(self._panels, _ITEMS)
        # Two cores have equally many items.
        most = bound(even_part(positions, int64(_POSITIONS), 1 + blocks % 2))
        chunks = bound(pieces(positions, tirx.max(most, int64(1))))
        work = images * positions * (self._depth * self._channels)

        def item(number: Any) -> None:
            block = bound(tirx.floormod(number, int64(blocks)))
            rest = bound(tirx.floordiv(number, int64(blocks)))
            first = bound(tirx.floormod(rest, chunks) * most)
            image = tirx.floordiv(rest, chunks)
            values = unflattened(product.batch, product.extent, bound(image))
            values = {variable: bound(value) for variable, value in values.items()}
            count = bound(tirx.min(positions - first, most))
            width = self._tile.width
            scratch = ib.alloc_buffer((_POSITIONS * width,), "float32")
            # Rows of results start at cache lines. The epilogue reads whole vectors.
            row = bound(odd_lines(count))
            elements = int(odd_lines(int64(_POSITIONS))) * width + self._tile.lanes
            results = ib.alloc_buffer((elements,), "float32")
            start, end = (even_start(block + k, blocks, self._panels) for k in (0, 1))
            with ib.serial(end - start) as offset:
                panel = bound(start + offset)
                channels = bound(tirx.min(self._channels - panel * width, int64(width)))
                self._multiply(values, first, count, panel, channels, scratch)
                call_function(TRANSPOSE, results.data, scratch.data, count, channels, row, width)
                self._write(values, first, count, panel, channels, results, row)

        for_items(images * chunks * blocks, work, item)

    def _multiply(
        self, values: Mapping[Any, Any], first: Any, count: Any, panel: Any, channels: Any,
        scratch: Any,
    ) -> None:  # fmt: skip
        """Multiplies the inputs of a chunk by the weights of a panel."""
        tile = self._tile
        origin = bound(self._position.at(values) + first)
        weights = bound(panel * (self._depth * tile.width))
        stride = self._position.of(self._found.channel)
        known = static_size(stride)
        is_multiple = known is not None and known % tile.width == 0
        most_rows = min(tile.rows, ROWS_OF_KNOWN_STRIDES) if is_multiple else tile.rows
        rows = bound(even_part(count, int64(most_rows)))
        depth = -(-self._depth // -(-self._depth // _BLOCK))
        passes = bound(ceil_div(count, tirx.max(rows, int64(1))))
        row = int64(tile.width)
        with ib.serial(-(-self._depth // depth)) as block, ib.serial(passes) as number:
            channel = bound(block * depth)
            depth_here = bound(tirx.min(self._depth - channel, depth))
            place = bound(number * rows)
            here = bound(weights + channel * tile.width)
            distance, step = share_of_next_panel(depth_here * row, row, number, passes)
            call_panel(
                tile, self._channels, channels, bound(tirx.min(count - place, rows)),
                tirx.address_of(self._source[bound(origin + place + channel * stride)]),
                tirx.address_of(self._packed[here]),
                tirx.address_of(scratch[bound(place * tile.width)]), self._table.data,
                depth_here, stride, adds=channel,
                a_ahead=_AHEAD, following=(tirx.address_of(self._packed[here + distance]), step),
            )  # fmt: skip

    def _write(
        self, values: Mapping[Any, Any], first: Any, count: Any, panel: Any, channels: Any,
        results: Any, result_row: Any,
    ) -> None:  # fmt: skip
        store, width = self._found.store, self._tile.width
        columns = self._product.columns
        start = bound(panel * width)
        with ib.serial(channels) as row:
            here = {**values, **self._row_values(bound(start + row))}
            here.update(dict.fromkeys(columns, int64(0)))
            here[columns[-1]] = first
            place = bound(row * result_row)
            following = {**here, **self._row_values(start + row + 1)}
            store.run(here, count, lambda k: results[place + k], self._tile.lanes, following)
