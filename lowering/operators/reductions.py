"""Reductions along axes that may have no elements.

A kernel of TVM writes the neutral element when it meets the first element of an axis. Where there
is none, the result is whatever the memory held before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from tvm import relax, sym, te, tirx

from ...rewrite.errors import UnsupportedError
from ..tvm_onnx import Converter, InputList
from ..values import as_int, as_tensor
from .broadcasting import known_dims
from .extremes import reduce_extreme
from .reduction_axes import gather_reduced, sizes_left
from .sizes import is_nonnegative
from .tvm_converter import convert_as_tvm, known_content


def may_be_zero(size: Any) -> bool:
    """Whether a size is not known to be at least 1."""
    known = as_int(size)
    if known is not None:
        return known < 1
    return not is_nonnegative(sym.Analyzer().simplify(size - 1))


def where_empty(bb: Any, tensor: Any, sizes: Sequence[Any], value: float) -> Any:
    """The tensor, or one of equal shape that is full of `value` if one of the sizes is 0."""
    uncertain = [size for size in sizes if may_be_zero(size)]
    dims = known_dims(tensor)
    if not uncertain or dims is None:
        return tensor
    dtype = str(tensor.ty.dtype)
    if any(as_int(size) == 0 for size in uncertain):
        return bb.normalize(relax.op.full(relax.ShapeExpr(dims), relax.const(value, dtype), dtype))

    def select(data: Any, sizes: Sequence[Any]) -> Any:
        is_empty = tirx.any(*(size == 0 for size in sizes))
        filling = tirx.const(value, dtype)
        return te.compute(
            data.shape,
            lambda *indices: tirx.Select(is_empty, filling, data(*indices)),
            name="unless_empty",
        )

    call = bb.call_te(select, tensor, uncertain, primfunc_name_hint="unless_empty")
    return bb.normalize(call)


def convert_reduction(
    op_type: str, bb: Any, inputs: Any, attrs: dict[str, Any], params: Any
) -> Any:
    """A reduction of the standard domain, as onnxruntime defines it for empty axes."""
    tensors = InputList([None if value is None else as_tensor(bb, value) for value in inputs])
    if str(tensors[0].ty.dtype) == "bool":  # TVM has no least and no greatest bool
        tensors[0] = bb.normalize(relax.op.astype(tensors[0], "uint8"))
        result = bb.normalize(convert_reduction(op_type, bb, tensors, attrs, params))
        return relax.op.astype(result, "bool")
    if tensors[1] is not None and known_content(tensors[1], params) is None:
        return _along_computed_axes(op_type, bb, tensors, attrs, params)
    dims = known_dims(tensors[0])
    axes = _axes(tensors[1], attrs, params)
    if dims is None or (not axes and attrs.get("noop_with_empty_axes", 0)):
        return convert_as_tvm(op_type, bb, tensors, attrs, params)
    axes = axes or list(range(len(dims)))
    if op_type in _EXTREMES and axes and "float" in str(tensors[0].ty.dtype):
        keepdims = bool(attrs.get("keepdims", 1))
        greatest = op_type == "ReduceMax"
        result = reduce_extreme(bb, tensors[0], axes, greatest=greatest, keepdims=keepdims)
    else:
        result = bb.normalize(convert_as_tvm(op_type, bb, tensors, attrs, params))
    reduced = [dims[axis] for axis in axes]
    return where_empty(bb, result, reduced, _OF_NOTHING[op_type](str(result.ty.dtype)))


def _along_computed_axes(
    op_type: str, bb: Any, inputs: Any, attrs: dict[str, Any], params: Any
) -> Any:
    data, axes = inputs[0], inputs[1]
    if attrs.get("noop_with_empty_axes", 0) and may_be_zero((known_dims(axes) or [0])[0]):
        raise UnsupportedError("whether there are axes to reduce is not known")
    gathered = gather_reduced(bb, data, axes)
    last = relax.const([data.ty.ndim], "int64")
    without = {**attrs, "keepdims": 0}
    result = convert_reduction(op_type, bb, InputList([gathered, last]), without, params)
    if attrs.get("keepdims", 1):
        return result
    return relax.op.reshape(bb.normalize(result), relax.ShapeExpr(sizes_left(bb, data, axes)))


def _axes(given: Any, attrs: dict[str, Any], params: Any) -> list[int]:
    """The reduced axes; none stand for all."""
    if "axes" in attrs:
        return list(attrs["axes"])
    content = known_content(given, params)
    return [] if content is None else [int(axis) for axis in content]


def lowest(dtype: str) -> float:
    """The least number of a type."""
    kind = np.dtype(dtype)
    return int(np.iinfo(kind).min) if kind.kind in "iu" else -np.inf


def _highest(dtype: str) -> float:
    kind = np.dtype(dtype)
    return int(np.iinfo(kind).max) if kind.kind in "iu" else np.inf


_EXTREMES = ("ReduceMax", "ReduceMin")


def _zero(_: str) -> float:
    return 0


def _one(_: str) -> float:
    return 1


_OF_NOTHING: dict[str, Callable[[str], float]] = {
    "ReduceL1": _zero,
    "ReduceL2": _zero,
    "ReduceLogSum": lowest,
    "ReduceLogSumExp": lowest,
    "ReduceMax": lowest,
    "ReduceMean": _zero,
    "ReduceMin": _highest,
    "ReduceProd": _one,
    "ReduceSum": _zero,
    "ReduceSumSquare": _zero,
}
"""What a reduction of no elements gives, by the type of the result."""


def _converter(op_type: str) -> Converter:
    def convert(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
        return convert_reduction(op_type, bb, inputs, attrs, params)

    return convert


REDUCTIONS = MappingProxyType[str, Converter]({name: _converter(name) for name in _OF_NOTHING})
"""All of the standard domain but those that give positions."""
