"""Elementwise kernels whose value depends on the phase of an index, its remainder modulo a number.

    y[…, c·s + p - first] = f_p(x_p[…, c])        p = 0 … s - 1

Such are those that interleave the phases of a transposed convolution. One iteration writes all
phases of a few cells c, a vector for each phase, shuffled into order before they are stored. The
last vectors end with the last cell, and write some cells again: a rest of single cells would take
most of the time of a short line. Other types, function calls and more than four phases are left to
LLVM, which vectorises the loop over cells.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from ..functions.micro_kernels import native_tile
from ..functions.winograd_transforms import span
from ..kernels.affine import flat, int64
from ..kernels.emission import COST_OF_ELEMENT, bound, ceil_div, compute_block, for_lines, rewritten
from ..kernels.nests import Nest, inlined, loads, nests_of, substituted

_MOST_PHASES = 32
"""The most phases of a kernel, over all axes: there is code for each."""
_MOST_SHUFFLED = 4
"""The most phases of the last axis whose vectors are shuffled here."""
_CELLS = (8, 4)
"""The cells of a vector: the most that the line has. Two phases of 8 fill the widest vector that is
stored."""


class Interleaving(ScheduleRule):  # type: ignore[misc]
    """Elementwise kernels that depend on the phase of the last axis, and perhaps of others."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        nests = nests_of(kernel)
        found = _interleaved(nests[0]) if nests is not None and len(nests) == 1 else None
        return None if found is None else s_tir.Schedule(rewritten(kernel, _Emission(found).emit))


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


def _interleaved(nest: Nest) -> _Interleaved | None:
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


class _Emission:
    """The kernel, line by line."""

    def __init__(self, interleaved: _Interleaved) -> None:
        self._interleaved = interleaved
        self._nest, self._column = interleaved.nest, interleaved.column
        self._period = interleaved.periods[self._column]

    def emit(self) -> None:
        """Emits the block of the kernel."""
        nest, period = self._nest, self._period
        with compute_block("interleaving"):
            self._target = flat(nest.buffer)
            self._width = bound(nest.extent(self._column))
            # The cells that reach into a line, and those that lie in it whole.
            self._cells = bound(tirx.floordiv(self._width - 1 + period.first, period.phases) + 1)
            self._first_whole = int64(-(-period.first // period.phases))
            self._end_whole = bound(tirx.floordiv(self._width + period.first, period.phases))

            def line(number: Any, values: dict[Any, Any]) -> None:
                begin = bound(number * self._width)
                _for_phases(self._interleaved, values, partial(self._line, begin))

            lines = self._interleaved.lines
            for_lines(lines, [self._column], nest.extent, COST_OF_ELEMENT, line)

    def _line(self, begin: Any, values: Mapping[Any, Any]) -> None:
        """Writes the line from element `begin` on."""
        period, first_whole, end_whole = self._period, self._first_whole, self._end_whole
        if period.first % period.phases:
            self._part_of_cell(begin, values, int64(period.first // period.phases))
        self._whole_cells(begin, values)
        with ib.If(tirx.all(end_whole < self._cells, end_whole >= first_whole)), ib.Then():
            self._part_of_cell(begin, values, end_whole)

    def _part_of_cell(self, begin: Any, values: Mapping[Any, Any], cell: Any) -> None:
        """Writes the phases of a cell that lie in the line."""
        period = self._period
        # A loop, whose value tells the phases apart: it takes less time to compile.
        with ib.serial(int64(period.phases)) as phase:
            index = bound(cell * period.phases + phase - period.first)
            with ib.If(tirx.all(index >= 0, index < self._width)), ib.Then():
                value = _simplified(self._nest.value, {**values, self._column: index})
                ib.buffer_store(self._target, value, [begin + index])

    def _whole_cells(self, begin: Any, values: Mapping[Any, Any]) -> None:
        period = self._period
        count = bound(self._end_whole - self._first_whole)

        def in_vectors(sizes: list[int]) -> None:
            if not sizes:
                with ib.serial(self._first_whole, self._end_whole) as cell:
                    for phase in range(period.phases):
                        place = begin + period.index(cell, phase)
                        ib.buffer_store(self._target, self._element(values, cell, phase), [place])
                return
            lanes, *smaller = sizes
            with ib.If(count >= lanes):
                with ib.Then(), ib.serial(ceil_div(count, lanes)) as number:
                    first = tirx.min(self._first_whole + number * lanes, self._end_whole - lanes)
                    self._vectors(begin, values, bound(first), lanes)
                with ib.Else():
                    in_vectors(smaller)

        in_vectors(self._vector_sizes(values))

    def _vector_sizes(self, values: Mapping[Any, Any]) -> list[int]:
        """The cells of vectors, the largest first; none if LLVM is to make the vectors."""
        nest, phases = self._nest, self._period.phases
        is_in_place = any(load.source.same_as(nest.buffer) for load in loads(nest.value))
        if str(nest.buffer.dtype) != "float32" or phases > _MOST_SHUFFLED or is_in_place:
            return []
        calls: list[Any] = []
        cell = tirx.Var("cell", "int64")
        for phase in range(phases):
            tvm_ffi.structural_walk(self._element(values, cell, phase), (ir.Call, calls.append))
        return [] if calls else [size for size in _CELLS if size <= native_tile().lanes]

    def _vectors(self, begin: Any, values: Mapping[Any, Any], first: Any, lanes: int) -> None:
        """Writes all phases of `lanes` cells."""
        phases, vectors = self._period.phases, []
        for phase in range(phases):
            of_phase = ib.alloc_buffer((lanes,), "float32")
            with ib.vectorized(int64(lanes)) as k:
                ib.buffer_store(of_phase, self._element(values, first + k, phase), [k])
            vectors.append(of_phase[span(int64(0), lanes)])
        order = [phase * lanes + k for k in range(lanes) for phase in range(phases)]
        place = bound(begin + self._period.index(first, 0))
        ib.buffer_store(self._target, tirx.Shuffle(vectors, order), [span(place, lanes * phases)])

    def _element(self, values: Mapping[Any, Any], cell: Any, phase: int) -> Any:
        """What the line has for a phase of a cell."""
        index = self._period.index(cell, phase)
        return _simplified(self._nest.value, {**values, self._column: index})


def _for_phases(
    interleaved: _Interleaved, values: dict[Any, Any], line: Callable[[dict[Any, Any]], None]
) -> None:
    """Emits a line for the phases that the indices of the other axes have."""
    column = interleaved.column
    periods = {v: p for v, p in interleaved.periods.items() if not v.same_as(column)}
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
