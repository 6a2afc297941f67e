"""Cast and CastLike: sizes stay symbolic, and float8 follows the ONNX specification.

TVM's conversions of float8 lose NaN and infinity, and never saturate. Types with fewer than eight
bits are stored in wider ones, see `small_types`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from tvm import relax, te, tirx

from ...rewrite.errors import UnsupportedError
from ..small_types import STORED
from ..values import Value
from .registry import Accepts, ConverterContext, converts
from .sizes import read_symbolic, write_sizes

_SIZE_TYPES = {onnx.TensorProto.INT64: "int64", onnx.TensorProto.INT32: "int32"}
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_E8M0 = "float8_e8m0fnu"
_E8M0_NAN = 255


@dataclass(frozen=True)
class SmallInteger:
    """An integer type with fewer than eight bits."""

    min: int
    max: int
    stored: str

    @property
    def bits(self) -> int:
        """The number of bits of a value."""
        return (self.max - self.min).bit_length()


SMALL_INTEGERS = {
    "int4": SmallInteger(-8, 7, "int8"),
    "uint4": SmallInteger(0, 15, "uint8"),
    "int2": SmallInteger(-2, 1, "int8"),
    "uint2": SmallInteger(0, 3, "uint8"),
}
_SIGN = 128
"""The sign bit of a float8."""
_INFINITY = 0x7F800000
"""The bits of a float32 infinity."""
_HALF_OF_BFLOAT16 = 0x7FFF
"""Just less than half of the last bit of a bfloat16, in the bits of a float32."""


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
    if len(types) == 2 and {*FLOAT8, _E8M0}.intersection(types):
        target = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(types[1]))
        return _cast_tensor(ctx.derive("Cast", to=target), ctx.inputs[0])
    return ctx.by_tvm()


def _cast_tensor(ctx: ConverterContext, data: Value) -> Value:
    target = str(onnx.helper.tensor_dtype_to_np_dtype(ctx.attrs["to"]).name)
    source = str(data.ty.dtype)
    if target == _E8M0 and source != _E8M0:
        return _encode_e8m0(ctx, data)
    if target in SMALL_INTEGERS:
        if "float" in source:
            data = _round_half_away(ctx, _cast_tensor(ctx.derive(to=onnx.TensorProto.FLOAT), data))
        return _wrap(ctx, _cast_tensor(ctx.derive(to=onnx.TensorProto.INT32), data), target)
    if target in STORED:
        _refuse_float64(data, target)
        wide = _cast_tensor(ctx.derive(to=onnx.TensorProto.FLOAT), data)
        rounded = _round_to_small_float(ctx, ctx.bb.normalize(wide), target)
        return _encode_float8(ctx, rounded, STORED[target], saturates=True)
    if source in (*FLOAT8, _E8M0) and target != source:
        data = _decode_float8(ctx, data)
        if target in ("float16", "bfloat16", "float64"):
            return relax.op.astype(data, target)
    if target in FLOAT8 and target != source:
        return _encode_float8(ctx, data, target, saturates=bool(ctx.attr("saturate", 1)))
    if source == "bfloat16" and target != source:
        # TVM 0.27 checks whether a float that becomes an integer is finite: not for bfloat16.
        data = ctx.cast(data, "float32")
    if target == "bfloat16" and target != source:
        data = _round_to_bfloat16(ctx, ctx.bb.normalize(ctx.cast(data, "float32")))
    return ctx.by_tvm([data])


def _round_to_bfloat16(ctx: ConverterContext, data: Value) -> Value:
    """float32 data rounded to the nearest numbers of bfloat16, ties to the even code.

    TVM 0.27 computes bfloat16 in float32, and drops a rounding that is only a cast.
    """

    def compute(data: Any) -> Any:
        def element(*at: Any) -> Any:
            bits = tirx.reinterpret("int32", data(*at))
            is_odd = tirx.bitwise_and(tirx.shift_right(bits, tirx.const(16, "int32")), 1)
            rounded = tirx.bitwise_and(bits + (_HALF_OF_BFLOAT16 + is_odd), ~0xFFFF)
            is_nan = tirx.bitwise_and(bits, 0x7FFFFFFF) > _INFINITY
            return tirx.Select(is_nan, data(*at), tirx.reinterpret("float32", rounded))

        return te.compute(data.shape, element, name="rounded")

    return ctx.bb.normalize(ctx.call_te(compute, data, name="round_to_bfloat16"))


def _round_half_away(ctx: ConverterContext, data: Value) -> Value:
    """float32 data rounded to the nearest integers, halves away from 0.

    The specification leaves it open how small integers are made from floats; onnxruntime does this.
    """
    whole = ctx.bb.normalize(relax.op.trunc(data))
    rest = ctx.bb.normalize(relax.op.subtract(data, whole))
    step = relax.op.trunc(ctx.bb.normalize(relax.op.multiply(rest, relax.const(2, "float32"))))
    return ctx.bb.normalize(relax.op.add(whole, ctx.bb.normalize(step)))


def _wrap(ctx: ConverterContext, data: Value, target: str) -> Value:
    """The lowest bits of int32 data as a small integer, in the type that stores it."""
    kind = SMALL_INTEGERS[target]
    period, least = (relax.const(number, "int32") for number in (1 << kind.bits, kind.min))
    moved = relax.op.floor_mod(relax.op.subtract(data, least), period)
    return relax.op.astype(ctx.bb.normalize(relax.op.add(moved, least)), kind.stored)


def _round_to_small_float(ctx: ConverterContext, data: Value, target: str) -> Value:
    """float32 data rounded to the nearest number of a small float type, ties to the even code."""
    count = 1 << (int(target.removeprefix("float")[0]) - 1)
    numbers = relax.const(_numbers(target, count), "float32")
    limits = relax.const(_rounding_limits(target, count)[:-1], "float32")
    magnitude = ctx.bb.normalize(relax.op.abs(data))
    code = ctx.bb.normalize(relax.op.bucketize(magnitude, limits, out_int32=True, right=False))
    rounded = ctx.bb.normalize(relax.op.take(numbers, code, 0))
    is_negative = relax.op.less(data, relax.const(0, "float32"))
    return ctx.bb.normalize(relax.op.where(is_negative, relax.op.negative(rounded), rounded))


def _encode_e8m0(ctx: ConverterContext, data: Value) -> Value:
    """The exponents of data, whose signs are lost, rounded as the attribute `round_mode` says."""
    wide = ctx.cast(data, "float32")
    mode, saturates = ctx.attr("round_mode", "up"), bool(ctx.attr("saturate", 1))

    def compute(data: Any) -> Any:
        def element(*at: Any) -> Any:
            bits = tirx.reinterpret("int32", data(*at))
            exponent = tirx.bitwise_and(tirx.shift_right(bits, tirx.const(23, "int32")), 255)
            rest = tirx.bitwise_and(bits, 0x7FFFFF)
            goes_up: Any = rest > 0
            if mode == "down":
                goes_up = tirx.const(False, "bool")
            elif mode == "nearest":
                goes_up = tirx.any(rest > 0x400000, tirx.all(rest == 0x400000, exponent > 0))
            largest = _E8M0_NAN - 1 if saturates else _E8M0_NAN
            rounded = tirx.min(exponent + tirx.Select(goes_up, 1, 0), largest)
            code = tirx.Select(exponent == _E8M0_NAN, _E8M0_NAN, rounded)
            return tirx.reinterpret(_E8M0, tirx.Cast("uint8", code))

        return te.compute(data.shape, element, name="encoded")

    return ctx.call_te(compute, wide, name="encoded")


def _numbers(dtype: str, count: int) -> npt.NDArray[Any]:
    """The float32 values of the first `count` codes of a float type."""
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
    """Data rounded to the nearest float8, ties to the even code."""
    _refuse_float64(data, dtype)
    wide = ctx.bb.normalize(relax.op.astype(data, "float32"))
    limits = _rounding_limits(dtype, _SIGN)
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


def _refuse_float64(data: Value, dtype: str) -> None:
    """Raises UnsupportedError for float64 data, which would be rounded to float32 first."""
    if str(data.ty.dtype) == "float64":
        raise UnsupportedError(f"rounding float64 to {dtype} is not supported")


def _rounding_limits(dtype: str, count: int) -> npt.NDArray[Any]:
    """For each of `count` positive codes, the largest number that rounds to the code before it.

    The last entry is for the code after all finite ones, which encodes infinity or NaN.
    """
    finite = _numbers(dtype, count)
    finite = finite[np.isfinite(finite)]
    following = np.append(finite[1:], 2 * finite[-1] - finite[-2])
    middle = (finite + following) / np.float32(2)
    is_odd = np.arange(len(finite)) % 2 == 1
    below: npt.NDArray[Any] = np.where(is_odd, np.nextafter(middle, np.float32(0)), middle)
    return below.astype(np.float32)
