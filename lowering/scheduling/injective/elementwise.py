"""Elementwise kernels: vectors along as many axes as are contiguous in all operands.

The last axes that every operand lays out like the output (or broadcasts over) count as one line, as
in numpy's iterators. A line is cut into vectors and one vector for its end, whatever its length;
lines, or chunks of one long line, run on all cores where there is enough work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from ..functions.micro_kernels import native_tile
from ..kernels.affine import product
from ..kernels.blocks import joins_truth_values
from ..kernels.emission import (
    CHUNK,
    COST_OF_ELEMENT,
    bound,
    compute_block,
    for_items,
    for_lines,
    pieces,
    rewritten,
)
from ..kernels.nests import (
    Nest,
    depends,
    inlined,
    is_if_then_else,
    is_number,
    loads,
    nests_of,
    without_loads,
)
from ..kernels.stores import NestValue, Store

_COST_OF_CALL = 12
"""The time for each function of an element, in multiply-adds."""
FLOATS = frozenset({"float32"})
QUANTISED = FLOATS | {"int32", "uint8", "int8"}
"""The types of quantised tensors, too."""


class Elementwise(ScheduleRule):  # type: ignore[misc]
    """Elementwise operators of float32 and of quantised tensors, and copies."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        nests = nests_of(kernel)
        lines = None if nests is None else lines_of(nests)
        if not lines:
            return None

        def emit() -> None:
            for part in lines:
                part.emit()

        return s_tir.Schedule(rewritten(kernel, emit, [part.buffer for part in lines]))


@dataclass(frozen=True)
class Lines:
    """An elementwise nest and how it is cut into lines."""

    nest: Nest
    outer: list[Any]
    """The variables of lines."""
    columns: list[Any]
    """Those along a line."""
    store: Store

    @property
    def buffer(self) -> Any:
        """The buffer that the nest writes."""
        return self.nest.buffer

    @property
    def cost(self) -> int:
        """The time for an element, in multiply-adds."""
        calls: list[Any] = []
        tvm_ffi.structural_walk(self.nest.value, (ir.Call, calls.append))
        return COST_OF_ELEMENT + _COST_OF_CALL * len(calls)

    def emit(self) -> None:
        """Emits a block that computes the nest."""
        with compute_block("elementwise"):
            self.store.declare()
            _emit(self)

    def emit_line(self, values: Mapping[Any, Any], length: Any) -> None:
        """Emits one line, for some values of the outer variables."""
        zeros = dict.fromkeys(self.nest.variables, tirx.IntImm("int64", 0))
        self.store.run({**zeros, **values}, length, lambda k: None, native_tile().lanes)


def lines_of(nests: Sequence[Nest]) -> list[Lines] | None:
    """The lines of elementwise nests; None if one is something else, or computes nothing."""
    # TVM's simplifier fails on a division by an extent that it knows to be 0.
    found = [
        _lines(nest) if is_plain(nest, QUANTISED) and not nest.is_empty else None for nest in nests
    ]
    return None if None in found else [lines for lines in found if lines is not None]


def is_plain(nest: Nest, types: frozenset[str] = FLOATS) -> bool:
    """Whether a nest computes numbers of these types only, without branches, at plain indices."""
    if nest.reduced or nest.block.init is not None or str(nest.buffer.dtype) not in types:
        return False
    variables = nest.variables
    return is_plain_value(nest.value, variables, types) and all(
        any(index.same_as(v) for v in variables) or isinstance(index, tirx.IntImm)
        for index in nest.indices
    )


def is_plain_value(value: Any, variables: Sequence[Any], types: frozenset[str] = FLOATS) -> bool:
    """Whether an expression computes numbers of these types only, without branches.

    It may select by truth values that it loads: only what joins them is compiled wrongly, see
    `has_truth_values`. It may convert what it loads, and sizes, but not the variables of loops.
    """
    others: list[Any] = []

    def visit_load(load: Any) -> None:
        if str(load.source.dtype) not in types | {"bool"}:
            others.append(load)

    def visit_call(call: Any) -> None:
        if is_if_then_else(call):
            others.append(call)

    def visit_cast(cast: Any) -> None:
        is_of_type = not loads(cast.value) or str(cast.ty.dtype) in types
        if not is_of_type or depends(without_loads(cast.value), variables):
            others.append(cast)

    kinds = [(ir.TensorLoad, visit_load), (ir.Call, visit_call), (tirx.Cast, visit_cast)]
    tvm_ffi.structural_walk(value, kinds)
    return not others and not joins_truth_values(value)


def line_along(nest: Nest, columns: Sequence[Any]) -> Lines | None:
    """The lines of a nest of float32 along some variables; None if they cannot be vectors."""
    if not is_plain(nest) or nest.is_empty:
        return None
    extents = {v: nest.extent(v) for v in nest.variables}
    store = Store(NestValue(nest), nest.variables, extents, columns)
    if not (store.flattens and store.is_contiguous and store.is_vector):
        return None
    outer = [v for v in nest.variables if not any(v.same_as(c) for c in columns)]
    return Lines(nest, outer, list(columns), store)


def _lines(nest: Nest) -> Lines | None:
    """The longest lines of a nest whose elements follow each other."""
    order = [index for index in nest.indices if not isinstance(index, tirx.IntImm)]
    order = [v for v in order if not is_number(nest.extent(v), 1)]
    if not order or len({str(v) for v in order}) != len(order):
        return None
    extents = {v: nest.extent(v) for v in nest.variables}
    for first in range(len(order)):
        store = Store(NestValue(nest), nest.variables, extents, order[first:])
        if not store.is_storable:
            return None
        if store.flattens:
            fits = store.is_contiguous and store.is_vector
            return Lines(nest, order[:first], order[first:], store) if fits else None
    return None


def _emit(lines: Lines) -> None:
    nest, columns = lines.nest, lines.columns
    length = bound(product([nest.extent(v) for v in columns]))
    if lines.outer:
        for_lines(
            lines.outer, columns, nest.extent, lines.cost,
            lambda _, values: lines.emit_line(values, length),
        )  # fmt: skip
        return
    chunks = bound(pieces(length, CHUNK))

    def chunk(item: Any) -> None:
        first = bound(item * CHUNK)
        lines.emit_line({columns[-1]: first}, bound(tirx.min(length - first, CHUNK)))

    work = product([nest.extent(v) for v in columns]) * lines.cost
    for_items(chunks, work, chunk)
