"""Sequences whose length is known at run time, as lists of the TVM runtime.

A list is copied before it is changed, so that a sequence is a value like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, tirx

from ..kinds import element_of
from ..values import Element, ListValue, Value, as_tensor, fresh_dim
from .list_functions import call_runtime, call_shared, new_list, unique_tag

_OBJECT = relax.ObjectType()


def to_list(bb: Any, sequence: Value) -> ListValue:
    """A sequence as a list."""
    if isinstance(sequence, ListValue):
        return sequence
    tensors = [as_tensor(bb, field) for field in sequence.fields]
    return ListValue(new_list(bb, tensors), element_of(relax.Tuple(tensors)))


def copy_received(bb: Any, variable: Any, element: Element) -> ListValue:
    """A sequence that the caller of the module passes, in any object, copied to a list."""
    return ListValue(_changed_copy(bb, "sequence_copy", [variable], None), element)


def wrap_optional(bb: Any, variable: Any, element: Element) -> ListValue:
    """An optional that the caller of the module passes, a tensor or None, as a list of one item."""
    return ListValue(new_list(bb, [variable]), element, is_optional=True)


def has_element(bb: Any, optional: ListValue) -> Any:
    """Whether an optional holds a tensor, as a prim expression."""
    is_none = bb.emit(
        relax.op.call_pure_packed(
            "ffi.ListContains",
            optional.variable,
            bb.emit(relax.op.null_value()),
            ty_args=_OBJECT,
        )
    )
    vector = bb.emit(
        relax.op.call_pure_packed("ffi.Shape", is_none, ty_args=relax.ShapeType(ndim=1))
    )
    symbol = fresh_dim("is_none")
    bb.match_cast(vector, relax.ShapeType([symbol]))
    return tirx.EQ(symbol, tirx.IntImm("int64", 0))


def owned(bb: Any, sequence: ListValue) -> ListValue:
    """A copy of a sequence that may be changed in place."""
    args = [sequence.variable, unique_tag(bb)]
    return ListValue(_changed_copy(bb, "sequence_own", args, None), sequence.element)


def length(bb: Any, sequence: ListValue) -> Any:
    """The number of tensors, as a symbol."""
    count = bb.emit(relax.op.call_pure_packed("ffi.ListSize", sequence.variable, ty_args=_OBJECT))
    vector = bb.emit(relax.op.call_pure_packed("ffi.Shape", count, ty_args=relax.ShapeType(ndim=1)))
    symbol = fresh_dim(bb.get_unique_name("length"))
    bb.match_cast(vector, relax.ShapeType([symbol]))
    return symbol


def get(bb: Any, sequence: ListValue, position: Any) -> Any:
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
        if sequence.is_owned:
            return ListValue(append_in_place(bb, sequence.variable, tensor), element)
        args = [sequence.variable, tensor]
        return ListValue(_changed_copy(bb, "sequence_append", args, _append), element)
    args = [sequence.variable, relax.ShapeExpr([position]), tensor]
    return ListValue(_changed_copy(bb, "sequence_insert", args, _insert), element)


def erase(bb: Any, sequence: ListValue, position: Any) -> ListValue:
    """The sequence without the tensor at `position`."""
    args = [sequence.variable, relax.ShapeExpr([position])]
    return ListValue(_changed_copy(bb, "sequence_erase", args, _erase), sequence.element)


def _append(copy: Any, tensor: Any) -> Any:
    return call_runtime("ffi.ListAppend", copy, tensor)


def _insert(copy: Any, position: Any, tensor: Any) -> Any:
    return call_runtime("ffi.ListInsert", copy, _number(position), tensor)


def _erase(copy: Any, position: Any) -> Any:
    return call_runtime("ffi.ListErase", copy, _number(position))


def _number(position: Any) -> Any:
    """The number that a parameter of rank 1 holds."""
    return relax.prim_value(position.ty.values[0])


def append_in_place(bb: Any, sequence: Any, tensor: Any) -> Any:
    """The list, changed in place; nothing else may read it."""

    def emit(given: Any, item: Any) -> Any:
        bb.emit(call_runtime("ffi.ListAppend", given, item), "_")
        return given

    return call_shared(bb, "sequence_append_in_place", [sequence, tensor], emit)


def _changed_copy(
    bb: Any, name: str, args: Sequence[Any], change: Callable[..., Any] | None
) -> Any:
    """Calls the function `name` of the module, which copies its first argument and changes it."""

    def emit(given: Any, *others: Any) -> Any:
        copy = bb.emit(call_runtime("ffi.List"), "copy")
        start = relax.prim_value(0)
        bb.emit(call_runtime("ffi.ListReplaceSlice", copy, start, start, given), "_")
        if change is not None:
            bb.emit(change(copy, *others), "_")
        return copy

    return call_shared(bb, name, args, emit)
