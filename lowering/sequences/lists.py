"""Operations on sequences that are lists of the TVM runtime.

A list is copied before it changes, so that a sequence is a value like any other. The changes of the
copy are impure; they are in private functions whose calls are pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, relax

from ..kinds import element_of
from ..tower import call_runtime, new_list
from ..tvm_onnx import building_function
from ..values import Element, ListValue, Value, as_tensor, fresh_dim

PURE_CALLS = {"relax.force_pure": True}
"""The attribute of a function with impure operations whose calls are pure."""

_OBJECT = relax.ObjectType()


def to_list(bb: Any, sequence: Value) -> ListValue:
    """A sequence, a tuple or a list, as a list."""
    if isinstance(sequence, ListValue):
        return sequence
    tensors = [as_tensor(bb, field) for field in sequence.fields]
    return ListValue(new_list(bb, tensors), element_of(relax.Tuple(tensors)))


def copy_received(bb: Any, variable: Any, element: Element) -> ListValue:
    """A sequence that the caller of the module passes, in any object, copied to a list."""
    return ListValue(_call_on_copy(bb, "sequence_copy", [variable], lambda copy: None), element)


def length(bb: Any, sequence: ListValue) -> Any:
    """The number of tensors, as a new symbol."""
    count = bb.emit(
        relax.op.call_pure_packed("ffi.ListSize", sequence.variable, ty_args=ir.PrimType("int64"))
    )
    vector = bb.emit(relax.op.call_pure_packed("ffi.Shape", count, ty_args=relax.ShapeType(ndim=1)))
    symbol = fresh_dim("length")
    bb.match_cast(vector, relax.ShapeType([symbol]))
    return symbol


def get(bb: Any, sequence: ListValue, position: Any) -> Value:
    """One tensor; a run fails for a position beyond the end.

    `position` is a prim expression that is not negative.
    """
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


def insert(bb: Any, sequence: ListValue, position: Any, tensor: Value) -> ListValue:
    """The sequence with a tensor inserted before `position`, or appended if that is None.

    A list that no other operator reads is appended to in place.
    """
    element = sequence.element.join(element_of(relax.Tuple([tensor])))
    if position is None:
        append = _call_in_place if sequence.is_owned else _call_on_copy
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


def erase(bb: Any, sequence: ListValue, position: Any) -> ListValue:
    """The sequence without the tensor at `position`."""
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


def _call_in_place(bb: Any, name: str, args: Sequence[Any], change: Callable[..., Any]) -> Any:
    """A call of a new function of the module that changes its first argument and returns it."""
    params = [relax.Var(f"p{index}", _OBJECT) for index in range(len(args))]
    with building_function(bb, f"{name}_in_place", params, private=True, attributes=PURE_CALLS):
        bb.emit(change(*params), "_")
        function = bb.emit_func_output(params[0])
    return bb.emit(relax.Call(function, list(args)))


def _call_on_copy(bb: Any, name: str, args: Sequence[Any], change: Callable[..., Any]) -> Any:
    """A call of a new function of the module that returns a changed copy of its first argument."""
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
    """The function that applies `change(copy, *others)` to a copy of its first parameter."""
    with building_function(bb, name, params, private=True, attributes=PURE_CALLS):
        copy = bb.emit(call_runtime("ffi.List"), "copy")
        start = relax.prim_value(0)
        bb.emit(call_runtime("ffi.ListReplaceSlice", copy, start, start, params[0]), "_")
        changed = change(copy, *others)
        if changed is not None:
            bb.emit(changed, "_")
        return bb.emit_func_output(copy)
