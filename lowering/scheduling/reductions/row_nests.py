"""Nests that compute rows by role: the combination of a row's elements, or a single element.

The elements of a row are combined in several vectors at once, whatever the length of the row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx
from tvm.tirx.script import builder as ib

from ..functions.micro_kernels import native_tile
from ..functions.row_functions import (
    SHORT_ROW,
    Combination,
    RowReducer,
    call_reduce_rows,
    reduce_short_row,
)
from ..injective.elementwise import is_plain_value
from ..kernels.affine import (
    Affine,
    affine,
    flat_index,
    flat_views,
    int64,
    product,
    static_size,
    unflattened,
)
from ..kernels.blocks import has_scalar_functions
from ..kernels.emission import Counters, bound, compute_block, for_items, pieces
from ..kernels.nests import Nest, loads, substituted

_KINDS = (tirx.Add, tirx.Max, tirx.Min)
COST = 2
"""The time for an element, in multiply-adds."""
ITEM_ELEMENTS = 1 << 12
"""Elements of an item: several rows where rows are short."""


@dataclass(frozen=True)
class Element:
    """A nest that computes a single element, as of the mean of all elements."""

    nest: Nest

    @property
    def buffers(self) -> list[Any]:
        """The buffers that are written and read."""
        return [self.nest.buffer, *(load.source for load in loads(self.nest.value))]

    def emit(self) -> None:
        """Emits a block that computes the nest."""
        with compute_block("element"):
            self.emit_row({}, flat_views(self.buffers))

    def emit_row(self, values: Mapping[Any, Any], views: Mapping[Any, Any]) -> None:
        """Emits the element, for some values of the variables."""
        nest = self.nest
        values = {**dict.fromkeys(nest.variables, int64(0)), **values}

        def place(buffer: Any, indices: Sequence[Any]) -> Any:
            return flat_index(list(buffer.shape), [substituted(i, values) for i in indices])

        def view(load: Any) -> Any:
            return views[load.source][place(load.source, load.indices)]

        value = tvm_ffi.structural_map(nest.value, (ir.TensorLoad, view), order="post")
        target = place(nest.buffer, nest.indices)
        ib.buffer_store(views[nest.buffer], substituted(value, values), [target])


@dataclass(frozen=True)
class Rows:
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

    @property
    def buffers(self) -> list[Any]:
        """The buffers that are written and read."""
        return [self.nest.buffer, *(load.source for load in self.positions)]

    def emit_row(self, values: Mapping[Any, Any], views: Mapping[Any, Any]) -> None:
        """Emits the result of a row, for some values of the other variables."""
        nest, last = self.nest, self.along[-1]
        values = {**dict.fromkeys(nest.variables, int64(0)), **values}
        if self._short is not None:
            self._emit_short_row(values, views)
            return
        length = bound(product([nest.extent(v) for v in self.along]))
        if not self.outer and isinstance(self.term, ir.TensorLoad):
            target, source = (
                tirx.address_of(views[buffer][bound(position.at(values))])
                for buffer, position in zip(
                    self.buffers, (self.target, *self.positions.values()), strict=True
                )
            )
            steps = int64(0), int64(0)
            call_reduce_rows(self.combination, target, source, int64(1), length, steps, self.start)
            return

        reducer = RowReducer(self.combination, native_tile().lanes, self.start)
        with ib.serial(bound(product([nest.extent(v) for v in self.outer]))) as other:
            here = {**values, **_unflattened(nest, self.outer, other)}
            reducer.add(length, lambda place: self._term({**here, last: place}, views))
        reducer.store(views[nest.buffer], self.target.at(values))

    def _term(self, values: Mapping[Any, Any], views: Mapping[Any, Any]) -> Any:
        """The expression of an element, for some values of the variables."""

        def view(load: Any) -> Any:
            return views[load.source][self.positions[load].at(values)]

        value = tvm_ffi.structural_map(self.term, (ir.TensorLoad, view), order="post")
        return substituted(value, values)

    @property
    def _short(self) -> int | None:
        """The number of elements of a short row; None for other rows."""
        length = static_size(product([self.nest.extent(v) for v in self.along]))
        is_short = not self.outer and length is not None and 0 < length <= SHORT_ROW
        return length if is_short else None

    def _emit_short_row(self, values: Mapping[Any, Any], views: Mapping[Any, Any]) -> None:
        """Emits the result of a short row, for values of all other variables."""

        def element(place: Any) -> Any:
            return self._term({**values, self.along[-1]: place}, views)

        short = self._short or 0
        value = reduce_short_row(self.combination, short, element, self.start)
        ib.buffer_store(views[self.nest.buffer], value, [self.target.at(values)])

    def _emit(self) -> None:
        nest, buffers = self.nest, self.buffers
        views = flat_views(buffers)
        length = bound(product([nest.extent(v) for v in self.along]))
        count = bound(product([nest.extent(v) for v in nest.spatial]))
        others = product([nest.extent(v) for v in self.outer])
        most = tirx.floordiv(int64(ITEM_ELEMENTS), tirx.max(others * length, int64(1)))
        together = bound(tirx.max(most, int64(1)))
        strides = self._row_strides()

        def some_rows(item: Any) -> None:
            first = bound(item * together)
            rows = bound(tirx.min(count - first, together))
            if strides is None or self._short is not None:
                counters = Counters(nest.spatial, nest.extent, first)
                with ib.serial(rows):
                    self.emit_row(counters.values(), views)
                    counters.step()
                return
            target, source = (
                tirx.address_of(views[buffer][position.at({}) + first * stride])
                for buffer, position, stride in zip(
                    buffers, (self.target, *self.positions.values()), strides, strict=True
                )
            )
            call_reduce_rows(self.combination, target, source, rows, length, strides, self.start)

        for_items(bound(pieces(count, together)), count * others * length * COST, some_rows)

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


def rows_of(nest: Nest) -> Rows | None:
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
    keeps_nan = kind is tirx.Add or (math.isinf(init.value.value) and not _is_number(term))
    combination = Combination(kind, keeps_nan)
    return Rows(nest, combination, term, init.value, outer, along, known, target)


def _is_number(term: Any) -> bool:
    """Whether a term is a choice between a value that is compared, and so no NaN, and a number."""
    if not isinstance(term, tirx.Select) or not isinstance(term.false_value, tirx.FloatImm):
        return False
    comparison = term.condition
    return isinstance(comparison, (tirx.GE, tirx.LE)) and any(
        tvm_ffi.structural_equal(compared, term.true_value, map_free_vars=False)
        for compared in (comparison.a, comparison.b)
    )


def _follow(outer: Any, inner: Any, nest: Nest, positions: Iterable[Affine]) -> bool:
    """Whether a step of one variable is as far as all steps of another, wherever a term reads."""
    analyzer = sym.Analyzer()
    return all(
        analyzer.can_prove_equal(p.of(outer), p.of(inner) * nest.extent(inner)) for p in positions
    )
