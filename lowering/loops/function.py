"""Loop and Scan as functions in plain Relax.

A loop named `grow` becomes

- `grow_body(iteration, carried values…, slices…, captured values…)`: one run of the body graph,
  which returns the condition, the carried values and one slice of each scan output;
- `grow_iteration(carry, captured values…) -> carry`: reads the slices of the scan inputs, calls
  the body, writes the slices of the scan outputs, and decides whether another iteration follows;
- `grow_repeat`: repeats that, see `repeat`;
- `grow(trip count, condition, carried values…, scan inputs…, captured values…)`: the whole loop,
  marked with its roles, see `LoopRoles`;
- `grow_of_equal_sizes(operands…)`, in some cases: a version of the loop, see `versioning`.

All are pure, and nothing in them depends on the target. They are public because
`InlinePrivateFunctions` of TVM 0.27 leaves the symbols of an inlined function undefined wherever
its body contains a shape; `looplift.transform.InlineLoops` inlines them correctly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import relax
from tvm.ir import is_prim_var

from ...rewrite.errors import UnsupportedError
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import declared_shape
from ..closure import Closure
from ..emitter import Emitter
from ..identifiers import identifier
from ..join import unpack
from ..kinds import Kind, Misfit, check_fit, join_kinds, kind_of
from ..operators.broadcasting import Pair
from ..scalars import scalar
from ..scope import Scope
from ..sequences.lists import owned, to_list
from ..small_kernels import advance, begins, slice_at
from ..tvm_onnx import building_function
from ..values import Constant, Element, ListValue, Value, as_tensor, with_shape
from .plan import Plan
from .repeat import ITERATION_NUMBER, PROCEEDS, call_repeat, emit_repeat, unpacked
from .roles import BODY, ITERATION, LOOP_PART, LoopRoles, Slices
from .scan_outputs import CAPACITY, ScanOutputs
from .versioning import EqualSizes, emit_version

_COUNT = relax.TensorType([], "int64")


def emit_loop_function(emitter: Emitter, scope: Scope, node: Node, plan: Plan) -> list[Value]:
    """Emits the functions of a loop, and a call. The call of a versioned loop ends the segment.

    Returns the node's outputs, None for those that it does not list.
    """
    bb = emitter.bb
    operands = plan.operands()
    plan = plan.with_operands(
        dict(zip(operands, scope.bound(list(operands.values())), strict=True))
    )
    inner = replace(emitter, versions_loops=False)
    loop = _Loop(inner, node.op, plan)
    variable, kinds = loop.emit()
    pairs = loop.broadcast_pairs
    if not pairs or not emitter.versions_loops:
        scope.broadcasts.pairs += pairs
        return _outputs(bb, scope, node, plan, bb.emit(relax.Call(variable, loop.args)), kinds)

    def emit(inside: Scope, values: Mapping[Any, Value]) -> list[Value]:
        results = emit_loop_function(inner, inside, node, plan.with_operands(values))
        return [value for value in results if value is not None]

    operands = plan.operands()
    guard = bb.emit(as_tensor(bb, EqualSizes(pairs).guard()))
    with scope.between_segments([guard, *loop.args, *operands.values()]) as (flag, *values):
        args, values = values[: len(loop.args)], values[len(loop.args) :]
        given = dict(zip(operands, values, strict=True))
        name = f"{variable.name_hint}_of_equal_sizes"
        version, own_kinds = emit_version(inner, name, pairs, given, emit)
        result = bb.emit(relax.If(flag, version, relax.Call(variable, args)))
        joined = [join_kinds(own, other) for own, other in zip(own_kinds, kinds, strict=True)]
        return _outputs(bb, scope, node, plan, result, joined)


def _outputs(
    bb: Any, scope: Scope, node: Node, plan: Plan, result: Any, kinds: Sequence[Kind]
) -> list[Value]:
    """The node's outputs, from what the loop's function returns."""
    slots = [*range(len(plan.carried_values)), *(each.output for each in plan.wanted)]
    tensors = [node.outputs[slot] if slot < len(node.outputs) else None for slot in slots]
    kinds = scope.sizes.refined(tensors, kinds)
    types = [relax.ObjectType() if isinstance(kind, Element) else kind for kind in kinds]
    items = [
        ListValue(item, kind) if isinstance(kind, Element) else item
        for item, kind in zip(unpack(bb, result, types), kinds, strict=True)
    ]
    outputs: list[Value] = [*items[: len(plan.carried_values)], *[None] * len(plan.scan_outputs)]
    for scan_output, value in zip(plan.wanted, items[len(plan.carried_values) :], strict=True):
        outputs[scan_output.output] = value
    return outputs


@dataclass(frozen=True)
class _Body:
    """The function of the body graph."""

    variable: Any
    closure: Closure
    """What it captures from the function of the loop."""
    returns_condition: bool
    """Whether it returns a condition; otherwise it never ends the loop."""
    reads_iteration: bool
    types: list[Any]
    """The types of what it returns, in the symbols of the function of the loop."""


class _Loop:
    """The functions of one loop, under construction."""

    def __init__(self, emitter: Emitter, op_type: str, plan: Plan) -> None:
        self._emitter = emitter
        self._bb = emitter.bb
        self._op_type = op_type
        self._name = identifier(plan.name, "f")
        self._trip_count = _known_int(plan.limit)
        roles: dict[Any, Value] = {}
        if plan.limit is not None and self._trip_count is None:
            roles["limit"] = plan.limit
        if plan.condition is not None:
            roles["condition"] = plan.condition
        roles.update(
            (("carried", i), carried.initial) for i, carried in enumerate(plan.carried_values)
        )
        roles.update(
            (("scan input", i), scan_input.data) for i, scan_input in enumerate(plan.scan_inputs)
        )
        self._outer = Closure(plan.captured, [_leaf(value).ty for value in roles.values()])
        self._params = {
            key: _like(value, _param_name(plan, key), self._outer) for key, value in roles.items()
        }
        self.args = [*(_leaf(value) for value in roles.values()), *self._outer.args]
        limit = self._params.get("limit")
        self._plan = plan.with_operands(
            {
                **{("captured", tensor): value for tensor, value in self._outer.values.items()},
                **self._params,
                "limit": plan.limit if limit is None else limit,
            }
        )
        types = [_leaf(param).ty for param in (*self._params.values(), *self._outer.params)]
        self.broadcast_pairs: list[Pair] = []
        """Sizes before the loop that the body broadcasts against each other."""
        self._symbols = {s for kind in types for s in relax.analysis.tir_vars_in_type(kind)}
        self._kinds: list[Kind] = [
            kind_of(carried.initial) for carried in self._plan.carried_values
        ]

    def emit(self) -> tuple[Any, list[Kind]]:
        """Emits the functions: the GlobalVar of the loop, and the kinds of its results outside."""
        bb, plan = self._bb, self._plan
        params = [*map(_leaf, self._params.values()), *self._outer.params]
        with building_function(bb, self._name, params, private=False):
            scope = Scope(bb)
            limit = self._limit()
            body = self._emit_body()
            scan_outputs = self._scan_outputs(body, limit)
            carry: dict[Any, Any] = {PROCEEDS: self._begins(limit)}
            if plan.scan_inputs or plan.wanted or limit is not None or body.reads_iteration:
                carry[ITERATION_NUMBER] = relax.const(0, "int64")
            carry.update(scan_outputs.before(limit, plan.condition))
            carry.update(
                (("carried", i), self._initial(i)) for i in range(len(plan.carried_values))
            )
            iteration, captured = self._emit_iteration(body, scan_outputs, limit, carry)
            repeat = emit_repeat(bb, self._name, iteration)
            final = call_repeat(bb, repeat, _known_int(limit), carry, captured)
            carried_values = [
                self._final(final["carried", i], i) for i in range(len(plan.carried_values))
            ]
            buffers = [carry["buffer", i].ty for i in range(len(plan.wanted))]
            stacked = scan_outputs.finished(final, final.get(ITERATION_NUMBER), buffers)
            results = [*carried_values, *stacked]
            kinds = [*self._kinds, *(value.ty for value in results[len(carried_values) :])]
            variable = scope.finish(results)
        function = bb.get()[variable].with_attr(LoopRoles.ATTRIBUTE, self._roles(body).encoded())
        bb.update_func(variable, function)
        return variable, [self._outer.outer_kind(kind) for kind in kinds]

    # --- before and after the iterations ---

    def _limit(self) -> Value | None:
        """The trip count, an int64 scalar: the length of the scan inputs if there are any."""
        if not self._plan.scan_inputs:
            return self._plan.limit
        first = self._plan.scan_inputs[0]
        length = relax.prim_value(first.data.ty.shape.values[first.axis])
        limit = as_tensor(self._bb, length)
        return limit if isinstance(limit, Constant) else self._bb.emit(limit)

    def _begins(self, limit: Value | None) -> Value:
        """Whether there is a first iteration."""
        known = _known_int(limit)
        if known is not None and (known <= 0 or self._plan.condition is None):
            return relax.const(known > 0, "bool")
        given = {"limit": limit, "condition": self._plan.condition}
        given = {name: value for name, value in given.items() if value is not None}
        if not given:
            return relax.const(True, "bool")
        return self._bb.emit(self._bb.call_te(begins, **given))

    def _initial(self, index: int) -> Any:
        initial = self._plan.carried_values[index].initial
        if isinstance(initial, ListValue) and self._plan.accumulates(index):
            # Iterations append to it in place, and the list that was given stays as it is.
            initial = owned(self._bb, initial)
        return _leaf(initial)

    def _final(self, value: Any, index: int) -> Any:
        kind = self._kinds[index]
        if isinstance(kind, Element) or tvm_ffi.structural_equal(value.ty, kind):
            return value
        # The first of several carried values that share a size binds its symbol.
        return self._bb.match_cast(value, kind)

    # --- the body ---

    def _emit_body(self) -> _Body:
        """Emits the body, again with wider kinds for as long as its results do not fit."""
        attempt = 0
        while True:
            try:
                return self._try_body(attempt)
            except Misfit as misfit:
                self._kinds = misfit.wider
                self._emitter.discarded.append(self._name)
                attempt += 1

    def _try_body(self, attempt: int) -> _Body:
        plan, bb = self._plan, self._bb
        slices = [
            self._slice_type(scan_input.data.ty, scan_input.axis) for scan_input in plan.scan_inputs
        ]
        types = [kind for kind in (*self._kinds, *slices) if not isinstance(kind, Element)]
        closure = Closure(plan.captured, types)
        reads_iteration = plan.iteration in plan.body.last_use
        number = relax.Var(_variable(plan.iteration.name if plan.iteration else ""), _COUNT)
        carried_values = [
            self._carried_value(carried.input.name, kind, index, closure)
            for index, (carried, kind) in enumerate(
                zip(plan.carried_values, self._kinds, strict=True)
            )
        ]
        for carried, value in zip(plan.carried_values, carried_values, strict=True):
            name = carried.input.name
            self._emitter.ranks.note_carried(name, value, carried.initial, plan.place)
        parts = [
            relax.Var(_variable(scan_input.slice.name), closure.inner_type(kind))
            for scan_input, kind in zip(plan.scan_inputs, slices, strict=True)
        ]
        params = [*([number] if reads_iteration else []), *map(_leaf, carried_values), *parts]
        seen = dict(closure.values)
        seen.update(
            (s.input, value) for s, value in zip(plan.carried_values, carried_values, strict=True)
        )
        seen.update((s.slice, part) for s, part in zip(plan.scan_inputs, parts, strict=True))
        name = f"{self._name}_body"
        part = {LOOP_PART: BODY}
        params += closure.params
        with building_function(bb, name, params, private=False, attributes=part):
            scope = Scope(bb, self._emitter.facts)
            if reads_iteration and plan.iteration is not None:
                seen[plan.iteration] = self._shaped(plan.iteration, number)
            if plan.given_condition in plan.body.last_use and plan.given_condition is not None:
                always = relax.const(True, "bool")
                seen[plan.given_condition] = self._shaped(plan.given_condition, always)
            outputs = self._outputs(scope, seen)
            if attempt == 0:
                self._note_broadcasts(scope, closure)
            given = outputs[plan.first_carried : plan.first_carried + len(carried_values)]
            kinds = [closure.outer_kind(kind_of(value)) for value in given]
            names = [carried.input.name for carried in plan.carried_values]
            check_fit(names, self._kinds, kinds, self._symbols, attempt)
            condition = self._condition(outputs)
            returned = [] if condition is None else [condition]
            returned += [
                *map(_leaf, given),
                *(outputs[scan_output.slice] for scan_output in plan.wanted),
            ]
            types = [closure.outer_type(value.ty) for value in returned]
            variable = scope.finish([relax.Tuple(returned)])
        return _Body(variable, closure, condition is not None, reads_iteration, types)

    def _note_broadcasts(self, scope: Scope, closure: Closure) -> None:
        """Notes the pairs of sizes that are the same in every iteration, as the caller has them."""
        for pair in scope.broadcasts.pairs:
            known = [closure.outer_type(symbol) for symbol in pair]
            outer = tuple(map(self._outer.outer_type, known))
            are_symbols = self._symbols.issuperset(known) and all(map(is_prim_var, outer))
            if are_symbols and not outer[0].same_as(outer[1]):
                self.broadcast_pairs.append(outer)

    @staticmethod
    def _slice_type(kind: Any, axis: int) -> Any:
        dims = list(kind.shape.values)
        return relax.TensorType([*dims[:axis], *dims[axis + 1 :]], kind.dtype)

    def _carried_value(self, name: str, kind: Kind, index: int, closure: Closure) -> Value:
        if isinstance(kind, Element):
            is_owned = self._plan.accumulates(index)
            return ListValue(relax.Var(_variable(name), relax.ObjectType()), kind, is_owned)
        return relax.Var(_variable(name), closure.inner_type(kind))

    def _shaped(self, tensor: Tensor, value: Any) -> Any:
        """A scalar in the shape that the body declares: [] or [1]."""
        shape = declared_shape(tensor)
        return self._bb.emit(relax.op.reshape(value, shape)) if shape else value

    def _outputs(self, scope: Scope, seen: dict[Tensor, Value]) -> list[Value]:
        """The outputs of the body graph as tensors and lists."""
        bb, plan = self._bb, self._plan
        outputs = [_own(bb, value) for value in self._emitter.emit_body(scope, plan.body, seen)]
        for scan_output in plan.wanted:
            outputs[scan_output.slice] = with_shape(
                bb, self._ranked(outputs[scan_output.slice], scan_output.slice)
            )
        if plan.returns_condition:
            outputs[0] = scalar(bb, outputs[0], "bool", "condition of the body", plan.place)
        return scope.bound(outputs)

    def _ranked(self, value: Value, position: int) -> Value:
        if isinstance(value, ListValue) or value.ty.ndim < 0:
            name = self._plan.body.graph.outputs[position].name
            raise UnsupportedError(
                f"the rank of {name!r}, whose slices a scan output collects, is not known",
                where=self._plan.place,
            )
        return value

    def _condition(self, outputs: Sequence[Value]) -> Value | None:
        """What the body returns as the condition; None if that is always true."""
        if not self._plan.returns_condition:
            return None
        condition = outputs[0]
        if isinstance(condition, Constant) and bool(condition.value.numpy().item()):
            return None
        return condition

    def _scan_outputs(self, body: _Body, limit: Value | None) -> ScanOutputs:
        kinds = body.types[len(body.types) - len(self._plan.wanted) :]
        is_bounded = limit is not None and not body.returns_condition
        is_known = is_bounded and all(self._is_known(kind) for kind in kinds)
        return ScanOutputs(self._bb, self._plan, kinds, is_bounded, is_known)

    def _is_known(self, kind: Any) -> bool:
        """Whether all sizes of a tensor are known before the first iteration."""
        if not isinstance(kind.shape, relax.ShapeExpr):
            return False
        return set(relax.analysis.tir_vars_in_type(kind)) <= self._symbols

    # --- one iteration ---

    def _emit_iteration(
        self, body: _Body, scan_outputs: ScanOutputs, limit: Value | None, carry: Mapping[Any, Any]
    ) -> tuple[Any, list[Any]]:
        """Emits the function `(carry, captured…) -> carry`; returns it and what it captures."""
        bb, plan = self._bb, self._plan
        captured: dict[Any, Value] = {
            ("scan input", i): s.data for i, s in enumerate(plan.scan_inputs)
        }
        captured.update((("captured", i), value) for i, value in enumerate(body.closure.args))
        if limit is not None and self._trip_count is None:
            captured["limit"] = limit
        fields = relax.TupleType([self._carried_type(key, value) for key, value in carry.items()])
        closure = Closure(captured, [fields])
        before = relax.Var("carry", closure.inner_type(fields))
        name = f"{self._name}_iteration"
        part = {LOOP_PART: ITERATION}
        params = [before, *closure.params]
        with building_function(bb, name, params, private=False, attributes=part):
            scope = Scope(bb)
            given = unpacked(bb, before, carry)
            number = given.get(ITERATION_NUMBER)
            args = [number] if body.reads_iteration else []
            args += [given["carried", index] for index in range(len(plan.carried_values))]
            for index, scan_input in enumerate(plan.scan_inputs):
                data = closure.values["scan input", index]
                part = bb.call_te(slice_at, data, number, scan_input.axis, scan_input.reverse)
                args.append(bb.emit(part))
            args += [closure.values["captured", i] for i in range(len(body.closure.args))]
            result = bb.emit(relax.Call(body.variable, args))
            items = [bb.emit(relax.TupleGetItem(result, i)) for i in range(len(body.types))]
            condition = items.pop(0) if body.returns_condition else None
            after: dict[Any, Any] = dict(
                zip([("carried", i) for i in range(len(plan.carried_values))], items)
            )
            slices = [with_shape(bb, item) for item in items[len(plan.carried_values) :]]
            known = relax.const(self._trip_count, "int64") if self._trip_count is not None else None
            bound = closure.values.get("limit", known)
            after.update(self._advanced(number, bound, condition))
            if scan_outputs.is_known or not plan.wanted:
                after.update(scan_outputs.written(given, slices, number, bound))
                final = relax.Tuple([after[key] for key in carry])
            else:
                values = [given, slices, number, after]
                final = self._with_growing_buffers(scope, scan_outputs, values, bound, carry)
            return scope.finish([final]), closure.args

    def _with_growing_buffers(
        self,
        scope: Scope,
        scan_outputs: ScanOutputs,
        values: Any,
        limit: Any,
        carry: Mapping[Any, Any],
    ) -> Any:
        given, slices, number, after = values
        leaves = [*given.values(), *slices, number, *after.values(), limit]
        leaves = [leaf for leaf in leaves if leaf is not None]
        with scope.between_segments(leaves) as settled:
            found = dict(zip(map(id, leaves), settled, strict=True))
            given = {key: found[id(value)] for key, value in given.items()}
            slices = [found[id(value)] for value in slices]
            after = {key: found[id(value)] for key, value in after.items()}
            limit = None if limit is None else found[id(limit)]
            after.update(scan_outputs.written(given, slices, found[id(number)], limit))
        return relax.Tuple([after[key] for key in carry])

    def _advanced(
        self, number: Value | None, limit: Value | None, condition: Value | None
    ) -> dict[Any, Any]:
        """The number of the next iteration if it is carried, and whether there is one."""
        if number is None:
            return {PROCEEDS: relax.const(True, "bool") if condition is None else condition}
        given = {"limit": limit, "condition": condition}
        given = {name: value for name, value in given.items() if value is not None}
        both = self._bb.emit(self._bb.call_te(advance, number, **given))
        following, proceeds = (self._bb.emit(relax.TupleGetItem(both, i)) for i in range(2))
        return {ITERATION_NUMBER: following, PROCEEDS: proceeds}

    def _carried_type(self, key: Any, value: Any) -> Any:
        """The type of a carried value in all iterations, in the symbols of the loop's function."""
        if key == CAPACITY or key in (PROCEEDS, ITERATION_NUMBER):
            return value.ty
        if key[0] == "buffer":
            return relax.TensorType(None, value.ty.dtype, ndim=value.ty.ndim)
        kind = self._kinds[key[1]]
        return relax.ObjectType() if isinstance(kind, Element) else kind

    def _roles(self, body: _Body) -> LoopRoles:
        plan = self._plan
        names = {param: index for index, param in enumerate(self._outer.params)}
        first = len(self._params)
        captured = [first + names[arg] for arg in body.closure.args if arg in names]
        return LoopRoles(
            operator=self._op_type,
            node=plan.place,
            body=body.variable.name_hint,
            trip_count=self._trip_count,
            has_limit="limit" in self._params,
            has_condition="condition" in self._params,
            returns_condition=body.returns_condition,
            reads_iteration=body.reads_iteration,
            carried_values=len(plan.carried_values),
            scan_inputs=[Slices(s.axis, s.reverse) for s in plan.scan_inputs],
            scan_outputs=[Slices(s.axis, s.reverse) for s in plan.wanted],
            captured=captured,
            captures_sizes=len(captured) < len(body.closure.args),
        )


def _param_name(plan: Plan, key: Any) -> str:
    if key == "limit":
        return "trip_count"
    if key == "condition":
        return "condition"
    role, index = key
    named: Any = plan.carried_values[index] if role == "carried" else plan.scan_inputs[index]
    return str((named.input if role == "carried" else named.slice).name)


def _variable(name: str) -> str:
    """The name of the variable for a tensor of the model."""
    return identifier(name, "v") if name else ITERATION_NUMBER


def _like(value: Value, name: str, closure: Closure) -> Value:
    """A parameter for a value."""
    if isinstance(value, ListValue):
        return ListValue(relax.Var(_variable(name), relax.ObjectType()), value.element)
    return relax.Var(_variable(name), closure.inner_type(value.ty))


def _known_int(limit: Value | None) -> int | None:
    return int(limit.value.numpy()) if isinstance(limit, Constant) else None


def _own(bb: Any, value: Value) -> Value:
    if isinstance(value, relax.Tuple):
        return to_list(bb, value)
    if isinstance(value, ListValue):
        return value
    return bb.normalize(as_tensor(bb, value))


def _leaf(value: Value) -> Any:
    return value.variable if isinstance(value, ListValue) else value
