"""Elementwise operators on tensors whose symbolic sizes are not known to agree.

TVM's converters give these a result of unknown shape, which cannot be compiled.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

from tvm import relax

from ..tvm_onnx import Converter, InputList
from ..values import as_int
from .broadcasting import align, known_dims
from .tvm_converter import convert_as_tvm

_OPERATORS = (
    "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Mean", "Or", "Sum", "Where",
    "Xor",
)  # fmt: skip

_STATIC_ONLY = frozenset({"Max", "Min"})
"""Operators whose converters refuse to broadcast a size that may or may not be 1."""


def convert_elementwise(
    op_type: str, bb: Any, inputs: Any, attrs: dict[str, Any], params: Any
) -> Any:
    """TVM's converter, on inputs broadcast beforehand where it would not know the shape."""
    if op_type in _STATIC_ONLY:
        return convert_as_tvm(op_type, bb, align(bb, inputs) or inputs, attrs, params)
    result = bb.normalize(convert_as_tvm(op_type, bb, inputs, attrs, params))
    if not lacks_shape(result):
        return result
    aligned = align(bb, inputs)
    if aligned is None:
        return result
    return convert_as_tvm(op_type, bb, aligned, attrs, params)


def lacks_shape(value: Any) -> bool:
    """Whether TVM could not derive the shape of a result."""
    return isinstance(value.ty, relax.TensorType) and value.ty.shape is None


def _converter(op_type: str) -> Converter:
    def convert(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
        return convert_elementwise(op_type, bb, inputs, attrs, params)

    return convert


def _prelu(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Before version 7 there was no broadcasting: several slopes are those of the channels."""
    data, slope = inputs[0], inputs[1]
    dims = known_dims(slope)
    is_per_channel = dims is not None and len(dims) == 1 and as_int(dims[0]) != 1
    if attrs["tvm_custom"]["opset"] < 7 and is_per_channel:
        shape = [*(dims or []), *[1] * (data.ty.ndim - 2)]
        slope = bb.normalize(relax.op.reshape(slope, shape))
    return convert_elementwise("PRelu", bb, InputList([data, slope]), attrs, params)


def _power(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """The base and the exponent may differ in type; powers of integers are computed as doubles."""
    base, exponent = inputs[0], inputs[1]
    dtype = base.ty.dtype
    kind = str(dtype) if "float" in str(dtype) else "float64"
    operands = [
        value if str(value.ty.dtype) == kind else bb.normalize(relax.op.astype(value, kind))
        for value in (base, exponent)
    ]
    result = convert_elementwise("Pow", bb, InputList(operands), attrs, params)
    return result if kind == str(dtype) else relax.op.astype(bb.normalize(result), dtype)


def _is_infinite(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """TVM's converter ignores which of the two infinities are asked for."""
    wanted = attrs.get("detect_negative", 1), attrs.get("detect_positive", 1)
    if all(wanted):
        return convert_as_tvm("IsInf", bb, inputs, attrs, params)
    if not any(wanted):
        return relax.op.full_like(inputs[0], relax.const(False, "bool"), "bool")
    infinity = relax.const(-math.inf if wanted[0] else math.inf, inputs[0].ty.dtype)
    return relax.op.equal(inputs[0], infinity)


ELEMENTWISE = MappingProxyType[str, Converter](
    {
        "IsInf": _is_infinite,
        "PRelu": _prelu,
        "Pow": _power,
        **{name: _converter(name) for name in _OPERATORS},
    }
)
"""Those of the standard domain that have no other converter of ours."""
