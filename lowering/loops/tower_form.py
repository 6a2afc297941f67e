"""Loop and Scan in general: one private function for an iteration, and a tower that repeats it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from ...rewrite.errors import UnsupportedError
from ..closure import Closure
from ..emitter import Emitter, identifier
from ..join import unpack
from ..kinds import Kind, Misfit, check_fit, kind_of
from ..scalars import scalar
from ..scope import Scope
from ..sequences.lists import copy_received, to_list
from ..small_kernels import advance, begins, slice_at
from ..tower import Store, emit_tower
from ..tvm_onnx import building_function
from ..values import Constant, Element, ListValue, Value, as_tensor, with_shape
from .plan import Plan
from .rows import FIRST_BUFFER, ITERATION, Rows

_COUNT = relax.TensorType([], "int64")


def emit_as_tower(emitter: Emitter, scope: Scope, plan: Plan) -> list[Value]:
    """Emit a plan whose operands are values of the current segment; gives the node's outputs."""
    operands = plan.operands()
    with scope.between_segments(list(operands.values())) as settled:
        plan = plan.with_operands(dict(zip(operands, settled, strict=True)))
        results = _call(emitter, plan)
    return by_output(plan, results)


def by_output(plan: Plan, results: Sequence[Value]) -> list[Value]:
    """The results in the order of the node's outputs, None for those it does not list."""
    outputs: list[Value] = list(results[: len(plan.states)])
    outputs += [None] * len(plan.stacked)
    for stacked, value in zip(plan.wanted, results[len(plan.states) :], strict=True):
        outputs[stacked.output] = value
    return outputs


def _call(emitter: Emitter, plan: Plan) -> list[Value]:
    """Call the function of a plan; gives the states and the wanted scan outputs."""
    bb = emitter.bb
    closure = Closure(plan.operands())
    variable, kinds = _Loop(emitter, plan.with_operands(closure.values), closure).emit()
    result = bb.emit(relax.Call(variable, closure.args))
    types = [
        relax.ObjectType() if isinstance(kind, Element) else closure.outer_type(kind)
        for kind in kinds
    ]
    items = unpack(bb, result, types)
    return [
        ListValue(item, kind) if isinstance(kind, Element) else item
        for item, kind in zip(items, kinds, strict=True)
    ]


@dataclass(frozen=True)
class _Iteration:
    """The function of one iteration."""

    variable: Any
    rows: Rows
    closure: Closure


