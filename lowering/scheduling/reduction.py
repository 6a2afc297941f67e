"""Reductions along rows, and the elementwise nests before and after them: softmax, norms, means.

The elements of a row are combined in several vectors at once, whatever the length of the row. Nests
between reductions are computed as elementwise kernels are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from .affine import Affine, affine, flat, int64, product, static_size, unflattened
from .blocks import has_scalar_functions
from .elementwise import Lines, is_plain_value, lines_of
from .emission import bound, compute_block, for_items, pieces, rewritten
from .micro_kernels import native_tile
from .nests import Nest, inlined, loads, nests_of, substituted

_VECTORS = 4
"""Vectors of partial results: enough to hide the latency of an addition."""
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


def _part(nest: Nest) -> Lines | _Rows | None:
    if nest.reduced:
        return _rows(nest)
    lines = lines_of([nest])
    return lines[0] if lines else None


@dataclass(frozen=True)
class _Rows:
    """A nest that combines the elements of rows."""

    nest: Nest
    kind: Any
    """The class of expressions that combines two elements."""
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
        width = _VECTORS * lanes

        def term(values: dict[Any, Any]) -> Any:
            def view(load: Any) -> Any:
                return views[load.source][self.positions[load].at(values)]

            value = tvm_ffi.structural_map(self.term, (ir.TensorLoad, view), order="post")
            return substituted(value, values)

        def row(number: Any) -> None:
            values = _unflattened(nest, nest.spatial, number)
            partial = ib.alloc_buffer((width,), "float32")
            result = ib.alloc_buffer((1,), "float32")
            with ib.vectorized(int64(width)) as lane:
                ib.buffer_store(partial, self.start, [lane])
            ib.buffer_store(result, self.start, [int64(0)])
            with ib.serial(bound(others)) as other:
                here = {**values, **_unflattened(nest, self.outer, other)}
                done: Any = int64(0)
                for step in (width, lanes):
                    chunks = bound(tirx.floordiv(length - done, step))
                    with ib.serial(chunks) as chunk, ib.vectorized(int64(step)) as lane:
                        element = term({**here, last: done + chunk * step + lane})
                        ib.buffer_store(partial, self.kind(partial[lane], element), [lane])
                    done = bound(done + chunks * step)
                with ib.serial(length - done) as rest:
                    element = term({**here, last: done + rest})
                    ib.buffer_store(result, self.kind(result[int64(0)], element), [int64(0)])
            size = width
            while size > lanes:
                size //= 2
                with ib.vectorized(int64(size)) as lane:
                    both = self.kind(partial[lane], partial[lane + size])
                    ib.buffer_store(partial, both, [lane])
            with ib.serial(int64(lanes)) as lane:
                both = self.kind(result[int64(0)], partial[lane])
                ib.buffer_store(result, both, [int64(0)])
            ib.buffer_store(views[nest.buffer], result[int64(0)], [self.target.at(values)])

        count = bound(count)
        most = tirx.floordiv(int64(_ITEM_ELEMENTS), tirx.max(others * length, int64(1)))
        together = bound(tirx.max(most, int64(1)))

        def some_rows(item: Any) -> None:
            first = bound(item * together)
            with ib.serial(bound(tirx.min(count - first, together))) as number:
                row(bound(first + number))

        for_items(bound(pieces(count, together)), count * others * length * _COST, some_rows)


def _unflattened(nest: Nest, variables: Sequence[Any], number: Any) -> dict[Any, Any]:
    values = unflattened(variables, nest.extent, number)
    return {variable: bound(value) for variable, value in values.items()}


def _rows(nest: Nest) -> _Rows | None:
    """A reduction nest by role; None for one of another form."""
    init = nest.block.init
    kinds = (tirx.Add, tirx.Max, tirx.Min)
    kind = next((kind for kind in kinds if isinstance(nest.value, kind)), None)
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
    return _Rows(nest, kind, term, init.value, outer, along, known, target)


def _follow(outer: Any, inner: Any, nest: Nest, positions: Iterable[Affine]) -> bool:
    """Whether a step of one variable is as far as all steps of another, wherever a term reads."""
    analyzer = sym.Analyzer()
    return all(
        analyzer.can_prove_equal(p.of(outer), p.of(inner) * nest.extent(inner)) for p in positions
    )
