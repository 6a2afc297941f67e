"""Cast and CastLike: sizes stay symbolic, and float8 follows the ONNX specification.

TVM's conversions of float8 lose NaN and infinity, and never saturate. TVM has no tensors of types
with fewer than eight bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from tvm import relax, te, tirx

from ...rewrite.errors import UnsupportedError
from ..values import Value
from .registry import Accepts, ConverterContext, converts
from .sizes import read_symbolic, write_sizes

_SIZE_TYPES = {onnx.TensorProto.INT64: "int64", onnx.TensorProto.INT32: "int32"}
_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_E8M0 = "float8_e8m0fnu"
_NOT_STORED = ("int4", "uint4", "int2", "uint2", "float4_e2m1fn")
_SIGN = 128
"""The sign bit of a float8."""
_INFINITY = 0x7F800000
"""The bits of a float32 infinity."""


@converts("Cast", accepts=Accepts.SYMBOLIC)
def cast(ctx: ConverterContext) -> Value:
    """Cast, see https://onnx.ai/onnx/operators/onnx__Cast.html."""
    dtype, sizes = _SIZE_TYPES.get(ctx.attrs["to"]), read_symbolic(ctx.inputs)
    if dtype is not None and sizes:
        return write_sizes(replace(sizes[0], dtype=dtype))
    return _cast_tensor(ctx, ctx.tensor(0))


@converts("CastLike", accepts=Accepts.SIZES)
def cast_like(ctx: ConverterContext) -> Value:
    """CastLike, see https://onnx.ai/onnx/operators/onnx__CastLike.html."""
    types = [str(value.ty.dtype) for value in ctx.inputs if isinstance(value.ty, relax.TensorType)]
    if len(types) == 2 and {*_FLOAT8, *_NOT_STORED, _E8M0}.intersection(types):
        target = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(types[1]))
        return _cast_tensor(ctx.derive("Cast", to=target), ctx.inputs[0])
    return ctx.by_tvm()


def _cast_tensor(ctx: ConverterContext, data: Value) -> Value:
    target = str(onnx.helper.tensor_dtype_to_np_dtype(ctx.attrs["to"]).name)
    source = str(data.ty.dtype)
    for dtype in (source, target):
        if dtype in _NOT_STORED:
            raise UnsupportedError(f"Relax has no tensors of {dtype}")
    if target == _E8M0 and source != _E8M0:
        raise UnsupportedError(f"rounding to {_E8M0} is not supported")
    if source in _FLOAT8 and target != source:
        data = _decode_float8(ctx, data)
        if target in ("float16", "bfloat16", "float64"):
            return relax.op.astype(data, target)
    if target in _FLOAT8 and target != source:
        return _encode_float8(ctx, data, target, saturates=bool(ctx.attr("saturate", 1)))
    return ctx.by_tvm([data])


def _numbers(dtype: str, count: int) -> npt.NDArray[Any]:
    """The float32 values of the first `count` codes of a float8 type."""
    kind = np.dtype(getattr(ml_dtypes, dtype))
    codes: npt.NDArray[Any] = np.arange(count, dtype=np.uint8).view(kind)
    return codes.astype(np.float32)


def _decode_float8(ctx: ConverterContext, data: Value) -> Value:
    """float8 data as float32, by a look-up table."""
    table = relax.const(_numbers(str(data.ty.dtype), 256), "float32")

    def compute(data: Any, table: Any) -> Any:
        def element(*at: Any) -> Any:
            return table(tirx.Cast("int64", tirx.reinterpret("uint8", data(*at))))

        return te.compute(data.shape, element, name="decoded")

    return ctx.call_te(compute, data, table, name="decoded")


def _encode_float8(ctx: ConverterContext, data: Value, dtype: str, *, saturates: bool) -> Value:
    """Data rounded to the nearest float8, ties to the even code.

    Raises UnsupportedError for float64, which would be rounded twice.
    """
    if str(data.ty.dtype) == "float64":
        raise UnsupportedError(f"rounding float64 to {dtype} is not supported")
    wide = ctx.bb.normalize(relax.op.astype(data, "float32"))
    limits = _rounding_limits(dtype)
    overflow = len(limits)
    bounds = relax.const(limits, "float32")
    magnitudes = ctx.bb.normalize(relax.op.abs(wide))
    bucket = relax.op.bucketize(magnitudes, bounds, out_int32=True, right=False)
    codes = ctx.bb.normalize(bucket)
    has_one_zero = dtype.endswith("uz")
    nan = _SIGN if has_one_zero else overflow | 3

    def compute(data: Any, codes: Any) -> Any:
        def element(*at: Any) -> Any:
            value, code = data(*at), codes(*at)
            if saturates:
                code = tirx.min(code, overflow - 1)
            bits = tirx.reinterpret("uint32", value)
            magnitude = tirx.bitwise_and(bits, tirx.const(_INFINITY | 0x7FFFFF, "uint32"))
            is_negative: Any = bits != magnitude
            if has_one_zero:  # the code of negative zero is that of NaN
                is_negative = tirx.all(is_negative, code > 0, code < _SIGN)
            code = tirx.Select(is_negative, code + _SIGN, code)
            is_nan = magnitude > tirx.const(_INFINITY, "uint32")
            code = tirx.Select(is_nan, nan, code)
            return tirx.reinterpret(dtype, tirx.Cast("uint8", code))

        return te.compute(data.shape, element, name="encoded")

    return ctx.call_te(compute, wide, codes, name="encoded")


def _rounding_limits(dtype: str) -> npt.NDArray[Any]:
    """For every positive code, the largest number that rounds to the code before it.

    The last entry is for the code after all finite ones, which encodes infinity or NaN.
    """
    finite = _numbers(dtype, _SIGN)
    finite = finite[np.isfinite(finite)]
    following = np.append(finite[1:], 2 * finite[-1] - finite[-2])
    middle = (finite + following) / np.float32(2)
    is_odd = np.arange(len(finite)) % 2 == 1
    below: npt.NDArray[Any] = np.where(is_odd, np.nextafter(middle, np.float32(0)), middle)
    return below.astype(np.float32)
