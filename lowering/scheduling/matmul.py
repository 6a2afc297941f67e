"""Matrix products: the right operand in panels of vectors, rows in register tiles.

A constant right operand is packed into panels `[panel, k, width]` once, when the module is
compiled; TVM's `SplitLayoutRewritePreproc` takes the packing out of the kernel. The loop over
panels is around that over rows, so that a panel stays in the second-level cache while all rows of
an item pass over it. Where the cache holds several panels, the loop over them is inside: a register
tile writes its results beside those of the tile before. Sizes may be symbols: the last rows and
columns go through smaller tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from .affine import flat, int64, static_size
from .convolution_form import convolution_of
from .elementwise import Lines, lines_of
from .emission import (
    Store,
    allocated,
    bound,
    ceil_div,
    compute_block,
    element_of,
    epilogue_of,
    for_items,
    pieces,
    rewritten,
    unless_empty,
)
from .lane_kernels import TRANSPOSE
from .micro_kernels import (
    Tile,
    call_copy_row,
    call_function,
    call_product,
    native_tile,
    rows_ahead,
    share_of_next_panel,
)
from .nests import Nest, inlined, is_number, loads, nests_of, substituted, without_copies
from .packing import is_constant_operand, or_zero, pack_weights
from .products import SumOfProducts, sum_of_products

_CACHED = 1 << 18
"""Elements of the left operand that an item keeps in the second-level cache."""
_CACHED_PANELS = 1 << 16
"""Elements of panels of the right operand that stay in the second-level cache."""
_FEWEST_PANELS = 4
"""The fewest panels for which a loop over them inside of that over rows is faster."""
_FEWEST_ITEMS = 4
"""Cores share at least so many items, if there are enough panels."""
_FEW_TILES = 4
"""The row tiles of an item of several panels."""
_DEEP = 1 << 12
"""The depth from which on a constant right operand is read in parts along it: a panel of it takes
half of the second-level cache."""
_PART = 1 << 9
"""The depth of a part: one row tile of it stays in the first-level cache, and the panels in the
second."""
_DEEP_TILES, _DEEP_PANELS = 16, 4
"""The row tiles and panels of an item, whose sums stay in the second-level cache beside a part."""
_NEAR = 1 << 10
"""Elements between rows of the right operand up to which it is read without a copy."""
_COST_OF_READ, _COST_OF_COPY = 4, 8
"""The time to read an element of the right operand, and to copy one, in multiply-adds."""


class MatrixProduct(ScheduleRule):  # type: ignore[misc]
    """Matrix products of float32, batched or not, of static and dynamic sizes."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        found = convolution_of(kernel)
        if found is not None and is_constant_operand(kernel, found.product.a.buffer):
            return None  # The rules for convolutions read the columns where they are.
        schedule = _scheduled(kernel)
        if schedule is None and (moved := without_copies(kernel)) is not kernel:
            schedule = _scheduled(moved)
        return schedule


def _scheduled(kernel: tirx.PrimFunc) -> s_tir.Schedule | None:
    nests = nests_of(kernel)
    if not nests:
        return None
    product = sum_of_products(nests[0])
    if product is None or not _is_matrix_product(kernel, product):
        return None

    def emit(store: Store) -> None:
        _Emission(kernel, product, store, native_tile()).emit()

    return schedule_product(kernel, nests, product, emit)


def schedule_product(
    kernel: tirx.PrimFunc,
    nests: Sequence[Nest],
    product: SumOfProducts,
    emit: Callable[[Store], None],
) -> s_tir.Schedule | None:
    """The schedule in which `emit` computes the first nest, a product.

    None where the nests that follow it cannot be computed by lines.
    """
    variables = [*product.batch, *product.rows, *product.columns]
    dtype = str(nests[0].buffer.dtype)
    # What is fused after the product, and may have more elements than it.
    for count in (len(nests), 2, 1):
        epilogue = epilogue_of(nests[0], product.c, nests[1:count])
        rest = lines_of(nests[count:])
        if epilogue is None or rest is None:
            continue
        if not epilogue.is_identity and _is_read(kernel, nests[0].buffer, nests[count:]):
            continue
        store = Store(epilogue, variables, product.extents, product.columns, dtype)
        if store.is_storable:
            written = [epilogue.output, *(lines.buffer for lines in rest)]
            emit_all = partial(_emit, partial(emit, store), rest)
            return s_tir.Schedule(rewritten(kernel, emit_all, written))
    return None


