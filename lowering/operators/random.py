"""Random operators.

Without a `seed` the generator of TVM's runtime draws the numbers, and each run continues it. With
a `seed` each number is a hash of the seed and of the position in the result: the same in every run
and on every target. ONNX defines no generator, so the numbers are not those of other runtimes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ..small_types import dtype_name
from ..values import Value, as_tensor
from .broadcasting import dims_of
from .registry import ConverterContext, converts

_NORMAL, _UNIFORM = "tvm.contrib.random.normal", "tvm.contrib.random.uniform"
_DROPOUT_RATIO = 0.5
"""The default of Dropout's `ratio`."""
_BOOL_DROPOUT_MASK = 10
"""The opset since which Dropout's mask is bool."""


@converts("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
def random_numbers(ctx: ConverterContext) -> Value:
    """Normal or uniform numbers, see https://onnx.ai/onnx/operators/onnx__RandomNormal.html."""
    if "shape" in ctx.attrs:
        dims, dtype = list(ctx.attrs["shape"]), "float32"
    else:
        data = ctx.inputs[0]
        dims, dtype = dims_of(data, "data"), str(data.ty.dtype)
    if ctx.attr("dtype", 0):
        dtype = dtype_name(ctx.attrs["dtype"])
    if ctx.op_type.startswith("RandomNormal"):
        drawn = _draw(ctx, _NORMAL, ctx.attr("mean", 0.0), ctx.attr("scale", 1.0), dims)
    else:
        drawn = _draw(ctx, _UNIFORM, ctx.attr("low", 0.0), ctx.attr("high", 1.0), dims)
    return ctx.cast(drawn, dtype)


@converts("Bernoulli")
def bernoulli(ctx: ConverterContext) -> Value:
    """Bernoulli, see https://onnx.ai/onnx/operators/onnx__Bernoulli.html.

    The data are the probabilities of 1. ONNX's composition of it gives 1 with the others.
    """
    data = ctx.inputs[0]
    dtype = dtype_name(ctx.attrs["dtype"]) if ctx.attr("dtype", 0) else str(data.ty.dtype)
    drawn = _draw(ctx, _UNIFORM, 0.0, 1.0, dims_of(data, "data"))
    return ctx.cast(ctx.bb.emit(relax.op.less(drawn, ctx.cast(data, "float32"))), dtype)


@converts("Multinomial")
def multinomial(ctx: ConverterContext) -> Value:
    """Multinomial, see https://onnx.ai/onnx/operators/onnx__Multinomial.html.

    ([b, classes] unnormalised logarithms of probabilities) -> [b, sample_size].
    """
    logits = ctx.cast(ctx.inputs[0], "float32")
    batch, classes = dims_of(logits, "data")
    bounds = ctx.apply("CumSum", ctx.apply("Softmax", logits, axis=-1), relax.const(1))
    drawn = _draw(ctx, _UNIFORM, 0.0, 1.0, [batch, ctx.attr("sample_size", 1)])
    bounds, drawn = (
        ctx.bb.emit(relax.op.expand_dims(value, axis)) for value, axis in ((bounds, 1), (drawn, 2))
    )
    passed = relax.op.less_equal(bounds, drawn)
    count = ctx.apply(
        "ReduceSum", ctx.cast(ctx.bb.emit(passed), "int64"), relax.const([2]), keepdims=0
    )
    # The sum of all probabilities may be rounded below 1.
    last = as_tensor(ctx.bb, relax.prim_value(classes - 1))
    return ctx.cast(ctx.bb.emit(relax.op.minimum(count, last)), dtype_name(ctx.attr("dtype", 6)))


@converts("Dropout")
def dropout(ctx: ConverterContext) -> Value:
    """Dropout, see https://onnx.ai/onnx/operators/onnx__Dropout.html.

    (data, ratio, training mode) -> (data, mask). In training mode, elements are 0 at random, the
    others are scaled, and the mask is 1 for those; else the mask is all ones. The prenet of
    Tacotron 2 also drops elements at inference (Shen et al., Natural TTS Synthesis by Conditioning
    WaveNet on Mel Spectrogram Predictions, 2018). A ratio that is not from 0 to 1 is not refused.
    """
    data, ratio, training = (ctx.inputs[slot] for slot in range(3))
    dtype = data.ty.dtype
    if ratio is None:
        ratio = relax.const(_DROPOUT_RATIO, dtype)
    known = [ctx.known_elements(value) for value in (ratio, training) if value is not None]
    of_mask = "bool" if ctx.opset >= _BOOL_DROPOUT_MASK else str(dtype)
    if training is None or any(content is not None and not content.any() for content in known):
        mask = relax.op.full_like(data, relax.const(1, of_mask), of_mask)
        return data if ctx.num_outputs == 1 else relax.Tuple([data, mask])
    zero, one = relax.const(0, dtype), relax.const(1, dtype)
    ratio = ctx.bb.emit(relax.op.where(training, ctx.cast(ratio, str(dtype)), zero))
    drawn = _draw(ctx, _UNIFORM, 0.0, 1.0, dims_of(data, "data"))
    mask = ctx.bb.emit(relax.op.greater_equal(drawn, ctx.cast(ratio, "float32")))
    kept = ctx.bb.emit(relax.op.divide(data, ctx.bb.emit(relax.op.subtract(one, ratio))))
    result = relax.op.where(mask, kept, zero)
    return result if ctx.num_outputs == 1 else relax.Tuple([result, ctx.cast(mask, of_mask)])


def _draw(
    ctx: ConverterContext, name: str, first: float, second: float, dims: Sequence[Any]
) -> Value:
    """float32 numbers of a distribution with two parameters."""
    if "seed" in ctx.attrs:
        return ctx.bb.emit(_seeded(ctx, name, first, second, dims))
    parameters = relax.Tuple([tirx.FloatImm("float64", number) for number in (first, second)])
    kind = relax.TensorType(dims, "float32")
    return ctx.bb.emit(relax.op.call_dps_packed(name, parameters, kind))


def _seeded(
    ctx: ConverterContext, name: str, first: float, second: float, dims: Sequence[Any]
) -> Value:
    """Numbers that are functions of the seed and of their position."""
    seed = int(np.float32(ctx.attrs["seed"]).view("uint32"))

    def compute(dims: Sequence[Any]) -> Any:
        def element(*at: Any) -> Any:
            position: Any = tirx.const(0, "int64")
            for place, size in zip(at, dims, strict=True):
                position = position * size + place
            number = tirx.Cast("uint32", position) * _uint32(2)
            start = _hash(_hash(_uint32(seed)) ^ number)
            if name == _UNIFORM:
                return _share(start) * _float(second - first) + _float(first)
            # Box, Muller: A note on the generation of random normal deviates, 1958.
            angle = _share(_hash(_hash(_uint32(seed)) ^ (number + _uint32(1))))
            radius = tirx.sqrt(_float(-2) * tirx.log(_float(1) - _share(start)))
            normal = radius * tirx.cos(_float(2 * math.pi) * angle)
            return normal * _float(second) + _float(first)

        return te.compute(list(dims), element, name="random")

    return ctx.call_te(compute, list(dims), name="random")


def _hash(number: Any) -> Any:
    """A bijection of 32-bit integers whose bits look independent (Wellons: hash-prospector)."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        number = (number ^ (number >> _uint32(shift))) * _uint32(factor)
    return number ^ (number >> _uint32(16))


def _share(number: Any) -> Any:
    """A 32-bit integer as a float32 from 0 up to, but not including, 1."""
    return tirx.Cast("float32", number >> _uint32(8)) * _float(2.0**-24)


def _uint32(number: int) -> Any:
    return tirx.const(number, "uint32")


def _float(number: float) -> Any:
    return tirx.const(number, "float32")
