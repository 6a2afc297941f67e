"""Normalizations: outputs and axes that TVM's converters lack, and operators it does not have."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...rewrite.errors import UnsupportedError
from ..tvm_onnx import InputList
from .broadcasting import known_dims
from .tvm_converter import convert_as_tvm


def convert_layer_normalization(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """LayerNormalization; the mean and the inverse deviation are float32 as in onnxruntime.

    See https://onnx.ai/onnx/operators/onnx__LayerNormalization.html.
    """
    operands = _as_wide_as_the_axes(bb, inputs, attrs)
    normalized = bb.normalize(convert_as_tvm("LayerNormalization", bb, operands, attrs, params))
    results = [normalized.fields[0]]
    if attrs["tvm_custom"]["num_outputs"] > 1:
        data = bb.normalize(relax.op.astype(inputs[0], "float32"))
        axes = _trailing(data, attrs)
        mean = bb.normalize(relax.op.mean(data, axes, keepdims=True))
        results += [mean, _inverse_deviation(bb, relax.op.subtract(data, mean), axes, attrs)]
    return relax.Tuple(results)


def convert_rms_normalization(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """RMSNormalization, see https://onnx.ai/onnx/operators/onnx__RMSNormalization.html.

    TVM's kernel cannot be built where no axis is left.
    """
    data, scale = inputs[0], inputs[1]
    axes = _trailing(data, attrs)
    if len(axes) < data.ty.ndim:
        return convert_as_tvm("RMSNormalization", bb, inputs, attrs, params)
    wide = bb.normalize(relax.op.astype(data, "float32"))
    factor = _inverse_deviation(bb, wide, axes, attrs)
    normal = bb.normalize(relax.op.astype(relax.op.multiply(wide, factor), data.ty.dtype))
    return relax.op.multiply(normal, scale)


def convert_batch_normalization(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """BatchNormalization; in training mode with the mean and variance of the batch.

    TVM normalizes by the running ones in either mode, and takes the momentum for that of the batch.
    See https://onnx.ai/onnx/operators/onnx__BatchNormalization.html.
    """
    if not attrs.get("training_mode", 0):
        if attrs["tvm_custom"]["num_outputs"] > 1:
            raise UnsupportedError("before version 14, further results are those of training")
        return bb.normalize(convert_as_tvm("BatchNormalization", bb, inputs, attrs, params))
    data, dtype = inputs[0], inputs[0].ty.dtype
    wide = [bb.normalize(relax.op.astype(value, "float32")) for value in inputs]
    axes = [axis for axis in range(data.ty.ndim) if axis != 1]
    mean = bb.normalize(relax.op.mean(wide[0], axes, keepdims=True))
    centred = bb.normalize(relax.op.subtract(wide[0], mean))
    variance = relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True)
    normal = relax.op.multiply(centred, _inverse_deviation(bb, centred, axes, attrs))
    per_channel = [1, -1, *[1] * (data.ty.ndim - 2)]
    scale, bias = (bb.normalize(relax.op.reshape(value, per_channel)) for value in wide[1:3])
    result = relax.op.astype(relax.op.add(relax.op.multiply(normal, scale), bias), dtype)
    results = [bb.normalize(result)]
    momentum = attrs.get("momentum", 0.9)
    for running, of_batch, given in zip(wide[3:], (mean, variance), inputs[3:], strict=True):
        kept = relax.op.multiply(running, relax.const(momentum, "float32"))
        flat = relax.op.reshape(bb.normalize(of_batch), [-1])
        added = relax.op.multiply(flat, relax.const(1 - momentum, "float32"))
        moved = relax.op.astype(relax.op.add(kept, added), given.ty.dtype)
        results.append(bb.normalize(moved))
    return relax.Tuple(results)


def convert_lp_normalization(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """LpNormalization, see https://onnx.ai/onnx/operators/onnx__LpNormalization.html.

    Where the norm is 0, so is the result.
    """
    data, axis = inputs[0], attrs.get("axis", -1)
    if attrs.get("p", 2) == 1:
        norm = relax.op.sum(relax.op.abs(data), axis, keepdims=True)
    else:
        norm = relax.op.sqrt(relax.op.sum(relax.op.multiply(data, data), axis, keepdims=True))
    norm = bb.normalize(norm)
    zero, one = (relax.const(number, data.ty.dtype) for number in (0, 1))
    return relax.op.divide(data, relax.op.where(relax.op.equal(norm, zero), one, norm))


def _as_wide_as_the_axes(bb: Any, inputs: Any, attrs: dict[str, Any]) -> Any:
    """The inputs, with scale and bias broadcast: TVM takes the axes from the rank of the scale."""
    data, scale, bias = (InputList(inputs)[index] for index in range(3))
    axes = _trailing(data, attrs)
    if scale.ty.ndim == len(axes):
        return inputs
    shape = relax.ShapeExpr([data.ty.shape.values[axis] for axis in axes])
    if bias is None:
        bias = relax.const(0, scale.ty.dtype)
    wide = (bb.normalize(relax.op.broadcast_to(value, shape)) for value in (scale, bias))
    return InputList([data, *wide])


def _trailing(data: Any, attrs: dict[str, Any]) -> list[int]:
    """The axes from the attribute on."""
    dims = known_dims(data)
    if dims is None:
        raise UnsupportedError("the rank of the data is not known")
    return list(range(attrs.get("axis", -1) % len(dims), len(dims)))


def _inverse_deviation(bb: Any, centred: Any, axes: list[int], attrs: dict[str, Any]) -> Any:
    square = relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True)
    epsilon = relax.const(attrs.get("epsilon", 1e-5), "float32")
    return bb.normalize(relax.op.rsqrt(relax.op.add(square, epsilon)))