def _is_read(kernel: tirx.PrimFunc, buffer: Any, nests: Sequence[Nest]) -> bool:
    """Whether nests, or the caller of the kernel, read a buffer."""
    if not any(buffer.same_as(own) for own in allocated(kernel)):
        return True
    return any(load.source.same_as(buffer) for nest in nests for load in loads(nest.value))


def _emit(emit: Callable[[], None], rest: Sequence[Lines]) -> None:
    emit()
    for lines in rest:
        lines.emit()


def _is_matrix_product(kernel: tirx.PrimFunc, product: SumOfProducts) -> bool:
    """Whether there is one reduced variable and one of columns, and rows follow each other.

    A single row needs a constant right operand: packing another one would take longer.
    """
    if len(product.reduced) != 1 or len(product.columns) != 1:
        return False
    return bool(product.rows) or is_constant_operand(kernel, product.b.buffer)


class _Emission:
    def __init__(
        self, kernel: tirx.PrimFunc, product: SumOfProducts, store: Store, tile: Tile
    ) -> None:
        self._kernel = kernel
        self._product = product
        self._store = store
        self._tile = tile
        (self._k,) = product.reduced
        (self._n,) = product.columns
        self._depth = product.extent(self._k)
        self._width = product.extent(self._n)

    def emit(self) -> None:
        product = self._product
        packed = self._pack_constant() if self._packs() else None
        with compute_block("product"), unless_empty(self._store.written):
            self._store.declare()
            self._a = flat(product.a.buffer)
            self._b = flat(product.b.buffer if packed is None else packed)
            self._items(packed is not None)

    # --- the right operand ---

    def _packs(self) -> bool:
        """Whether the right operand is a constant matrix."""
        is_constant = is_constant_operand(self._kernel, self._product.b.buffer)
        is_static = _is_static(self._depth) and _is_static(self._width)
        return is_constant and not self._product.batch and is_static

    def _pack_constant(self) -> Any:
        """Packs the right operand into `[panel, k, column]`."""
        source, width = self._product.b.buffer, self._tile.width

        def element(panel: Any, k: Any, column: Any) -> Any:
            n = panel * width + column
            return or_zero(source[tuple(self._source_indices(k, n))], n, self._width, width)

        panels = -(-int(self._width) // width)
        shape = (int64(panels), self._depth, int64(width))
        return pack_weights(self._kernel, source, shape, element)

    def _source_indices(self, k: Any, n: Any) -> list[Any]:
        return [substituted(i, {self._k: k, self._n: n}) for i in self._product.b.indices]

    # --- items ---

    def _items(self, packed: bool) -> None:
        product = self._product
        batch = product.count(product.batch)
        rows = bound(product.count(product.rows))
        panels = bound(pieces(self._width, self._tile.width))
        is_deep = packed and int(self._depth) >= _DEEP
        most = _DEEP_PANELS if is_deep else self._most_panels()
        tiles = _DEEP_TILES if is_deep else _FEW_TILES
        copies = not packed and not self._reads_in_place()
        # All rows of an item read a copy.
        chunk = self._row_chunk() if most == 1 or copies else tiles * self._tile.rows
        chunks = bound(pieces(rows, chunk))
        together = int64(1) if most == 1 else bound(_panels_together(most, panels, batch * chunks))
        groups = bound(pieces(panels, together))
        reading = chunks * (_COST_OF_COPY if copies else _COST_OF_READ)
        work = batch * (rows + reading) * self._width * self._depth

        def item(number: Any) -> None:
            group = bound(tirx.floormod(number, groups))
            outer = bound(tirx.floordiv(number, groups))
            part = bound(tirx.floormod(outer, chunks))
            where = self._batch_values(tirx.floordiv(outer, chunks))
            first = bound(part * chunk)
            count = bound(tirx.min(rows - first, int64(chunk)))
            scratch = ib.alloc_buffer((self._tile.rows * self._tile.width,), "float32")
            if most == 1:
                self._panel(where, group, first, count, packed, scratch)
                return
            panel = bound(group * together)
            last = bound(tirx.min(panel + together, panels))
            if is_deep:
                self._deep_panels(where, panel, last, first, count, scratch)
                return
            copy = None
            if copies:
                copy = ib.alloc_buffer((most * self._depth * self._tile.width,), "float32")
            self._panels(where, panel, last, first, count, packed, scratch, copy)

        for_items(batch * chunks * groups, work, item)

    def _most_panels(self) -> int:
        """The number of panels at most that each register tile of rows is multiplied by in turn."""
        if not _is_static(self._depth):
            return 1
        cached = _CACHED_PANELS // (max(int(self._depth), 1) * self._tile.width)
        return cached if cached >= _FEWEST_PANELS else 1

    def _row_chunk(self) -> int:
        rows = self._tile.rows
        if not _is_static(self._depth):
            return 8 * rows
        return max(4, min(16, _CACHED // (int(self._depth) * rows))) * rows

    def _batch_values(self, number: Any) -> dict[Any, Any]:
        """The values of the batch variables for a number counted over all of them."""
        values: dict[Any, Any] = {}
        for position, variable in enumerate(reversed(self._product.batch)):
            extent = self._product.extent(variable)
            outermost = position == len(self._product.batch) - 1
            values[variable] = bound(number if outermost else tirx.floormod(number, extent))
            number = tirx.floordiv(number, extent)
        return values

    def _row_values(self, number: Any) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        rows = self._product.rows
        for position, variable in enumerate(reversed(rows)):
            outermost = position == len(rows) - 1
            extent = self._product.extent(variable)
            values[variable] = number if outermost else tirx.floormod(number, extent)
            number = tirx.floordiv(number, extent)
        return values

    def _panel(
        self, where: dict[Any, Any], panel: Any, first: Any, count: Any, packed: bool, scratch: Any
    ) -> None:
        """All row tiles of one item over one panel."""
        tile = self._tile
        b, b_stride = self._right_operand(where, panel, packed)
        passes = bound(ceil_div(count, tile.rows))
        with ib.serial(passes) as number:
            if packed:
                row = int64(tile.width)
                ahead = share_of_next_panel(self._depth * row, row, number, passes)
            elif self._reads_in_place():
                ahead = rows_ahead(tile, b_stride)
            else:
                ahead = int64(0), int64(0)  # The copy is in the cache.
            self._row_tile(where, panel, first, count, number, (b, b_stride, ahead), scratch)

    def _panels(
        self, where: dict[Any, Any], panel: Any, last: Any, first: Any, count: Any, packed: bool,
        scratch: Any, copy: Any,
    ) -> None:  # fmt: skip
        """All row tiles of one item over the panels from one up to, but not including, another.

        `copy` is a buffer for these panels, or None if they are read where they are.
        """
        size = bound(self._depth * self._tile.width)
        if copy is not None:
            with ib.serial(last - panel) as offset:
                self._copy_panel(where, bound(panel + offset), copy, bound(offset * size))
        with (
            ib.serial(bound(ceil_div(count, self._tile.rows))) as number,
            ib.serial(last - panel) as offset,
        ):
            here = bound(panel + offset)
            if copy is None:
                b, b_stride = self._right_operand(where, here, packed)
            else:
                b, b_stride = tirx.address_of(copy[bound(offset * size)]), int64(self._tile.width)
            right = b, b_stride, rows_ahead(self._tile, b_stride)
            following = bound((here + 1) * self._tile.width)
            self._row_tile(where, here, first, count, number, right, scratch, following)

    def _deep_panels(
        self, where: dict[Any, Any], panel: Any, last: Any, first: Any, count: Any, scratch: Any
    ) -> None:
        """All row tiles of one item over a few panels, one part of their depth after another.

        A part of the panels stays in the second-level cache while all row tiles pass over it, and
        that of a row tile in the first-level cache while it passes over the panels.
        """
        tile, depth = self._tile, int(self._depth)
        size = tile.rows * tile.width
        sums = ib.alloc_buffer((_DEEP_TILES * _DEEP_PANELS * size,), "float32")
        passes = bound(ceil_div(count, tile.rows))
        parts = -(-depth // _PART)
        part_depth = int64(-(-depth // parts))

        def for_each_tile(body: Callable[[Any, Any, Any], None]) -> None:
            """Emits `body(number, here, place)` for each row tile, panel, and place of its sums."""
            with ib.serial(passes) as number, ib.serial(last - panel) as offset:
                place = bound((number * _DEEP_PANELS + offset) * size)
                body(number, bound(panel + offset), place)

        with ib.serial(int64(parts)) as part:
            k = bound(part * part_depth)
            depth_here = bound(tirx.min(self._depth - k, part_depth))

            def multiply(number: Any, here: Any, place: Any) -> None:
                b, b_stride = self._right_operand(where, here, packed=True, k=k)
                right = b, b_stride, rows_ahead(tile, b_stride)

                def to(target: Any) -> None:
                    # Whole tiles only, so that rows of sums are `tile.width` apart.
                    self._multiply(
                        where, here, first, count, number, right, target, k, depth_here, width=None
                    )

                with ib.If(part == 0):
                    with ib.Then():
                        to(tirx.address_of(sums[place]))
                    with ib.Else():
                        to(scratch.data)
                        with ib.serial(tile.rows * tile.vectors) as vector:
                            begin = bound(vector * tile.lanes)
                            with ib.vectorized(int64(tile.lanes)) as lane:
                                total = sums[place + begin + lane] + scratch[begin + lane]
                                ib.buffer_store(sums, total, [place + begin + lane])

            for_each_tile(multiply)

        def write(number: Any, here: Any, place: Any) -> None:
            row = int64(tile.width)
            self._write_tile(where, here, first, count, number, sums, place, row)

        for_each_tile(write)

    def _row_tile(
        self, where: dict[Any, Any], panel: Any, first: Any, count: Any, number: Any,
        right: tuple[Any, Any, tuple[Any, Any]], scratch: Any, next_column: Any = None,
    ) -> None:  # fmt: skip
        """The product of one row tile with a panel: its address, its stride, and what follows.

        `next_column` is the first column of the panel that is computed next, whose output is
        prefetched.
        """
        zero, width = int64(0), static_size(self._width)
        out_row = self._multiply(
            where, panel, first, count, number, right, scratch.data, zero, self._depth, width
        )
        self._write_tile(where, panel, first, count, number, scratch, zero, out_row, next_column)

    def _columns(self, panel: Any) -> Any:
        """The number of columns of a panel."""
        tile = self._tile
        return bound(tirx.min(self._width - panel * tile.width, int64(tile.width)))

    def _rows(self, first: Any, count: Any, number: Any) -> tuple[Any, Any]:
        """The first row of a row tile, and how many it has."""
        rows = self._tile.rows
        start = bound(first + number * rows)
        return start, bound(tirx.min(first + count - start, int64(rows)))

    def _multiply(
        self, where: dict[Any, Any], panel: Any, first: Any, count: Any, number: Any,
        right: tuple[Any, Any, tuple[Any, Any]], target: Any, k: Any, depth: Any, width: int | None,
    ) -> Any:  # fmt: skip
        """Writes the product of a row tile with a part of a panel to an address.

        `width` is that of all panels, if it is known. Returns the distance of rows of the product.
        """
        product = self._product
        b, b_stride, ahead = right
        start, rows = self._rows(first, count, number)
        origin = product.a.position.at({**where, **self._row_values(start), self._k: k})
        a_row = product.a.position.of(product.rows[-1]) if product.rows else int64(0)
        return call_product(
            self._tile, width, self._columns(panel), rows,
            tirx.address_of(self._a[origin]), b, target, depth,
            (a_row, product.a.position.of(self._k)), b_stride, ahead,
        )  # fmt: skip

    def _write_tile(
        self, where: dict[Any, Any], panel: Any, first: Any, count: Any, number: Any,
        results: Any, place: Any, out_row: Any, next_column: Any = None,
    ) -> None:  # fmt: skip
        """Writes the results of a row tile, whose rows in a buffer are `out_row` apart."""
        tile = self._tile
        start, rows = self._rows(first, count, number)
        column, columns = bound(panel * tile.width), self._columns(panel)
        with ib.serial(rows) as row:
            here = {**where, **self._row_values(start + row), self._n: column}
            line = bound(place + row * out_row)
            following = None
            if next_column is not None:
                following = {**here, self._n: next_column}
            elif self._product.rows:
                following = {**here, **self._row_values(start + row + tile.rows)}
            self._store.run(
                here, columns, partial(element_of, results, line), tile.lanes, following
            )

    def _right_operand(
        self, where: dict[Any, Any], panel: Any, packed: bool, k: Any = 0
    ) -> tuple[Any, Any]:
        """The address of a panel's first element, or of row k, and the distance of its rows."""
        width = int64(self._tile.width)
        column = bound(panel * width)
        if packed:
            return tirx.address_of(self._b[(panel * self._depth + k) * width]), width
        position = self._product.b.position
        if self._reads_in_place():
            origin = bound(position.at({**where, self._n: column}))
            return tirx.address_of(self._b[origin]), position.of(self._k)
        copy = ib.alloc_buffer((self._depth * width,), "float32")
        self._copy_panel(where, panel, copy, int64(0))
        return copy.data, width

    def _copy_panel(self, where: dict[Any, Any], panel: Any, copy: Any, place: Any) -> None:
        """Copies a panel to a place in a buffer, with zeros after its last column."""
        width = int64(self._tile.width)
        column = bound(panel * width)
        columns = bound(tirx.min(self._width - column, width))
        position = self._product.b.position
        step, down = position.of(self._n), position.of(self._k)
        origin = bound(position.at({**where, self._n: column}))
        if is_number(down, 1):
            target, source = tirx.address_of(copy[place]), tirx.address_of(self._b[origin])
            call_function(TRANSPOSE, target, source, columns, self._depth, width, step)
        elif is_number(step, 1):
            with ib.serial(self._depth) as k:
                target = tirx.address_of(copy[bound(place + k * width)])
                source = tirx.address_of(self._b[bound(origin + k * down)])
                call_copy_row(target, source, 0, columns, 0, 1, tirx.const(0.0, "float32"))
        else:
            with ib.serial(self._depth) as k, ib.serial(columns) as j:
                element = self._b[origin + k * down + j * step]
                ib.buffer_store(copy, element, [place + k * width + j])
        # Vectors reach past the last column.
        with ib.serial(self._depth) as k, ib.serial(width - columns) as j:
            ib.buffer_store(copy, tirx.const(0.0, "float32"), [place + k * width + columns + j])

    def _reads_in_place(self) -> bool:
        """Whether panels of the right operand are read where they are, row by row.

        They are whole, and their rows near each other: at large powers of two, a few lines of the
        cache would have to hold them all.
        """
        position = self._product.b.position
        step, down = position.of(self._n), position.of(self._k)
        whole = _is_static(self._width) and int(self._width) % self._tile.width == 0
        return whole and is_number(step, 1) and _is_static(down) and int(down) <= _NEAR


def _panels_together(most: int, panels: Any, chunks: Any) -> Any:
    """The number of panels of an item if there are `chunks` chunks of rows."""
    parts = ceil_div(int64(_FEWEST_ITEMS), tirx.max(chunks, int64(1)))
    return tirx.max(tirx.min(int64(most), tirx.floordiv(panels, parts)), int64(1))


def _is_static(size: Any) -> bool:
    return isinstance(size, tirx.IntImm)
