"""Elementwise operators on tensors whose symbolic sizes are not known to agree.

TVM's converters give these a result of unknown shape, which cannot be compiled.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
from tvm import relax

from ...rewrite.errors import UnsupportedError
from ..tvm_onnx import Converter, InputList
from ..values import as_int
from .broadcasting import align, known_dims
from .tvm_converter import convert_as_tvm

_OPERATORS = (
    "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Mean", "Or", "Sum", "Where",
    "Xor",
)  # fmt: skip

_EXTREMES = MappingProxyType({"Max": relax.op.maximum, "Min": relax.op.minimum})
"""Operators whose converters broadcast all inputs, stack them, and never give an infinity."""


def convert_elementwise(
    op_type: str, bb: Any, inputs: Any, attrs: dict[str, Any], params: Any
) -> Any:
    """TVM's converter, on inputs broadcast beforehand where it would not know the shape."""
    if op_type in _EXTREMES:
        return functools.reduce(functools.partial(_extreme, bb, _EXTREMES[op_type]), inputs)
    result = bb.normalize(convert_as_tvm(op_type, bb, inputs, attrs, params))
    if not lacks_shape(result):
        return result
    aligned = align(bb, inputs)
    if aligned is None:
        return result
    return convert_as_tvm(op_type, bb, aligned, attrs, params)


def _extreme(bb: Any, choose: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """The greater or lesser of two tensors; of a NaN on the left, the right one."""
    result = bb.normalize(choose(left, right))
    aligned = align(bb, [left, right]) if lacks_shape(result) else None
    if aligned is not None:
        left, right = aligned
        result = bb.normalize(choose(left, right))
    return result


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


def _bit_shift(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """By an amount that is negative, or no less than there are bits, all bits are shifted out."""
    data, amount = inputs[0], inputs[1]
    dtype = str(amount.ty.dtype)
    last, zero = (relax.const(number, dtype) for number in (np.iinfo(dtype).bits - 1, 0))
    is_out = relax.op.greater(amount, last)
    if not dtype.startswith("u"):
        is_out = relax.op.logical_or(is_out, relax.op.less(amount, zero))
    is_out = bb.normalize(is_out)
    clamped = InputList([data, bb.normalize(relax.op.where(is_out, last, amount))])
    shifted = bb.normalize(convert_elementwise("BitShift", bb, clamped, attrs, params))
    if attrs["direction"] == b"RIGHT" and not dtype.startswith("u"):
        return shifted  # the sign in every bit, as shifting by all bits but one gives
    return convert_elementwise("Where", bb, InputList([is_out, zero, shifted]), attrs, params)


def convert_modulo(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Mod; what divides decides the sign, and dividing by infinity leaves what is divided."""
    dtype = inputs[1].ty.dtype
    if attrs.get("fmod", 0) or "float" not in str(dtype):
        return convert_elementwise("Mod", bb, inputs, attrs, params)
    aligned = align(bb, inputs)
    if aligned is None:
        raise UnsupportedError("the shapes are not known")
    rest = bb.normalize(convert_as_tvm("Mod", bb, aligned, {**attrs, "fmod": 1}, params))
    zero, divisor = relax.const(0, dtype), aligned[1]
    signs = [bb.normalize(relax.op.less(value, zero)) for value in (rest, divisor)]
    differs = relax.op.logical_and(relax.op.logical_xor(*signs), relax.op.not_equal(rest, zero))
    return relax.op.where(bb.normalize(differs), relax.op.add(rest, divisor), rest)


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
        "BitShift": _bit_shift,
        "IsInf": _is_infinite,
        "PRelu": _prelu,
        "Pow": _power,
        **{name: _converter(name) for name in _OPERATORS},
    }
)
"""Those of the standard domain that have no other converter of ours."""