class _Loop:
    """The function of a whole loop, under construction."""

    def __init__(self, emitter: Emitter, plan: Plan, closure: Closure) -> None:
        self._emitter = emitter
        self._bb = emitter.bb
        self._plan = plan
        self._params = closure.params
        self._symbols = [inner for _, inner in closure.sizes]
        self._name = identifier(plan.name)
        self._kinds: list[Kind] = [kind_of(state.initial) for state in plan.states]

    # The slots of the store: see `rows`, then states, sizes and captured values.

    @property
    def _first_state(self) -> int:
        return FIRST_BUFFER + len(self._plan.wanted)

    @property
    def _sizes(self) -> int:
        return self._first_state + len(self._plan.states)

    def emit(self) -> tuple[Any, list[Kind]]:
        """Emit the function: its GlobalVar, and the kinds of its results in its own symbols."""
        pure_outside = {"relax.force_pure": True}
        with building_function(
            self._bb, self._name, self._params, private=True, attributes=pure_outside
        ):
            iteration = self._emit_iteration()
            plan, rows = self._plan, iteration.rows
            empty = rows.empty(plan.limit, plan.condition)
            store = Store.make(self._bb, self._items(iteration, empty))
            self._run(iteration, store)
            states = [self._final(store, index) for index in range(len(plan.states))]
            results = [*states, *rows.finished(store, empty)]
            kinds = [*self._kinds, *(value.ty for value in results[len(states) :])]
            result = results[0] if len(results) == 1 else relax.Tuple(results)
            return self._bb.emit_func_output(self._bb.emit(result)), kinds

    def _emit_iteration(self) -> _Iteration:
        """Emit the body, again with wider kinds for as long as its results do not fit."""
        attempt = 0
        while True:
            try:
                return self._try_iteration(attempt)
            except Misfit as misfit:
                self._kinds = misfit.wider
                attempt += 1

    def _items(self, iteration: _Iteration, buffers: Sequence[Any]) -> list[Any]:
        zero = relax.const(0, "int64")
        states = [self._initial(index) for index in range(len(self._plan.states))]
        sizes = relax.ShapeExpr([outer for outer, _ in iteration.closure.sizes])
        captured = [outer for outer, _ in iteration.closure.variables]
        return [zero, zero, *buffers, *states, sizes, *captured]

    def _initial(self, index: int) -> Any:
        initial = self._plan.states[index].initial
        if isinstance(initial, ListValue) and self._plan.accumulates(index):
            # Iterations append to it in place, and the list that was given stays as it is.
            initial = copy_received(self._bb, initial.variable, initial.element)
        return _leaf(initial)

    def _run(self, iteration: _Iteration, store: Store) -> None:
        plan = self._plan
        most = int(plan.limit.value.numpy()) if isinstance(plan.limit, Constant) else None
        tower = emit_tower(self._bb, f"{self._name}_times", iteration.variable, most)
        call = relax.Call(tower, [store.variable])
        reasons = {"limit": plan.limit, "condition": plan.condition}
        given = {name: value for name, value in reasons.items() if value is not None}
        if not given or (plan.condition is None and most is not None and most > 0):
            self._bb.emit(call, "_")
            return
        first = self._bb.emit(self._bb.call_te(begins, **given))
        self._bb.emit(relax.If(first, call, first), "_")

    def _final(self, store: Store, index: int) -> Any:
        kind, slot = self._kinds[index], self._first_state + index
        if isinstance(kind, Element):
            return store.read(slot, relax.ObjectType())
        if _has_only(kind, self._symbols):
            return store.read(slot, kind)
        item = store.read(slot, relax.TensorType(None, kind.dtype, ndim=kind.ndim))
        # Sizes that several states share are bound by the first of them.
        return self._bb.match_cast(item, kind)

    # One iteration.

    def _try_iteration(self, attempt: int) -> _Iteration:
        plan = self._plan
        values: dict[Any, Value] = {
            key: value for key, value in plan.operands().items() if not _is_first_only(key)
        }
        closure = Closure(values, self._symbols)
        store = Store.parameter(self._bb)
        name = f"{self._name}_iteration"
        with building_function(self._bb, name, [store.variable], private=True, pure=False):
            self._bind_captured(store, closure)
            states = [self._state(store, closure, index) for index in range(len(plan.states))]
            iteration = store.read(ITERATION, _COUNT) if self._reads_iteration else None
            scope = Scope(self._bb)
            outputs = self._outputs(scope, self._seen(closure, states, iteration))
            given = outputs[plan.first_state : plan.first_state + len(states)]
            kinds = [closure.outer_kind(kind_of(value)) for value in given]
            names = [state.name for state in plan.states]
            check_fit(names, self._kinds, kinds, self._symbols, attempt)
            limit = closure.values.get("limit")
            condition = self._condition(outputs)
            rows = self._rows(closure, outputs, is_bounded=limit is not None and condition is None)
            rows.write(store, [outputs[stacked.row] for stacked in plan.wanted], limit)
            following, goes_on = self._advance(store, limit, condition)
            new = {
                self._first_state + index: _leaf(after)
                for index, (before, after) in enumerate(zip(states, given, strict=True))
                if not _leaf(before).same_as(_leaf(after))
            }
            store.write({**following, **new})
            return _Iteration(self._bb.emit_func_output(goes_on), rows, closure)

    def _bind_captured(self, store: Store, closure: Closure) -> None:
        """Bind the sizes and the variables that the iteration captures.

        Types of variables are believed: the caller has checked them, and nothing writes them.
        """
        slot = self._sizes
        if closure.sizes:
            sizes = store.read(slot, relax.ShapeType(ndim=len(closure.sizes)))
            inner = [symbol for _, symbol in closure.sizes]
            self._bb.match_cast(sizes, relax.ShapeType(inner))
        for offset, (_, variable) in enumerate(closure.variables, 1):
            store.read_into(variable, slot + offset)

    def _state(self, store: Store, closure: Closure, index: int) -> Value:
        slot, kind = self._first_state + index, self._kinds[index]
        if isinstance(kind, Element):
            is_owned = self._plan.accumulates(index)
            return ListValue(store.read(slot, relax.ObjectType()), kind, is_owned)
        inner = closure.inner_type(kind)
        if _has_only(inner, [symbol for _, symbol in closure.sizes]):
            return store.read(slot, inner)
        item = store.read(slot, relax.TensorType(None, kind.dtype, ndim=kind.ndim))
        return self._bb.match_cast(item, inner)

    @property
    def _reads_iteration(self) -> bool:
        plan = self._plan
        return bool(plan.sliced) or plan.iteration in plan.body.last_use

    def _seen(self, closure: Closure, states: Sequence[Value], iteration: Any) -> dict[str, Value]:
        """What the body sees, by name."""
        plan = self._plan.with_operands({**self._plan.operands(), **closure.values})
        seen = dict(plan.captured)
        seen.update((s.name, value) for s, value in zip(plan.states, states, strict=True))
        for sliced in plan.sliced:
            arguments = [sliced.data, iteration, sliced.axis, sliced.reverse]
            seen[sliced.name] = self._bb.emit(self._bb.call_te(slice_at, *arguments))
        if plan.iteration in plan.body.last_use:
            seen[plan.iteration] = self._shaped(plan.iteration, iteration)
        if plan.given_condition in plan.body.last_use:
            holds = self._shaped(plan.given_condition, relax.const(True, "bool"))
            seen[plan.given_condition] = holds
        return seen

    def _shaped(self, name: str, scalar: Any) -> Any:
        """A scalar in the shape that the body declares: [] or [1]."""
        declared = next(value for value in self._plan.body.graph.input if value.name == name)
        if len(declared.type.tensor_type.shape.dim) == 0:
            return scalar
        return self._bb.emit(relax.op.reshape(scalar, (1,)))

    def _outputs(self, scope: Scope, seen: dict[str, Value]) -> list[Value]:
        """The body's outputs as tensors and lists, visible to the end of the function."""
        bb = self._bb
        outputs = [
            _own(bb, value) for value in self._emitter.emit_body(scope, self._plan.body, seen)
        ]
        for stacked in self._plan.wanted:
            outputs[stacked.row] = with_shape(bb, self._row(outputs[stacked.row], stacked.row))
        if self._plan.tells_condition:
            role = "condition of the body"
            outputs[0] = scalar(bb, outputs[0], "bool", role, self._plan.place)
        return scope.close(outputs)

    def _row(self, value: Value, position: int) -> Value:
        if isinstance(value, ListValue) or value.ty.ndim < 0:
            name = self._plan.body.graph.output[position].name
            raise UnsupportedError(
                f"the rank of {name!r}, of which the iterations' values are stacked, is not known",
                where=self._plan.place,
            )
        return value

    def _condition(self, outputs: Sequence[Value]) -> Value | None:
        """What the body says of a next iteration; None if that is always true."""
        if not self._plan.tells_condition:
            return None
        condition = outputs[0]
        if isinstance(condition, Constant) and bool(condition.value.numpy().item()):
            return None
        return condition

    def _rows(self, closure: Closure, outputs: Sequence[Value], *, is_bounded: bool) -> Rows:
        kinds = [closure.outer_type(outputs[stacked.row].ty) for stacked in self._plan.wanted]
        is_known = is_bounded and all(_has_only(kind, self._symbols) for kind in kinds)
        return Rows(self._bb, self._plan, kinds, is_bounded, is_known)

    def _advance(
        self, store: Store, limit: Value | None, condition: Value | None
    ) -> tuple[dict[int, Any], Any]:
        """Count the iteration, where somebody asks for it.

        Gives what to write into the store, and whether there is another iteration.
        """
        if limit is None and not self._plan.wanted and not self._reads_iteration:
            return {}, relax.const(True, "bool") if condition is None else condition
        iteration = store.read(ITERATION, _COUNT)
        reasons = {"limit": limit, "condition": condition}
        given = {name: value for name, value in reasons.items() if value is not None}
        both = self._bb.emit(self._bb.call_te(advance, iteration, **given))
        following, goes_on = (self._bb.emit(relax.TupleGetItem(both, i)) for i in range(2))
        return {ITERATION: following}, goes_on


def _is_first_only(key: Any) -> bool:
    """Whether an operand plays no part after the first iteration has begun."""
    return key == "condition" or (isinstance(key, tuple) and key[0] == "state")


def _own(bb: Any, value: Value) -> Value:
    if isinstance(value, relax.Tuple):
        return to_list(bb, value)
    if isinstance(value, ListValue):
        return value
    return bb.normalize(as_tensor(bb, value))


def _leaf(value: Value) -> Any:
    return value.variable if isinstance(value, ListValue) else value


def _has_only(kind: Any, symbols: Sequence[Any]) -> bool:
    """Whether a tensor's sizes are all known, given these symbols."""
    if not isinstance(kind.shape, relax.ShapeExpr):
        return False
    return set(relax.analysis.tir_vars_in_type(kind)) <= set(symbols)
