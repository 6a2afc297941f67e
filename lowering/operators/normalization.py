"""Normalizations whose outputs or axes TVM's converters lack, and operators TVM does not have."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from ...rewrite.errors import UnsupportedError
from ..scheduling.kernels.affine import product
from ..values import Value, as_int
from .accumulation import accumulate_in_float32
from .broadcasting import broadcast_to, dims_of, match_dims, match_sizes, require_size
from .registry import ConverterContext, converts


@converts("LayerNormalization")
@accumulate_in_float32
def layer_normalization(ctx: ConverterContext) -> Value:
    """LayerNormalization, see https://onnx.ai/onnx/operators/onnx__LayerNormalization.html.

    The mean and the inverse standard deviation are float32, as in onnxruntime. The scale and the
    bias may have more axes than are normalized.
    """
    bb = ctx.bb
    if any(o is not None and o.ty.ndim > len(_trailing_axes(ctx)) for o in ctx.inputs[1:]):
        return _layer_normalization_by_rows(ctx)
    data, scale, *biases = _with_sizes_of_axes(ctx, _trailing_axes(ctx))
    bias = biases[0] if biases else None
    if str(data.ty.dtype) == "float64":  # TVM has no kernel for it.
        axes = _trailing_axes(ctx)
        mean = bb.normalize(relax.op.mean(data, axes, keepdims=True))
        centred = bb.normalize(relax.op.subtract(data, mean))
        deviation = _inverse_deviation(ctx, centred, axes)
        normal = relax.op.multiply(relax.op.multiply(centred, deviation), scale)
        result = bb.normalize(normal if bias is None else relax.op.add(normal, bias))
        statistics = [ctx.cast(value, "float32") for value in (mean, deviation)]
        return relax.Tuple([result, *statistics][: ctx.num_outputs])
    if bias is None and None in map(as_int, dims_of(scale, "scale")):
        bias = bb.normalize(relax.op.zeros_like(scale))  # TVM's converter needs numbers for it.
    normalized = bb.normalize(ctx.by_tvm([data, scale, bias]))
    results = [normalized.fields[0]]
    if ctx.num_outputs > 1:
        data = bb.normalize(relax.op.astype(ctx.inputs[0], "float32"))
        axes = _trailing_axes(ctx)
        mean = bb.normalize(relax.op.mean(data, axes, keepdims=True))
        results += [mean, _inverse_deviation(ctx, relax.op.subtract(data, mean), axes)]
    return relax.Tuple(results)


def _layer_normalization_by_rows(ctx: ConverterContext) -> Value:
    """A LayerNormalization whose scale or bias differs from row to row."""
    bb, rank = ctx.bb, len(dims_of(ctx.inputs[0], "data"))
    for operand in ctx.inputs[1:]:
        if operand is not None and operand.ty.ndim > rank:
            raise UnsupportedError(f"the data has {rank} axes, its scale or bias more")
    data, scale, *biases = _with_sizes_of_axes(ctx, list(range(rank)))
    dims = dims_of(data, "data")
    sizes = relax.ShapeExpr([dims[axis] for axis in _trailing_axes(ctx)])
    ones = bb.normalize(relax.op.ones(sizes, str(scale.ty.dtype)))
    normal, *statistics = bb.normalize(layer_normalization(ctx.derive(inputs=[data, ones]))).fields
    result = bb.normalize(relax.op.multiply(normal, scale))
    for bias in biases:
        result = result if bias is None else bb.normalize(relax.op.add(result, bias))
    return relax.Tuple([result, *statistics])


@converts("RMSNormalization")
@accumulate_in_float32
def rms_normalization(ctx: ConverterContext) -> Value:
    """RMSNormalization, see https://onnx.ai/onnx/operators/onnx__RMSNormalization.html.

    TVM's kernel cannot be built where all axes are normalized.
    """
    axes = _trailing_axes(ctx)
    data, scale = _with_sizes_of_axes(ctx, axes)
    if len(axes) < data.ty.ndim:
        return ctx.by_tvm([data, scale])
    wide = ctx.bb.normalize(relax.op.astype(data, "float32"))
    factor = _inverse_deviation(ctx, wide, axes)
    normal = ctx.bb.normalize(relax.op.astype(relax.op.multiply(wide, factor), data.ty.dtype))
    return relax.op.multiply(normal, scale)


@converts("BatchNormalization")
def batch_normalization(ctx: ConverterContext) -> Value:
    """BatchNormalization, see https://onnx.ai/onnx/operators/onnx__BatchNormalization.html.

    In training mode it normalizes by the mean and variance of the batch. TVM normalizes by the
    running ones in either mode, and applies the momentum to those of the batch. A vector has one
    channel.
    """
    if ctx.inputs[0].ty.ndim == 1:
        data, *others = ctx.inputs
        column = ctx.bb.normalize(relax.op.expand_dims(data, 1))
        results = ctx.bb.normalize(batch_normalization(ctx.derive(inputs=[column, *others])))
        fields = results.fields if isinstance(results, relax.Tuple) else [results]
        vector = ctx.bb.normalize(relax.op.squeeze(fields[0], [1]))
        return relax.Tuple([vector, *fields[1:]])
    if not ctx.attr("training_mode", 0):
        if ctx.num_outputs > 1:
            raise UnsupportedError(
                "before opset 14, a BatchNormalization with several outputs is in training mode, "
                "which is not supported"
            )
        return ctx.bb.normalize(ctx.by_tvm(_with_sizes_of_axes(ctx, [1])))
    return _train_batch_normalization(ctx)


def _train_batch_normalization(ctx: ConverterContext) -> Value:
    """(Y, running mean, running variance), computed in float32."""
    bb, data = ctx.bb, ctx.inputs[0]
    wide = [bb.normalize(relax.op.astype(value, "float32")) for value in ctx.inputs]
    axes = [axis for axis in range(data.ty.ndim) if axis != 1]
    mean = bb.normalize(relax.op.mean(wide[0], axes, keepdims=True))
    centred = bb.normalize(relax.op.subtract(wide[0], mean))
    variance = relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True)
    normal = relax.op.multiply(centred, _inverse_deviation(ctx, centred, axes))
    per_channel = [1, -1, *[1] * (data.ty.ndim - 2)]
    scale, bias = (bb.normalize(relax.op.reshape(value, per_channel)) for value in wide[1:3])
    result = relax.op.add(relax.op.multiply(normal, scale), bias)
    results = [bb.normalize(relax.op.astype(result, data.ty.dtype))]
    momentum = ctx.attr("momentum", 0.9)
    for running, of_batch, given in zip(wide[3:], (mean, variance), ctx.inputs[3:], strict=True):
        kept = relax.op.multiply(running, relax.const(momentum, "float32"))
        flat = relax.op.reshape(bb.normalize(of_batch), [-1])
        added = relax.op.multiply(flat, relax.const(1 - momentum, "float32"))
        updated = relax.op.astype(relax.op.add(kept, added), given.ty.dtype)
        results.append(bb.normalize(updated))
    return relax.Tuple(results)


@converts("LpNormalization")
@accumulate_in_float32
def lp_normalization(ctx: ConverterContext) -> Value:
    """LpNormalization, see https://onnx.ai/onnx/operators/onnx__LpNormalization.html.

    Where the norm is 0, so is the result.
    """
    data, axis = ctx.inputs[0], ctx.attr("axis", -1)
    if ctx.attr("p", 2) == 1:
        norm = relax.op.sum(relax.op.abs(data), axis, keepdims=True)
    else:
        norm = relax.op.sqrt(relax.op.sum(relax.op.multiply(data, data), axis, keepdims=True))
    norm = ctx.bb.normalize(norm)
    zero, one = (relax.const(number, data.ty.dtype) for number in (0, 1))
    return relax.op.divide(data, relax.op.where(relax.op.equal(norm, zero), one, norm))


@converts("InstanceNormalization")
@accumulate_in_float32
def instance_normalization(ctx: ConverterContext) -> Value:
    """InstanceNormalization by TVM's converter, where sizes may be symbolic."""
    return ctx.by_tvm(_with_sizes_of_axes(ctx, [1]))


