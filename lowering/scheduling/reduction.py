"""Reductions along rows, and the elementwise nests before and after them: softmax, norms, means.

The elements of a row are combined in several vectors at once, whatever the length of the row. Nests
between reductions are computed as elementwise kernels are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from .affine import Affine, affine, flat_index, flat_views, int64, product, static_size, unflattened
from .blocks import has_scalar_functions
from .elementwise import Lines, is_plain, is_plain_value, line_along, lines_of
from .emission import (
    Counters,
    allocated,
    bound,
    compute_block,
    for_items,
    pieces,
    rewritten,
)
from .micro_kernels import native_tile
from .nests import Nest, inlined, loads, nests_of, substituted
from .row_functions import Combination, RowReducer, call_reduce_rows

_KINDS = (tirx.Add, tirx.Max, tirx.Min)
_COST = 2
"""The time for an element, in multiply-adds."""
_ITEM_ELEMENTS = 1 << 12
"""Elements of an item: several rows where rows are short."""
_LONGEST_ROW = 1 << 14
"""Elements of a row that stays in the cache while all nests compute it."""


class RowReduction(ScheduleRule):  # type: ignore[misc]
    """Sums, maxima and minima of float32 along rows, of static and dynamic sizes."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        nests = nests_of(kernel)
        if not nests or not any(nest.reduced for nest in nests):
            return None
        in_turn = _rows_in_turn(kernel, nests)
        if in_turn is not None:
            return s_tir.Schedule(rewritten(kernel, in_turn.emit))
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

    @property
    def buffers(self) -> list[Any]:
        """The buffers that are written and read."""
        return [self.nest.buffer, *(load.source for load in self.positions)]

    def emit_row(self, values: Mapping[Any, Any], views: Mapping[Any, Any]) -> None:
        """Emits the result of a row, for some values of the other variables."""
        nest, last = self.nest, self.along[-1]
        values = {**dict.fromkeys(nest.variables, int64(0)), **values}
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

        def term(values: Mapping[Any, Any]) -> Any:
            def view(load: Any) -> Any:
                return views[load.source][self.positions[load].at(values)]

            value = tvm_ffi.structural_map(self.term, (ir.TensorLoad, view), order="post")
            return substituted(value, values)

        reducer = RowReducer(self.combination, native_tile().lanes, self.start)
        with ib.serial(bound(product([nest.extent(v) for v in self.outer]))) as other:
            here = {**values, **_unflattened(nest, self.outer, other)}
            reducer.add(length, lambda place: term({**here, last: place}))
        reducer.store(views[nest.buffer], self.target.at(values))

    def _emit(self) -> None:
        nest, buffers = self.nest, self.buffers
        views = flat_views(buffers)
        length = bound(product([nest.extent(v) for v in self.along]))
        count = bound(product([nest.extent(v) for v in nest.spatial]))
        others = product([nest.extent(v) for v in self.outer])
        most = tirx.floordiv(int64(_ITEM_ELEMENTS), tirx.max(others * length, int64(1)))
        together = bound(tirx.max(most, int64(1)))
        strides = self._row_strides()

        def some_rows(item: Any) -> None:
            first = bound(item * together)
            rows = bound(tirx.min(count - first, together))
            if strides is None:
                with ib.serial(rows) as number:
                    self.emit_row(_unflattened(nest, nest.spatial, bound(first + number)), views)
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


@dataclass(frozen=True)
class _RowsInTurn:
    """Nests that compute the results of a row from that row only: one row after another.

    What nests leave for each other has room for one row, which stays in the first-level cache.
    """

    parts: list[Lines | _Element | _Rows]
    leading: list[list[Any]]
    """The variables of rows, of each nest."""
    between: list[Any]
    """The buffers between the nests."""

    def emit(self) -> None:
        """Emits a block that computes the nests."""
        with compute_block("rows"):
            self._emit()

    def _emit(self) -> None:
        first, variables = self.parts[0].nest, self.leading[0]
        used = [buffer for part in self.parts for buffer in _buffers(part)]
        views = flat_views([b for b in used if not any(b.same_as(other) for other in self.between)])
        lengths = [
            product([nest.extent(v) for v in nest.variables if not _is_among(v, leading)])
            for nest, leading in zip((part.nest for part in self.parts), self.leading, strict=True)
        ]
        reduction = next(place for place, p in enumerate(self.parts) if isinstance(p, _Rows))
        length, count = bound(lengths[reduction]), product([first.extent(v) for v in variables])
        rows = bound(count)
        most = tirx.floordiv(int64(_ITEM_ELEMENTS), tirx.max(length, int64(1)))
        together = bound(tirx.max(most, int64(1)))

        def some_rows(item: Any) -> None:
            begin = bound(item * together)
            scratch = {b: ib.alloc_buffer((product(b.shape),), b.dtype) for b in self.between}
            here = {**views, **scratch}
            counters = Counters(variables, first.extent, begin)
            with ib.serial(bound(tirx.min(rows - begin, together))):
                row = counters.values()
                for part, leading, elements in zip(self.parts, self.leading, lengths, strict=True):
                    values = {v: row[w] for v, w in zip(leading, variables, strict=True)}
                    if isinstance(part, Lines):
                        part.store.declare(here)
                        part.emit_line(values, bound(elements))
                    else:
                        part.emit_row(values, here)
                counters.step()

        costs = [part.cost if isinstance(part, Lines) else _COST for part in self.parts]
        work = count * lengths[reduction] * sum(costs)
        for_items(bound(pieces(rows, together)), work, some_rows)


