"""Iteration as a self-recursive function of bounded depth, in plain Relax.

A loop as a tail-recursive function nests a call for each iteration and overflows the stack after
some thousands. Here a function of level k calls itself at level k-1 eight times in a row, and level
0 calls eight iterations. After the end of the loop, every call returns its argument. Any number of
iterations that a run can reach nests at most 16 calls.

The functions are pure: an iteration maps the carried values to new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ..closure import Closure
from ..small_kernels import advance, begins
from ..tvm_onnx import building_function, unused_name
from ..values import as_int, as_tensor, fresh_dim
from .roles import ITERATION, LOOP_PART, NEXT, REPEAT

RADIX = 8
_LEVELS = (0, 2, 13)
"""The levels that a loop calls one after the other: after its end, each level that it has entered
costs up to seven calls."""

PROCEEDS, ITERATION_NUMBER = "proceeds", "iteration"
"""Keys of carried values: whether there is another iteration, and its number."""

Emit = Callable[[Mapping[str, Any], Closure, Any], dict[str, Any]]
"""Emits one iteration: (carried values, captured values, iteration number) -> carried values."""


def emit_repeat(bb: Any, name: str, iteration: Any) -> Any:
    """The GlobalVar of `(level, carry, captured…) -> carry`, which repeats an iteration.

    `iteration` is the GlobalVar of `(carry, captured…) -> carry`. A carry is a tuple, whose first
    field says whether there is another iteration: a bool scalar. Besides `{name}_repeat` it emits
    `{name}_next`, one iteration unless the loop has ended.
    """
    carry, captured, result = _parameters(iteration)
    params = [carry, *captured]

    def body_of_next(_function: Any) -> Any:
        again = _calls(bb, carry, captured, iteration, 1)
        return _if_it_proceeds(carry, result, again)

    following = _define(bb, f"{name}_next", NEXT, params, result, body_of_next)
    carry, captured, result = _parameters(iteration)
    level = fresh_dim("level")
    params = [relax.Var("level", relax.ShapeType([level])), carry, *captured]

    def body_of_repeat(function: Any) -> Any:
        below = relax.ShapeExpr([level - 1])
        iterations = _calls(bb, carry, captured, following, RADIX)
        levels = _calls(bb, carry, [*captured], function, RADIX, below)
        is_lowest = relax.prim_value(tirx.EQ(level, tirx.IntImm("int64", 0)))
        several = relax.Var("several", result)
        choice = relax.If(is_lowest, iterations, levels)
        return _if_it_proceeds(carry, result, _sequence([(several, choice)], several))

    return _define(bb, f"{name}_repeat", REPEAT, params, result, body_of_repeat)


def _parameters(iteration: Any) -> tuple[Any, list[Any], Any]:
    """The parameters of a function like `iteration`, with symbols of their own: the carry and the
    captured values. Also the type of the carry before and after any number of iterations.
    """
    symbols: dict[Any, Any] = {}

    def renamed(kind: Any) -> Any:
        def rename(symbol: Any) -> Any:
            return symbols.setdefault(symbol, fresh_dim(symbol.name))

        return tvm_ffi.structural_map(kind, (ir.Var, rename), order="post")

    carried, *others = (renamed(kind) for kind in iteration.ty.params)
    captured = [relax.Var(f"captured{index}", kind) for index, kind in enumerate(others)]
    defined = {
        s for kind in (carried, *others) for s in relax.analysis.definable_tir_vars_in_type(kind)
    }
    result = _common(carried, renamed(iteration.ty.ret), defined)
    return relax.Var("carry", carried), captured, result


def _define(
    bb: Any, name: str, part: str, params: list[Any], result: Any, build: Callable[[Any], Any]
) -> Any:
    """The GlobalVar of a function. `build` maps it to the body, which may call it."""
    name = unused_name(bb, name)
    attrs = tvm.ir.make_node("ir.DictAttrs", **{"global_symbol": name, LOOP_PART: part})
    empty = relax.Function.create_empty(params, result, is_pure=True, attrs=attrs)
    function = bb.add_func(empty, name)
    bb.begin_scope(params)
    body = bb.normalize(build(function))
    bb.end_scope()
    bb.update_func(function, relax.Function(params, body, result, is_pure=True, attrs=attrs))
    return function


def _calls(bb: Any, carry: Any, captured: list[Any], function: Any, count: int, *level: Any) -> Any:
    """Calls of a function in a row, each with the carry that the one before it returned."""
    bindings = []
    for _ in range(count):
        call = bb.normalize(relax.Call(function, [*level, carry, *captured]))
        carry = relax.Var("carry", call.ty)
        bindings.append((carry, call))
    return _sequence(bindings, carry)


def _if_it_proceeds(carry: Any, result: Any, taken: Any) -> Any:
    """`taken` if there is another iteration, else the carry as it is."""
    proceeds = relax.Var("proceeds", relax.TensorType([], "bool"))
    final = relax.Var("final", result)
    choice = relax.If(proceeds, taken, relax.SeqExpr([], carry))
    return _sequence([(proceeds, relax.TupleGetItem(carry, 0)), (final, choice)], final)


def _sequence(bindings: list[tuple[Any, Any]], result: Any) -> Any:
    block = relax.BindingBlock([relax.VarBinding(var, value) for var, value in bindings])
    return relax.SeqExpr([block], result)


def _common(before: Any, after: Any, defined: set[Any]) -> Any:
    """The type of a carry before and after an iteration.

    Tensors have only a rank where the types differ or their sizes need other symbols than
    `defined`.
    """

    def common(field: Any, other: Any) -> Any:
        if not isinstance(field, relax.TensorType):
            return field
        has_sizes = set(relax.analysis.tir_vars_in_type(field)) <= defined
        if has_sizes and tvm_ffi.structural_equal(field, other):
            return field
        ndim = field.ndim if field.ndim == other.ndim else -1
        return relax.TensorType(None, field.dtype, ndim=ndim)

    pairs = zip(before.fields, after.fields, strict=True)
    return relax.TupleType([common(*pair) for pair in pairs])


def call_repeat(
    bb: Any, repeat: Any, most: int | None, carry: Mapping[Any, Any], captured: list[Any]
) -> dict[Any, Any]:
    """Emits the calls for any number of iterations; returns the carried values after the last one.

    `most` is the largest number of iterations, None if it is not known.
    """
    last = relax.Tuple(list(carry.values()))
    reach = 0
    for level in _LEVELS:
        if most is not None and reach >= most:
            break
        start = relax.ShapeExpr([tirx.IntImm("int64", level)])
        last = bb.emit(relax.Call(repeat, [start, last, *captured]))
        reach += RADIX ** (level + 1)
    return unpacked(bb, last, carry)


def unpacked(bb: Any, carry: Any, slots: Mapping[Any, Any]) -> dict[Any, Any]:
    """The fields of a carry by the keys of `slots`, which are in their order."""
    return {key: bb.emit(relax.TupleGetItem(carry, slot)) for slot, key in enumerate(slots)}


def emit_counted(
    bb: Any,
    name: str,
    count: Any,
    captured: dict[Any, Any],
    initial: Mapping[str, Any],
    emit: Emit,
) -> dict[str, Any]:
    """Emits a counted loop in the current dataflow block; returns the final carried values.

    `count` is a prim expression; `captured` are values that the iterations read. Carried tensors
    keep their rank and type.
    """
    limit = bb.emit(as_tensor(bb, relax.prim_value(count)))
    closure = Closure({**captured, "limit": limit})
    carry = {
        PROCEEDS: bb.emit(bb.call_te(begins, limit)),
        ITERATION_NUMBER: relax.const(0, "int64"),
        **initial,
    }
    before = relax.Var("carry", relax.TupleType([_any_size(value.ty) for value in carry.values()]))
    part = {LOOP_PART: ITERATION}
    params = [before, *closure.params]
    with building_function(bb, f"{name}_iteration", params, private=False, attributes=part):
        with bb.dataflow():
            given = unpacked(bb, before, carry)
            number = given[ITERATION_NUMBER]
            after = emit(given, closure, number)
            both = bb.emit(bb.call_te(advance, number, closure.values["limit"]))
            after[ITERATION_NUMBER] = bb.emit(relax.TupleGetItem(both, 0))
            after[PROCEEDS] = bb.emit(relax.TupleGetItem(both, 1))
            result = bb.emit_output(relax.Tuple([after[key] for key in carry]))
        iteration = bb.emit_func_output(result)
    function = emit_repeat(bb, name, iteration)
    return call_repeat(bb, function, as_int(count), carry, closure.args)


def _any_size(kind: Any) -> Any:
    if isinstance(kind, relax.TensorType) and kind.ndim > 0:
        return relax.TensorType(None, kind.dtype, ndim=kind.ndim)
    return kind
