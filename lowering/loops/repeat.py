"""Iteration as a self-recursive function of bounded depth, in plain Relax.

A loop as a tail-recursive function nests a call for each iteration and overflows the stack after
some thousands. Here one function of level k calls itself at level k-1 up to 8 times, as long as
the loop continues, and level 0 is one iteration: any number of iterations that a run can reach
nests at most 15 calls.

The function is pure: an iteration maps the carried values to new ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, sym, tirx

from ..closure import Closure
from ..small_kernels import advance, begins
from ..tvm_onnx import building_function, unused_name
from ..values import as_tensor, fresh_dim
from .roles import LOOP_PART

RADIX = 8
_LEVELS = (1, 3, 14)
"""The levels to start at: the lowest that reaches the number of iterations. Each costs a call."""


_COUNT = relax.TensorType([], "int64")
_PROCEEDS, _ITERATION = "proceeds", "iteration"

Emit = Callable[[Mapping[str, Any], Closure, Any], dict[str, Any]]
"""Emits one iteration: (carried values, captured values, iteration number) -> carried values."""


def emit_repeat(bb: Any, name: str, iteration: Any) -> Any:
    """The GlobalVar of `(level, carry, captured…) -> carry`, which repeats an iteration.

    `iteration` is the GlobalVar of `(carry, captured…) -> carry`. A carry is a tuple, whose first
    field says whether there is another iteration: a bool scalar.
    """
    symbols: dict[Any, Any] = {}

    def renamed(kind: Any) -> Any:
        def rename(symbol: Any) -> Any:
            return symbols.setdefault(symbol, fresh_dim(symbol.name))

        return tvm_ffi.structural_map(kind, (ir.Var, rename), order="post")

    carried, *others = (renamed(kind) for kind in iteration.ty.params)
    level = fresh_dim("level")
    levels = relax.Var("level", relax.ShapeType([level]))
    carry = relax.Var("carry", carried)
    captured = [relax.Var(f"captured{index}", kind) for index, kind in enumerate(others)]
    defined = {s for kind in others for s in relax.analysis.definable_tir_vars_in_type(kind)}
    result = _common(carried, renamed(iteration.ty.ret), defined)
    params = [levels, carry, *captured]
    name = unused_name(bb, name)
    attributes = tvm.ir.make_node("ir.DictAttrs", **{"global_symbol": name, LOOP_PART: "repeat"})
    empty = relax.Function.create_empty(params, result, is_pure=True, attrs=attributes)
    repeat = bb.add_func(empty, name)

    bb.begin_scope(params)
    below = relax.ShapeExpr([level - 1])
    once = _called(bb, relax.Call(iteration, [carry, *captured]))
    many = _chain(bb, carry, result, lambda before: relax.Call(repeat, [below, before, *captured]))
    is_lowest = relax.prim_value(tirx.EQ(level, tirx.IntImm("int64", 0)))
    final = relax.Var("final", result)
    body = bb.normalize(_sequence([(final, relax.If(is_lowest, once, many))], final))
    bb.end_scope()
    bb.update_func(repeat, relax.Function(params, body, result, is_pure=True, attrs=attributes))
    return repeat


def _chain(bb: Any, carry: Any, kind: Any, call: Callable[[Any], Any]) -> Any:
    """Calls one after the other, for as long as the loop continues."""
    bindings = []
    before = carry
    for _ in range(RADIX):
        proceeds = relax.Var("proceeds", relax.TensorType([], "bool"))
        bindings.append((proceeds, relax.TupleGetItem(before, 0)))
        after = relax.Var("carry", kind)
        taken = _called(bb, call(before))
        bindings.append((after, relax.If(proceeds, taken, relax.SeqExpr([], before))))
        before = after
    return _sequence(bindings, before)


def _called(bb: Any, call: Any) -> Any:
    """The result of a call, as a branch."""
    call = bb.normalize(call)
    again = relax.Var("again", call.ty)
    return _sequence([(again, call)], again)


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
    bb: Any, repeat: Any, most: Any, carry: Mapping[Any, Any], captured: list[Any]
) -> dict[Any, Any]:
    """Emits a call for up to `most` iterations; returns the carried values after the last one.

    `most` is a number, a prim expression, or None if it is not known.
    """
    arguments = [relax.ShapeExpr([_level(most)]), relax.Tuple(list(carry.values())), *captured]
    return unpacked(bb, bb.emit(relax.Call(repeat, arguments)), carry)


def _level(most: Any) -> Any:
    """The level to start at: at least 1, because level 0 runs without asking."""
    if most is None:
        return tirx.IntImm("int64", _LEVELS[-1])
    level: Any = tirx.IntImm("int64", _LEVELS[0])
    for lower, higher in itertools.pairwise(_LEVELS):
        reach = tirx.IntImm("int64", RADIX**lower)
        level += (higher - lower) * tirx.Cast("int64", most > reach)
    return sym.Analyzer().simplify(level)


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
        _PROCEEDS: bb.emit(bb.call_te(begins, limit)),
        _ITERATION: relax.const(0, "int64"),
        **initial,
    }
    before = relax.Var("carry", relax.TupleType([_any_size(value.ty) for value in carry.values()]))
    part = {LOOP_PART: "iteration"}
    params = [before, *closure.params]
    with building_function(bb, f"{name}_iteration", params, private=False, attributes=part):
        with bb.dataflow():
            given = unpacked(bb, before, carry)
            number = given[_ITERATION]
            after = emit(given, closure, number)
            both = bb.emit(bb.call_te(advance, number, closure.values["limit"]))
            after[_ITERATION] = bb.emit(relax.TupleGetItem(both, 0))
            after[_PROCEEDS] = bb.emit(relax.TupleGetItem(both, 1))
            result = bb.emit_output(relax.Tuple([after[key] for key in carry]))
        iteration = bb.emit_func_output(result)
    function = emit_repeat(bb, f"{name}_repeat", iteration)
    return call_repeat(bb, function, count, carry, closure.args)


def _any_size(kind: Any) -> Any:
    if isinstance(kind, relax.TensorType) and kind.ndim > 0:
        return relax.TensorType(None, kind.dtype, ndim=kind.ndim)
    return kind
