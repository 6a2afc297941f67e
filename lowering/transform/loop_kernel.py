"""The kernel of a whole loop: the statements of one iteration with a loop around them.

The values of an iteration are places in larger buffers, so that nothing is copied: a slice of a
scanned tensor is the tensor with the iteration number as one more index, and a carried value has
two places, before and after the iteration, which change roles from one iteration to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import is_prim_var
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from .loop_body import FusedBody, NoKernelError

Variable = Any
"""A Relax variable of the body."""
Place = Callable[[Sequence[Any]], Any]
"""Where an element lies: from its indices in the body to a load of it."""


@dataclass(frozen=True)
class CarriedPlan:
    """A carried value that the body changes."""

    input: Variable
    output: Variable


@dataclass(frozen=True)
class SlicePlan:
    """The slices of one tensor, which the body reads or writes one by one."""

    slice: Variable
    axis: int
    reverse: bool


@dataclass(frozen=True)
class LoopPlan:
    """What the kernel is made of.

    Its parameters, in this order: the trip count (int64 scalar, if `reads_trip`), the condition
    (bool scalar, if `condition_out`), the initial carried values, the scan inputs, the captures,
    the body's constants that are no scalars; then its results: the final carried values, the scan
    outputs.
    """

    body: FusedBody
    carried_values: Sequence[CarriedPlan]
    scan_inputs: Sequence[SlicePlan]
    scan_outputs: Sequence[SlicePlan]
    captures: Sequence[Variable]
    trips: Any
    """The number of iterations: a dimension of the scanned tensors, or None if there is none."""
    reads_trip: bool
    """Whether the number of iterations is a parameter."""
    iteration: Variable | None = None
    condition_in: Variable | None = None
    condition_out: Variable | None = None
    """None if there is always another iteration."""

    @property
    def tensors(self) -> list[Variable]:
        """The constants that are parameters."""
        return [variable for variable in self.body.constants if variable.ty.ndim]


@dataclass(frozen=True)
class _Parameters:
    """The kernel's buffers, in the order that `LoopPlan` states."""

    trips: Any
    """The number of iterations, or the most there may be."""
    condition: Any
    initial: list[Any]
    read: list[Any]
    final: list[Any]
    written: list[Any]


def loop_kernel(plan: LoopPlan) -> tirx.PrimFunc:
    """The kernel for a plan; see there for its parameters.

    NoKernelError: it needs a size that none of its parameters has as a dimension.
    """
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        parameters = _declare(plan)
        # Passes of Relax that look into kernels expect a block around everything.
        with ib.sblock("root"):
            _emit(plan, parameters)
    kernel = builder.get()
    _check_sizes(kernel)
    return kernel


def _check_sizes(kernel: tirx.PrimFunc) -> None:
    bound = [size for param in kernel.params for size in param.ty.shape]
    for free in tirx.analysis.undefined_vars(kernel.body, kernel.params):
        if is_prim_var(free) and not any(free.same_as(size) for size in bound):
            raise NoKernelError(f"the size {free.name!r} is a dimension of none of its operands")


def _declare(plan: LoopPlan) -> _Parameters:
    trips = plan.trips
    trip = ib.arg("trip", ib.buffer((), "int64")) if plan.reads_trip else None
    condition = None if plan.condition_out is None else ib.arg("condition", ib.buffer((), "bool"))

    def whole(name: str, value: Variable) -> Any:
        return ib.arg(name, ib.buffer(plan.body.shape(value), _dtype(value)))

    def stacked(name: str, slices: SlicePlan) -> Any:
        shape = _inserted(plan.body.shape(slices.slice), slices.axis, trips)
        return ib.arg(name, ib.buffer(shape, _dtype(slices.slice)))

    initial = [whole("initial", carried.input) for carried in plan.carried_values]
    read = [stacked("read", slices) for slices in plan.scan_inputs]
    for variable in (*plan.captures, *plan.tensors):
        ib.arg(variable.name, plan.body.buffers[variable])
    final = [whole("final", carried.input) for carried in plan.carried_values]
    written = [stacked("written", slices) for slices in plan.scan_outputs]
    count = trips if trip is None else ib.bind(trip[()])
    return _Parameters(count, condition, initial, read, final, written)


def _emit(plan: LoopPlan, parameters: _Parameters) -> None:
    """The loop, from the initial carried values to the results."""
    carried_values = [carried.input for carried in plan.carried_values]
    halves = [
        ib.alloc_buffer((_int(2), *plan.body.shape(carried)), _dtype(carried))
        for carried in carried_values
    ]
    for carried, initial, both in zip(carried_values, parameters.initial, halves, strict=True):
        _copy(plan.body.shape(carried), _all(initial), _half(both, _int(0)))
    temporaries, statement = _split(plan.body.statement)
    for temporary in temporaries:
        ib.add_to_parent(temporary)
    iteration = _Iteration(plan, parameters, halves, statement)
    if plan.condition_out is None:
        with ib.serial(parameters.trips) as number:
            iteration.emit(number)
        # A negative trip count is none.
        trips = tirx.max(parameters.trips, _int(0))
    else:
        trips = _emit_while(iteration, plan, parameters)
    for carried, both, final in zip(carried_values, halves, parameters.final, strict=True):
        _copy(plan.body.shape(carried), _half(both, trips % 2), _all(final))


