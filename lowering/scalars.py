"""Conditions and trip counts: tensors of one element, whatever their rank."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..rewrite.errors import ModelError
from .values import ListValue, Value, as_int, as_tensor, describe, fresh_dim


def scalar(bb: Any, value: Value, dtype: str, role: str, where: str) -> Value:
    """A value of one element as a tensor without dimensions.

    Raises ModelError for another type than `dtype`, or for more or fewer elements as far as that
    is known; `role` is what it is to the node at `where`.
    """
    tensor = None
    if not isinstance(value, ListValue | relax.Tuple):
        tensor = bb.normalize(as_tensor(bb, value))
    if tensor is None or str(tensor.ty.dtype) != dtype or _has_other_size(tensor):
        wanted = f"one element of type {dtype} is needed"
        raise ModelError(f"the {role} is {describe(value)}, where {wanted}", where=where)
    if tensor.ty.ndim == 0:
        return tensor
    return bb.normalize(relax.op.reshape(tensor, ()))


def as_size(bb: Any, value: Value) -> Any:
    """An int64 scalar as a symbol."""
    vector = bb.emit(relax.op.reshape(value, (1,)))
    symbol = fresh_dim(bb.get_unique_name("count"))
    bb.match_cast(bb.emit(relax.op.tensor_to_shape(vector)), relax.ShapeType([symbol]))
    return symbol


def _has_other_size(tensor: Any) -> bool:
    if not isinstance(tensor.ty.shape, relax.ShapeExpr):
        return False
    return any(as_int(size) not in (None, 1) for size in tensor.ty.shape.values)
