"""Elementwise kernels whose value depends on the phase of an index, its remainder modulo a number.

    y[…, c·s + p - first] = f_p(x_p[…, c])        p = 0 … s - 1

Such are those that interleave the phases of a transposed convolution. One iteration writes all
phases of a cell c: LLVM makes vectors of cells, and shuffles them into order before it stores them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from .affine import flat, int64, product, unflattened
from .emission import COST_OF_ELEMENT, bound, compute_block, for_lines, rewritten
from .nests import Nest, inlined, nests_of, substituted

_MOST_PHASES = 32
"""The most phases of a kernel, over all axes: there is code for each."""


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
            with ib.serial(first_whole, end_whole) as cell:
                for phase in range(period.phases):
                    store(period.index(cell, phase))
            with ib.If(tirx.all(end_whole < cells, end_whole >= first_whole)), ib.Then():
                part(end_whole)

        def line(number: Any) -> None:
            places = unflattened(phases.lines, nest.extent, number)
            values = {variable: bound(place) for variable, place in places.items()}
            _for_phases(phases, values, partial(line_of_phases, begin=bound(number * width)))

        lines = product([nest.extent(v) for v in phases.lines])
        work = sym.Analyzer().simplify(lines * nest.extent(column) * COST_OF_ELEMENT)
        for_lines(lines, width, work, line)


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
