"""Matrix products: the right operand in panels of vectors, rows in register tiles.

A constant right operand is packed into panels `[panel, k, width]` once, when the module is
compiled; TVM's `SplitLayoutRewritePreproc` takes the packing out of the kernel. The loop over
panels is around that over rows, so that a panel stays in the second-level cache while all rows of
an item pass over it. Where the cache holds several panels, the loop over them is inside: a register
tile writes its results beside those of the tile before. Sizes may be symbols: the last rows and
columns go through smaller tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tvm import s_tir, sym, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from ..functions.micro_kernels import Tile, call_product, native_tile, share_of_next_panel
from ..kernels.affine import flat, int64, static_size, unflattened
from ..kernels.emission import (
    bound,
    ceil_div,
    compute_block,
    even_part,
    for_items,
    pieces,
    unless_empty,
)
from ..kernels.nests import inlined, nests_of, without_copies
from ..kernels.stores import Store, element_of
from ..relax.packing import is_constant_operand
from .convolution_form import Convolved, convolution_of, convolution_with_channels_last
from .product_schedules import schedule_product
from .products import SumOfProducts, sum_of_products
from .right_operand import Panel, RightOperand

_CACHED = 1 << 18
"""Elements of the left operand that an item keeps in the second-level cache."""
_CACHED_PANELS = 1 << 16
"""Elements of panels of the right operand that stay in the second-level cache."""
_FEWEST_PANELS = 4
"""The fewest panels for which a loop over them inside of that over rows is faster."""
_FEWEST_ITEMS = 4
"""Cores share at least so many items, if there are enough panels."""
_FEWEST_ROWS = 4
"""The fewest rows of a register tile whose sums do not wait for each other."""
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
        if _has_far_rows(convolution_with_channels_last(kernel)):
            return None
        schedule = _scheduled(kernel)
        if schedule is None and (moved := without_copies(kernel)) is not kernel:
            schedule = _scheduled(moved)
        return schedule


def _has_far_rows(found: Convolved | None) -> bool:
    """Whether a convolution has a stride, so that only the positions of a line are equally far
    apart, and so many weights that reading them for each line takes longer than copying rows.
    """
    if found is None or len(found.axes) != 2 or all(axis.stride == 1 for axis in found.axes):
        return False
    product = found.product
    weights = static_size(product.count([*product.rows, *product.reduced]))
    return weights is not None and weights > _CACHED


def _scheduled(kernel: tirx.PrimFunc) -> s_tir.Schedule | None:
    nests = nests_of(kernel)
    if not nests:
        return None
    product = sum_of_products(nests[0])
    if product is None:
        return None
    product = _with_even_rows(product)
    if not _is_matrix_product(kernel, product):
        return None

    def emit(store: Store) -> None:
        _Emission(kernel, product, store, native_tile()).emit()

    return schedule_product(kernel, nests, product, emit)


def _with_even_rows(product: SumOfProducts) -> SumOfProducts:
    """The product with only those rows that are equally far apart in the left operand.

    A register tile reads rows at one distance. Outer row variables at another are of the batch, as
    that of `bkr,kn->brn`.
    """
    rows = list(product.rows)
    even = list(product.a.position.evenly_spaced(rows, product.extent))
    batch = [*product.batch, *rows[: len(rows) - len(even)]]
    return replace(product, batch=batch, rows=even)


def _is_matrix_product(kernel: tirx.PrimFunc, product: SumOfProducts) -> bool:
    """Whether there is one reduced variable and one of columns, and rows or constant panels.

    A single row needs a constant right operand: packing another one would take longer.
    """
    if len(product.reduced) != 1 or len(product.columns) != 1:
        return False
    return bool(product.rows) or is_constant_operand(kernel, product.b.buffer)


@dataclass(frozen=True)
class _Item:
    """What one core computes at a time: some rows of the product, in some panels of columns."""

    batch: dict[Any, Any]
    """The values of the batch variables."""
    first: Any
    rows: Any
    tile_rows: Any
    """The rows of each register tile but the last one."""
    panel: Any
    """The first panel."""
    end: Any
    """The panel after the last one."""
    scratch: Any
    """A buffer for the results of one row tile."""


class _Emission:
    def __init__(
        self, kernel: tirx.PrimFunc, product: SumOfProducts, store: Store, tile: Tile
    ) -> None:
        self._product = product
        self._store = store
        self._tile = tile
        self._right = RightOperand(kernel, product, tile)
        (self._k,) = product.reduced
        (self._n,) = product.columns
        self._depth, self._width = self._right.depth, self._right.width
        self._has_even_rows = store.is_even(product.rows)

    def emit(self) -> None:
        self._right.pack()
        with compute_block("product"), unless_empty(self._store.written):
            self._store.declare()
            self._a = flat(self._product.a.buffer)
            self._right.declare()
            self._items()

    # --- items ---

    def _items(self) -> None:
        product, right = self._product, self._right
        batch = product.count(product.batch)
        rows = bound(product.count(product.rows))
        panels = bound(pieces(self._width, self._tile.width))
        is_deep = right.is_packed and int(self._depth) >= _DEEP
        most = _DEEP_PANELS if is_deep else self._most_panels()
        tiles = _DEEP_TILES if is_deep else _FEW_TILES
        # All rows of an item read a copy.
        shares = most == 1 or right.is_copied
        most_rows = int64(self._row_chunk() if shares else tiles * self._tile.rows)
        chunk = self._part(rows, most_rows)
        if not is_deep:
            # One chunk, if it fits the cache: each further one would read all panels again.
            is_one = tirx.all(rows <= 2 * most_rows, rows * self._depth <= _CACHED)
            chunk = tirx.Select(is_one, tirx.max(rows, int64(1)), chunk)
            chunk = bound(sym.Analyzer().simplify(chunk))
        chunks = bound(sym.Analyzer().simplify(pieces(rows, chunk)))
        together = int64(1) if most == 1 else bound(_panels_together(most, panels, batch * chunks))
        groups = bound(pieces(panels, together))
        reading = chunks * (_COST_OF_COPY if right.is_copied else _COST_OF_READ)
        work = batch * (rows + reading) * self._width * self._depth

        def compute(number: Any) -> None:
            outer = bound(tirx.floordiv(number, groups))
            group, part = tirx.floormod(number, groups), tirx.floormod(outer, chunks)
            image = tirx.floordiv(outer, chunks)
            part, group = bound(part), bound(group)
            batch_values = self._values(product.batch, image)
            values = {variable: bound(value) for variable, value in batch_values.items()}
            first = bound(part * chunk)
            count = bound(tirx.min(rows - first, chunk))
            tile_rows = self._part(count, int64(self._tile.rows))
            scratch = ib.alloc_buffer((self._tile.rows * self._tile.width,), "float32")
            if most == 1:
                item = _Item(values, first, count, tile_rows, group, group + 1, scratch)
                self._one_panel(item)
                return
            panel = bound(group * together)
            end = bound(tirx.min(panel + together, panels))
            item = _Item(values, first, count, tile_rows, panel, end, scratch)
            if is_deep:
                self._deep_panels(item)
            else:
                self._several_panels(item, most)

        for_items(batch * chunks * groups, work, compute)

    def _has_many_weights(self) -> bool:
        """Whether the right operand is one constant that does not stay in the second-level cache
        beside the left one.
        """
        sizes = [static_size(size) for size in (self._depth, self._width)]
        if not self._right.is_packed or self._product.batch or None in sizes:
            return False
        return math.prod(size for size in sizes if size is not None) > _CACHED // 4

    def _part(self, total: Any, most: Any) -> Any:
        """The rows of a part if so many are cut into parts of at most `most`.

        The last part has the rest; but few rows would be slow, because their sums wait for each
        other. Then all parts are equal.
        """
        simplify = sym.Analyzer().simplify
        rest = bound(simplify(tirx.floormod(total, most)))
        is_slow = tirx.all(rest > 0, rest < _FEWEST_ROWS, total > most)
        return bound(simplify(tirx.Select(is_slow, even_part(total, most), most)))

    def _most_panels(self) -> int:
        """The number of panels at most that each register tile of rows is multiplied by in turn."""
        depth = static_size(self._depth)
        if depth is None or self._has_many_weights():
            return 1
        cached = _CACHED_PANELS // (max(depth, 1) * self._tile.width)
        return cached if cached >= _FEWEST_PANELS else 1

    def _row_chunk(self) -> int:
        """The number of rows of an item whose tiles share a panel."""
        rows, depth = self._tile.rows, static_size(self._depth)
        if depth is None:
            return 8 * rows
        return max(4, min(16, _CACHED // (depth * rows))) * rows

    def _values(self, variables: Sequence[Any], number: Any) -> dict[Any, Any]:
        """The values of variables for a number counted over all of them."""
        return unflattened(variables, self._product.extent, number)

    def _row_values(self, number: Any) -> dict[Any, Any]:
        """Values of the variables of rows that stand for a row.

        One of them counts all rows where these are equally far apart in the left operand
        (`_with_even_rows`) and in all that the store touches.
        """
        rows = self._product.rows
        if len(rows) > 1 and self._has_even_rows:
            return {**dict.fromkeys(rows, int64(0)), rows[-1]: number}
        return self._values(rows, number)

    def _one_panel(self, item: _Item) -> None:
        """All row tiles of an item over its only panel."""
        right, width = self._right, int64(self._tile.width)
        if right.is_copied:
            copy = ib.alloc_buffer((self._depth * width,), "float32")
            right.copy_panel(item.batch, item.panel, copy, int64(0))
            panel = right.panel_of(copy, int64(0), item.panel)
        else:
            panel = right.panel(item.batch, item.panel)
        passes = bound(ceil_div(item.rows, self._tile.rows))
        with ib.serial(passes) as number:
            if right.is_packed:
                ahead = share_of_next_panel(self._depth * width, width, number, passes)
                panel = replace(panel, ahead=ahead)
            elif right.is_copied:  # The copy is in the cache.
                panel = replace(panel, ahead=(int64(0), int64(0)))
            self._row_tile(item, number, panel)

    def _several_panels(self, item: _Item, most: int) -> None:
        """All row tiles of an item over at most so many panels: each tile over all of them."""
        right, width = self._right, int64(self._tile.width)
        size = bound(self._depth * width)
        copy = None
        if right.is_copied:
            copy = ib.alloc_buffer((most * self._depth * width,), "float32")
            with ib.serial(item.end - item.panel) as offset:
                right.copy_panel(item.batch, bound(item.panel + offset), copy, bound(offset * size))
        with (
            ib.serial(bound(ceil_div(item.rows, self._tile.rows))) as number,
            ib.serial(item.end - item.panel) as offset,
        ):
            here = bound(item.panel + offset)
            if copy is None:
                panel = right.panel(item.batch, here)
            else:
                panel = right.panel_of(copy, bound(offset * size), here)
            self._row_tile(item, number, panel, next_column=bound((here + 1) * width))

    def _deep_panels(self, item: _Item) -> None:
        """All row tiles of an item over a few panels, one part of their depth after another.

        A part of the panels stays in the second-level cache while all row tiles pass over it, and
        that of a row tile in the first-level cache while it passes over the panels.
        """
        tile, depth = self._tile, int(self._depth)
        size = tile.rows * tile.width
        sums = ib.alloc_buffer((_DEEP_TILES * _DEEP_PANELS * size,), "float32")
        passes = bound(ceil_div(item.rows, tile.rows))
        parts = -(-depth // _PART)
        part_depth = int64(-(-depth // parts))

        def for_each_tile(body: Callable[[Any, Any, Any], None]) -> None:
            """Emits `body(number, here, place)` for each row tile, panel, and place of its sums."""
            with ib.serial(passes) as number, ib.serial(item.end - item.panel) as offset:
                place = bound((number * _DEEP_PANELS + offset) * size)
                body(number, bound(item.panel + offset), place)

        with ib.serial(int64(parts)) as part:
            k = bound(part * part_depth)
            span = k, bound(tirx.min(self._depth - k, part_depth))

            def multiply(number: Any, here: Any, place: Any) -> None:
                panel = self._right.panel(item.batch, here, k)

                def to(target: Any) -> None:
                    # Whole tiles only, so that rows of sums are `tile.width` apart.
                    self._multiply(item, number, panel, target, span, width=None)

                with ib.If(part == 0):
                    with ib.Then():
                        to(tirx.address_of(sums[place]))
                    with ib.Else():
                        to(item.scratch.data)
                        self._add_to_sums(item.scratch, sums, place)

            for_each_tile(multiply)

        def write(number: Any, here: Any, place: Any) -> None:
            self._write_tile(item, number, here, sums, place, int64(tile.width))

        for_each_tile(write)

    def _add_to_sums(self, scratch: Any, sums: Any, place: Any) -> None:
        """Adds the results of a whole tile to sums that begin at a place."""
        tile = self._tile
        with ib.serial(tile.rows * tile.vectors) as vector:
            begin = bound(vector * tile.lanes)
            with ib.vectorized(int64(tile.lanes)) as lane:
                total = sums[place + begin + lane] + scratch[begin + lane]
                ib.buffer_store(sums, total, [place + begin + lane])

    # --- row tiles ---

    def _row_tile(self, item: _Item, number: Any, panel: Panel, next_column: Any = None) -> None:
        """The product of one row tile with a panel.

        `next_column` is the first column of the panel that is computed next, whose output is
        prefetched.
        """
        zero, width = int64(0), static_size(self._width)
        span = zero, self._depth
        out_row = self._multiply(item, number, panel, item.scratch.data, span, width)
        self._write_tile(item, number, panel.number, item.scratch, zero, out_row, next_column)

    def _columns(self, panel: Any) -> Any:
        """The number of columns of a panel."""
        width = static_size(self._width)
        if width is not None and width % self._tile.width == 0:
            return int64(self._tile.width)
        return bound(tirx.min(self._width - panel * self._tile.width, int64(self._tile.width)))

    def _rows(self, item: _Item, number: Any) -> tuple[Any, Any]:
        """The first row of a row tile, and how many it has."""
        start = bound(item.first + number * item.tile_rows)
        return start, bound(tirx.min(item.first + item.rows - start, item.tile_rows))

    def _multiply(
        self,
        item: _Item,
        number: Any,
        panel: Panel,
        target: Any,
        span: tuple[Any, Any],
        width: int | None,
    ) -> Any:
        """Writes the product of a row tile with a part of a panel to an address.

        `span` is the first k of the part and its depth, `width` that of all panels, if it is known.
        Returns the distance of rows of the product.
        """
        product, (k, depth) = self._product, span
        start, rows = self._rows(item, number)
        row = self._row_values(start)
        origin = product.a.position.at({**item.batch, **row, self._k: k})
        a_row = product.a.position.of(product.rows[-1]) if product.rows else int64(0)
        return call_product(
            self._tile, width, self._columns(panel.number), rows,
            tirx.address_of(self._a[origin]), panel.address, target, depth,
            (a_row, product.a.position.of(self._k)), panel.stride, panel.ahead,
        )  # fmt: skip

    def _write_tile(
        self,
        item: _Item,
        number: Any,
        panel: Any,
        results: Any,
        place: Any,
        out_row: Any,
        next_column: Any = None,
    ) -> None:
        """Writes the results of a row tile, whose rows in a buffer are `out_row` apart."""
        tile, variables = self._tile, self._product.rows
        start, rows = self._rows(item, number)
        column, columns = bound(panel * tile.width), self._columns(panel)
        with ib.serial(rows) as row:
            values = self._row_values(start + row)
            here = {**item.batch, **values, self._n: column}
            line = bound(place + row * out_row)
            following = None
            if next_column is not None:
                following = {**here, self._n: next_column}
            elif variables:
                following = {**here, **self._row_values(start + row + item.tile_rows)}
            self._store.run(
                here, columns, partial(element_of, results, line), tile.lanes, following
            )


def _panels_together(most: int, panels: Any, chunks: Any) -> Any:
    """The number of panels of an item if there are `chunks` chunks of rows."""
    parts = ceil_div(int64(_FEWEST_ITEMS), tirx.max(chunks, int64(1)))
    return tirx.max(tirx.min(int64(most), tirx.floordiv(panels, parts)), int64(1))
