"""Sequences whose length is known at run time, as lists of the TVM runtime.

A list is copied before it is changed, so that a sequence is a value like any other. What changes
the copy is impure, and stands in private functions that are pure towards the outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, relax, tirx

from ..kinds import element_of
from ..tower import call_runtime, new_list
from ..tvm_onnx import building_function
from ..values import Element, ListValue, Value, as_tensor, fresh_dim

_OBJECT = relax.ObjectType()
_PURE_OUTSIDE = {"relax.force_pure": True}


def to_list(bb: Any, sequence: Value) -> ListValue:
    """A sequence as a list."""
    if isinstance(sequence, ListValue):
        return sequence
    tensors = [as_tensor(bb, field) for field in sequence.fields]
    return ListValue(new_list(bb, tensors), element_of(relax.Tuple(tensors)))


def received(bb: Any, variable: Any, element: Element) -> ListValue:
    """A sequence that comes from outside, as whatever object the caller has."""
    return ListValue(_call(bb, "sequence_copy", [variable], lambda copy: None), element)


def received_optional(bb: Any, variable: Any, element: Element) -> ListValue:
    """An optional that comes from outside, a tensor or None, as a list with this one item."""
    return ListValue(new_list(bb, [variable]), element, is_optional=True)


def has_element(bb: Any, optional: ListValue) -> Any:
    """Whether an optional holds a tensor, as a prim expression."""
    is_none = bb.emit(
        relax.op.call_pure_packed(
            "ffi.ListContains",
            optional.variable,
            bb.emit(relax.op.null_value()),
            ty_args=ir.PrimType("bool"),
        )
    )
    vector = bb.emit(
        relax.op.call_pure_packed("ffi.Shape", is_none, ty_args=relax.ShapeType(ndim=1))
    )
    symbol = fresh_dim("is_none")
    bb.match_cast(vector, relax.ShapeType([symbol]))
    return tirx.EQ(symbol, tirx.IntImm("int64", 0))


def length(bb: Any, sequence: ListValue) -> Any:
    """The number of tensors, as a symbol."""
    count = bb.emit(
        relax.op.call_pure_packed("ffi.ListSize", sequence.variable, ty_args=ir.PrimType("int64"))
    )
    vector = bb.emit(relax.op.call_pure_packed("ffi.Shape", count, ty_args=relax.ShapeType(ndim=1)))
    symbol = fresh_dim("length")
    bb.match_cast(vector, relax.ShapeType([symbol]))
    return symbol


def at(bb: Any, sequence: ListValue, position: Any) -> Any:
    """One tensor. `position` is a prim expression, not negative; beyond the end, a run fails."""
    item = bb.emit(
        relax.op.call_pure_packed(
            "ffi.ListGetItem", sequence.variable, relax.prim_value(position), ty_args=_OBJECT
        )
    )
    element = sequence.element
    if element.dims is None:
        return bb.match_cast(item, relax.TensorType(None, element.dtype))
    sizes = [fresh_dim(f"d{axis}") if d is None else d for axis, d in enumerate(element.dims)]
    return bb.match_cast(item, relax.TensorType(sizes, element.dtype))


def inserted(bb: Any, sequence: ListValue, position: Any, tensor: Any) -> ListValue:
    """The sequence with one tensor more. `position` None appends."""
    element = sequence.element.join(element_of(relax.Tuple([tensor])))
    if position is None:
        append = _call_on_own if sequence.is_owned else _call
        args = [sequence.variable, tensor]
        return ListValue(append(bb, "sequence_append", args, _append), element)
    variable = _call_at(
        bb,
        "sequence_insert",
        [sequence.variable, tensor],
        position,
        lambda copy, place, item: call_runtime("ffi.ListInsert", copy, place, item),
    )
    return ListValue(variable, element)


def erased(bb: Any, sequence: ListValue, position: Any) -> ListValue:
    """The sequence without one tensor."""
    variable = _call_at(
        bb,
        "sequence_erase",
        [sequence.variable],
        position,
        lambda copy, place: call_runtime("ffi.ListErase", copy, place),
    )
    return ListValue(variable, sequence.element)


def _append(sequence: Any, tensor: Any) -> Any:
    return call_runtime("ffi.ListAppend", sequence, tensor)


def _call_on_own(bb: Any, name: str, args: Sequence[Any], change: Callable[..., Any]) -> Any:
    """Call the function `name` of the module, which changes its first argument."""
    params = [relax.Var(f"p{index}", _OBJECT) for index in range(len(args))]
    with building_function(bb, f"{name}_in_place", params, private=True, attributes=_PURE_OUTSIDE):
        bb.emit(change(*params), "_")
        function = bb.emit_func_output(params[0])
    return bb.emit(relax.Call(function, list(args)))


def _call(bb: Any, name: str, args: Sequence[Any], change: Callable[..., Any]) -> Any:
    """Call the function `name` of the module, which copies its first argument and changes it."""
    params = [relax.Var(f"p{index}", _OBJECT) for index in range(len(args))]
    return bb.emit(relax.Call(_function(bb, name, params, params[1:], change), list(args)))


def _call_at(
    bb: Any, name: str, args: Sequence[Any], position: Any, change: Callable[..., Any]
) -> Any:
    """Likewise, for a change at a position."""
    params = [relax.Var(f"p{index}", _OBJECT) for index in range(len(args))]
    place = fresh_dim("place")
    params.append(relax.Var("position", relax.ShapeType([place])))
    others = [relax.prim_value(place), *params[1:-1]]
    function = _function(bb, name, params, others, change)
    return bb.emit(relax.Call(function, [*args, relax.ShapeExpr([position])]))


def _function(
    bb: Any, name: str, params: Sequence[Any], others: Sequence[Any], change: Callable[..., Any]
) -> Any:
    with building_function(bb, name, params, private=True, attributes=_PURE_OUTSIDE):
        copy = bb.emit(call_runtime("ffi.List"), "copy")
        start = relax.prim_value(0)
        bb.emit(call_runtime("ffi.ListReplaceSlice", copy, start, start, params[0]), "_")
        changed = change(copy, *others)
        if changed is not None:
            bb.emit(changed, "_")
        return bb.emit_func_output(copy)
