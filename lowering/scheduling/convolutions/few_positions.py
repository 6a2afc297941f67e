"""Convolutions of few output positions: output channels in vectors, positions in register tiles.

A streaming model computes a few positions in a call. Vectors of positions would be mostly empty, so
the convolution is a matrix product: each position's window of the padded input becomes a row of a
small matrix (im2col), and the constant weights are packed into panels of output channels once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from ..functions.micro_kernels import call_product, native_tile, rows_ahead
from ..kernels.affine import flat, flat_index, int64, static_size, unflattened
from ..kernels.emission import bound, compute_block, for_items, rewritten, unless_empty
from ..kernels.nests import Nest, inlined, loads, nests_of, substituted
from ..kernels.stores import Store, epilogue_of
from ..products.convolution_form import convolution_with_channels_last
from ..products.products import Operand, SumOfProducts, sum_of_products
from ..relax.packing import is_constant_operand, or_zero, pack_weights


class FewPositions(ScheduleRule):  # type: ignore[misc]
    """Convolutions of float32 without groups, with constant weights and as many positions as a
    register tile has rows, or fewer.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        found = _windowed(kernel)
        # With channels last, all positions are rows of the product.
        if found is None or convolution_with_channels_last(kernel) is not None:
            return None
        return s_tir.Schedule(rewritten(kernel, _Emission(kernel, found).emit))


@dataclass(frozen=True)
class _Windowed:
    """A product of the windows of an input and constant weights, by role."""

    product: SumOfProducts
    store: Store
    weights: Operand
    element: Any
    """An element of a window, in the variables of the product."""
    channel: Any
    """The variable of output channels."""
    channels: int
    images: list[Any]
    """The variables of the input outside of the positions."""
    positions: list[Any]
    count: int
    """The number of positions."""
    depth: int
    """The number of elements of a window."""


