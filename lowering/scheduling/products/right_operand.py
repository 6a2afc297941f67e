"""The right operand of a matrix product, as panels of the register tile's width.

A constant is packed into panels `[panel, k, column]` when the module is compiled. Another operand
is read where it is, if its rows lie near each other, or copied panel by panel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as ib

from ..functions.lane_kernels import TRANSPOSE
from ..functions.micro_kernels import Tile, call_copy_row, call_function, rows_ahead
from ..kernels.affine import flat, int64, static_size
from ..kernels.emission import bound
from ..kernels.nests import is_number, substituted
from ..relax.packing import is_constant_operand, or_zero, pack_weights
from .products import SumOfProducts

_NEAR = 1 << 10
"""Elements between rows of the operand up to which it is read without a copy."""


@dataclass(frozen=True)
class Panel:
    """Columns of the operand, as many as a register tile has."""

    number: Any
    address: Any
    """The address of the first element that is read."""
    stride: Any
    """The number of elements from one row to the next."""
    ahead: tuple[Any, Any]
    """What is prefetched while rows are read: its distance, and its step with each row."""


class RightOperand:
    """The right operand of a product with one reduced variable and one of columns."""

    def __init__(self, kernel: tirx.PrimFunc, product: SumOfProducts, tile: Tile) -> None:
        self._kernel = kernel
        self._product = product
        self._tile = tile
        self._buffer = product.b.buffer
        self._view: Any = None
        (self._k,) = product.reduced
        (self._n,) = product.columns
        self.depth = product.extent(self._k)
        """The number of rows."""
        self.width = product.extent(self._n)
        """The number of columns."""
        self._step = product.b.position.of(self._n)
        self._down = product.b.position.of(self._k)
        is_static = None not in (static_size(self.depth), static_size(self.width))
        is_of_batch = any(v in product.b.position.coefficients for v in product.batch)
        self.is_packed = is_constant_operand(kernel, self._buffer) and not is_of_batch and is_static
        """Whether it is a constant matrix, in panels."""
        self.is_copied = not self.is_packed and not self._is_read_in_place()
        """Whether panels are copied before they are read."""

    def _is_read_in_place(self) -> bool:
        """Whether panels are read where they are, row by row.

        They are whole, and their rows near each other: at large powers of two, a few lines of the
        cache would have to hold them all.
        """
        width, down = static_size(self.width), static_size(self._down)
        is_whole = width is not None and width % self._tile.width == 0
        return is_whole and is_number(self._step, 1) and down is not None and down <= _NEAR

    def pack(self) -> None:
        """Emits the block that packs a constant operand; nothing for another one."""
        if not self.is_packed:
            return
        source, width = self._buffer, self._tile.width

        def element(panel: Any, k: Any, column: Any) -> Any:
            n = panel * width + column
            values = {self._k: k, self._n: n}
            indices = [substituted(index, values) for index in self._product.b.indices]
            return or_zero(source[tuple(indices)], n, self.width, width)

        panels = -(-int(self.width) // width)
        shape = (int64(panels), self.depth, int64(width))
        self._buffer = pack_weights(self._kernel, source, shape, element)

    def declare(self) -> None:
        """Declares a flat view of the operand."""
        self._view = flat(self._buffer)

    def panel(self, batch: dict[Any, Any], number: Any, k: Any = 0) -> Panel:
        """A panel of an operand that is packed, from row k on, or of one read in place."""
        assert not self.is_copied
        if self.is_packed:
            place = (number * self.depth + k) * int64(self._tile.width)
            return self.panel_of(self._view, place, number)
        origin = bound(self._origin(batch, number))
        address = tirx.address_of(self._view[origin])
        return Panel(number, address, self._down, rows_ahead(self._tile, self._down))

    def panel_of(self, buffer: Any, place: Any, number: Any) -> Panel:
        """A panel that lies at a place in a buffer, row after row."""
        width = int64(self._tile.width)
        address = tirx.address_of(buffer[place])
        return Panel(number, address, width, rows_ahead(self._tile, width))

    def copy_panel(self, batch: dict[Any, Any], number: Any, copy: Any, place: Any) -> None:
        """Copies a panel to a place in a buffer, with zeros after its last column."""
        width = int64(self._tile.width)
        columns = bound(tirx.min(self.width - number * width, width))
        origin = bound(self._origin(batch, number))
        if is_number(self._down, 1):
            target, source = tirx.address_of(copy[place]), tirx.address_of(self._view[origin])
            call_function(TRANSPOSE, target, source, columns, self.depth, width, self._step)
        elif is_number(self._step, 1):
            with ib.serial(self.depth) as k:
                target = tirx.address_of(copy[bound(place + k * width)])
                source = tirx.address_of(self._view[bound(origin + k * self._down)])
                call_copy_row(target, source, 0, columns, 0, 1, tirx.const(0.0, "float32"))
        else:
            with ib.serial(self.depth) as k, ib.serial(columns) as j:
                element = self._view[origin + k * self._down + j * self._step]
                ib.buffer_store(copy, element, [place + k * width + j])
        # Vectors reach past the last column.
        with ib.serial(self.depth) as k, ib.serial(width - columns) as j:
            ib.buffer_store(copy, tirx.const(0.0, "float32"), [place + k * width + columns + j])

    def _origin(self, batch: dict[Any, Any], number: Any) -> Any:
        """The position of a panel's first element, for values of the batch variables."""
        column = bound(number * self._tile.width)
        return self._product.b.position.at({**batch, self._n: column})