def _buffers(part: Lines | _Element | _Rows) -> list[Any]:
    return part.store.buffers if isinstance(part, Lines) else part.buffers


def _is_among(variable: Any, variables: Iterable[Any]) -> bool:
    return any(variable.same_as(other) for other in variables)


def _rows_in_turn(kernel: tirx.PrimFunc, nests: Sequence[Nest]) -> _RowsInTurn | None:
    """Groups the nests of a kernel by row; None for a single nest, where a row needs another one,
    and where rows are few and long: all cores share the elements of such a row.
    """
    if len(nests) < 2:
        return None
    written = [nest.buffer for nest in nests]
    between = [b for b in allocated(kernel) if _is_among(b, written)]
    most = min(len(nest.indices) for nest in nests)
    depths = (
        depth
        for depth in range(most, 0, -1)
        if all(_is_of_rows(nest, nests[0], written, depth) for nest in nests)
    )
    depth = next(depths, None)
    if depth is None or not _are_many(nests, depth):
        return None
    rows = {
        b: tirx.decl_buffer(list(b.shape[depth:]) or [int64(1)], b.dtype, b.name) for b in between
    }
    of_row = [(_of_a_row(nest, rows, depth), list(nest.indices[:depth])) for nest in nests]
    of_row, reciprocals = _without_divisions(of_row)
    parts = [_part_of_row(nest, variables) for nest, variables in of_row]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    leading = [variables for _, variables in of_row]
    return _RowsInTurn(found, leading, [*rows.values(), *reciprocals])


def _without_divisions(
    nests: Sequence[tuple[Nest, list[Any]]],
) -> tuple[list[tuple[Nest, list[Any]]], list[Any]]:
    """Multiplies by the reciprocal of a softmax's sum. Returns the nests and the buffers of the
    reciprocals.

    The sum is not less than 1, the exponential of the difference of the maximum from itself. Other
    divisors may be so small that their reciprocals are infinite.
    """
    sums = _softmax_sums(nests)
    changed, buffers = [], []
    for nest, leading in nests:
        divisors: list[Any] = []

        def replace(quotient: Any, found: list[Any] = divisors) -> Any:
            if not _reads(quotient.b, sums):
                return quotient
            buffer = tirx.decl_buffer([int64(1)], "float32", "reciprocal")
            found.append((buffer, quotient.b))
            return quotient.a * buffer[0]

        value = tvm_ffi.structural_map(nest.value, (tirx.Div, replace), order="post")
        for buffer, divisor in divisors:
            one = tirx.const(1.0, "float32")
            changed.append((_storing(nest, buffer, one / divisor, [int64(0)]), leading))
            buffers.append(buffer)
        changed.append((_storing(nest, nest.buffer, value, nest.indices), leading))
    return changed, buffers


def _softmax_sums(nests: Sequence[tuple[Nest, list[Any]]]) -> list[Any]:
    """The buffers with sums of `exp(x - m)` over a row, where m is the maximum of x over it."""
    maxima: list[tuple[Nest, list[Any]]] = []
    powers: list[Any] = []
    sums: list[Any] = []
    for nest, leading in nests:
        value = nest.value
        if nest.reduced and isinstance(value, tirx.Max):
            maxima.append((nest, leading))
        elif nest.reduced and isinstance(value, tirx.Add):
            term = value.b
            is_of_all = _reads(term, powers) and all(
                index.same_as(variable) and tvm_ffi.structural_equal(nest.extent(variable), size)
                for index, variable, size in zip(
                    term.indices, nest.reduced, term.source.shape, strict=False
                )
            )
            if is_of_all and len(term.indices) == len(nest.reduced):
                sums.append(nest.buffer)
        elif getattr(getattr(value, "op", None), "name", "") == "tirx.exp" and any(
            _is_below(value.args[0], nest, leading, *maximum) for maximum in maxima
        ):
            powers.append(nest.buffer)
    return sums


