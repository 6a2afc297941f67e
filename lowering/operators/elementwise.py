"""Elementwise operators: arithmetic, comparisons, logic, and others.

Arithmetic and comparisons of sizes stay symbolic. Tensors are broadcast where TVM's converters
cannot derive the shape of the result.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from tvm import ir, relax, te, tirx

from ...rewrite.errors import UnsupportedError
from ..values import Constant, Sizes, Value, as_int
from .accumulation import accumulate_in_float32, widen_bfloat16
from .broadcasting import (
    broadcast_to,
    broadcast_together,
    convert_broadcast,
    dims_of,
    known_dims,
    lacks_shape,
    match_sizes,
)
from .casts import SMALL_INTEGERS
from .registry import MOST_COMPUTED, Accepts, ConverterContext, converts
from .sizes import (
    divide,
    map_sizes,
    read_symbolic,
    rearranged_sizes,
    require_zero,
    size_constant,
    without_zero,
    write_sizes,
)

_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": divide,
    "Min": tirx.min,
    "Max": tirx.max,
}
_EXTREMES: Mapping[str, Callable[[Any, Any], Any]] = {
    "Max": relax.op.maximum,
    "Min": relax.op.minimum,
}
"""TVM's converters broadcast all inputs, stack them, and never return an infinity."""
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "Equal": tirx.EQ,
    "Less": tirx.LT,
    "LessOrEqual": tirx.LE,
    "Greater": tirx.GT,
    "GreaterOrEqual": tirx.GE,
}
_LOGIC: Mapping[str, Callable[..., Any]] = {
    "And": np.logical_and,
    "Not": np.logical_not,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}
_ADD, _SUBTRACT = ir.Op.get("relax.add"), ir.Op.get("relax.subtract")
_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
"""The defaults of Selu's attributes."""
_CLIP_WITH_INPUTS = 11
"""The opset since which the bounds of Clip are inputs."""
_BROADCASTING_PRELU = 7
"""The opset since which PRelu broadcasts its slope."""


@converts("Where", accepts=Accepts.SYMBOLIC)
def where(ctx: ConverterContext) -> Value:
    """Where, see https://onnx.ai/onnx/operators/onnx__Where.html.

    Sizes that a constant selects stay symbolic.
    """
    condition, operands = ctx.known_elements(ctx.inputs[0]), read_symbolic(ctx.inputs[1:])
    if condition is None or not operands:
        return convert_broadcast(ctx.derive(inputs=ctx.tensors()))
    chosen, other = operands
    joined = Sizes.vector([*chosen.items, *other.items], chosen.dtype)
    places = chosen.places, other.places + len(chosen.items)
    return rearranged_sizes(joined, lambda _: np.where(condition, *places))


