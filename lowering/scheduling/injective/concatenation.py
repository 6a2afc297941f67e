"""Concatenations, alone or with elementwise operators after them.

    y = f(if_then_else(64 <= c, b[n, c - 64, h, w], a[n, c, h, w]))

Every line of the output is a line of one operand, which is chosen once for the line. Chunks of it
are copied into a buffer in the first-level cache, and `f` reads them in vectors. Or every line
consists of parts, one of each operand, which `f` reads where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from ..functions.micro_kernels import call_copy_row, native_tile
from ..kernels.affine import Affine, affine, flat_views, int64, product
from ..kernels.emission import (
    COST_OF_ELEMENT,
    bound,
    compute_block,
    for_lines,
    is_false,
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
    substituted,
)
from ..kernels.stores import NestValue, Store, element_of
from .elementwise import is_plain_value

_CHUNK = 1 << 10
"""Elements of a line that are copied at once."""


class Concatenation(ScheduleRule):  # type: ignore[misc]
    """Kernels of float32 that read each line of their output, or each part of a line, from one of
    several tensors.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        nests = nests_of(kernel)
        nest = nests[0] if nests and len(nests) == 1 else None
        if nest is None:
            return None
        lines = _concatenated(nest)
        if lines is not None:
            emit = partial(_emit, lines)
        else:
            parts = _in_parts(nest)
            if parts is None:
                return None
            emit = partial(_emit_parts, parts)
        return s_tir.Schedule(rewritten(kernel, emit, [nest.buffer]))


@dataclass(frozen=True)
class _Concatenated:
    nest: Nest
    choice: Any
    """The expression that chooses between loads."""
    lines: list[Any]
    """The variables of lines, on which the choice depends."""
    columns: list[Any]
    """Those along a line."""
    positions: dict[Any, Affine]
    """Where each operand is read."""
    store: Store
    is_copy: bool
    """Whether nothing else is computed."""


def _choice(nest: Nest) -> Any:
    """The choice between elements of tensors that a nest makes; None for another nest."""
    if nest.reduced or nest.block.init is not None or nest.is_empty:
        return None
    calls: list[Any] = []
    tvm_ffi.structural_walk(nest.value, (ir.Call, calls.append))
    # The walk is post-order: the outermost choice comes last.
    choice = next(filter(is_if_then_else, reversed(calls)), None)
    if choice is None:
        return None
    operands = list(_operands(choice))
    buffers = [getattr(operand, "source", None) for operand in operands]
    if any(buffer is not None and buffer.same_as(nest.buffer) for buffer in buffers):
        return None
    if None in buffers or any(str(b.dtype) != "float32" for b in (*buffers, nest.buffer)):
        return None
    value = NestValue(nest, choice)
    return choice if is_plain_value(value.value(operands[0]), nest.variables) else None


def _concatenated(nest: Nest) -> _Concatenated | None:
    choice = _choice(nest)
    if choice is None:
        return None
    operands, value = list(_operands(choice)), NestValue(nest, choice)
    columns = _columns(nest, operands)
    lines = [index for index in nest.indices[: -len(columns)] if not isinstance(index, tirx.IntImm)]
    if not columns or len(lines) + len(columns) != len(nest.variables):
        return None
    if len({str(variable) for variable in lines}) < len(lines):
        return None
    if not all(any(line.same_as(v) for v in nest.variables) for line in lines):
        return None
    leading = [index for load in operands for index in list(load.indices)[: -len(columns)]]
    if any(depends(part, columns) for part in (*_conditions(choice), *leading)):
        return None
    positions = {
        load: affine(list(load.source.shape), list(load.indices), nest.variables)
        for load in operands
    }
    known = {load: position for load, position in positions.items() if position is not None}
    if len(known) < len(positions):
        return None
    extents = {v: nest.extent(v) for v in nest.variables}
    store = Store(value, nest.variables, extents, columns)
    if not (store.flattens and store.is_contiguous and store.is_vector):
        return None
    is_copy = nest.value.same_as(choice)
    return _Concatenated(nest, choice, lines, columns, known, store, is_copy)


def _columns(nest: Nest, operands: Sequence[Any]) -> list[Any]:
    """The variables of the last axes that the output and all operands have in common."""
    columns: list[Any] = []
    for place in range(1, len(nest.indices) + 1):
        index, size = nest.indices[-place], nest.buffer.shape[-place]
        is_shared = isinstance(index, ir.Var) and all(
            len(load.indices) >= place
            and load.indices[-place].same_as(index)
            and tvm_ffi.structural_equal(load.source.shape[-place], size)
            for load in operands
        )
        if not is_shared:
            break
        columns.insert(0, index)
    return columns


def _operands(choice: Any) -> Iterator[Any]:
    """What an expression of nested choices chooses between."""
    if is_if_then_else(choice):
        for part in choice.args[1:]:
            yield from _operands(part)
    else:
        yield choice


def _conditions(choice: Any) -> Iterator[Any]:
    if is_if_then_else(choice):
        yield choice.args[0]
        for part in choice.args[1:]:
            yield from _conditions(part)


