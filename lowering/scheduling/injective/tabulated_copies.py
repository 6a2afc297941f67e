"""Copies from computed columns: padding by copies, resizing to nearest neighbours, tiling.

    y[r, c] = x[place(r), column(c)]      or a constant where a line has no source

Every line takes the same columns of its source. Where they lie is computed once, into a table, and
with it which vectors of columns follow each other in memory, each once or each twice, so that lines
copy them as vectors. Lines that are copied as they are, or repeat one element, need no table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from ..functions.column_functions import COPIED_TYPES, Columns
from ..functions.micro_kernels import call_copy_row, native_tile
from ..kernels.affine import flat, flat_index, int64, product, static_size
from ..kernels.emission import COST_OF_ELEMENT, bound, compute_block, for_lines, rewritten
from ..kernels.nests import Nest, depends, inlined, is_if_then_else, loads, nests_of, substituted


class TabulatedCopy(ScheduleRule):  # type: ignore[misc]
    """Copies whose column in the source depends on the column in the result alone."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        nests = nests_of(kernel)
        copy = _copy_of(nests[0]) if nests is not None and len(nests) == 1 else None
        return None if copy is None else s_tir.Schedule(rewritten(kernel, partial(_emit, copy)))


@dataclass(frozen=True)
class _Copy:
    """A nest that copies elements."""

    nest: Nest
    source: Any
    lines: list[Any]
    """The variables of lines."""
    column: Any
    """The variable along a line."""
    line_indices: list[Any]
    """The indices of a line's first column in the source."""
    column_place: Any
    """How far a column lies from the first one in the source, in elements."""
    has_source: Any
    """Whether a line has a source; None where all have one."""
    otherwise: Any
    """The element of a line without a source."""


def _copy_of(nest: Nest) -> _Copy | None:
    """What a nest copies; None where it does something else."""
    load, order = nest.value, nest.indices
    has_source, otherwise = None, None
    if is_if_then_else(load):
        has_source, load, otherwise = load.args
        if not isinstance(otherwise, (tirx.IntImm, tirx.FloatImm)):
            return None
    is_copy = isinstance(load, ir.TensorLoad) and not nest.reduced and nest.block.init is None
    if not is_copy or nest.is_empty or not order or str(nest.buffer.dtype) not in COPIED_TYPES:
        return None
    if len(order) != len(nest.variables) or not all(
        any(index.same_as(variable) for variable in nest.variables) for index in order
    ):
        return None
    *lines, column = order
    along = [axis for axis, index in enumerate(load.indices) if depends(index, [column])]
    if len(along) != 1 or any(loads(index) for index in load.indices):
        return None
    (axis,) = along
    if depends(load.indices[axis], lines):
        return None
    if has_source is not None and (loads(has_source) or depends(has_source, [column])):
        return None
    indices = list(load.indices)
    indices[axis] = int64(0)
    place = load.indices[axis] * product(list(load.source.shape)[axis + 1 :])
    return _Copy(nest, load.source, lines, column, indices, place, has_source, otherwise)


def _repeats_one(copy: _Copy) -> Any:
    """The condition under which each line repeats its first column, as in a tensor that is expanded
    along an axis of unknown size; false where lines are copied as they are, None for other copies.
    """
    place = copy.column_place
    if place.same_as(copy.column):
        return tirx.const(False, "bool")
    if isinstance(place, tirx.Select):
        condition, first, column = place.condition, place.true_value, place.false_value
        varies = loads(condition) or depends(condition, [*copy.lines, copy.column])
        if static_size(first) == 0 and column.same_as(copy.column) and not varies:
            return condition
    return None


def _emit(copy: _Copy) -> None:
    repeats_one = _repeats_one(copy)
    if repeats_one is None or str(copy.nest.buffer.dtype) != "float32":
        _emit_tabulated(copy)
    else:
        _emit_rows(copy, repeats_one)


def _emit_rows(copy: _Copy, repeats_one: Any) -> None:
    """Emits a call of the shared copy of a row for each line: LLVM compiles it once, but vectors in
    each kernel.
    """
    with compute_block("copy"):
        source, target = flat(copy.source), flat(copy.nest.buffer)
        width = bound(copy.nest.extent(copy.column))
        repeated = bound(tirx.Select(repeats_one, width, int64(0)))

        def line(number: Any, values: dict[Any, Any]) -> None:
            begin = bound(_first_place(copy, values))
            first = tirx.if_then_else(repeated > 0, source[begin], tirx.const(0, "float32"))
            here, there = tirx.address_of(target[number * width]), tirx.address_of(source[begin])
            call_copy_row(here, there, repeated, width - repeated, 0, 1, first)

        def without_source(number: Any) -> None:
            here = tirx.address_of(target[number * width])
            call_copy_row(here, here, width, 0, 0, 1, copy.otherwise)

        _emit_lines(copy, line, without_source)


def _first_place(copy: _Copy, values: dict[Any, Any]) -> Any:
    """Where the first column of a line lies in the source."""
    indices = [substituted(index, values) for index in copy.line_indices]
    return flat_index(list(copy.source.shape), indices)


def _emit_lines(
    copy: _Copy,
    with_source: Callable[[Any, dict[Any, Any]], None], without_source: Callable[[Any], None],
) -> None:  # fmt: skip
    """Emits the loop over lines. Both take the number of a line, the first also its variables."""

    def line(number: Any, values: dict[Any, Any]) -> None:
        if copy.has_source is None:
            with_source(number, values)
            return
        with ib.If(substituted(copy.has_source, values)):
            with ib.Then():
                with_source(number, values)
            with ib.Else():
                without_source(number)

    for_lines(copy.lines, [copy.column], copy.nest.extent, COST_OF_ELEMENT, line)


def _emit_tabulated(copy: _Copy) -> None:
    with compute_block("copy"):
        source, target = flat(copy.source), flat(copy.nest.buffer)

        def place(column: Any) -> Any:
            return substituted(copy.column_place, {copy.column: column})

        columns = Columns(copy.nest.extent(copy.column), native_tile().lanes, place)
        width = columns.width

        def line(number: Any, values: dict[Any, Any]) -> None:
            begin = bound(_first_place(copy, values))
            here, there = tirx.address_of(target[number * width]), tirx.address_of(source[begin])
            columns.call_copy(here, there, str(copy.source.dtype))

        def without_source(number: Any) -> None:
            with ib.serial(width) as column:
                ib.buffer_store(target, copy.otherwise, [number * width + column])

        _emit_lines(copy, line, without_source)