@converts("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def elementwise(ctx: ConverterContext) -> Value:
    """Operators whose only defect in TVM is a result of unknown shape."""
    return convert_broadcast(ctx)


@converts("Mean", "Sum")
@accumulate_in_float32
def sum_and_mean(ctx: ConverterContext) -> Value:
    """Sums and means of any number of tensors, which TVM's converter stacks in memory first."""
    total = functools.reduce(functools.partial(_pairwise, ctx.bb, relax.op.add), ctx.inputs)
    if ctx.op_type == "Sum":
        return total
    return relax.op.divide(total, relax.const(len(ctx.inputs), total.ty.dtype))


@converts(*_ARITHMETIC, accepts=Accepts.SYMBOLIC)
def arithmetic(ctx: ConverterContext) -> Value:
    """Add, Sub, Mul, Div, Min and Max."""
    operands = read_symbolic(ctx.inputs)
    if operands:
        function = _ARITHMETIC[ctx.op_type]
        if ctx.op_type == "Div":
            function = functools.partial(_divide_sizes, ctx)
        compute = functools.partial(map_sizes, function)
        return write_sizes(functools.reduce(compute, operands))
    of_tensors = ctx.derive(inputs=ctx.tensors())
    choose = _EXTREMES.get(ctx.op_type)
    if ctx.op_type == "Div":
        of_tensors = _without_integer_zeros(of_tensors)
        if _is_narrow_integer(of_tensors.inputs[0]):
            return _in_int32(of_tensors)
        of_tensors = _without_zero_divisor(of_tensors)
    if ctx.op_type == "Sub":
        of_tensors = _without_cancellation(of_tensors)
    elif ctx.op_type == "Mul":
        of_tensors = _without_zero_factor(of_tensors)
    if choose is None:
        return convert_broadcast(of_tensors)
    return widen_bfloat16(functools.partial(_extreme, choose))(of_tensors)


def _without_cancellation(ctx: ConverterContext) -> ConverterContext:
    """A Sub of floats that TVM does not simplify with the sum that it reads.

    TVM takes (x + y) - y as x and x - x as 0. Floats are rounded in between, which programs use
    that add and subtract a large number, and infinity minus infinity is NaN.
    """
    left, right = ctx.inputs
    if "float" not in str(left.ty.dtype):
        return ctx
    if _is_same(left, right) or any(_is_same(right, term) for term in _terms(ctx.bb, left)):
        return ctx.derive(inputs=[_opaque(ctx, left), right])
    if any(_is_same(left, term) for term in _terms(ctx.bb, right)):
        return ctx.derive(inputs=[left, _opaque(ctx, right)])
    return ctx


def _without_zero_factor(ctx: ConverterContext) -> ConverterContext:
    """A Mul of floats that TVM does not take as 0: infinity times 0 is NaN."""

    def opaque(value: Value) -> Value:
        is_number = isinstance(value, Constant) and value.value.numpy().size == 1
        is_zero = is_number and "float" in str(value.ty.dtype) and not value.value.numpy().any()
        return _opaque(ctx, value) if is_zero else value

    return ctx.derive(inputs=list(map(opaque, ctx.inputs)))


def _terms(bb: Any, value: Value) -> Sequence[Value]:
    """The operands of the sum or difference that gives a value; nothing for another value."""
    made = bb.lookup_binding(value) if isinstance(value, relax.Var) else value
    return list(made.args) if isinstance(made, ir.Call) and made.op in (_ADD, _SUBTRACT) else []


def _is_same(left: Value, right: Value) -> bool:
    """Whether two values are one, or equal constants."""
    if isinstance(left, Constant) and isinstance(right, Constant):
        return np.array_equal(left.value.numpy(), right.value.numpy())
    return bool(left.same_as(right))


def _opaque(ctx: ConverterContext, value: Value) -> Value:
    """The same value, as a call that TVM does not simplify; it costs nothing.

    TVM cannot compile the call for bfloat16, so it is one of float32 there.
    """

    def compute(data: te.Tensor) -> te.Tensor:
        kind = "float32" if data.dtype == "bfloat16" else data.dtype

        def element(*at: Any) -> Any:
            same = tirx.call_intrin(kind, "tirx.reinterpret", data(*at).astype(kind))
            return same.astype(data.dtype)

        return te.compute(data.shape, element, name="opaque")

    return ctx.bb.emit(ctx.call_te(compute, value, name="opaque"))


def _extreme(choose: Callable[[Any, Any], Any], ctx: ConverterContext) -> Value:
    """The minimum or maximum of any number of tensors."""
    # Constants first: with a number on the left, TVM's kernel keeps a NaN on the right.
    tensors = sorted(ctx.inputs, key=lambda value: not isinstance(value, Constant))
    return functools.reduce(functools.partial(_pairwise, ctx.bb, choose), tensors)


@converts("Clip")
@widen_bfloat16
def clip(ctx: ConverterContext) -> Value:
    """Clip, see https://onnx.ai/onnx/operators/onnx__Clip.html.

    NaN stays, and a bound that is NaN is none, as in onnxruntime.
    """
    x = ctx.inputs[0]
    for slot, name, choose in ((1, "min", relax.op.maximum), (2, "max", relax.op.minimum)):
        if ctx.opset < _CLIP_WITH_INPUTS:
            number = ctx.attr(name, None)
            bound = None if number is None else relax.const(number, x.ty.dtype)
        else:
            bound = ctx.inputs[slot]
        content = None if bound is None else ctx.known_elements(bound)
        if bound is None or (content is not None and np.isnan(content)):
            continue
        if content is None and "float" in str(x.ty.dtype):
            none = relax.const(-np.inf if name == "min" else np.inf, x.ty.dtype)
            is_nan = ctx.bb.normalize(relax.op.isnan(bound))
            bound = ctx.bb.normalize(relax.op.where(is_nan, none, bound))
        x = _pairwise(ctx.bb, choose, bound, x)
    return x


def _divide_sizes(ctx: ConverterContext, left: Any, right: Any) -> Any:
    """The quotient, rounded down where a convolution or pooling has that size; emits a check that
    rounding towards 0 gives the same.
    """
    right = without_zero(right)
    if ctx.derived.is_nonnegative(left) and ctx.derived.is_nonnegative(right):
        return tirx.floordiv(left, right)
    quotient, rounded = divide(left, right), ctx.derived.floor_quotient(left, right)
    if rounded is None:
        return quotient
    require_zero(ctx.bb, quotient - rounded)
    return rounded


def _remainder(left: Any, right: Any) -> Any:
    """The remainder with the sign of the divisor; TVM's simplifier fails on a divisor of -1."""
    if as_int(right) in (1, -1):
        return tirx.IntImm("int64", 0)
    return tirx.floormod(left, without_zero(right))


def _is_narrow_integer(value: Value) -> bool:
    return str(value.ty.dtype) in ("int8", "int16")


def _in_int32(ctx: ConverterContext) -> Value:
    """A quotient or remainder of narrow integers: a processor traps where -128 / -1 overflows."""
    wide = [ctx.cast(value, "int32") for value in ctx.inputs]
    result = ctx.bb.normalize(convert_broadcast(ctx.derive(inputs=wide)))
    return ctx.cast(result, str(ctx.inputs[0].ty.dtype))


def _without_integer_zeros(ctx: ConverterContext) -> ConverterContext:
    """The division of integers with 1 in place of divisors that are 0: a processor traps there."""
    dividend, divisor = ctx.inputs
    dtype = str(divisor.ty.dtype)
    if "int" not in dtype or (isinstance(divisor, Constant) and divisor.value.numpy().all()):
        return ctx
    is_zero = ctx.bb.normalize(relax.op.equal(divisor, relax.const(0, dtype)))
    replaced = relax.op.where(is_zero, relax.const(1, dtype), divisor)
    return ctx.derive(inputs=[dividend, ctx.bb.normalize(replaced)])


def _without_zero_divisor(ctx: ConverterContext) -> ConverterContext:
    """A division by the constant 0.0 as a multiplication by infinity, which is equal.

    TVM refuses the division, also of floats.
    """
    x, divisor = ctx.inputs
    if not isinstance(divisor, Constant) or divisor.ty.ndim:
        return ctx
    zero = divisor.value.numpy()
    if zero.dtype.kind != "f" or zero != 0:
        return ctx
    infinity = relax.const(np.copysign(np.inf, zero), divisor.ty.dtype)
    return ctx.derive("Mul", [x, infinity])


def _pairwise(bb: Any, combine: Callable[[Any, Any], Any], left: Value, right: Value) -> Value:
    """Combines two tensors elementwise; broadcasts them first if TVM cannot derive the shape."""
    result = bb.normalize(combine(left, right))
    aligned = broadcast_together(bb, [left, right]) if lacks_shape(result) else None
    return result if aligned is None else bb.normalize(combine(*aligned))


@converts("Mod", accepts=Accepts.SYMBOLIC)
@widen_bfloat16
def modulo(ctx: ConverterContext) -> Value:
    """Mod, see https://onnx.ai/onnx/operators/onnx__Mod.html.

    The result has the sign of the divisor, and a dividend is unchanged by an infinite divisor, as
    in onnxruntime.
    """
    operands = read_symbolic(ctx.inputs)
    if operands and not ctx.attr("fmod", 0):
        return write_sizes(map_sizes(_remainder, *operands))
    tensors = _without_integer_zeros(ctx.derive(inputs=ctx.tensors())).inputs
    if _is_narrow_integer(tensors[0]):
        return _in_int32(ctx.derive(inputs=tensors))
    dtype = tensors[1].ty.dtype
    if ctx.attr("fmod", 0) or "float" not in str(dtype):
        return convert_broadcast(ctx.derive(inputs=tensors))
    aligned = broadcast_together(ctx.bb, tensors)
    if aligned is None:
        raise UnsupportedError("the shapes of the inputs are not known")
    rest = ctx.bb.normalize(ctx.by_tvm(aligned, fmod=1))
    zero, divisor = relax.const(0, dtype), aligned[1]
    signs = [ctx.bb.normalize(relax.op.less(value, zero)) for value in (rest, divisor)]
    differs = relax.op.logical_and(relax.op.logical_xor(*signs), relax.op.not_equal(rest, zero))
    return relax.op.where(ctx.bb.normalize(differs), relax.op.add(rest, divisor), rest)


@converts("Neg", accepts=Accepts.SYMBOLIC)
def negative(ctx: ConverterContext) -> Value:
    """Neg, see https://onnx.ai/onnx/operators/onnx__Neg.html."""
    sizes = read_symbolic(ctx.inputs)
    if not sizes:
        return ctx.by_tvm(ctx.tensors())
    zero = replace(size_constant(0), dtype=sizes[0].dtype)
    return write_sizes(map_sizes(operator.sub, zero, sizes[0]))


@converts(*_COMPARISONS, accepts=Accepts.SYMBOLIC)
def comparison(ctx: ConverterContext) -> Value:
    """Comparisons. A comparison of symbolic sizes becomes a bool scalar that the run computes.

    TVM's Equal decides it during the import: sizes are equal only if they are written alike. For
    truth values it becomes Xor and Not: LLVM refuses TVM's code for it. TVM takes x == x as true,
    which asks whether x is a number.
    """
    operands = read_symbolic(ctx.inputs)
    if operands:
        of_truths = operands[0].dtype == "bool"
        compare = _both_or_neither if of_truths else _COMPARISONS[ctx.op_type]
        result = map_sizes(compare, *operands)
        known = [as_int(item) for item in result.items]
        if None not in known:
            outcome = np.array(known, "bool").reshape(result.shape)
            return relax.const(outcome, "bool")
        if not result.rank:
            return result.items[0]
    tensors = ctx.tensors()
    if str(tensors[0].ty.dtype) == "bool":
        return ctx.apply("Not", ctx.apply("Xor", *tensors))
    if "float" in str(tensors[0].ty.dtype) and _is_same(tensors[0], tensors[1]):
        tensors = [_opaque(ctx, tensors[0]), tensors[1]]
    return convert_broadcast(ctx.derive(inputs=tensors))


def _both_or_neither(left: Any, right: Any) -> Any:
    return tirx.Or(tirx.And(left, right), tirx.Not(tirx.Or(left, right)))


@converts(*_LOGIC)
def logic(ctx: ConverterContext) -> Value:
    """And, Or, Xor and Not, folded for constants: known sizes decide the branch of an If."""
    are_known = all(isinstance(value, Constant) for value in ctx.inputs)
    if not are_known or ctx.computed_elements() > MOST_COMPUTED:
        return convert_broadcast(ctx)
    arrays = [value.value.numpy() for value in ctx.inputs]
    return relax.const(np.asarray(_LOGIC[ctx.op_type](*arrays)), "bool")


@converts("PRelu")
def prelu(ctx: ConverterContext) -> Value:
    """PRelu, see https://onnx.ai/onnx/operators/onnx__PRelu.html.

    Before opset 7, which brought broadcasting, there is one slope for each channel.
    """
    data, slope = ctx.inputs[0], ctx.inputs[1]
    dims = known_dims(slope)
    is_per_channel = dims is not None and len(dims) == 1 and as_int(dims[0]) != 1
    if ctx.opset < _BROADCASTING_PRELU and is_per_channel:
        shape = [*(dims or []), *[1] * (data.ty.ndim - 2)]
        slope = ctx.bb.normalize(relax.op.reshape(slope, shape))
    if known_dims(data) is not None:
        data = match_sizes(ctx.bb, data, [slope], range(data.ty.ndim))
    # TVM's PRelu compares the sizes of the slope and the data, which must be numbers for it.
    below = ctx.bb.normalize(relax.op.multiply(data, slope))
    if lacks_shape(below):
        slope = broadcast_to(ctx.bb, slope, dims_of(data, "data"))
        below = ctx.bb.normalize(relax.op.multiply(data, slope))
    is_below = ctx.bb.normalize(relax.op.less(data, relax.const(0, str(data.ty.dtype))))
    return relax.op.where(is_below, below, data)


@converts("Pow")
def power(ctx: ConverterContext) -> Value:
    """Pow, see https://onnx.ai/onnx/operators/onnx__Pow.html.

    The base and the exponent may differ in type. Powers of integers are computed in float64. A
    square is a product, which is as exact.
    """
    dtype = ctx.inputs[0].ty.dtype
    exponent = ctx.known_elements(ctx.inputs[1])
    is_square = exponent is not None and exponent.shape in ((), (1,)) and exponent.item() == 2
    if is_square and "float" in str(dtype) and known_dims(ctx.inputs[0]):
        return relax.op.multiply(ctx.inputs[0], ctx.inputs[0])
    kind = str(dtype) if "float" in str(dtype) else "float64"
    if kind == "bfloat16":  # TVM has no power of it.
        kind = "float32"
    operands = [
        value if str(value.ty.dtype) == kind else ctx.bb.normalize(relax.op.astype(value, kind))
        for value in (ctx.inputs[0], ctx.inputs[1])
    ]
    result = convert_broadcast(ctx.derive(inputs=operands))
    return result if kind == str(dtype) else relax.op.astype(ctx.bb.normalize(result), dtype)


@converts("BitShift")
def bit_shift(ctx: ConverterContext) -> Value:
    """BitShift, see https://onnx.ai/onnx/operators/onnx__BitShift.html.

    A negative amount, or one of at least the number of bits, shifts all bits out.
    """
    bb, data, amount = ctx.bb, ctx.inputs[0], ctx.inputs[1]
    dtype = str(amount.ty.dtype)
    last, zero = (relax.const(number, dtype) for number in (np.iinfo(dtype).bits - 1, 0))
    is_out = relax.op.greater(amount, last)
    if not dtype.startswith("u"):
        is_out = relax.op.logical_or(is_out, relax.op.less(amount, zero))
    is_out = bb.normalize(is_out)
    clamped = bb.normalize(relax.op.where(is_out, last, amount))
    shifted = bb.normalize(convert_broadcast(ctx.derive(inputs=[data, clamped])))
    if ctx.attr("direction") == "RIGHT" and not dtype.startswith("u"):
        return shifted  # a shift by all bits but one leaves the sign in every bit
    return convert_broadcast(ctx.derive("Where", [is_out, zero, shifted]))


def _in_float32(ctx: ConverterContext) -> tuple[Value, str]:
    """The first input in at least float32, and its own type."""
    dtype = str(ctx.inputs[0].ty.dtype)
    return ctx.cast(ctx.inputs[0], dtype if dtype == "float64" else "float32"), dtype


@converts("IsNaN")
@widen_bfloat16
def is_nan(ctx: ConverterContext) -> Value:
    """IsNaN, see https://onnx.ai/onnx/operators/onnx__IsNaN.html."""
    return ctx.by_tvm()


@converts("Sign")
@widen_bfloat16
def sign(ctx: ConverterContext) -> Value:
    """Sign, see https://onnx.ai/onnx/operators/onnx__Sign.html.

    TVM cannot compile its own for unsigned integers, and that of NaN is 0.
    """
    data = ctx.inputs[0]
    if str(data.ty.dtype).startswith("uint"):
        return relax.op.minimum(data, relax.const(1, data.ty.dtype))
    if "float" not in str(data.ty.dtype):
        return ctx.by_tvm()
    is_nan = ctx.bb.normalize(relax.op.isnan(data))
    return relax.op.where(is_nan, data, ctx.bb.normalize(ctx.by_tvm()))


@converts("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh")
def function(ctx: ConverterContext) -> Value:
    """Functions that TVM cannot compile for float16, computed in at least float32."""
    data, dtype = _in_float32(ctx)
    return ctx.cast(ctx.bb.emit(ctx.by_tvm([data])), dtype)


@converts("Elu")
def elu(ctx: ConverterContext) -> Value:
    """Elu, see https://onnx.ai/onnx/operators/onnx__Elu.html, computed in at least float32."""
    data, dtype = _in_float32(ctx)
    zero, one, alpha = (
        relax.const(number, data.ty.dtype) for number in (0, 1, ctx.attr("alpha", 1.0))
    )
    # In this order, the minimum of NaN and 0 is NaN in TVM.
    grown = relax.op.subtract(relax.op.exp(relax.op.minimum(zero, data)), one)
    result = relax.op.where(relax.op.greater(data, zero), data, relax.op.multiply(alpha, grown))
    return ctx.cast(ctx.bb.emit(result), dtype)


@converts("Selu")
def selu(ctx: ConverterContext) -> Value:
    """Selu, see https://onnx.ai/onnx/operators/onnx__Selu.html, computed in at least float32."""
    data, dtype = _in_float32(ctx)
    numbers = (0, 1, ctx.attr("alpha", _SELU_ALPHA), ctx.attr("gamma", _SELU_GAMMA))
    zero, one, alpha, gamma = (relax.const(number, data.ty.dtype) for number in numbers)
    # In this order, the minimum of NaN and 0 is NaN in TVM.
    grown = relax.op.subtract(relax.op.exp(relax.op.minimum(zero, data)), one)
    result = relax.op.where(relax.op.greater(data, zero), data, relax.op.multiply(alpha, grown))
    return ctx.cast(ctx.bb.emit(relax.op.multiply(gamma, result)), dtype)


@converts("Shrink")
def shrink(ctx: ConverterContext) -> Value:
    """Shrink, see https://onnx.ai/onnx/operators/onnx__Shrink.html.

    The attributes are floats, so that integers are computed as floats, as in onnxruntime.
    """
    data, dtype = ctx.inputs[0], str(ctx.inputs[0].ty.dtype)
    if "float" not in dtype:
        data = ctx.cast(data, "float64")
    limit, bias = ctx.attr("lambd", 0.5), ctx.attr("bias", 0.0)
    low, high, shift, zero = (
        relax.const(number, data.ty.dtype) for number in (-limit, limit, bias, 0)
    )
    above = relax.op.where(relax.op.greater(data, high), relax.op.subtract(data, shift), zero)
    result = relax.op.where(relax.op.less(data, low), relax.op.add(data, shift), above)
    return ctx.cast(ctx.bb.emit(result), dtype)


@converts("HardSigmoid")
def hard_sigmoid(ctx: ConverterContext) -> Value:
    """HardSigmoid, see https://onnx.ai/onnx/operators/onnx__HardSigmoid.html.

    TVM's converter gives 1 for NaN; in this order of operands, extremes keep it.
    """
    data, dtype = _in_float32(ctx)
    numbers = (0, 1, ctx.attr("alpha", 0.2), ctx.attr("beta", 0.5))
    # The attributes are float32, also where the data is float64.
    zero, one, alpha, beta = (
        relax.const(float(np.float32(number)), data.ty.dtype) for number in numbers
    )
    line = relax.op.add(relax.op.multiply(data, alpha), beta)
    result = relax.op.maximum(zero, relax.op.minimum(one, line))
    return ctx.cast(ctx.bb.emit(result), dtype)


@converts("Gelu")
@accumulate_in_float32
def gelu(ctx: ConverterContext) -> Value:
    """Gelu, see https://onnx.ai/onnx/operators/onnx__Gelu.html.

    In half precision, the sum of 1 and erf cancels for negative numbers.
    """
    return ctx.by_tvm()


@converts("ThresholdedRelu")
def thresholded_relu(ctx: ConverterContext) -> Value:
    """ThresholdedRelu, see https://onnx.ai/onnx/operators/onnx__ThresholdedRelu.html.

    TVM's converter multiplies by 0 or 1, which makes NaN of an infinity.
    """
    data = ctx.inputs[0]
    alpha, zero = (relax.const(n, data.ty.dtype) for n in (ctx.attr("alpha", 1.0), 0))
    return relax.op.where(relax.op.greater(data, alpha), data, zero)


@converts("HardSwish")
def hard_swish(ctx: ConverterContext) -> Value:
    """HardSwish, see https://onnx.ai/onnx/operators/onnx__HardSwish.html.

    x * max(0, min(1, x / 6 + 1 / 2)), with a product by 1/6 as in the specification. TVM's
    converter divides, which takes four times as long as the rest.
    """
    data, dtype = _in_float32(ctx)
    sixth, half = (relax.const(number, data.ty.dtype) for number in (1 / 6, 0.5))
    gate = relax.op.clip(relax.op.add(relax.op.multiply(data, sixth), half), 0, 1)
    return ctx.cast(ctx.bb.emit(relax.op.multiply(data, gate)), dtype)


@converts("Softplus")
def softplus(ctx: ConverterContext) -> Value:
    """Softplus, see https://onnx.ai/onnx/operators/onnx__Softplus.html.

    max(x, 0) + log1p(exp(-|x|)), which neither overflows nor loses the digits of a small result.
    """
    data, dtype = _in_float32(ctx)
    zero = relax.const(0, data.ty.dtype)

    def compute(small: te.Tensor) -> te.Tensor:
        return te.compute(small.shape, lambda *i: tirx.log1p(small[i]), name="log1p")

    small = ctx.bb.emit(relax.op.exp(relax.op.negative(relax.op.abs(data))))
    logarithm = ctx.call_te(compute, small, name="log1p")
    return ctx.cast(ctx.bb.emit(relax.op.add(relax.op.maximum(data, zero), logarithm)), dtype)


_MISH_IS_IDENTITY = 20.0
"""From here on, Mish(x) is x in float64, too."""


@converts("Mish")
def mish(ctx: ConverterContext) -> Value:
    """Mish, see https://onnx.ai/onnx/operators/onnx__Mish.html.

    tanh(log(1 + e)) is n / (n + 2) for e = exp(x) and n = e * (e + 2).
    """
    data, dtype = _in_float32(ctx)
    limit, two = (relax.const(number, data.ty.dtype) for number in (_MISH_IS_IDENTITY, 2))
    grown = ctx.bb.emit(relax.op.exp(relax.op.minimum(data, limit)))
    part = ctx.bb.emit(relax.op.multiply(grown, relax.op.add(grown, two)))
    factor = relax.op.divide(part, relax.op.add(part, two))
    return ctx.cast(ctx.bb.emit(relax.op.multiply(data, factor)), dtype)


@converts("BitCast")
def bit_cast(ctx: ConverterContext) -> Value:
    """BitCast, see https://onnx.ai/onnx/operators/onnx__BitCast.html."""
    target = str(onnx.helper.tensor_dtype_to_np_dtype(ctx.attrs["to"]).name)
    source = str(ctx.inputs[0].ty.dtype)
    if target in SMALL_INTEGERS:
        return ctx.apply("Cast", ctx.inputs[0], to=ctx.attrs["to"])
    if source == target:
        return ctx.inputs[0]
    if "bool" in (source, target):
        # A bool is a byte of 0 or 1.
        byte = ctx.inputs[0]
        if source != "bool":
            byte = ctx.bb.normalize(relax.op.not_equal(byte, relax.const(0, source)))
        return ctx.cast(byte, target)

    def compute(data: Any) -> Any:
        return te.compute(
            data.shape, lambda *at: tirx.reinterpret(target, data(*at)), name="bit_cast"
        )

    return ctx.call_te(compute, ctx.inputs[0], name="bit_cast")


@converts("IsInf")
@widen_bfloat16
def is_infinite(ctx: ConverterContext) -> Value:
    """IsInf, see https://onnx.ai/onnx/operators/onnx__IsInf.html.

    TVM's converter ignores `detect_negative` and `detect_positive`.
    """
    data = ctx.inputs[0]
    negative, positive = ctx.attr("detect_negative", 1), ctx.attr("detect_positive", 1)
    if negative and positive:
        return ctx.by_tvm()
    if not negative and not positive:
        return relax.op.full_like(data, relax.const(False, "bool"), "bool")
    return relax.op.equal(data, relax.const(-math.inf if negative else math.inf, data.ty.dtype))
