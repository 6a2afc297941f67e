"""RoiAlign: TVM's converter moves the regions by half a pixel before it scales them, not after."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...rewrite.errors import UnsupportedError
from ..tvm_onnx import InputList
from .tvm_converter import convert_as_tvm

_CENTRED = 16
"""The version from which on regions are moved unless it is said otherwise."""


def convert_roi_align(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """RoiAlign, see https://onnx.ai/onnx/operators/onnx__RoiAlign.html."""
    if attrs.get("mode", b"avg") != b"avg":
        raise UnsupportedError("the largest of several samples is not supported")
    default = b"half_pixel" if attrs["tvm_custom"]["opset"] >= _CENTRED else b"output_half_pixel"
    regions, scale = inputs[1], attrs.get("spatial_scale", 1.0)
    if attrs.get("coordinate_transformation_mode", default) == b"half_pixel" and scale != 1:
        correction = relax.const(0.5 - 0.5 / scale, regions.ty.dtype)
        regions = bb.normalize(relax.op.add(regions, correction))
    operands = InputList([inputs[0], regions, inputs[2]])
    return convert_as_tvm("RoiAlign", bb, operands, attrs, params)
