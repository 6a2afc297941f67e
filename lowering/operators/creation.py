"""Operators that create tensors: Constant, ConstantOfShape, EyeLike, MelWeightMatrix and Range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from tvm import ir, relax, sym, te, tirx

from ...rewrite.errors import UnsupportedError
from ..constants import constant, dense, stored
from ..values import Value, as_int, as_tensor
from .broadcasting import ZERO, broadcast_to, dims_of
from .registry import MOST_COMPUTED, Accepts, ConverterContext, converts
from .sizes import (
    defining_call,
    read_sizes,
    read_symbolic,
    require_steps,
    require_zero,
    size_of,
    sizes_in_tensor,
    sizes_of,
)


@converts("Constant")
def create_constant(ctx: ConverterContext) -> Value:
    """Constant, see https://onnx.ai/onnx/operators/onnx__Constant.html."""
    return constant(_content(ctx.attrs))


def _content(attrs: dict[str, Any]) -> npt.NDArray[Any]:
    if "value" in attrs:
        return stored(attrs["value"])
    if "sparse_value" in attrs:
        return dense(attrs["sparse_value"])
    for name, dtype in (("value_float", np.float32), ("value_int", np.int64)):
        if name in attrs:
            return np.array(attrs[name], dtype)
        if name + "s" in attrs:
            return np.array(attrs[name + "s"], dtype)
    raise UnsupportedError("the constant holds strings, and TVM has no tensors of strings")


@converts("ConstantOfShape", accepts=Accepts.SIZES)
def constant_of_shape(ctx: ConverterContext) -> Value:
    """ConstantOfShape, see https://onnx.ai/onnx/operators/onnx__ConstantOfShape.html."""
    shape = ctx.inputs[0]
    content = stored(ctx.attrs["value"]) if "value" in ctx.attrs else np.zeros(1, "float32")
    fill = relax.const(content.reshape(()), content.dtype.name)
    sizes = read_sizes(shape)
    if sizes is not None and not len(sizes.items):
        # TVM's converter expands a vector, which cannot become a scalar.
        return fill
    if sizes is not None:
        known = math.prod(as_int(item) or 0 for item in sizes.items)
        return broadcast_to(ctx.bb, fill, sizes.items) if known > MOST_COMPUTED else ctx.by_tvm()
    # TVM 0.27 cannot lower relax.op.full of an infinity or NaN.
    return broadcast_to(ctx.bb, fill, sizes_of(ctx.bb, shape))


@converts("Range", "com.microsoft::Range", accepts=Accepts.SCALARS | Accepts.NARROW_SIZES)
def create_range(ctx: ConverterContext) -> Value:
    """Range, see https://onnx.ai/onnx/operators/onnx__Range.html.

    The length of a range between sizes is an expression over them, not a new symbol. The operator
    of com.microsoft counts in steps of 1 where none is given.
    """
    if ctx.inputs[2] is None:
        start = read_symbolic(ctx.inputs[:1])
        dtype = start[0].dtype if start else str(ctx.inputs[0].ty.dtype)
        ctx = ctx.derive(inputs=[*ctx.inputs[:2], relax.const(1, dtype)])
    operands = read_symbolic(ctx.inputs)
    long = _long_range(ctx)
    if long is not None:
        return long
    if not operands or operands[0].dtype != "int64":
        tensors = ctx.tensors()
        counted = _counted_in_floats(ctx, tensors)
        if counted is not None:
            return counted
        require_steps(ctx.bb, tensors[2])
        return ctx.by_tvm(tensors)
    start, limit, step = (operand.items[0] for operand in operands)
    stride = as_int(step)
    if not stride:
        require_steps(ctx.bb, ctx.inputs[2])
        return ctx.by_tvm()
    distance = limit - start if stride > 0 else start - limit
    length = sym.Analyzer().simplify(tirx.floordiv(distance + (abs(stride) - 1), abs(stride)))
    if not ctx.derived.is_nonnegative(length):
        length = tirx.max(length, ZERO)
    positions = ctx.bb.normalize(relax.op.arange(0, length, 1, "int64"))
    if stride != 1:
        positions = relax.op.multiply(positions, relax.const(stride, "int64"))
    if as_int(start) == 0:
        return positions
    return relax.op.add(positions, as_tensor(ctx.bb, start))


