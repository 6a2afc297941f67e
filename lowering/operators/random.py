"""Random operators, drawn by the generator of TVM's runtime, which each run continues.

ONNX does not define the generator, so that a `seed` has no meaning across runtimes. It is ignored:
TVM 0.27 seeds its generator itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx

from ..small_types import dtype_name
from ..values import Value, as_tensor
from .broadcasting import dims_of
from .registry import ConverterContext, converts

_NORMAL, _UNIFORM = "tvm.contrib.random.normal", "tvm.contrib.random.uniform"


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


def _draw(
    ctx: ConverterContext, name: str, first: float, second: float, dims: Sequence[Any]
) -> Value:
    """float32 numbers of a distribution with two parameters."""
    parameters = relax.Tuple([tirx.FloatImm("float64", number) for number in (first, second)])
    kind = relax.TensorType(dims, "float32")
    return ctx.bb.emit(relax.op.call_dps_packed(name, parameters, kind))
