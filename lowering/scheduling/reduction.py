"""Reductions along rows, and the elementwise nests before and after them: softmax, norms, means.

The elements of a row are combined in several vectors at once, whatever the length of the row. Nests
between reductions are computed as elementwise kernels are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from .affine import Affine, affine, flat, flat_index, int64, product, static_size, unflattened
from .blocks import has_scalar_functions
from .elementwise import Lines, is_plain, is_plain_value, lines_of
from .emission import bound, compute_block, for_items, pieces, rewritten
from .micro_kernels import native_tile
from .nests import Nest, inlined, loads, nests_of, substituted
from .row_functions import Combination, RowReducer, call_reduce_rows

_KINDS = (tirx.Add, tirx.Max, tirx.Min)
_COST = 2
"""The time for an element, in multiply-adds."""
_ITEM_ELEMENTS = 1 << 12
"""Elements of an item: several rows where rows are short."""


class RowReduction(ScheduleRule):  # type: ignore[misc]
    """Sums, maxima and minima of float32 along rows, of static and dynamic sizes."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        nests = nests_of(kernel)
        if not nests or not any(nest.reduced for nest in nests):
            return None
        parts = [_part(nest) for nest in nests]
        found = [part for part in parts if part is not None]
        if len(found) != len(parts):
            return None

        def emit() -> None:
            for part in found:
                part.emit()

        return s_tir.Schedule(rewritten(kernel, emit, [nest.buffer for nest in nests]))


def _part(nest: Nest) -> Lines | _Element | _Rows | None:
    if nest.reduced:
        return _rows(nest)
    if all(static_size(extent) == 1 for extent in nest.extents):
        return _Element(nest) if is_plain(nest) else None
    lines = lines_of([nest])
    return lines[0] if lines else None


@dataclass(frozen=True)
class _Element:
    """A nest that computes a single element, as of the mean of all elements."""

    nest: Nest

    def emit(self) -> None:
        """Emits a block that computes the nest."""
        nest, values = self.nest, dict.fromkeys(self.nest.variables, int64(0))

        def place(buffer: Any, indices: Sequence[Any]) -> Any:
            return flat_index(list(buffer.shape), [substituted(i, values) for i in indices])

        def view(load: Any) -> Any:
            return flat(load.source)[place(load.source, load.indices)]

        with compute_block("element"):
            value = tvm_ffi.structural_map(nest.value, (ir.TensorLoad, view), order="post")
            target = flat(nest.buffer)
            ib.buffer_store(target, substituted(value, values), [place(nest.buffer, nest.indices)])


@dataclass(frozen=True)
class _Rows:
    """A nest that combines the elements of rows."""

    nest: Nest
    combination: Combination
    term: Any
    """The expression of an element."""
    start: Any
    """What the result is for a row of no elements."""
    outer: list[Any]
    """The reduced variables that are not along the row."""
    along: list[Any]
    """The reduced variables along the row, whose elements follow each other."""
    positions: dict[Any, Affine]
    """Where each load of the term reads."""
    target: Affine

    def emit(self) -> None:
        """Emits a block that computes the nest."""
        with compute_block("reduction"):
            self._emit()

    def _emit(self) -> None:
        nest, lanes = self.nest, native_tile().lanes
        buffers = [nest.buffer, *(load.source for load in self.positions)]
        views: dict[Any, Any] = {}
        for buffer in buffers:
            if buffer not in views:
                views[buffer] = flat(buffer)
        length = bound(product([nest.extent(v) for v in self.along]))
        last = self.along[-1]
        count = product([nest.extent(v) for v in nest.spatial])
        others = product([nest.extent(v) for v in self.outer])

        def term(values: dict[Any, Any]) -> Any:
            def view(load: Any) -> Any:
                return views[load.source][self.positions[load].at(values)]

            value = tvm_ffi.structural_map(self.term, (ir.TensorLoad, view), order="post")
            return substituted(value, values)

        def row(number: Any) -> None:
            values = _unflattened(nest, nest.spatial, number)
            reducer = RowReducer(self.combination, lanes, self.start)
            with ib.serial(bound(others)) as other:
                here = {**values, **_unflattened(nest, self.outer, other)}
                reducer.add(length, lambda place: term({**here, last: place}))
            reducer.store(views[nest.buffer], self.target.at(values))

        count = bound(count)
        most = tirx.floordiv(int64(_ITEM_ELEMENTS), tirx.max(others * length, int64(1)))
        together = bound(tirx.max(most, int64(1)))
        strides = self._row_strides()

        def some_rows(item: Any) -> None:
            first = bound(item * together)
            rows = bound(tirx.min(count - first, together))
            if strides is None:
                with ib.serial(rows) as number:
                    row(bound(first + number))
                return
            target, source = (
                tirx.address_of(views[buffer][position.at({}) + first * stride])
                for buffer, position, stride in zip(
                    buffers, (self.target, *self.positions.values()), strides, strict=True
                )
            )
            call_reduce_rows(self.combination, target, source, rows, length, strides, self.start)

        for_items(bound(pieces(count, together)), count * others * length * _COST, some_rows)

    def _row_strides(self) -> tuple[Any, Any] | None:
        """The strides between rows in the result and in the source, if the term is a plain load and
        rows are evenly spaced; None otherwise.
        """
        if self.outer or not isinstance(self.term, ir.TensorLoad):
            return None
        positions = (self.target, *self.positions.values())
        long = [v for v in self.nest.spatial if static_size(self.nest.extent(v)) != 1]
        if not all(_follow(*pair, self.nest, positions) for pair in itertools.pairwise(long)):
            return None
        target, source = (p.of(long[-1]) if long else int64(0) for p in positions)
        return target, source