def _long_range(ctx: ConverterContext) -> Value | None:
    """A range between constants that TVM's converter should not write down; None for any other."""
    known = [ctx.known_elements(value) for value in ctx.inputs]
    if any(elements is None or elements.size != 1 for elements in known):
        return None
    start, limit, step = (elements.reshape(()) for elements in known if elements is not None)
    if step == 0:
        return None
    # As in onnxruntime; Python's integers do not overflow.
    is_float = start.dtype.kind == "f"
    distance = float(limit - start) if is_float else int(limit) - int(start)
    length = math.ceil(distance / float(step)) if is_float else -(-distance // int(step))
    if length <= _LONGEST:
        return None
    dtype = str(start.dtype)
    first, stride = (tirx.const(number.item(), dtype) for number in (start, step))

    def compute() -> Any:
        shape = [tirx.IntImm("int64", length)]
        return te.compute(shape, lambda i: i.astype(dtype) * stride + first, name="range")

    return ctx.call_te(compute, name="range")


_LONGEST = 1 << 20
"""The most elements of a range that becomes a constant."""
_ASTYPE = ir.Op.get("relax.astype")
_EXACT = {"float32": 1 << 24, "float64": 1 << 53}
"""The number up to which a type has all integers."""


def _counted_in_floats(ctx: ConverterContext, tensors: Sequence[Value]) -> Value | None:
    """A range of floats to a size, such as `Range (0, Cast (n), 1)`; None for any other range.

    It starts at a constant and ends at the size, or at the size plus a constant, in steps of 1. A
    run in which the type does not have all of these numbers fails.
    """
    bb, (start, limit, step) = ctx.bb, tensors
    dtype = str(limit.ty.dtype)
    starts, distance = ctx.known_elements(start), ctx.known_elements(step)
    if starts is None or distance is None or distance.item() != 1:
        return None
    cast, shift = _shifted(ctx, limit)
    first = float(starts.item())
    if dtype not in _EXACT or cast is None or cast.op != _ASTYPE:
        return None
    # All numbers are multiples of 1, 1/2, 1/4 or 1/8.
    bits = next((n for n in range(4) if all((x * 2**n).is_integer() for x in (first, shift))), None)
    if bits is None or abs(first) + abs(shift) > _EXACT[dtype]:
        return None
    sizes = sizes_in_tensor(bb, cast.args[0])
    if sizes is None or len(sizes) != 1 or not ctx.derived.is_nonnegative(sizes[0]):
        return None
    largest = sizes[0] + math.ceil(abs(first) + abs(shift))
    require_zero(bb, tirx.max(largest - (_EXACT[dtype] >> bits), ZERO))
    length = sizes[0] + math.ceil(shift - first)
    if not ctx.derived.is_nonnegative(length):
        length = tirx.max(length, ZERO)
    positions = bb.normalize(relax.op.arange(0, length, 1, "int64"))
    counted = relax.op.astype(positions, dtype)
    return counted if first == 0 else relax.op.add(bb.emit(counted), relax.const(first, dtype))


def _shifted(ctx: ConverterContext, value: Value) -> tuple[Any, float]:
    """The call and the constant that a scalar is the sum of; the constant is 0 for others."""
    call = defining_call(ctx.bb, value)
    signs = {"relax.add": 1, "relax.subtract": -1}
    sign = signs.get(getattr(getattr(call, "op", None), "name", ""))
    constant = None if sign is None else ctx.known_elements(call.args[1])
    if sign is None or constant is None or constant.size != 1:
        return call, 0.0
    return defining_call(ctx.bb, call.args[0]), sign * float(constant.item())


@converts("EyeLike", accepts=Accepts.SIZES)
def eye_like(ctx: ConverterContext) -> Value:
    """EyeLike, see https://onnx.ai/onnx/operators/onnx__EyeLike.html."""
    data = ctx.tensor(0)
    dims = dims_of(data, "data")
    rows, columns = dims if len(dims) == 2 else (dims[0], dims[0])
    dtype = str(data.ty.dtype)
    if "dtype" in ctx.attrs:
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(ctx.attrs["dtype"]).name)
    if dtype == "bool":
        return ctx.cast(ctx.bb.emit(relax.op.eye(rows, columns, ctx.attr("k", 0), "int8")), dtype)
    return relax.op.eye(rows, columns, ctx.attr("k", 0), dtype)