def _windowed(kernel: tirx.PrimFunc) -> _Windowed | None:
    nests = nests_of(kernel)
    if not nests:
        return None
    padding = nests[0] if not nests[0].reduced else None
    rest = nests[1:] if padding is not None else nests
    product = sum_of_products(rest[0]) if rest else None
    if product is None:
        return None
    weights = next(
        (o for o in (product.b, product.a) if is_constant_operand(kernel, o.buffer)), None
    )
    if weights is None or (weights is product.b and len(product.reduced) == 1):
        return None  # a matrix product as it stands
    windows = product.a if weights is product.b else product.b
    if padding is not None and any(
        load.source.same_as(padding.buffer) for nest in rest[1:] for load in loads(nest.value)
    ):
        return None
    element = _element(windows, padding)
    epilogue = epilogue_of(rest[0], product.c, rest[1:])
    if element is None or epilogue is None:
        return None
    variables = [*product.batch, *product.rows, *product.columns]
    own = [v for v in variables if v in weights.position.coefficients]
    others = [v for v in variables if v in windows.position.coefficients]
    if len(own) != 1 or own[0] in others:
        return None
    store = Store(epilogue, variables, product.extents, product.columns)
    images, positions = _split(product, others)
    if any(v.same_as(column) for v in images for column in product.columns):
        return None  # more positions than a tile has rows
    count, depth, channels = (
        static_size(product.count(part)) for part in (positions, product.reduced, own)
    )
    if not store.is_storable or count is None or depth is None or channels is None:
        return None
    if depth == 1:
        return None  # nothing is summed
    # A column that does not stay with the positions would be written piece by piece.
    if product.columns[-1] not in (own[0], *positions):
        return None
    if count * -(-channels // native_tile().width) >= channels:
        return None  # vectors of positions take less time
    return _Windowed(
        product, store, weights, element, own[0], channels, images, positions, count, depth
    )


def _element(windows: Operand, padding: Nest | None) -> Any:
    """The factor that the windows hold; None where it reads what the kernel computes elsewhere."""
    if padding is None:
        return windows.buffer[tuple(windows.indices)]
    if not windows.buffer.same_as(padding.buffer):
        return None
    return substituted(padding.value, dict(zip(padding.spatial, windows.indices, strict=True)))


def _split(product: SumOfProducts, variables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The variables, without and with the last ones whose values fit into a tile's rows."""
    first = len(variables)
    while first:
        count = static_size(product.count(variables[first - 1 :]))
        if count is None or count > native_tile().rows:
            break
        first -= 1
    return list(variables[:first]), list(variables[first:])


class _Emission:
    def __init__(self, kernel: tirx.PrimFunc, found: _Windowed) -> None:
        self._kernel = kernel
        self._found = found
        self._product = found.product
        self._tile = native_tile()
        self._panels = -(-found.channels // self._tile.width)

    def emit(self) -> None:
        packed = self._pack_weights()
        found = self._found
        with compute_block("product"), unless_empty(found.store.written):
            found.store.declare()
            self._packed = flat(packed)
            self._views = {load.source: flat(load.source) for load in loads(found.element)}
            with ib.serial(self._product.count(found.images)) as image:
                self._image(self._values(found.images, image))

    def _pack_weights(self) -> Any:
        """Packs the weights into `[panel, element of the window, output channel]`."""
        found, source = self._found, self._found.weights.buffer
        width = self._tile.width

        def element(panel: Any, k: Any, lane: Any) -> Any:
            channel = panel * width + lane
            values = {found.channel: channel, **self._values(self._product.reduced, k)}
            weight = source[tuple(substituted(index, values) for index in found.weights.indices)]
            return or_zero(weight, channel, int64(found.channels), width)

        shape = (int64(self._panels), int64(found.depth), int64(width))
        return pack_weights(self._kernel, source, shape, element)

    def _values(self, variables: Sequence[Any], number: Any) -> dict[Any, Any]:
        return unflattened(variables, self._product.extent, number)

    def _image(self, values: dict[Any, Any]) -> None:
        """All positions of one image."""
        found, tile = self._found, self._tile
        windows = self._copy_windows(values)

        def panel(number: Any) -> None:
            # The last vector of positions reads past the results.
            scratch = ib.alloc_buffer(((found.count + tile.lanes) * tile.width,), "float32")
            weights = self._packed[bound(number * (found.depth * tile.width))]
            first = bound(number * tile.width)
            channels = bound(tirx.min(int64(found.channels) - first, int64(tile.width)))
            out_row = call_product(
                tile, found.channels, channels, int64(found.count), windows.data,
                tirx.address_of(weights), scratch.data,
                int64(found.depth), (int64(found.depth), int64(1)), int64(tile.width),
                rows_ahead(tile, int64(tile.width)),
            )  # fmt: skip
            if self._product.columns[-1].same_as(found.channel):
                self._write_channels(values, scratch, out_row, first, channels)
            else:
                self._write_positions(values, scratch, out_row, first, channels)

        work = found.count * found.depth * found.channels
        for_items(int64(self._panels), int64(work), panel)

    def _copy_windows(self, values: dict[Any, Any]) -> Any:
        """Copies the window of each position into a row of a matrix."""
        found = self._found
        windows = ib.alloc_buffer((found.count * found.depth,), "float32")
        variables = [*found.positions, *self._product.reduced]
        extents = [self._product.extent(variable) for variable in variables]

        def view(load: Any) -> Any:
            buffer = load.source
            return self._views[buffer][flat_index(list(buffer.shape), list(load.indices))]

        element = tvm_ffi.structural_map(found.element, (ir.TensorLoad, view), order="post")
        # A first loop of one iteration: `grid` gives a list for several loops only.
        with ib.grid(int64(1), *extents) as (_, *loops):
            here = {**values, **dict(zip(variables, loops, strict=True))}
            ib.buffer_store(windows, substituted(element, here), [flat_index(extents, loops)])
        return windows

    def _write_channels(
        self, values: Any, scratch: Any, out_row: Any, first: Any, channels: Any
    ) -> None:
        """Writes rows of output channels, which follow each other in the output."""
        found = self._found
        with ib.serial(int64(found.count)) as row:
            here = {**values, **self._values(found.positions, row), found.channel: first}
            found.store.run(here, channels, lambda k: scratch[row * out_row + k], self._tile.lanes)

    def _write_positions(
        self, values: Any, scratch: Any, out_row: Any, first: Any, channels: Any
    ) -> None:
        """Writes lines of output positions, channel by channel."""
        found = self._found
        *outer, last = found.positions
        length = self._product.extent(last)
        with ib.serial(channels) as offset, ib.serial(self._product.count(outer)) as line:
            here = {**values, **self._values(outer, line), last: int64(0)}
            here[found.channel] = bound(first + offset)
            start = bound(line * length)
            found.store.run(
                here, length, lambda k: scratch[(start + k) * out_row + offset], self._tile.lanes
            )
