"""The values that flow between nodes during emission, and how they turn into tensors.

TVM's converters keep shapes symbolic. Besides tensors (a variable, a call that is not bound yet, or
a constant) a value may be
- a `ShapeExpr`, or a variable of `ShapeType`: an int64 vector of sizes;
- a prim expression: an int64 or bool scalar computed from sizes;
- `Sizes`: either of them in a narrower type, or a matrix, for which Relax has no form;
- a `relax.Tuple`: an ONNX sequence whose length is known;
- `ListValue`: an ONNX sequence whose length is known at run time;
- `EmptyOptional`: an ONNX optional without a value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax, tirx

from .tvm_onnx import EmptyOptional, building_function

Value = Any
"""Any of the above. TVM has no type annotations."""

ANY_SIZE = tvm.ir.Range(tirx.IntImm("int64", 0), tirx.IntImm("int64", 1 << 48))
"""More than any memory holds, and few enough that the sums of sizes do not overflow."""

Constant: Any = tvm.ir.GenericConst
"""A tensor whose elements are known at import."""


@dataclass(frozen=True, eq=False)
class Sizes:
    """A tensor of integers computed from sizes: mostly a vector or a scalar."""

    items: list[Any]
    """int64 prim expressions in row-major order, whatever the type of the value."""
    shape: tuple[int, ...]
    dtype: str = "int64"

    @classmethod
    def vector(cls, items: Sequence[Any], dtype: str = "int64") -> Sizes:
        """A tensor of one axis."""
        return cls(list(items), (len(items),), dtype)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def places(self) -> npt.NDArray[np.int64]:
        """The place of each item in `items`, in the shape of the tensor."""
        return np.arange(len(self.items)).reshape(self.shape)

    def at(self, places: npt.NDArray[np.int64]) -> Sizes:
        """The items at these places, in the shape of the places."""
        items = [self.items[place] for place in places.reshape(-1).tolist()]
        return replace(self, items=items, shape=places.shape)


@dataclass(frozen=True)
class Element:
    """The type that all tensors of a sequence share, as far as it is known."""

    dtype: str | None
    dims: tuple[int | None, ...] | None = None
    """Sizes, None where they differ or are not known; None as a whole if the rank is not known."""
    is_empty: bool = False
    """Whether there is no tensor yet, so that any shape fits."""

    def join(self, other: Element) -> Element:
        """The type that tensors of this and of the other type share."""
        dtype = self.dtype if self.dtype == other.dtype else None
        if self.is_empty or other.is_empty:
            kept = other if self.is_empty else self
            return Element(dtype or kept.dtype, kept.dims, kept.is_empty)
        if self.dims is None or other.dims is None or len(self.dims) != len(other.dims):
            return Element(dtype)
        pairs = zip(self.dims, other.dims, strict=True)
        return Element(dtype, tuple(a if a == b else None for a, b in pairs))


@dataclass(frozen=True, eq=False)
class ListValue:
    """A sequence of tensors as an object of the TVM runtime. Operators return a new object."""

    variable: Any
    """Of type `R.Object`."""
    element: Element
    is_owned: bool = False
    """Whether its only reader is an operator that may change it in place."""
    is_optional: bool = False
    """Whether it stands for an optional: its one item is the tensor, or None."""


@dataclass(frozen=True, eq=False)
class Received:
    """A sequence as the caller of `main` passes it: a list, a tuple or an array of the runtime."""

    variable: Any
    element: Element
    is_optional: bool = False
    """Whether it is a tensor or None instead."""


def is_tensor(value: Value) -> bool:
    """Whether a value is a tensor."""
    return isinstance(getattr(value, "ty", None), relax.TensorType)


def is_sequence(value: Value) -> bool:
    """Whether a value is a sequence: a tuple of tensors, or a list."""
    return isinstance(value, ListValue | relax.Tuple)


def is_prim(value: Value) -> bool:
    """Whether a value is a scalar computed from sizes."""
    return bool(tvm.ir.is_prim_expr(value))


def is_shape(value: Value) -> bool:
    """Whether a value is a vector of sizes."""
    return isinstance(value, relax.Expr) and isinstance(value.ty, relax.ShapeType)


def as_int(expression: Value) -> int | None:
    """The value of a constant prim expression; None for others."""
    return int(expression) if isinstance(expression, tirx.IntImm | int) else None


def as_tensor(bb: Any, value: Value) -> Value:
    """The same value, with sizes as a tensor that is computed at run time."""
    if is_tensor(value) or isinstance(value, EmptyOptional | ListValue):
        return value
    if isinstance(value, Sizes):
        wide = as_tensor(bb, relax.ShapeExpr(value.items))
        if value.rank != 1:
            wide = bb.normalize(relax.op.reshape(wide, value.shape))
        return bb.normalize(relax.op.astype(wide, value.dtype))
    if is_prim(value):
        return _scalar_tensor(bb, value)
    if is_shape(value):
        return _size_tensor(bb, value)
    if isinstance(value, relax.Tuple):
        return relax.Tuple([as_tensor(bb, field) for field in value.fields])
    return value


def _size_tensor(bb: Any, value: Value) -> Value:
    if isinstance(value, relax.ShapeExpr):
        sizes = [as_int(size) for size in value.values]
        if None not in sizes:
            return relax.const(np.array(sizes, dtype="int64"), "int64")
    return bb.normalize(relax.op.shape_to_tensor(value))


def _scalar_tensor(bb: Any, value: Value) -> Value:
    dtype = str(value.ty)
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return relax.const(value.value, dtype)
    size = value if dtype == "int64" else tirx.Cast("int64", value)
    vector = relax.op.shape_to_tensor(relax.ShapeExpr([size]))
    scalar = relax.op.reshape(bb.normalize(vector), ())
    return bb.normalize(scalar if dtype == "int64" else relax.op.astype(scalar, dtype))


def fresh_dim(hint: str) -> Any:
    """A new symbol for a size."""
    return tirx.Var(hint, "int64")


def match(bb: Any, value: Value, kind: Any) -> Value:
    """A tensor or shape cast to a type; the cast is checked at run time.

    A call is bound first. Known sizes are dropped first, because TVM would replace the symbols of
    one type by those of the other, even before these are computed.
    """
    bound = value if isinstance(value, relax.Var | Constant) else bb.emit(value)
    if isinstance(bound.ty, relax.TensorType) and isinstance(bound.ty.shape, relax.ShapeExpr):
        bound = _without_sizes(
            bb, bound, relax.TensorType(None, bound.ty.dtype, ndim=bound.ty.ndim)
        )
    elif isinstance(bound.ty, relax.ShapeType) and bound.ty.values is not None:
        bound = _without_sizes(bb, bound, relax.ShapeType(ndim=bound.ty.ndim))
    return bb.match_cast(bound, kind)


def _without_sizes(bb: Any, value: Value, kind: Any) -> Value:
    """The same value without sizes in its type: the result of a function that takes any sizes."""
    param = relax.Var("value", kind)
    with building_function(bb, "any_sizes", [param], private=True):
        function = bb.emit_func_output(param)
    return bb.emit(relax.Call(function, [value]))


def with_sizes(kind: Any) -> Any:
    """A tensor type with a new symbol for each size, if the rank is known."""
    if kind.ndim < 0:
        return kind
    return relax.TensorType([fresh_dim(f"d{axis}") for axis in range(kind.ndim)], kind.dtype)


def with_shape(bb: Any, value: Value) -> Value:
    """A tensor whose sizes have symbols, new ones if its type has only a rank.

    Most converters need a shape, which may be symbolic.
    """
    if not is_tensor(value) or value.ty.ndim < 0 or isinstance(value.ty.shape, relax.ShapeExpr):
        return value
    return match(bb, value, with_sizes(value.ty))


def describe(value: Value) -> str:
    """A value's type, for messages."""
    if value is None:
        return "absent"
    if isinstance(value, EmptyOptional):
        return "empty optional"
    if isinstance(value, Sizes):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, ListValue):
        return "a sequence"
    kind = value.ty
    if not isinstance(kind, relax.TensorType):
        return str(kind)
    dtype = str(kind.dtype) if kind.dtype is not None else "unknown type"
    if kind.ndim < 0:
        return f"{dtype} of unknown rank"
    if not isinstance(kind.shape, relax.ShapeExpr):
        return f"{dtype} of rank {kind.ndim}"
    return f"{dtype}[{', '.join(_shown(size) for size in kind.shape.values)}]"


def _shown(size: Any) -> str:
    number = as_int(size)
    return re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(size)) if number is None else str(number)


def flatten(values: Sequence[Value]) -> list[Value]:
    """The leaves of values that may be sequences."""
    leaves: list[Value] = []
    for value in values:
        if isinstance(value, relax.Tuple):
            leaves.extend(flatten(list(value.fields)))
        elif isinstance(value, ListValue):
            leaves.append(value.variable)
        else:
            leaves.append(value)
    return leaves
