"""Quantised operators: QuantizeLinear and DequantizeLinear, and products of quantised tensors.

Products are sums of int32, so they are exact. Scales and zero points are one number, one for each
entry of an axis, or one for each block of an axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from tvm import relax, te, tirx

from ...rewrite.errors import UnsupportedError
from ..scheduling.products.few_bits import FEW_BITS
from ..small_types import dtype_name
from ..values import Constant, Value, as_int
from .broadcasting import ONE, dims_of
from .casts import FLOAT8, SMALL_INTEGERS
from .convolution import conv_of_bytes
from .matmul import BYTE_TYPES
from .registry import ConverterContext, converts

_HAS_PRECISION = 23
"""The opset since which QuantizeLinear divides in the type of the scale, or in `precision`."""


@converts("DynamicQuantizeLinear")
def dynamic_quantize_linear(ctx: ConverterContext) -> Value:
    """DynamicQuantizeLinear, see https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html.

    Where all data is 0, the scale is 1 and the result 0, as in onnxruntime; as specified, the scale
    would be 0.
    """
    bb, data = ctx.bb, ctx.inputs[0]
    zero, one, most = (relax.const(number, "float32") for number in (0, 1, 255))
    highest = bb.normalize(relax.op.maximum(zero, relax.op.max(data)))
    lowest = bb.normalize(relax.op.minimum(zero, relax.op.min(data)))
    scale = relax.op.divide(relax.op.subtract(highest, lowest), most)
    scale = bb.emit(relax.op.where(relax.op.equal(highest, lowest), one, scale))
    shift = relax.op.clip(relax.op.negative(relax.op.divide(lowest, scale)), 0, 255)
    zero_point = bb.emit(relax.op.astype(relax.op.round(shift), "uint8"))
    result = relax.op.quantize(data, scale, zero_point, axis=0, out_dtype="uint8")
    return relax.Tuple([result, scale, zero_point])


@converts("DequantizeLinear")
def dequantize_linear(ctx: ConverterContext) -> Value:
    """DequantizeLinear, see https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html.

    Computed in float32, as in ONNX's reference implementation.
    """
    data, scale, zero = (ctx.inputs[slot] for slot in range(3))
    target = _output_type(ctx, str(scale.ty.dtype))
    wide = _widened(ctx, data, "float32")
    if zero is not None:
        zero = _aligned(ctx, _widened(ctx, zero, "float32"), data)
        wide = ctx.apply("Sub", wide, zero)
    factor = _aligned(ctx, ctx.cast(scale, "float32"), data)
    return ctx.cast(ctx.apply("Mul", wide, factor), target)


@converts("QuantizeLinear")
def quantize_linear(ctx: ConverterContext) -> Value:
    """QuantizeLinear, see https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html.

    Rounds half to even, and saturates.
    """
    data, scale, zero = (ctx.inputs[slot] for slot in range(3))
    target = _output_type(ctx, "uint8" if zero is None else str(zero.ty.dtype))
    factor = _aligned(ctx, ctx.cast(scale, "float32"), data)
    quotient = ctx.apply("Div", ctx.cast(data, "float32"), factor)
    if ctx.opset >= _HAS_PRECISION:
        # The quotient of narrow types, rounded to float32 first, is still the nearest one.
        precision = ctx.attr("precision", 0)
        narrow = dtype_name(precision) if precision else str(scale.ty.dtype)
        quotient = ctx.cast(ctx.cast(quotient, narrow), "float32")
    if target in FLOAT8 or target == "float4_e2m1fn":
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(target))
        return ctx.apply("Cast", quotient, to=kind, saturate=ctx.attr("saturate", 1))
    if zero is not None:
        zero = _aligned(ctx, zero, data)
    return _saturate(ctx, quotient, zero, target)


@converts("ConvInteger")
def conv_integer(ctx: ConverterContext) -> Value:
    """ConvInteger, see https://onnx.ai/onnx/operators/onnx__ConvInteger.html."""
    data, kernel, data_zero, kernel_zero = (ctx.inputs[slot] for slot in range(4))
    return _integer_conv(ctx, (data, data_zero), (kernel, kernel_zero))


