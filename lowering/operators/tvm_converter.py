"""Calling TVM's converter from one of ours, for the cases that ours leaves to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from ..tvm_onnx import InputList, converter
from ..values import Constant


def convert_as_tvm(
    op_type: str, bb: Any, inputs: Sequence[Any], attrs: dict[str, Any], params: Any
) -> Any:
    """What TVM's converter of `op_type` makes of the same node."""
    convert = converter(op_type, attrs["tvm_custom"]["opset"])
    return convert(bb, InputList(inputs), attrs, params)


def is_weight(value: Any, params: Any) -> bool:
    """Whether a value is a weight that was made a parameter; TVM's converters see through it."""
    return isinstance(value, relax.Var) and value.name in params[1]


def known_content(value: Any, params: Any) -> Any:
    """The array of a constant, or of a weight that was made a parameter; None of anything else."""
    if isinstance(value, Constant):
        return value.value.numpy()
    return params[1][value.name][1].numpy() if is_weight(value, params) else None
