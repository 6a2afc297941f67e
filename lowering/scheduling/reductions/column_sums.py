"""Sums over rows: vectors of columns are added up, a few rows at once.

    y[n, c] = f(sum(x[n, h, w, c]))

The mean over all positions of an image with channels last is one. Rows are read in the order of
memory, and their sums stay in the first-level cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from ..functions.micro_kernels import native_tile
from ..kernels.affine import Affine, affine, flat, int64, product, static_size, unflattened
from ..kernels.emission import (
    bound,
    compute_block,
    even_part,
    for_items,
    rewritten,
    unless_empty,
)
from ..kernels.nests import Nest, inlined, is_number, nests_of
from ..kernels.stores import Store, element_of, epilogue_of

_ROWS = 8
"""The rows that are added up before their sum is added to that of the others."""
_COLUMNS = 256
"""The most columns of an item of work."""


class ColumnSums(ScheduleRule):  # type: ignore[misc]
    """Sums of float32 over rows of a known number of columns, at least a vector of them."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        nests = nests_of(kernel)
        found = _sum_of(nests[0]) if nests else None
        if not nests or found is None:
            return None
        epilogue = epilogue_of(nests[0], nests[0].indices, nests[1:])
        if epilogue is None:
            return None
        extents = {v: nests[0].extent(v) for v in nests[0].variables}
        store = Store(epilogue, nests[0].spatial, extents, [found.column])
        if not (store.is_storable and store.is_contiguous and store.is_vector):
            return None
        return s_tir.Schedule(rewritten(kernel, partial(_emit, found, store)))


@dataclass(frozen=True)
class _Sum:
    nest: Nest
    source: Any
    position: Affine
    """Where an element is, in the variables of the nest."""
    batch: list[Any]
    column: Any
    rows: list[Any]
    """The variables that are summed over; rows are equally far apart."""


def _sum_of(nest: Nest) -> _Sum | None:
    value = nest.value
    if not isinstance(value, tirx.Add) or not nest.reduced or nest.is_empty:
        return None
    init = getattr(nest.block.init, "value", None)
    if not isinstance(init, tirx.FloatImm) or float(init) != 0:
        return None
    total, element = value.a, value.b
    if not all(isinstance(x, ir.TensorLoad) for x in (total, element)):
        return None
    source = element.source
    if not total.source.same_as(nest.buffer) or str(source.dtype) != "float32":
        return None
    variables = [v for v in nest.variables if not is_number(nest.extent(v), 1)]
    position = affine(list(source.shape), list(element.indices), nest.variables)
    order = [i for i in nest.indices if any(i.same_as(v) for v in variables)]
    rows = [v for v in nest.reduced if any(v.same_as(other) for other in variables)]
    if position is None or not order or not rows or len(order) + len(rows) != len(variables):
        return None
    *batch, column = order
    columns = static_size(nest.extent(column))
    if columns is None or columns < native_tile().lanes or static_size(position.of(column)) != 1:
        return None
    if len(position.evenly_spaced(rows, nest.extent)) < len(rows):
        return None
    return _Sum(nest, source, position, batch, column, rows)


def _emit(found: _Sum, store: Store) -> None:
    nest, lanes = found.nest, native_tile().lanes
    columns = static_size(nest.extent(found.column))
    assert columns is not None, "the number of columns is known"
    with compute_block("column_sums"), unless_empty(store.written):
        store.declare()
        source = flat(found.source)
        rows = bound(product([nest.extent(v) for v in found.rows]))
        step = bound(found.position.of(found.rows[-1]))
        parts = -(-columns // _COLUMNS)
        size = even_part(int64(columns), int64(-(-columns // parts)))
        images = bound(product([nest.extent(v) for v in found.batch]))

        def item(number: Any) -> None:
            first = bound(tirx.floormod(number, int64(parts)) * size)
            count = bound(tirx.min(int64(columns) - first, size))
            image = bound(tirx.floordiv(number, int64(parts)))
            values = unflattened(found.batch, nest.extent, image)
            values = {variable: bound(value) for variable, value in values.items()}
            origin = bound(found.position.at({**values, found.column: first}))
            sums = ib.alloc_buffer((int64(_COLUMNS + lanes),), "float32")

            def add_rows(row: Any, number: int) -> None:
                """Adds some rows to the sums."""
                start = bound(origin + row * step)

                def total(column: Any) -> Any:
                    elements = [source[start + k * step + column] for k in range(number)]
                    while len(elements) > 1:
                        pairs = zip(elements[::2], elements[1::2], strict=True)
                        elements = [a + b for a, b in pairs]
                    return reduce(add, elements, sums[column])

                whole = bound(tirx.floordiv(count, lanes))
                with ib.serial(whole) as vector, ib.vectorized(int64(lanes)) as lane:
                    column = vector * lanes + lane
                    ib.buffer_store(sums, total(column), [column])
                with ib.serial(count - whole * lanes) as k:
                    column = whole * lanes + k
                    ib.buffer_store(sums, total(column), [column])

            with ib.serial(int64(_COLUMNS + lanes)) as k:
                ib.buffer_store(sums, tirx.const(0.0, "float32"), [k])
            together = bound(tirx.floordiv(rows, _ROWS))
            with ib.serial(together) as number:
                add_rows(bound(number * _ROWS), _ROWS)
            with ib.serial(rows - together * _ROWS) as rest:
                add_rows(bound(together * _ROWS + rest), 1)
            zeros = dict.fromkeys(nest.spatial, int64(0))
            here = {**zeros, **values, found.column: first}
            store.run(here, count, partial(element_of, sums, int64(0)), lanes)

        for_items(images * parts, images * columns * rows, item)
