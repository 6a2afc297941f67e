"""Cast to and from the types of eight bits, and refusal of those that TVM stores no tensors of.

TVM's conversions of float8 lose NaN and infinity, and know nothing of saturation.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
from tvm import relax, te, tirx

from ...rewrite.errors import UnsupportedError
from .tvm_converter import convert_as_tvm

_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_NOT_STORED = ("int4", "uint4", "int2", "uint2", "float4_e2m1fn")
_SIGN = 128
_INFINITY = 0x7F800000
"""The bits of a float32."""


def convert_cast(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Cast, see https://onnx.ai/onnx/operators/onnx__Cast.html."""
    target = str(onnx.helper.tensor_dtype_to_np_dtype(attrs["to"]).name)
    source = str(inputs[0].ty.dtype)
    for dtype in (source, target):
        if dtype in _NOT_STORED:
            raise UnsupportedError(f"there are no tensors of {dtype} in Relax")
    if target == "float8_e8m0fnu" and not source.startswith("float8_e8m0"):
        raise UnsupportedError("rounding to float8_e8m0fnu is not supported")
    data = inputs[0]
    if source in _FLOAT8 and target != source:
        data = _decoded(bb, data)
        if target in ("float16", "bfloat16", "float64"):
            return relax.op.astype(data, target)
    if target in _FLOAT8 and target != source:
        return _encoded(bb, data, target, saturates=bool(attrs.get("saturate", 1)))
    return convert_as_tvm("Cast", bb, [data], attrs, params)


def convert_cast_like(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """CastLike, see https://onnx.ai/onnx/operators/onnx__CastLike.html."""
    types = [str(value.ty.dtype) for value in inputs if isinstance(value.ty, relax.TensorType)]
    special = {*_FLOAT8, *_NOT_STORED, "float8_e8m0fnu"}
    if len(types) == 2 and special.intersection(types):
        target = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(types[1]))
        return convert_cast(bb, inputs[:1], {**attrs, "to": target}, params)
    return convert_as_tvm("CastLike", bb, inputs, attrs, params)


def _numbers(dtype: str, count: int) -> Any:
    """What the first codes of a type stand for, as float32."""
    kind = np.dtype(getattr(ml_dtypes, dtype))
    return np.arange(count, dtype=np.uint8).view(kind).astype(np.float32)


def _decoded(bb: Any, data: Any) -> Any:
    """The numbers that codes stand for, as float32, looked up."""
    table = relax.const(_numbers(str(data.ty.dtype), 256), "float32")

    def compute(data: Any, table: Any) -> Any:
        def element(*at: Any) -> Any:
            return table(tirx.Cast("int64", tirx.reinterpret("uint8", data(*at))))

        return te.compute(data.shape, element, name="decoded")

    return bb.normalize(bb.call_te(compute, data, table, primfunc_name_hint="decoded"))


def _encoded(bb: Any, data: Any, dtype: str, *, saturates: bool) -> Any:
    """The codes of the nearest numbers, of two that are equally near the even one."""
    if str(data.ty.dtype) == "float64":
        raise UnsupportedError(f"rounding float64 to {dtype} is not supported")
    wide = bb.normalize(relax.op.astype(data, "float32"))
    limits = _limits(dtype)
    past_all = len(limits)
    bounds = relax.const(limits, "float32")
    size = bb.normalize(relax.op.abs(wide))
    codes = bb.normalize(relax.op.bucketize(size, bounds, out_int32=True, right=False))
    has_one_zero = dtype.endswith("uz")
    of_nan = _SIGN if has_one_zero else past_all | 3

    def compute(data: Any, codes: Any) -> Any:
        def element(*at: Any) -> Any:
            value, code = data(*at), codes(*at)
            if saturates:
                code = tirx.min(code, past_all - 1)
            bits = tirx.reinterpret("uint32", value)
            magnitude = tirx.bitwise_and(bits, tirx.const(_INFINITY | 0x7FFFFF, "uint32"))
            is_negative: Any = bits != magnitude
            if has_one_zero:  # the code of the other zero is that of NaN
                is_negative = tirx.all(is_negative, code > 0, code < _SIGN)
            code = tirx.Select(is_negative, code + _SIGN, code)
            is_nan = magnitude > tirx.const(_INFINITY, "uint32")
            code = tirx.Select(is_nan, of_nan, code)
            return tirx.reinterpret(dtype, tirx.Cast("uint8", code))

        return te.compute(data.shape, element, name="encoded")

    return bb.normalize(bb.call_te(compute, wide, codes, primfunc_name_hint="encoded"))


def _limits(dtype: str) -> Any:
    """For every positive code, the greatest number that the code before it is right for.

    The last is that of the code past all finite ones, which stands for infinity or NaN.
    """
    finite = _numbers(dtype, _SIGN)
    finite = finite[np.isfinite(finite)]
    following = np.append(finite[1:], 2 * finite[-1] - finite[-2])
    middle = (finite + following) / np.float32(2)
    is_odd = np.arange(len(finite)) % 2 == 1
    return np.where(is_odd, np.nextafter(middle, np.float32(0)), middle).astype(np.float32)
