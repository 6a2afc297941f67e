"""Elementwise operators on tensors whose symbolic sizes are not known to agree.

TVM's converters give these a result of unknown shape, which cannot be compiled.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from tvm import relax

from ..tvm_onnx import Converter, InputList
from ..values import as_int
from .broadcasting import align, known_dims
from .tvm_converter import convert_as_tvm

_OPERATORS = (
    "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Mean", "Or", "Pow", "Sum",
    "Where", "Xor",
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


ELEMENTWISE = MappingProxyType[str, Converter](
    {"PRelu": _prelu, **{name: _converter(name) for name in _OPERATORS}}
)
"""Those of the standard domain that have no other converter of ours."""