def _emit(found: _Concatenated) -> None:
    nest, lanes = found.nest, native_tile().lanes
    with compute_block("concatenation"):
        found.store.declare()
        sources = flat_views(load.source for load in found.positions)
        length = bound(product([nest.extent(v) for v in found.columns]))
        zeros = dict.fromkeys(nest.variables, int64(0))

        def copy(choice: Any, values: dict[Any, Any], first: Any, count: Any, target: Any) -> None:
            """Copies elements of the operand that is chosen for the line."""
            if is_if_then_else(choice):
                condition, *parts = choice.args
                with ib.If(substituted(condition, values)):
                    for branch, part in zip((ib.Then, ib.Else), parts, strict=True):
                        with branch():
                            copy(part, values, first, count, target)
                return
            place = found.positions[choice].at(values) + first
            source = sources[choice.source][bound(place)]
            nothing = tirx.const(0.0, "float32")
            call_copy_row(target, tirx.address_of(source), 0, count, 0, 1, nothing)

        def line(_: Any, outer: dict[Any, Any]) -> None:
            values = {**zeros, **outer}
            if found.is_copy:
                target = tirx.address_of(found.store.output[bound(found.store.target(values))])
                copy(found.choice, values, int64(0), length, target)
                return
            # One vector longer: the last read is of a whole vector.
            chunk = ib.alloc_buffer((_CHUNK + lanes,), "float32")
            with ib.serial(pieces(length, int64(_CHUNK))) as part:
                first = bound(part * _CHUNK)
                count = bound(tirx.min(length - first, int64(_CHUNK)))
                copy(found.choice, values, first, count, chunk.data)
                here = {**values, found.columns[-1]: first}
                found.store.run(here, count, partial(element_of, chunk, 0), lanes)

        for_lines(found.lines, found.columns, nest.extent, COST_OF_ELEMENT, line)


@dataclass(frozen=True)
class _Parts:
    nest: Nest
    choice: Any
    """The expression that chooses between loads."""
    lines: list[Any]
    """The variables of lines."""
    column: Any
    positions: dict[Any, Affine]
    """Where each operand is read."""
    store: Store


def _in_parts(nest: Nest) -> _Parts | None:
    """A nest that chooses between operands by the column alone."""
    choice = _choice(nest)
    if choice is None:
        return None
    order = [index for index in nest.indices if not isinstance(index, tirx.IntImm)]
    if not order or len({str(v) for v in order}) < len(order):
        return None
    *lines, column = order
    if not all(any(index.same_as(v) for v in nest.variables) for index in order):
        return None
    for condition in _conditions(choice):
        limit = _limit(condition, column)
        if limit is None or depends(limit, nest.variables) or loads(limit):
            return None
    positions = {}
    for load in _operands(choice):
        position = affine(list(load.source.shape), list(load.indices), nest.variables)
        if position is None or not is_number(position.of(column), 1):
            return None
        positions[load] = position
    extents = {v: nest.extent(v) for v in nest.variables}
    store = Store(NestValue(nest, choice), nest.variables, extents, [column])
    # Short parts are copied before they are read, unlike an output that is read as well.
    is_plain = store.is_contiguous and store.is_vector and not store.is_in_place
    if not (store.is_storable and is_plain):
        return None
    return _Parts(nest, choice, lines, column, positions, store)


def _limit(condition: Any, column: Any) -> Any:
    """The column from which on a condition holds; None for a condition of another form."""
    if isinstance(condition, tirx.LE):
        excess = condition.b - condition.a
    elif isinstance(condition, tirx.GE):
        excess = condition.a - condition.b
    else:
        return None
    found = sym.detect_linear_equation(excess, [column])
    return -found[1] if len(found) == 2 and is_number(found[0], 1) else None


def _columns_of(choice: Any, column: Any, first: Any, end: Any) -> Iterator[tuple[Any, Any, Any]]:
    """The operands of a choice between columns, each with its columns [first, end)."""
    if not is_if_then_else(choice):
        yield choice, first, end
        return
    condition, after, before = choice.args
    limit = tirx.min(tirx.max(_limit(condition, column), first), end)
    # Each limit is bound, or every expression would contain the enclosing ones.
    limit = bound(sym.Analyzer().simplify(limit))
    yield from _columns_of(before, column, first, limit)
    yield from _columns_of(after, column, limit, end)


def _emit_parts(found: _Parts) -> None:
    nest, lanes = found.nest, native_tile().lanes
    with compute_block("concatenation"):
        found.store.declare()
        sources = flat_views(load.source for load in found.positions)
        zeros = dict.fromkeys(nest.variables, int64(0))
        nothing = tirx.const(0.0, "float32")
        end = bound(nest.extent(found.column))
        parts = list(_columns_of(found.choice, found.column, int64(0), end))

        def line(_: Any, outer: dict[Any, Any]) -> None:
            for load, first, end in parts:
                here = {**zeros, **outer, found.column: first}
                source, start = sources[load.source], bound(found.positions[load].at(here))

                def element(k: Any, source: Any = source, start: Any = start) -> Any:
                    return source[start + k]

                count = sym.Analyzer().simplify(end - first)
                is_short = sym.Analyzer().simplify(count < lanes)
                in_tail = None
                if not is_false(is_short):
                    # The page after the operand may not be readable.
                    copy = ib.alloc_buffer((lanes,), "float32")
                    with ib.If(is_short), ib.Then():
                        address = tirx.address_of(source[start])
                        rest = lanes - count
                        call_copy_row(copy.data, address, 0, count, rest, 1, nothing)
                    in_tail = partial(element_of, copy, int64(0))
                found.store.run(here, count, element, lanes, in_tail=in_tail)

        for_lines(found.lines, [found.column], nest.extent, COST_OF_ELEMENT, line)