def _is_below(
    exponent: Any, nest: Nest, leading: Sequence[Any], maximum: Nest, of_maximum: Sequence[Any]
) -> bool:
    """Whether an expression is `x - m`, for a nest that computes m as the maximum of x."""
    if not isinstance(exponent, tirx.Sub) or not _reads(exponent.b, [maximum.buffer]):
        return False
    own = [*leading, *(v for v in nest.variables if not _is_among(v, leading))]
    others = [*of_maximum, *maximum.reduced]
    if len(own) != len(others) or not all(
        tvm_ffi.structural_equal(nest.extent(v), maximum.extent(w))
        for v, w in zip(own, others, strict=True)
    ):
        return False
    x = substituted(exponent.a, dict(zip(own, others, strict=True)))
    return bool(tvm_ffi.structural_equal(x, maximum.value.b))


def _reads(expression: Any, buffers: Sequence[Any]) -> bool:
    """Whether an expression is an element of one of these buffers."""
    return isinstance(expression, ir.TensorLoad) and _is_among(expression.source, buffers)


def _storing(nest: Nest, buffer: Any, value: Any, indices: Sequence[Any]) -> Nest:
    """The nest with another store."""
    block, body = nest.block, tirx.BufferStore(buffer, value, indices)
    block = s_tir.SBlock(block.iter_vars, [], [], block.name_hint, body, block.init)
    return Nest(block, nest.extents)


def _are_many(nests: Sequence[Nest], depth: int) -> bool:
    """Whether there are likely more rows than cores, and each stays in the cache.

    A single axis of unknown size is likely the batch; rows of unknown length are long then.
    """
    reductions = [nest for nest in nests if nest.reduced]
    if not reductions or any(len(nest.reduced) > 1 for nest in reductions):
        return False
    sizes = [static_size(nests[0].extent(index)) for index in nests[0].indices[:depth]]
    lengths = [static_size(nest.extent(nest.reduced[0])) for nest in reductions]
    if all(length is not None and length <= _LONGEST_ROW for length in lengths):
        return any(size != 1 for size in sizes)
    return None in lengths and sum(size != 1 for size in sizes) > 1


def _is_of_rows(nest: Nest, first: Nest, written: Sequence[Any], depth: int) -> bool:
    """Whether each row that a nest computes, along the last axes from `depth` on, depends on the
    same row only of what nests write.
    """
    leading = nest.indices[:depth]
    if not all(_is_among(index, nest.spatial) for index in leading):
        return False
    if len({str(index) for index in leading}) < depth:
        return False
    if not all(
        tvm_ffi.structural_equal(nest.extent(index), first.extent(other))
        for index, other in zip(leading, first.indices, strict=False)
    ):
        return False
    if nest.reduced and any(
        static_size(nest.extent(v)) != 1 for v in nest.spatial if not _is_among(v, leading)
    ):
        return False
    return all(
        len(load.indices) >= depth
        and all(i.same_as(v) for i, v in zip(load.indices, leading, strict=False))
        for load in loads(nest.value)
        if _is_among(load.source, written)
    )


def _of_a_row(nest: Nest, rows: Mapping[Any, Any], depth: int) -> Nest:
    """The nest with buffers of one row between nests."""

    def rest(indices: Sequence[Any]) -> list[Any]:
        return list(indices[depth:]) or [int64(0)]

    def read(load: Any) -> Any:
        own = rows.get(load.source)
        return load if own is None else own[tuple(rest(load.indices))]

    value = tvm_ffi.structural_map(nest.value, (ir.TensorLoad, read), order="post")
    own = rows.get(nest.buffer)
    if own is None:
        return _storing(nest, nest.buffer, value, nest.indices)
    return _storing(nest, own, value, rest(nest.indices))


def _part_of_row(nest: Nest, leading: Sequence[Any]) -> Lines | _Element | _Rows | None:
    if nest.reduced:
        return _rows(nest)
    columns = [
        index for index in nest.indices
        if isinstance(index, ir.Var)
        and not _is_among(index, leading)
        and static_size(nest.extent(index)) != 1
    ]  # fmt: skip
    if columns:
        return line_along(nest, columns)
    return _Element(nest) if is_plain(nest) else None
