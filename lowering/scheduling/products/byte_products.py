"""Products of bytes: quantised matrix products and convolutions.

Both operands are packed into words of several factors of a sum, see `dot_kernels`: rows of `a` in
tiles `[tile, word, row]`, columns of `b` in panels `[panel, word, column]`. Constants are packed
once, when the module is compiled. The columns of a convolution are positions of the image: its
panels are gathered from where its taps read, so that a convolution is a product whose right operand
is never stored as a whole. Neighbouring positions are read as vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tvm import s_tir, sym, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from ..functions.dot_kernels import Dot, call_dots, native_dot
from ..functions.winograd_transforms import span
from ..kernels.affine import flat, int64, static_size, unflattened
from ..kernels.emission import bound, ceil_div, compute_block, even_part, for_items, pieces
from ..kernels.nests import inlined, nests_of, substituted, without_copies
from ..kernels.stores import Store, element_of
from ..relax.packing import is_constant_operand, or_zero, pack_weights
from .product_schedules import schedule_product
from .products import Operand, SumOfProducts, sum_of_byte_products

_CACHED = 1 << 17
"""Bytes of rows of `a` that an item keeps in the second-level cache."""
_ENOUGH_ITEMS = 8
"""Items among which cores share the work. Rows are cut first: each item packs its own."""
_FACTORS_OF_MULTIPLY_ADD = 4
"""Products of bytes in the time of one multiply-add of float32."""


class ByteProduct(ScheduleRule):  # type: ignore[misc]
    """Products of unsigned and signed bytes, as int32: matrix products and convolutions."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = without_copies(inlined(func))
        nests = nests_of(kernel)
        product = sum_of_byte_products(nests[0]) if nests else None
        if nests is None or product is None or len(product.columns) > 2:
            return None  # Columns are numbered along the lines of one image.
        if not product.rows and not is_constant_operand(kernel, product.b.buffer):
            return None  # Packing the columns would take longer than multiplying a single row.

        def emit(store: Store) -> None:
            dot = native_dot(a_is_signed=str(product.a.buffer.dtype) == "int8")
            _Emission(kernel, product, store, dot).emit()

        return schedule_product(kernel, nests, product, emit)