@converts("QLinearConv")
def qlinear_conv(ctx: ConverterContext) -> Value:
    """QLinearConv, see https://onnx.ai/onnx/operators/onnx__QLinearConv.html."""
    data, data_scale, data_zero, kernel, kernel_scale, kernel_zero = ctx.inputs[:6]
    scale, zero, bias = (ctx.inputs[slot] for slot in (6, 7, 8))
    total = _integer_conv(ctx, (data, data_zero), (kernel, kernel_zero))
    rank = data.ty.ndim
    if bias is not None:
        total = ctx.apply("Add", total, _per_channel(ctx, bias, rank))
    per_kernel = _per_channel(ctx, kernel_scale, rank) if kernel_scale.ty.ndim else kernel_scale
    return _requantize(ctx, total, (data_scale, per_kernel, scale), zero)


@converts("MatMulInteger")
def matmul_integer(ctx: ConverterContext) -> Value:
    """MatMulInteger, see https://onnx.ai/onnx/operators/onnx__MatMulInteger.html."""
    left, right, left_zero, right_zero = (ctx.inputs[slot] for slot in range(4))
    return _integer_matmul(ctx, (left, _per_row(ctx, left_zero, left)), (right, right_zero))


@converts("QLinearMatMul")
def qlinear_matmul(ctx: ConverterContext) -> Value:
    """QLinearMatMul, see https://onnx.ai/onnx/operators/onnx__QLinearMatMul.html."""
    left, left_scale, left_zero, right, right_scale, right_zero, scale, zero = ctx.inputs[:8]
    # One number for each row of the left and each column of the right matrices.
    left_scale, left_zero = (_per_row(ctx, value, left) for value in (left_scale, left_zero))
    total = _integer_matmul(ctx, (left, left_zero), (right, right_zero))
    return _requantize(ctx, total, (left_scale, right_scale, scale), zero)


@converts("com.microsoft::QLinearAdd", "com.microsoft::QLinearMul")
def qlinear_elementwise(ctx: ConverterContext) -> Value:
    """QLinearAdd and QLinearMul of onnxruntime's `docs/ContribOperators.md`."""
    left, left_scale, left_zero, right, right_scale, right_zero, scale, zero = (
        ctx.inputs[slot] for slot in range(8)
    )
    factors = [ctx.cast(value, "float32") for value in (left_scale, right_scale, scale)]
    wide = [
        ctx.cast(_centred(ctx, value, own), "float32")
        for value, own in ((left, left_zero), (right, right_zero))
    ]
    if ctx.op_type == "QLinearMul":
        factor = ctx.apply("Div", ctx.apply("Mul", factors[0], factors[1]), factors[2])
        total = ctx.apply("Mul", ctx.apply("Mul", *wide), factor)
    else:
        parts = [
            ctx.apply("Mul", value, ctx.apply("Div", factor, factors[2]))
            for value, factor in zip(wide, factors)
        ]
        total = ctx.apply("Add", *parts)
    return _saturate(ctx, total, zero, str(left.ty.dtype))


_FLOAT_OPERATORS = {
    "QLinearAveragePool": "AveragePool",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearSigmoid": "Sigmoid",
    "QLinearSoftmax": "Softmax",
}
_AXIS_OF_SOFTMAX = 13
"""The opset since which Softmax has one axis instead of all from an axis on."""


@converts(*(f"com.microsoft::{name}" for name in _FLOAT_OPERATORS))
def qlinear_unary(ctx: ConverterContext) -> Value:
    """Operators of onnxruntime's `docs/ContribOperators.md` on one tensor, computed in float32."""
    data, scale, zero, result_scale, result_zero = (ctx.inputs[slot] for slot in range(5))
    if ctx.attr("channels_last", 0):
        raise UnsupportedError("`channels_last` has no translation to Relax")
    attrs = {
        k: v for k, v in ctx.attrs.items() if k not in ("channels_last", "opset", "tvm_custom")
    }
    if ctx.op_type == "QLinearSoftmax":
        is_last = ctx.attr("axis", -1) in (-1, data.ty.ndim - 1)
        if ctx.attr("opset", _AXIS_OF_SOFTMAX) < _AXIS_OF_SOFTMAX and not is_last:
            raise UnsupportedError("a softmax over several axes has no translation to Relax")
    number = ctx.apply("DequantizeLinear", data, scale, zero)
    result = ctx.apply(_FLOAT_OPERATORS[ctx.op_type], number, **attrs)
    if result_zero is None:
        result_zero = relax.const(0, data.ty.dtype)
    return ctx.apply("QuantizeLinear", result, result_scale, result_zero)


