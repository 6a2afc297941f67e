"""Elementwise kernels whose value depends on the phase of an index, its remainder modulo a number.

    y[…, c·s + p - first] = f_p(x_p[…, c])        p = 0 … s - 1

Such are those that interleave the phases of a transposed convolution. One iteration writes all
phases of a few cells c, a vector for each phase, shuffled into order before they are stored. The
last vectors of a line overlap, so that short lines take as little time. Kernels whose vectors these
rules cannot spell leave them to LLVM: one iteration then writes all phases of one cell.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from .affine import flat, int64, product
from .emission import COST_OF_ELEMENT, bound, ceil_div, compute_block, for_lines, rewritten
from .micro_kernels import native_tile
from .nests import Nest, inlined, nests_of, substituted

_MOST_PHASES = 32
"""The most phases of a kernel, over all axes: there is code for each."""
_MOST_SHUFFLED = 4
"""The most phases of the last axis whose vectors are shuffled here."""
_CELLS = (8, 4)
"""The cells of a vector, by the length of the line: LLVM makes two of a wider one."""


class Interleaving(ScheduleRule):  # type: ignore[misc]
    """Elementwise kernels that depend on the phase of the last axis, and perhaps of others."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        nests = nests_of(kernel)
        phases = _phases_of(nests[0]) if nests is not None and len(nests) == 1 else None
        return None if phases is None else s_tir.Schedule(rewritten(kernel, partial(_emit, phases)))


@dataclass(frozen=True)
class _Period:
    """An index v that occurs as (v + first) modulo and divided by the number of phases."""

    phases: int
    first: int

    def index(self, cell: Any, phase: int) -> Any:
        """The index of a phase of a cell."""
        return cell * self.phases + (phase - self.first)


@dataclass(frozen=True)
class _Interleaved:
    """A nest and the periods of its variables."""

    nest: Nest
    periods: dict[Any, _Period]

    @property
    def column(self) -> Any:
        """The variable of the last axis."""
        return self.nest.indices[-1]

    @property
    def lines(self) -> list[Any]:
        """The variables of the other axes."""
        return self.nest.indices[:-1]


def _phases_of(nest: Nest) -> _Interleaved | None:
    """The periods in what a nest stores; None where it is none of these kernels."""
    indices = nest.indices
    is_plain = not nest.reduced and nest.block.init is None and not nest.is_empty and indices
    if not is_plain or len(indices) != len(nest.variables):
        return None
    if not all(any(index.same_as(v) for v in nest.variables) for index in indices):
        return None
    periods = _periods(nest.value, indices)
    if not periods or indices[-1] not in periods:
        return None
    if math.prod(period.phases for period in periods.values()) > _MOST_PHASES:
        return None
    return _Interleaved(nest, periods)


def _periods(value: Any, variables: Sequence[Any]) -> dict[Any, _Period] | None:
    """By variable, the period that all remainders of it have; None where they differ."""
    found: dict[Any, set[_Period]] = {}

    def visit(remainder: Any) -> None:
        divisor = remainder.b
        for variable in variables:
            first = sym.Analyzer().simplify(remainder.a - variable)
            are_numbers = isinstance(first, tirx.IntImm) and isinstance(divisor, tirx.IntImm)
            if are_numbers and int(divisor) > 0:
                found.setdefault(variable, set()).add(_Period(int(divisor), int(first)))

    tvm_ffi.structural_walk(value, (tirx.FloorMod, visit))
    if any(len(periods) > 1 for periods in found.values()):
        return None
    return {variable: next(iter(periods)) for variable, periods in found.items()}