class _Emission:
    def __init__(
        self, kernel: tirx.PrimFunc, product: SumOfProducts, store: Store, dot: Dot
    ) -> None:
        self._kernel = kernel
        self._product = product
        self._store = store
        self._dot = dot
        self._tile = dot.tile
        self._rows = product.count(product.rows)
        self._depth = product.count(product.reduced)
        self._words = sym.Analyzer().simplify(ceil_div(self._depth, int64(dot.size)))

    def emit(self) -> None:
        product, tile = self._product, self._tile
        a = self._pack_constant(product.a, product.rows, tile.rows)
        b = self._pack_constant(product.b, product.columns, tile.width)
        self._packs_a, self._packs_b = a is not None, b is not None
        with compute_block("byte_product"):
            self._store.declare()
            self._a = flat(product.a.buffer if a is None else a)
            self._b = flat(product.b.buffer if b is None else b)
            self._enumerate_columns()
            if not self._packs_b:
                self._factors_of_b = self._tabulate_factors()
            self._items()

    # --- constants ---

    def _pack_constant(self, operand: Operand, variables: Sequence[Any], tile: int) -> Any:
        """A constant operand as `[…, tile, word, row or column, factor]`; None for another one.

        The first axes are those of the batch on which it depends.
        """
        product, size = self._product, self._dot.size
        batch = [v for v in product.batch if v in operand.position.coefficients]
        count = product.count(variables)
        extents = [product.extent(v) for v in batch]
        sizes = [*extents, count, self._depth]
        if not is_constant_operand(self._kernel, operand.buffer) or None in map(static_size, sizes):
            return None

        def element(*places: Any) -> Any:
            *outer, part, word, inside, factor = places
            number, k = part * tile + inside, word * size + factor
            values = dict(zip(batch, outer, strict=True))
            values |= self._split(variables, number) | self._split(product.reduced, k)
            source = operand.buffer[tuple(substituted(i, values) for i in operand.indices)]
            value = tirx.Cast(self._dot.packed(str(operand.buffer.dtype)), source)
            return or_zero(or_zero(value, k, self._depth, size), number, count, tile)

        parts = -(-int(count) // tile)
        shape = [*extents, int64(parts), self._words, int64(tile), int64(size)]
        dtype = self._dot.packed(str(operand.buffer.dtype))
        return pack_weights(self._kernel, operand.buffer, shape, element, dtype)

    def _split(self, variables: Sequence[Any], number: Any) -> dict[Any, Any]:
        """The values of variables for a number counted over all of them."""
        return unflattened(variables, self._product.extent, number)

    def _constant_at(
        self, packed: Any, operand: Operand, where: dict[Any, Any], parts: Any, part: Any, tile: int
    ) -> Any:
        """The address of a tile or panel of a packed constant."""
        number: Any = int64(0)
        for variable in self._product.batch:
            if variable in operand.position.coefficients:
                number = number * self._product.extent(variable) + where[variable]
        place = (number * parts + part) * self._words * (tile * self._dot.size)
        return tirx.address_of(packed[bound(place)])

    # --- columns ---

    def _enumerate_columns(self) -> None:
        """Numbers the columns, from line to line in steps of `_pitch`.

        Where neighbours along a line are neighbours in memory, the lines are as far apart as in
        memory: consecutive numbers are consecutive bytes, some of them between two lines.
        """
        product = self._product
        position, simplify = product.b.position, sym.Analyzer().simplify
        *lines, last = product.columns
        self._width = product.extent(last)
        self._is_contiguous = static_size(position.of(last)) == 1
        self._pitch, self._positions = self._width, self._width
        if lines:
            if self._is_contiguous and not self._packs_b:
                self._pitch = position.of(lines[0])
            count = product.extent(lines[0])
            total = tirx.Select(count > 0, (count - 1) * self._pitch + self._width, int64(0))
            self._positions = simplify(total)
        equal = not lines or sym.Analyzer().can_prove_equal(self._pitch, self._width)
        self._is_one_run = equal and (not lines or self._store.flattens)

    def _place(self, number: Any) -> Any:
        """The position of a column in `b`, relative to the first one."""
        if self._is_contiguous and self._pitch is not self._width:
            return number
        values = self._split(self._product.columns, number)
        steps = self._product.b.position
        return sum((steps.of(v) * value for v, value in values.items()), int64(0))

    def _written_runs(self, first: Any, count: Any, write: Any) -> None:
        """Calls `write(values, offset, count)` for each run of columns on one line.

        `values` are those of the variables at its first column, which lies `offset` after `first`.
        """
        *lines, last = self._product.columns
        if self._is_one_run:
            values = {last: first} if not lines else {lines[0]: int64(0), last: first}
            write(values, int64(0), count)
            return
        begin = bound(tirx.floordiv(first, self._pitch))
        end = bound(tirx.floordiv(first + count - 1, self._pitch))
        with ib.serial(end - begin + 1) as offset:
            line = bound(begin + offset)
            origin = bound(line * self._pitch)
            start = bound(tirx.max(first - origin, int64(0)))
            stop = bound(tirx.min(first + count - origin, self._width))
            with ib.If(stop > start), ib.Then():
                values = {lines[0]: line, last: start}
                write(values, bound(origin + start - first), bound(stop - start))

    # --- items ---

    def _items(self) -> None:
        product, tile = self._product, self._tile
        batch = product.count(product.batch)
        panels = bound(pieces(self._positions, tile.width))
        row_tiles = bound(pieces(self._rows, tile.rows))
        tiles_of_chunk = bound(row_tiles if self._packs_a else self._most_copied_tiles())
        chunks = bound(pieces(row_tiles, tiles_of_chunk))
        parts = ceil_div(int64(_ENOUGH_ITEMS), tirx.max(batch * chunks, int64(1)))
        together = bound(even_part(panels, tirx.max(tirx.floordiv(panels, parts), int64(1))))
        groups = bound(pieces(panels, together))
        sums = product.count([*product.batch, *product.rows, *product.columns])
        work = sym.Analyzer().simplify(tirx.floordiv(sums * self._depth, _FACTORS_OF_MULTIPLY_ADD))

        def item(number: Any) -> None:
            group = bound(tirx.floormod(number, groups))
            outer = bound(tirx.floordiv(number, groups))
            chunk = bound(tirx.floormod(outer, chunks))
            values = self._split(product.batch, tirx.floordiv(outer, chunks))
            where = {variable: bound(value) for variable, value in values.items()}
            first_tile = bound(chunk * tiles_of_chunk)
            tiles = bound(tirx.min(row_tiles - first_tile, tiles_of_chunk))
            copied = None
            if not self._packs_a:
                copied = self._copy_rows(where, first_tile, tiles)
            # The epilogue reads whole vectors.
            scratch = ib.alloc_buffer((tile.rows * tile.width + tile.lanes,), "int32")
            with ib.serial(tirx.min(together, panels - group * together)) as offset:
                panel = bound(group * together + offset)
                self._panel(where, panel, panels, (first_tile, tiles, row_tiles), copied, scratch)

        # Without rows or columns there is nothing to read either.
        is_empty = tirx.any(self._rows == 0, self._positions == 0)
        items = tirx.Select(is_empty, int64(0), batch * chunks * groups)
        for_items(bound(sym.Analyzer().simplify(items)), work, item)

    def _most_copied_tiles(self) -> Any:
        """The most row tiles that an item copies."""
        size_of_tile = tirx.max(self._depth, int64(1)) * self._tile.rows
        cached = tirx.floordiv(int64(_CACHED), size_of_tile)
        share = tirx.floordiv(pieces(self._rows, self._tile.rows), _ENOUGH_ITEMS)
        return sym.Analyzer().simplify(tirx.max(tirx.min(cached, share), int64(1)))

    def _panel(
        self, where: dict[Any, Any], panel: Any, panels: Any, tiles: tuple[Any, Any, Any],
        copied: Any, scratch: Any,
    ) -> None:  # fmt: skip
        """All row tiles of an item over a panel."""
        tile, product = self._tile, self._product
        first_tile, count, row_tiles = tiles
        if not self._packs_b:
            # The last panel ends with the last column, and computes some of them again.
            last = tirx.max(self._positions - tile.width, int64(0))
            start = panel * tile.width
            start = bound(start if self._store.is_in_place else tirx.min(start, last))
            b = self._gather(where, start)
        else:
            start = bound(panel * tile.width)
            b = self._constant_at(self._b, product.b, where, panels, panel, tile.width)
        columns = bound(tirx.min(self._positions - start, int64(tile.width)))
        with ib.serial(count) as number:
            row = bound((first_tile + number) * tile.rows)
            rows = bound(tirx.min(self._rows - row, int64(tile.rows)))
            if not self._packs_a:
                place = number * self._words * (tile.rows * self._dot.size)
                a = tirx.address_of(copied[bound(place)])
            else:
                own = first_tile + number
                a = self._constant_at(self._a, product.a, where, row_tiles, own, tile.rows)
            call_dots(self._dot, rows, a, b, scratch.data, self._words)
            with ib.serial(rows) as inside:
                here, following = (
                    where | self._split(product.rows, number)
                    for number in (row + inside, row + inside + tile.rows)
                )
                line = inside * tile.width
                for_run = partial(self._write_run, scratch, line, here, following)
                self._written_runs(start, columns, for_run)

    def _write_run(
        self, scratch: Any, line: Any, here: dict[Any, Any], following: dict[Any, Any],
        values: dict[Any, Any], offset: Any, count: Any,
    ) -> None:  # fmt: skip
        """Writes `count` columns of a row of sums, and prefetches where those `following` it go."""
        element = partial(element_of, scratch, bound(line + offset))
        self._store.run(here | values, count, element, self._tile.lanes, following | values)

    def _factor(self, k: Any, operand: Operand) -> Any:
        """How far the factor k of a sum lies from the first one."""
        values = self._split(self._product.reduced, k)
        steps = operand.position
        return sum((steps.of(v) * value for v, value in values.items()), int64(0))

    def _tabulate_factors(self) -> Any:
        """A table of how far each factor of a column lies from the first one.

        Entries past the last factor are multiplied by zeros: they repeat the last one.
        """
        size = self._dot.size
        table = ib.alloc_buffer((self._words * size,), "int64")
        with ib.serial(self._words * size) as k:
            last = tirx.max(self._depth - 1, int64(0))
            ib.buffer_store(table, self._factor(tirx.min(k, last), self._product.b), [k])
        return table

    def _copy_rows(self, where: dict[Any, Any], first_tile: Any, tiles: Any) -> Any:
        """Packs row tiles of `a`, with zeros after the last factor."""
        tile, size = self._tile, self._dot.size
        dtype = self._dot.packed(str(self._product.a.buffer.dtype))
        elements = tile.rows * size
        copy = ib.alloc_buffer((self._most_copied_tiles() * self._words * elements,), dtype)
        with ib.serial(tiles) as part, ib.serial(int64(tile.rows)) as inside:
            row = bound(tirx.min((first_tile + part) * tile.rows + inside, self._rows - 1))
            here = where | self._split(self._product.rows, row)
            origin = bound(self._product.a.position.at(here))
            target = bound(part * self._words * elements + inside * size)

            def move(word: Any, factor: int, k: Any) -> None:
                value = tirx.Cast(dtype, self._a[origin + self._factor(k, self._product.a)])
                ib.buffer_store(copy, value, [target + word * elements + factor])

            whole = bound(tirx.floordiv(self._depth, size))
            with ib.serial(whole) as word:
                if self._has_rows_in_order():
                    factors = self._a[span(origin + word * size, size)]
                    value = tirx.Cast(f"{dtype}x{size}", factors)
                    ib.buffer_store(copy, value, [span(target + word * elements, size)])
                else:
                    for factor in range(size):
                        move(word, factor, word * size + factor)
            if static_size(tirx.floormod(self._depth, size)) != 0:
                with ib.If(whole < self._words), ib.Then():
                    for factor in range(size):
                        place = target + whole * elements + factor
                        ib.buffer_store(copy, tirx.const(0, dtype), [place])
                        k = whole * size + factor
                        with ib.If(k < self._depth), ib.Then():
                            move(whole, factor, k)
        return copy

    def _has_rows_in_order(self) -> bool:
        """Whether the factors of a row of `a` follow each other in memory."""
        reduced = self._product.reduced
        if len(reduced) != 1 or self._dot.size == 1:
            return False
        return static_size(self._product.a.position.of(reduced[0])) == 1

    def _gather(self, where: dict[Any, Any], start: Any) -> Any:
        """The address of a panel of `b` from a column on.

        Columns past the last one are not stored: they repeat it.
        """
        tile, size = self._tile, self._dot.size
        source = self._product.b
        dtype = self._dot.packed(str(source.buffer.dtype))
        panel = ib.alloc_buffer((self._words * (tile.width * size),), dtype)
        origin = bound(source.position.at(where))

        def factor_of(word: Any, factor: int) -> Any:
            return self._factors_of_b[word * size + factor]

        def by_element() -> None:
            places = ib.alloc_buffer((tile.width,), "int64")
            with ib.serial(int64(tile.width)) as column:
                number = tirx.min(start + column, self._positions - 1)
                ib.buffer_store(places, origin + self._place(number), [column])
            with ib.serial(self._words) as word:
                for factor in range(size):
                    ahead = bound(factor_of(word, factor))
                    with ib.serial(int64(tile.width)) as column:
                        value = tirx.Cast(dtype, self._b[places[column] + ahead])
                        place = (word * tile.width + column) * size + factor
                        ib.buffer_store(panel, value, [place])

        def by_vector() -> None:
            begin = bound(origin + start)
            with ib.serial(self._words) as word:
                factors = [bound(begin + factor_of(word, f)) for f in range(size)]
                for vector in range(tile.vectors):
                    shift = vector * tile.lanes
                    lines = [
                        tirx.Cast(f"{dtype}x{tile.lanes}", self._b[span(first + shift, tile.lanes)])
                        for first in factors
                    ]
                    order = [
                        line * tile.lanes + k for k in range(tile.lanes) for line in range(size)
                    ]
                    value = lines[0] if size == 1 else tirx.Shuffle(lines, order)
                    place = bound((word * tile.width + shift) * size)
                    ib.buffer_store(panel, value, [span(place, tile.lanes * size)])

        if not self._is_contiguous:
            by_element()
        else:
            with ib.If(start + tile.width <= self._positions):
                with ib.Then():
                    by_vector()
                with ib.Else():
                    by_element()
        return panel.data
