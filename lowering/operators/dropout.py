"""Dropout of a trained model: the data as it is, and a mask that keeps everything."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...rewrite.errors import UnsupportedError
from ..tvm_onnx import InputList
from .broadcasting import known_dims, with_size
from .runtime_shapes import size_of
from .tvm_converter import known_content

_RATIO = 0.5
"""What is dropped in training if the node does not say so."""
_MASK_IS_BOOL = 10
"""The version from which on the mask has a type of its own."""


def convert_dropout(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Dropout, see https://onnx.ai/onnx/operators/onnx__Dropout.html.

    A run in which something would be dropped fails. UnsupportedError: every run would.
    """
    data, ratio, training = inputs[0], InputList(inputs)[1], InputList(inputs)[2]
    if training is not None:
        data = _with_nothing_dropped(bb, data, ratio, training, params)
    if attrs["tvm_custom"]["num_outputs"] == 1:
        return data
    dtype = "bool" if attrs["tvm_custom"]["opset"] >= _MASK_IS_BOOL else str(data.ty.dtype)
    return relax.Tuple([data, relax.op.full_like(data, relax.const(1, dtype), dtype)])


def _with_nothing_dropped(bb: Any, data: Any, ratio: Any, training: Any, params: Any) -> Any:
    """The data, cast to sizes that it has only if the node drops nothing."""
    if ratio is None:
        ratio = relax.const(_RATIO, data.ty.dtype)
    known = [known_content(value, params) for value in (ratio, training)]
    if any(content is not None and not content.any() for content in known):
        return data
    dims = known_dims(data)
    if not dims or all(content is not None for content in known):
        raise UnsupportedError("it is in training mode, and drops something at random")
    is_positive = relax.op.greater(ratio, relax.const(0, ratio.ty.dtype))
    drops = bb.normalize(relax.op.logical_and(is_positive, training))
    number = size_of(bb, bb.normalize(relax.op.astype(drops, "int64")), params)
    return with_size(bb, data, 0, dims[0] + number)