def _emit_while(iteration: _Iteration, plan: LoopPlan, parameters: _Parameters) -> Any:
    """The loop with a condition; returns the number of iterations that ran."""
    done = ib.alloc_buffer((_int(1),), "int64")
    proceed = ib.alloc_buffer((_int(1),), "bool")
    ib.buffer_store(done, _int(0), [_int(0)])
    ib.buffer_store(proceed, parameters.condition[()], [_int(0)])
    has_trip = plan.reads_trip or plan.trips is not None
    more = done[0] < parameters.trips if has_trip else tirx.const(True, "bool")
    with ib.While(tirx.all(more, proceed[0])):
        iteration.emit(done[0], proceed)
        ib.buffer_store(done, done[0] + _int(1), [_int(0)])
    return done[0]


class _Iteration:
    """One iteration, once it is known what the values of the body are."""

    def __init__(
        self, plan: LoopPlan, parameters: _Parameters, halves: list[Any], statement: Any
    ) -> None:
        self._plan = plan
        self._parameters = parameters
        self._halves = halves
        self._statement = statement

    def emit(self, iteration: Any, proceed: Any = None) -> None:
        """The iteration numbered `iteration`; `proceed` is where the next condition goes."""
        sources = self._sources(iteration)
        copies = []
        for variable, target in self._targets(iteration, proceed):
            computed = variable in self._plan.body.buffers
            if computed and variable not in sources:
                sources[variable] = target
            else:
                copies.append((variable, target))
        ib.add_to_parent(self._placed(sources))
        for variable, target in copies:
            _copy(self._plan.body.shape(variable), sources[variable], target)

    def _sources(self, iteration: Any) -> dict[Variable, Place]:
        """Where the values lie that the body is given."""
        plan = self._plan
        sources = {v: _all(plan.body.buffers[v]) for v in (*plan.captures, *plan.tensors)}
        for variable, constant in plan.body.constants.items():
            if not variable.ty.ndim:
                sources[variable] = _fixed(constant.value.numpy().item(), _dtype(variable))
        for carried, both in zip(plan.carried_values, self._halves, strict=True):
            sources[carried.input] = _half(both, iteration % 2)
        for slices, whole in zip(plan.scan_inputs, self._parameters.read, strict=True):
            sources[slices.slice] = self._slice(slices, whole, iteration)
        if plan.iteration is not None:
            sources[plan.iteration] = lambda _: iteration
        if plan.condition_in is not None:
            sources[plan.condition_in] = _fixed(True, "bool")
        return sources

    def _targets(self, iteration: Any, proceed: Any) -> list[tuple[Variable, Place]]:
        """Where the results of the body belong."""
        plan = self._plan
        targets = []
        for carried, both in zip(plan.carried_values, self._halves, strict=True):
            targets.append((carried.output, _half(both, (iteration + 1) % 2)))
        for slices, whole in zip(plan.scan_outputs, self._parameters.written, strict=True):
            targets.append((slices.slice, self._slice(slices, whole, iteration)))
        if plan.condition_out is not None:
            targets.append((plan.condition_out, lambda _: proceed[_int(0)]))
        return targets

    def _slice(self, slices: SlicePlan, whole: Any, iteration: Any) -> Place:
        place = self._parameters.trips - 1 - iteration if slices.reverse else iteration
        return lambda indices: whole[_inserted(indices, slices.axis, place)]

    def _placed(self, places: dict[Variable, Place]) -> Any:
        """The statements of the body, over the kernel's own buffers."""
        found = {buffer: places[v] for v, buffer in self._plan.body.buffers.items()}

        def load(access: Any) -> Any:
            place = found.get(access.source)
            return access if place is None else place(access.indices)

        def store(access: Any) -> Any:
            place = found.get(access.buffer)
            if place is None:
                return access
            target = place(access.indices)
            return tirx.BufferStore(target.source, access.value, target.indices)

        accesses = [(ir.TensorLoad, load), (tirx.BufferStore, store)]
        return tvm_ffi.structural_map(self._statement, accesses, order="post")


def _split(statement: Any) -> tuple[list[Any], Any]:
    """The buffers that statements begin with, which are the same for all iterations, and the rest.

    Allocated inside the loop, they would cost two calls of the runtime an iteration each.
    """
    parts = list(statement.seq) if isinstance(statement, tirx.SeqStmt) else [statement]
    allocations = [part for part in parts if isinstance(part, tirx.AllocBuffer)]
    others = [part for part in parts if not isinstance(part, tirx.AllocBuffer)]
    return allocations, others[0] if len(others) == 1 else tirx.SeqStmt(others)


def _copy(shape: Sequence[Any], source: Place, target: Place) -> None:
    def store(indices: Sequence[Any]) -> None:
        place = target(indices)
        ib.buffer_store(place.source, source(indices), list(place.indices))

    if not shape:
        store([])
        return
    with ib.grid(*shape) as indices:
        store(list(indices) if isinstance(indices, Sequence) else [indices])


def _fixed(number: float, dtype: str) -> Place:
    return lambda _: tirx.const(number, dtype)


def _all(buffer: Any) -> Place:
    return lambda indices: buffer[tuple(indices)]


def _half(both: Any, half: Any) -> Place:
    return lambda indices: both[_inserted(indices, 0, half)]


def _inserted(items: Sequence[Any], axis: int, item: Any) -> tuple[Any, ...]:
    return (*items[:axis], item, *items[axis:])


def _dtype(variable: Variable) -> str:
    return str(variable.ty.dtype)


def _int(number: int) -> Any:
    return tirx.IntImm("int64", number)