def _unflattened(nest: Nest, variables: Sequence[Any], number: Any) -> dict[Any, Any]:
    values = unflattened(variables, nest.extent, number)
    return {variable: bound(value) for variable, value in values.items()}


def _rows(nest: Nest) -> _Rows | None:
    """A reduction nest by role; None for one of another form."""
    init = nest.block.init
    kind = next((kind for kind in _KINDS if isinstance(nest.value, kind)), None)
    if kind is None or init is None or not isinstance(init.value, tirx.FloatImm):
        return None
    if str(nest.buffer.dtype) != "float32" or has_scalar_functions(nest.value):
        return None
    if kind is tirx.Add and init.value.value != 0:
        return None
    own = nest.value.a
    if not isinstance(own, ir.TensorLoad) or not own.source.same_as(nest.buffer):
        return None
    term = nest.value.b
    terms = loads(term)
    if not terms or not is_plain_value(term, nest.variables):
        return None
    if any(load.source.same_as(nest.buffer) for load in terms):
        return None
    # Axes of size 1 first: rows run along the last of the longer ones.
    *outer, last = sorted(nest.reduced, key=lambda v: static_size(nest.extent(v)) != 1)
    if static_size(nest.extent(last)) == 1:
        return None
    variables = nest.variables
    positions = {
        load: affine(list(load.source.shape), list(load.indices), variables) for load in terms
    }
    target = affine(list(nest.buffer.shape), nest.indices, variables)
    if target is None or any(position is None for position in positions.values()):
        return None
    steps = [sym.Analyzer().simplify(p.of(last)) for p in positions.values() if p is not None]
    numbers = [int(step) if isinstance(step, tirx.IntImm) else None for step in steps]
    if 1 not in numbers or not set(numbers) <= {0, 1}:
        return None
    known = {load: position for load, position in positions.items() if position is not None}
    along = [last]
    while outer and _follow(outer[-1], along[0], nest, known.values()):
        along.insert(0, outer.pop())
    # TVM starts the maximum of a softmax from a finite number, and `legalize_extreme` other maxima
    # from an infinity. A softmax is NaN in any case, so the faster maximum will do.
    keeps_nan = kind is tirx.Add or math.isinf(init.value.value)
    combination = Combination(kind, keeps_nan)
    return _Rows(nest, combination, term, init.value, outer, along, known, target)


def _follow(outer: Any, inner: Any, nest: Nest, positions: Iterable[Affine]) -> bool:
    """Whether a step of one variable is as far as all steps of another, wherever a term reads."""
    analyzer = sym.Analyzer()
    return all(
        analyzer.can_prove_equal(p.of(outer), p.of(inner) * nest.extent(inner)) for p in positions
    )
