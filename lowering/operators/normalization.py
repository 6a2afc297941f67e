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