@converts("MelWeightMatrix", accepts=Accepts.SCALARS)
def mel_weight_matrix(ctx: ConverterContext) -> Value:
    """MelWeightMatrix, see https://onnx.ai/onnx/operators/onnx__MelWeightMatrix.html.

    [dft_length // 2 + 1, num_mel_bins]: the weight of each frequency in each triangular window.
    The edges of the windows are equidistant on the mel scale, then rounded down to frequencies.
    """
    bb = ctx.bb
    bins, length = size_of(ctx, ctx.inputs[0]), size_of(ctx, ctx.inputs[1])
    scalars = [ctx.cast(ctx.tensor(slot), "float64") for slot in (1, 2, 3, 4)]
    length_float, rate, low, high = (bb.emit(relax.op.reshape(value, ())) for value in scalars)

    def constant_float(number: float) -> Value:
        return relax.const(number, "float64")

    def mel(hertz: Value) -> Value:
        grown = relax.op.add(constant_float(1), relax.op.divide(hertz, constant_float(700)))
        return bb.emit(relax.op.multiply(constant_float(2595 / math.log(10)), relax.op.log(grown)))

    low_mel, high_mel = mel(low), mel(high)
    count = relax.op.astype(as_tensor(bb, relax.prim_value(bins + 2)), "float64")
    step = relax.op.divide(relax.op.subtract(high_mel, low_mel), count)
    places = relax.op.astype(bb.normalize(relax.op.arange(0, bins + 2, 1, "int64")), "float64")
    points = relax.op.add(relax.op.multiply(places, step), low_mel)
    power = relax.op.exp(relax.op.multiply(points, constant_float(math.log(10) / 2595)))
    hertz = relax.op.multiply(constant_float(700), relax.op.subtract(power, constant_float(1)))
    scaled = relax.op.multiply(relax.op.add(length_float, constant_float(1)), hertz)
    edges = bb.emit(relax.op.astype(relax.op.floor(relax.op.divide(scaled, rate)), "int64"))
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(ctx.attr("output_datatype", 1)).name)
    rows = tirx.floordiv(length, 2) + 1

    def compute(edges: Any, rows: Any) -> Any:
        def element(row: Any, window: Any) -> Any:
            lower, center, higher = (edges(window + offset) for offset in range(3))
            zero, one = tirx.const(0, "float32"), tirx.const(1, "float32")
            rising = _ratio(row - lower, center - lower)
            falling = _ratio(higher - row, higher - center)
            is_rising = tirx.all(lower < center, row >= lower, row <= center)
            is_falling = tirx.all(row >= center, row < higher)
            is_peak = tirx.all(lower == center, row == center)
            weight = tirx.Select(tirx.any(is_peak, is_rising), rising, zero)
            weight = tirx.Select(is_peak, one, weight)
            weight = tirx.Select(is_falling, falling, weight)
            return tirx.Cast(dtype, weight)

        return te.compute([rows, edges.shape[0] - 2], element, name="mel_weights")

    return ctx.call_te(compute, edges, rows, name="mel_weights")


def _ratio(part: Any, whole: Any) -> Any:
    """A quotient of integers as float32; 0 if the divisor is not positive."""
    divisor = tirx.Cast("float32", tirx.max(whole, 1))
    return tirx.Cast("float32", part) / divisor