def _emit(phases: _Interleaved) -> None:
    nest, column = phases.nest, phases.column
    period = phases.periods[column]
    with compute_block("interleaving"):
        target = flat(nest.buffer)
        width = bound(nest.extent(column))
        # The cells that reach into a line, and those that lie in it whole.
        cells = bound(tirx.floordiv(width - 1 + period.first, period.phases) + 1)
        first_whole = int64(-(-period.first // period.phases))
        end_whole = bound(tirx.floordiv(width + period.first, period.phases))
        first_cell = int64(period.first // period.phases)

        def line_of_phases(values: Mapping[Any, Any], begin: Any) -> None:
            def store(index: Any) -> None:
                value = _simplified(nest.value, {**values, column: index})
                ib.buffer_store(target, value, [begin + index])

            def part(cell: Any) -> None:
                # A loop, whose value tells the phases apart: it takes less time to compile.
                with ib.serial(int64(period.phases)) as phase:
                    index = bound(cell * period.phases + phase - period.first)
                    with ib.If(tirx.all(index >= 0, index < width)), ib.Then():
                        store(index)

            if period.first % period.phases:
                part(first_cell)
            whole_cells(values, begin)
            with ib.If(tirx.all(end_whole < cells, end_whole >= first_whole)), ib.Then():
                part(end_whole)

        def whole_cells(values: Mapping[Any, Any], begin: Any) -> None:
            element = partial(_element, phases, values)

            def cell_by_cell() -> None:
                with ib.serial(first_whole, end_whole) as cell:
                    for phase in range(period.phases):
                        place = begin + period.index(cell, phase)
                        ib.buffer_store(target, element(cell, phase), [place])

            count = bound(end_whole - first_whole)

            def cells(sizes: list[int]) -> None:
                if not sizes:
                    cell_by_cell()
                    return
                lanes, *smaller = sizes
                with ib.If(count >= lanes):
                    with ib.Then(), ib.serial(ceil_div(count, lanes)) as part:
                        cell = bound(tirx.min(first_whole + part * lanes, end_whole - lanes))
                        place = bound(begin + period.index(cell, 0))
                        _store_cells(target, place, cell, element, period.phases, lanes)
                    with ib.Else():
                        cells(smaller)

            cells(_vector_sizes(phases, element))

        def line(number: Any, values: dict[Any, Any]) -> None:
            _for_phases(phases, values, partial(line_of_phases, begin=bound(number * width)))

        lines = product([nest.extent(v) for v in phases.lines])
        work = sym.Analyzer().simplify(lines * nest.extent(column) * COST_OF_ELEMENT)
        for_lines(phases.lines, nest.extent, width, work, line)


def _element(phases: _Interleaved, values: Mapping[Any, Any], cell: Any, phase: int) -> Any:
    """What a line has for a phase of a cell."""
    index = phases.periods[phases.column].index(cell, phase)
    return _simplified(phases.nest.value, {**values, phases.column: index})


def _vector_sizes(phases: _Interleaved, element: Callable[[Any, int], Any]) -> list[int]:
    """The cells of vectors, the largest first; none if LLVM is to make the vectors."""
    of_cell = phases.periods[phases.column].phases
    if str(phases.nest.buffer.dtype) != "float32" or of_cell > _MOST_SHUFFLED:
        return []
    calls: list[Any] = []
    cell = tirx.Var("cell", "int64")
    for phase in range(of_cell):
        tvm_ffi.structural_walk(element(cell, phase), (tvm.ir.Call, calls.append))
    return [] if calls else [size for size in _CELLS if size <= native_tile().lanes]


def _store_cells(
    target: Any, place: Any, cell: Any, element: Callable[[Any, int], Any], phases: int, lanes: int
) -> None:
    """Writes all phases of `lanes` cells, from `cell` on, to the elements from `place` on."""
    vectors = []
    for phase in range(phases):
        of_phase = ib.alloc_buffer((lanes,), str(target.dtype))
        with ib.vectorized(lanes) as k:
            ib.buffer_store(of_phase, element(cell + k, phase), [k])
        vectors.append(of_phase[tirx.Ramp(0, 1, lanes)])
    order = [phase * lanes + k for k in range(lanes) for phase in range(phases)]
    value = vectors[0] if phases == 1 else tirx.Shuffle(vectors, order)
    ib.buffer_store(target, value, [tirx.Ramp(place, int64(1), len(order))])


def _for_phases(phases: _Interleaved, values: dict[Any, Any], line: Any) -> None:
    """Emits a line for the phases that the indices of the other axes have."""
    periods = {v: p for v, p in phases.periods.items() if not v.same_as(phases.column)}
    places = {v: bound(values[v] + period.first) for v, period in periods.items()}
    remainders = {v: tirx.floormod(places[v], period.phases) for v, period in periods.items()}
    for of_axes in itertools.product(*(range(period.phases) for period in periods.values())):
        known = dict(zip(periods, of_axes, strict=True))
        here = dict(values)
        for variable, phase in known.items():
            cell = bound(tirx.floordiv(places[variable], periods[variable].phases))
            here[variable] = periods[variable].index(cell, phase)
        is_here = [remainders[variable] == phase for variable, phase in known.items()]
        if not is_here:
            line(here)
            continue
        with ib.If(tirx.all(*is_here)), ib.Then():
            line(here)


def _simplified(value: Any, values: Mapping[Any, Any]) -> Any:
    """An expression with other indices, whose remainders are then known."""
    return sym.Analyzer().simplify(substituted(value, values))