@converts("com.microsoft::QLinearConcat")
def qlinear_concat(ctx: ConverterContext) -> Value:
    """QLinearConcat of onnxruntime's `docs/ContribOperators.md`."""
    scale, zero, *rest = ctx.inputs
    tensors = [rest[place : place + 3] for place in range(0, len(rest), 3)]
    numbers = [ctx.apply("DequantizeLinear", *tensor) for tensor in tensors]
    result = ctx.apply("Concat", *numbers, axis=ctx.attrs["axis"])
    return ctx.apply("QuantizeLinear", result, scale, zero)


@converts("com.microsoft::QLinearWhere")
def qlinear_where(ctx: ConverterContext) -> Value:
    """QLinearWhere of onnxruntime's `docs/ContribOperators.md`."""
    condition, *operands = ctx.inputs[:7]
    numbers = [ctx.apply("DequantizeLinear", *operands[at : at + 3]) for at in (0, 3)]
    result = ctx.apply("Where", condition, *numbers)
    return ctx.apply("QuantizeLinear", result, ctx.inputs[7], ctx.inputs[8])


@converts("com.microsoft::QGemm")
def qgemm(ctx: ConverterContext) -> Value:
    """QGemm of onnxruntime's `docs/ContribOperators.md`; without a last scale, of float32."""
    left, left_scale, left_zero, right, right_scale, right_zero = ctx.inputs[:6]
    addend, scale, zero = (ctx.inputs[slot] for slot in (6, 7, 8))
    if ctx.attr("transA", 0):
        left = ctx.apply("Transpose", left, perm=[1, 0])
    if ctx.attr("transB", 0):
        right = ctx.apply("Transpose", right, perm=[1, 0])
    total = _integer_matmul(ctx, (left, left_zero), (right, right_zero))
    if addend is not None:
        total = ctx.apply("Add", total, addend)
    alpha = relax.const(ctx.attr("alpha", 1.0), "float32")
    if scale is not None:
        return _requantize(
            ctx, total, (ctx.apply("Mul", left_scale, alpha), right_scale, scale), zero
        )
    factor = ctx.apply("Mul", ctx.apply("Mul", left_scale, alpha), right_scale)
    return ctx.apply("Mul", ctx.cast(total, "float32"), factor)


