"""Transpositions: elementwise kernels that read along another axis than they write.

The elements of a vector of the output are far apart in what is read. Blocks of both axes are
transposed in registers, straight into the output; with fused operators, into a small square that
these read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from ..functions.lane_kernels import TRANSPOSE
from ..functions.micro_kernels import call_function, native_tile
from ..kernels.affine import Affine, affine, flat, int64, product, static_size, unflattened
from ..kernels.emission import (
    bound,
    ceil_div,
    compute_block,
    even_part,
    for_items,
    pieces,
    rewritten,
)
from ..kernels.nests import Nest, inlined, loads, nests_of, without_single_iterations
from ..kernels.stores import NestValue, Store
from .elementwise import is_plain

_SIDE = 64
"""The most rows and columns of a block, which stays in the first-level cache."""
_COST = 4
"""The time for an element, in multiply-adds."""


class Transposition(ScheduleRule):  # type: ignore[misc]
    """Elementwise kernels of float32 with one transposed operand, of static and dynamic sizes."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        nests = nests_of(kernel)
        found = _transposed(nests[0]) if nests and len(nests) == 1 else None
        if found is None:
            return None
        return s_tir.Schedule(rewritten(kernel, partial(_emit, found), [found.nest.buffer]))


@dataclass(frozen=True)
class _Transposed:
    nest: Nest
    outer: list[Any]
    """The variables that are neither of the next two."""
    line: Any
    """The variable along which neighbours are neighbours in what is read."""
    column: Any
    """That along which they are neighbours in the output."""
    source: Any
    """The buffer of the transposed operand."""
    position: Affine
    """Where it is read."""
    store: Store
    is_copy: bool
    """Whether nothing else is computed."""


def _transposed(nest: Nest) -> _Transposed | None:
    if not is_plain(nest):
        return None
    nest = without_single_iterations(nest)
    order = [index for index in nest.indices if not isinstance(index, tirx.IntImm)]
    variables = nest.variables
    if len(order) < 2 or len({str(v) for v in order}) != len(order) or len(order) != len(variables):
        return None
    *others, column = order
    for load in loads(nest.value):
        position = affine(list(load.source.shape), list(load.indices), variables)
        if position is None or load.source.same_as(nest.buffer):
            return None
        if str(load.source.dtype) != "float32":  # `is_plain` accepts masks.
            continue
        line = next((v for v in others if static_size(position.of(v)) == 1), None)
        if line is None or column not in position.coefficients:
            continue
        if static_size(position.of(column)) == 1:
            continue
        extents = {v: nest.extent(v) for v in variables}
        store = Store(NestValue(nest, load), variables, extents, [column])
        if store.is_storable and store.is_contiguous and store.is_vector:
            outer = [v for v in others if not v.same_as(line)]
            is_copy = nest.value.same_as(load)
            return _Transposed(nest, outer, line, column, load.source, position, store, is_copy)
    return None


def _emit(found: _Transposed) -> None:
    nest, lanes = found.nest, native_tile().lanes
    with compute_block("transposition"):
        found.store.declare()
        source = flat(found.source)
        height, width = bound(nest.extent(found.line)), bound(nest.extent(found.column))
        row_step = found.position.of(found.column)
        most_rows, most_columns = (_part(size, lanes) for size in (height, width))
        bands, blocks = bound(pieces(height, most_rows)), bound(pieces(width, most_columns))

        def block(number: Any) -> None:
            rest = bound(tirx.floordiv(number, blocks))
            values = _values(nest, found.outer, tirx.floordiv(rest, bands))
            first = bound(tirx.floormod(rest, bands) * most_rows)
            start = bound(tirx.floormod(number, blocks) * most_columns)
            rows = bound(tirx.min(height - first, most_rows))
            columns = bound(tirx.min(width - start, most_columns))
            values |= {found.line: first, found.column: start}
            origin = tirx.address_of(source[bound(found.position.at(values))])
            if found.is_copy:
                target = tirx.address_of(found.store.output[bound(found.store.target(values))])
                step = found.store.step(found.line)
                call_function(TRANSPOSE, target, origin, columns, rows, step, row_step)
                return
            square = ib.alloc_buffer((_SIDE * _SIDE,), "float32")
            call_function(TRANSPOSE, square.data, origin, columns, rows, _SIDE, row_step)
            with ib.serial(rows) as row:
                here = {**values, found.line: bound(first + row)}
                found.store.run(here, columns, partial(_element, square, row), lanes)

        extents = [nest.extent(v) for v in nest.variables]
        count = product([nest.extent(v) for v in found.outer])
        for_items(bound(count * bands * blocks), product(extents) * _COST, block)


def _part(size: Any, lanes: int) -> Any:
    """The size of the equal parts of an axis, of whole vectors, that a block has at most."""
    vectors = ceil_div(even_part(size, int64(_SIDE)), lanes)
    return bound(tirx.max(vectors, int64(1)) * lanes)


def _element(square: Any, row: Any, offset: Any) -> Any:
    return square[row * _SIDE + offset]


def _values(nest: Nest, variables: Sequence[Any], number: Any) -> dict[Any, Any]:
    values = unflattened(variables, nest.extent, number)
    return {variable: bound(value) for variable, value in values.items()}
