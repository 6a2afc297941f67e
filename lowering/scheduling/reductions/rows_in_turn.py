"""Kernels that compute one row after another: softmax and norms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.tirx.script import builder as ib

from ..injective.elementwise import Lines, is_plain, line_along
from ..kernels.affine import flat_views, int64, product, static_size
from ..kernels.emission import Counters, allocated, bound, compute_block, for_items, pieces
from ..kernels.nests import Nest, loads, substituted
from .row_nests import COST, ITEM_ELEMENTS, Element, Rows, rows_of

_LONGEST_ROW = 1 << 14
"""Elements of a row that stays in the cache while all nests compute it."""


@dataclass(frozen=True)
class RowsInTurn:
    """Nests that compute the results of a row from that row only: one row after another.

    What nests leave for each other has room for one row, which stays in the first-level cache.
    """

    parts: list[Lines | Element | Rows]
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
        reduction = next(place for place, p in enumerate(self.parts) if isinstance(p, Rows))
        length, count = bound(lengths[reduction]), product([first.extent(v) for v in variables])
        rows = bound(count)
        most = tirx.floordiv(int64(ITEM_ELEMENTS), tirx.max(length, int64(1)))
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

        costs = [part.cost if isinstance(part, Lines) else COST for part in self.parts]
        work = count * lengths[reduction] * sum(costs)
        for_items(bound(pieces(rows, together)), work, some_rows)


def _buffers(part: Lines | Element | Rows) -> list[Any]:
    return part.store.buffers if isinstance(part, Lines) else part.buffers


def _is_among(variable: Any, variables: Iterable[Any]) -> bool:
    return any(variable.same_as(other) for other in variables)


def rows_in_turn(kernel: tirx.PrimFunc, nests: Sequence[Nest]) -> RowsInTurn | None:
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
        if all(_computes_rows(nest, nests[0], written, depth) for nest in nests)
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
    return RowsInTurn(found, leading, [*rows.values(), *reciprocals])


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
            buffer = tirx.decl_buffer([int64(1)], str(quotient.b.source.dtype), "reciprocal")
            found.append((buffer, quotient.b))
            return quotient.a * buffer[0]

        value = tvm_ffi.structural_map(nest.value, (tirx.Div, replace), order="post")
        for buffer, divisor in divisors:
            one = tirx.const(1.0, str(buffer.dtype))
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


def _computes_rows(nest: Nest, first: Nest, written: Sequence[Any], depth: int) -> bool:
    """Whether each row of a nest, along the last axes from `depth` on, depends only on the same row
    of what other nests write.
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


def _part_of_row(nest: Nest, leading: Sequence[Any]) -> Lines | Element | Rows | None:
    if nest.reduced:
        return rows_of(nest)
    columns = [
        index for index in nest.indices
        if isinstance(index, ir.Var)
        and not _is_among(index, leading)
        and static_size(nest.extent(index)) != 1
    ]  # fmt: skip
    if columns:
        return line_along(nest, columns)
    return Element(nest) if is_plain(nest) else None
