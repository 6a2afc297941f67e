"""Transpositions: elementwise kernels that read along another axis than they write.

The elements of a vector of the output are far apart in what is read. Blocks of both axes are
transposed in registers. Where operators were fused, they read the results from a small square.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from .affine import Affine, affine, flat, int64, product, unflattened
from .elementwise import is_plain
from .emission import Store, bound, compute_block, even_part, for_items, pieces, rewritten
from .lane_kernels import TRANSPOSE
from .micro_kernels import call_function, native_tile
from .nests import Nest, inlined, loads, nests_of

_SIDE = 64
"""The side of the largest block, which stays in the first-level cache."""
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


class _Value:
    """What a nest stores, with the transposed load as the element, as `Store` takes it."""

    def __init__(self, nest: Nest, load: Any) -> None:
        self._nest = nest
        self._load = load
        self.output = nest.buffer

    def indices(self) -> list[Any]:
        return self._nest.indices

    def value(self, element: Any) -> Any:
        def replace(load: Any) -> Any:
            return element if load.same_as(self._load) else load

        return tvm_ffi.structural_map(self._nest.value, (ir.TensorLoad, replace), order="post")


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
    target: Affine | None
    """Where it is written if nothing else is computed, None if something is."""


def _transposed(nest: Nest) -> _Transposed | None:
    if not is_plain(nest):
        return None
    order = [index for index in nest.indices if not isinstance(index, tirx.IntImm)]
    variables = nest.variables
    if len(order) < 2 or len({str(v) for v in order}) != len(order) or len(order) != len(variables):
        return None
    *others, column = order
    for load in loads(nest.value):
        position = affine(list(load.source.shape), list(load.indices), variables)
        if position is None or load.source.same_as(nest.buffer):
            return None
        line = next((v for v in others if _is_one(position.of(v))), None)
        if line is None or column not in position.coefficients or _is_one(position.of(column)):
            continue
        extents = {v: nest.extent(v) for v in variables}
        store = Store(_Value(nest, load), variables, extents, [column])
        if store.is_storable and store.is_contiguous and store.is_vector:
            outer = [v for v in others if not v.same_as(line)]
            target = None
            if nest.value.same_as(load):
                target = affine(list(nest.buffer.shape), list(nest.indices), variables)
            return _Transposed(nest, outer, line, column, load.source, position, store, target)
    return None


def _is_one(step: Any) -> bool:
    simple = sym.Analyzer().simplify(step)
    return isinstance(simple, tirx.IntImm) and int(simple) == 1


def _emit(found: _Transposed) -> None:
    nest, lanes = found.nest, native_tile().lanes
    with compute_block("transposition"):
        found.store.declare()
        source, output = flat(found.source), flat(nest.buffer)
        height, width = bound(nest.extent(found.line)), bound(nest.extent(found.column))
        step = bound(found.position.of(found.column))
        side = int64(_SIDE)
        most_rows, most_columns = bound(even_part(height, side)), bound(even_part(width, side))
        bands = bound(pieces(height, tirx.max(most_rows, int64(1))))

        def band(number: Any) -> None:
            here = _values(nest, found.outer, tirx.floordiv(number, bands))
            first = bound(tirx.floormod(number, bands) * most_rows)
            rows = bound(tirx.min(height - first, most_rows))
            room: Any = None if found.target else ib.alloc_buffer((_SIDE * _SIDE,), "float32")
            with ib.serial(bound(pieces(width, tirx.max(most_columns, int64(1))))) as block:
                start = bound(block * most_columns)
                columns = bound(tirx.min(width - start, most_columns))
                corner = {**here, found.line: first, found.column: start}
                if found.target is not None:
                    to = tirx.address_of(output[bound(found.target.at(corner))])
                    row_step = found.target.of(found.line)
                else:
                    to, row_step = room.data, int64(_SIDE)
                origin = tirx.address_of(source[bound(found.position.at(corner))])
                call_function(TRANSPOSE, to, origin, columns, rows, row_step, step)
                if found.target is None:
                    with ib.serial(rows) as row:
                        values = {**corner, found.line: bound(first + row)}
                        found.store.run(values, columns, partial(_element, room, row), lanes)

        extents = [nest.extent(v) for v in nest.variables]
        count = product([nest.extent(v) for v in found.outer])
        for_items(bound(count * bands), product(extents) * _COST, band)


def _element(room: Any, row: Any, offset: Any) -> Any:
    return room[row * _SIDE + offset]


def _values(nest: Nest, variables: Sequence[Any], number: Any) -> dict[Any, Any]:
    values = unflattened(variables, nest.extent, number)
    return {variable: bound(value) for variable, value in values.items()}