@converts("com.microsoft::MatMulNBits")
def matmul_n_bits(ctx: ConverterContext) -> Value:
    """MatMulNBits of onnxruntime's `docs/ContribOperators.md`.

    The weights, of 2, 4 or 8 bits in blocks with a scale each, become floats: constant ones when
    the module is compiled.
    """
    data, packed, scales, zeros, order, bias = (ctx.inputs[slot] for slot in range(6))
    bits, block = ctx.attr("bits", 4), ctx.attrs["block_size"]
    width, depth = ctx.attrs["N"], ctx.attrs["K"]
    if bits not in (2, 4, 8) or ctx.attr("weight_prepacked", 0):
        raise UnsupportedError("`bits` is not 2, 4 or 8, or the weights are packed for a GPU")
    if order is not None:
        raise UnsupportedError("the rows of the weights are in another order (`g_idx`)")
    blocks = -(-depth // block)
    arguments = [
        _reshaped(ctx, packed, width, blocks, block * bits // 8),
        _reshaped(ctx, scales, width, blocks, dtype="float32"),
    ]
    if zeros is not None and str(zeros.ty.dtype) == "uint8":
        arguments.append(_reshaped(ctx, zeros, width, -(-blocks * bits // 8)))
    elif zeros is not None:
        arguments.append(_reshaped(ctx, zeros, width, blocks, dtype="float32"))

    def weights(packed: Any, scales: Any, *zeros: Any) -> Any:
        def element(k: Any, column: Any) -> Any:
            number, place = tirx.floordiv(k, block), tirx.floormod(k, block)
            value = _few_bits(packed, (column, number), place, bits)
            zero = tirx.const(2.0 ** (bits - 1), "float32")
            if zeros and zeros[0].dtype == "uint8":
                zero = _few_bits(zeros[0], (column,), number, bits)
            elif zeros:
                zero = zeros[0](column, number)
            return (value - zero) * scales(column, number)

        return te.compute([depth, width], element, name="weights")

    # One kernel: the budget of what is computed when the module is compiled counts all results.
    marks = {FEW_BITS: [bits, block]}
    floats = ctx.call_te(weights, *arguments, name="dequantize_weights", attributes=marks)
    product = ctx.apply("MatMul", data, ctx.cast(floats, str(data.ty.dtype)))
    return product if bias is None else ctx.apply("Add", product, bias)


def _reshaped(ctx: ConverterContext, value: Value, *shape: int, dtype: str | None = None) -> Value:
    """A tensor in another shape and type; a constant stays one."""
    if isinstance(value, Constant):
        array = value.value.numpy().reshape(shape)
        return relax.const(array if dtype is None else array.astype(dtype))
    value = value if dtype is None else _widened(ctx, value, dtype)
    return ctx.bb.normalize(relax.op.reshape(value, shape))


def _few_bits(packed: Any, row: Sequence[Any], place: Any, bits: int) -> Any:
    """A number in the bytes of a row, as float32; the first is in the lowest bits."""
    count = 8 // bits
    byte = packed(*row, tirx.floordiv(place, count))
    shift = tirx.Cast("uint8", tirx.floormod(place, count) * bits)
    mask = tirx.const(2**bits - 1, "uint8")
    return tirx.Cast("float32", tirx.bitwise_and(tirx.shift_right(byte, shift), mask))


_Operand = tuple[Value, Value]
"""A quantised tensor and its zero point: None for 0."""


def _integer_conv(ctx: ConverterContext, data: _Operand, kernel: _Operand) -> Value:
    """The convolution of two quantised tensors without their scales, as int32.

    Kernels convolve the bytes as they are, padded with the zero point. With zero points a and b,
    sum((x - a)(w - b)) is sum(x·w) - a·sum(w) - b·sum(x - a). Depthwise convolutions are computed
    in float32, which holds their sums exactly.
    """
    rank = kernel[0].ty.ndim
    if not _are_bytes(data, kernel) or _has_few_factors(kernel[0]):
        weight, zero = kernel
        if zero is not None and zero.ty.ndim:
            zero = _per_channel(ctx, zero, rank, axis=0)
        inputs = [_centred(ctx, *data), _centred(ctx, weight, zero)]
        if _are_bytes(data, kernel):
            inputs = [ctx.cast(value, "float32") for value in inputs]
        names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
        given = {name: ctx.attrs[name] for name in names if name in ctx.attrs}
        return ctx.cast(ctx.apply("Conv", *inputs, **given), "int32")
    (x, x_zero), (w, w_zero) = _as_unsigned(ctx, *data), _as_signed(ctx, *kernel)
    fill = relax.const(0, "uint8") if x_zero is None else ctx.cast(x_zero, "uint8")
    fill = ctx.bb.emit(relax.op.reshape(fill, ()))

    def centred_sum(weight: Value) -> Value:
        """The convolution of x - a."""
        total = conv_of_bytes(ctx, x, weight, fill)
        if x_zero is None:
            return total
        factors = relax.op.sum(relax.op.astype(weight, "int32"), list(range(1, rank)))
        factors = _per_channel(ctx, ctx.bb.emit(factors), rank)
        return ctx.apply("Sub", total, ctx.apply("Mul", factors, x_zero))

    total = centred_sum(w)
    if w_zero is None:
        return total
    ones = centred_sum(ctx.bb.emit(relax.op.ones(_one_per_group(ctx, w), "int8")))
    if w_zero.ty.ndim:
        w_zero = _per_channel(ctx, w_zero, rank)
    if ctx.attr("group", 1) > 1:
        ones = ctx.bb.emit(relax.op.repeat(ones, _channels_of_group(ctx, w), axis=1))
    return ctx.apply("Sub", total, ctx.apply("Mul", ones, w_zero))


def _has_few_factors(kernel: Value) -> bool:
    """Whether a kernel has one input channel for each group, and float32 holds its sums exactly."""
    channels, *window = (as_int(size) for size in dims_of(kernel, "kernel")[1:])
    sizes = [size for size in window if size is not None]
    return channels == 1 and len(sizes) == len(window) and math.prod(sizes) * 255**2 < 2**24


def _one_per_group(ctx: ConverterContext, kernel: Value) -> list[Any]:
    """The shape of a kernel with one output channel for each group."""
    return [ctx.attr("group", 1), *dims_of(kernel, "kernel")[1:]]


def _channels_of_group(ctx: ConverterContext, kernel: Value) -> int:
    """The output channels of a group."""
    channels = as_int(dims_of(kernel, "kernel")[0])
    if channels is None:
        raise UnsupportedError("the number of output channels of a group is not known")
    return channels // int(ctx.attr("group", 1))


def _integer_matmul(ctx: ConverterContext, left: _Operand, right: _Operand) -> Value:
    """The product of two quantised tensors without their scales, as int32.

    As in `_integer_conv`, with the zero points of rows and columns.
    """
    if not _are_bytes(left, right) or min(left[0].ty.ndim, right[0].ty.ndim) < 2:
        return ctx.apply("MatMul", _centred(ctx, *left), _centred(ctx, *right))
    (a, a_zero), (b, b_zero) = _as_unsigned(ctx, *left), _as_signed(ctx, *right)
    total = ctx.apply("MatMul", a, b)
    if a_zero is not None:
        columns = ctx.bb.emit(relax.op.sum(relax.op.astype(b, "int32"), -2, keepdims=True))
        total = ctx.apply("Sub", total, ctx.apply("Mul", columns, a_zero))
    if b_zero is not None:
        rows = ctx.bb.emit(relax.op.sum(_centred(ctx, a, a_zero), -1, keepdims=True))
        total = ctx.apply("Sub", total, ctx.apply("Mul", rows, b_zero))
    return total


def _are_bytes(*tensors: _Operand) -> bool:
    return all(str(data.ty.dtype) in BYTE_TYPES for data, _ in tensors)


_SIGN = 128
"""The distance between a uint8 and the int8 of the same bits but for the first one."""


def _as_unsigned(ctx: ConverterContext, data: Value, zero: Value) -> _Operand:
    """The same numbers as uint8, with a zero point in int32."""
    if str(data.ty.dtype) == "uint8":
        return data, _moved_zero(ctx, zero, 0)
    flipped = relax.op.bitwise_xor(data, relax.const(-_SIGN, "int8"))
    return ctx.bb.emit(relax.op.astype(flipped, "uint8")), _moved_zero(ctx, zero, _SIGN)


def _as_signed(ctx: ConverterContext, data: Value, zero: Value) -> _Operand:
    """The same numbers as int8, with a zero point in int32."""
    if str(data.ty.dtype) == "int8":
        return data, _moved_zero(ctx, zero, 0)
    flipped = relax.op.bitwise_xor(data, relax.const(_SIGN, "uint8"))
    return ctx.bb.emit(relax.op.astype(flipped, "int8")), _moved_zero(ctx, zero, -_SIGN)


def _moved_zero(ctx: ConverterContext, zero: Value, distance: int) -> Value:
    """A zero point and a distance in int32; None where their sum is known to be 0."""
    known = np.zeros((), np.int32) if zero is None else ctx.known_elements(zero)
    if known is not None:
        moved = known.astype(np.int32) + np.int32(distance)
        return relax.const(moved) if moved.any() else None
    wide = ctx.cast(zero, "int32")
    return ctx.bb.emit(relax.op.add(wide, relax.const(distance, "int32"))) if distance else wide


def _centred(ctx: ConverterContext, data: Value, zero: Value) -> Value:
    """Quantised data as int32, less its zero point."""
    wide = ctx.cast(data, "int32")
    return wide if zero is None else ctx.apply("Sub", wide, ctx.cast(zero, "int32"))


def _requantize(
    ctx: ConverterContext, total: Value, scales: tuple[Value, Value, Value], zero: Value
) -> Value:
    """An int32 product of two tensors, scaled to the quantised type of `zero`."""
    left, right, result = (ctx.cast(scale, "float32") for scale in scales)
    factor = ctx.apply("Div", ctx.apply("Mul", left, right), result)
    scaled = ctx.apply("Mul", ctx.cast(total, "float32"), factor)
    return _saturate(ctx, scaled, zero, str(zero.ty.dtype))


def _saturate(ctx: ConverterContext, data: Value, zero: Value, target: str) -> Value:
    """float32 data rounded half to even and moved by a zero point, in an integer type."""
    limits: Any = SMALL_INTEGERS.get(target) or np.iinfo(target)
    stored = target if target not in SMALL_INTEGERS else SMALL_INTEGERS[target].stored
    rounded = ctx.apply("Round", data)
    if zero is not None:
        rounded = ctx.apply("Add", rounded, ctx.cast(zero, "float32"))
    least, most = (relax.const(float(limit), "float32") for limit in (limits.min, limits.max))
    inside = ctx.bb.emit(relax.op.minimum(relax.op.maximum(rounded, least), most))
    return ctx.cast(inside, stored)


def _widened(ctx: ConverterContext, data: Value, dtype: str) -> Value:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return ctx.apply("Cast", data, to=kind)


def _output_type(ctx: ConverterContext, default: str) -> str:
    given = ctx.attr("output_dtype", 0)
    return str(onnx.helper.tensor_dtype_to_np_dtype(given).name) if given else default


def _aligned(ctx: ConverterContext, value: Value, data: Value) -> Value:
    """A scale or zero point in a shape that broadcasts to the data."""
    dims = dims_of(data, "data")
    own = dims_of(value, "scale or zero point")
    axis, block = ctx.attr("axis", 1), ctx.attr("block_size", 0)
    if len(own) == 1 and as_int(own[0]) == 1:
        return ctx.bb.emit(relax.op.reshape(value, ()))
    if (block or len(own) == 1) and not -len(dims) <= axis < len(dims):
        raise UnsupportedError(f"axis {axis} is outside rank {len(dims)}")
    if block:
        axis %= len(dims)
        _check_blocks(dims[axis], own[axis] if axis < len(own) else None, block)
        places = ctx.bb.emit(relax.op.arange(0, dims[axis], 1, "int64"))
        blocks = relax.op.floor_divide(places, relax.const(block, "int64"))
        return ctx.bb.emit(relax.op.take(value, ctx.bb.normalize(blocks), axis))
    if len(own) == 1:
        axis %= len(dims)
        shape = [ONE] * len(dims)
        shape[axis] = own[0]
        return ctx.bb.emit(relax.op.reshape(value, relax.ShapeExpr(shape)))
    if own:
        raise UnsupportedError(f"the scale has {len(own)} axes, but `block_size` is not given")
    return value


def _check_blocks(size: Any, count: Any, block: int) -> None:
    """Raises UnsupportedError unless there is a scale for each block of the axis."""
    known = as_int(size), as_int(count)
    needed = -(-known[0] // block) if known[0] is not None and block > 0 else None
    if block < 0 or (None not in (needed, known[1]) and needed != known[1]):
        raise UnsupportedError(
            f"an axis of size {known[0]} does not have {known[1]} blocks of size {block}"
        )


def _per_channel(ctx: ConverterContext, value: Value, rank: int, axis: int = 1) -> Value:
    """A vector along one axis of a tensor of some rank."""
    shape = [1] * rank
    shape[axis] = -1
    return ctx.bb.emit(relax.op.reshape(value, shape))


def _per_row(ctx: ConverterContext, value: Value, matrix: Value) -> Value:
    """A vector with an element for each row of a matrix, as a column; other values unchanged."""
    if value is None or value.ty.ndim != 1 or as_int(dims_of(value, "scale")[0]) == 1:
        return value
    return ctx.bb.emit(relax.op.expand_dims(value, -1))