@converts("GroupNormalization")
@accumulate_in_float32
def group_normalization(ctx: ConverterContext) -> Value:
    """GroupNormalization, see https://onnx.ai/onnx/operators/onnx__GroupNormalization.html.

    TVM's kernel takes the variance as a difference of two means, which cancels where the mean is
    large, and computes one element at a time.
    """
    bb, groups = ctx.bb, ctx.attrs["num_groups"]
    # Opset 18 has one scale and bias for each group, opset 21 one for each channel.
    per_channel = ctx.opset >= 21
    data, scale, bias = _with_sizes_of_axes(ctx, [1]) if per_channel else ctx.inputs[:3]
    dims = dims_of(data, "data")
    in_group = tirx.floordiv(dims[1], groups)
    data = require_size(bb, data, 1, in_group * groups)
    grouped = [dims[0], groups, in_group, product(dims[2:])]
    rows = bb.normalize(relax.op.reshape(data, grouped))
    centred = bb.normalize(relax.op.subtract(rows, relax.op.mean(rows, [2, 3], keepdims=True)))
    normal = relax.op.multiply(centred, _inverse_deviation(ctx, centred, [2, 3]))
    numbers = [groups, in_group if per_channel else 1, 1]
    scale, bias = (bb.normalize(relax.op.reshape(value, numbers)) for value in (scale, bias))
    result = bb.normalize(relax.op.add(relax.op.multiply(normal, scale), bias))
    return relax.op.reshape(result, dims)


def _with_sizes_of_axes(ctx: ConverterContext, axes: list[int]) -> list[Any]:
    """The inputs, with scale, bias and so on broadcast to some axes of the data.

    TVM's converters derive the axes from the rank of the scale, and its kernels need sizes that are
    known to be equal.
    """
    bb, (data, *operands) = ctx.bb, [ctx.inputs[slot] for slot in range(len(ctx.inputs))]
    data = match_sizes(bb, data, operands, axes)
    dims = dims_of(data, "data")
    sizes = [dims[axis] for axis in axes]

    def fitted(operand: Value) -> Value:
        own = dims_of(operand, "scale")
        wanted = sizes[len(sizes) - len(own) :]
        known = [o if as_int(o) == 1 else w for o, w in zip(own, wanted, strict=True)]
        return broadcast_to(bb, match_dims(bb, operand, known), sizes)

    return [data, *(o if o is None else fitted(o) for o in operands)]


def _trailing_axes(ctx: ConverterContext) -> list[int]:
    """The axes from the attribute `axis` to the last one."""
    rank = len(dims_of(ctx.inputs[0], "data"))
    return list(range(ctx.attr("axis", -1) % rank, rank))


def _inverse_deviation(ctx: ConverterContext, centred: Value, axes: list[int]) -> Value:
    """The reciprocal of the standard deviation of data with mean 0."""
    centred = ctx.bb.normalize(centred)
    square = relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True)
    epsilon = relax.const(ctx.attr("epsilon", 1e-5), centred.ty.dtype)
    return ctx.bb.normalize(relax.op.rsqrt(relax.op.add(square, epsilon)))
