"""Squeeze of a dimension whose size is known only at run time; axes given as a scalar."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ...rewrite.errors import UnsupportedError
from ..values import Constant, as_int
from .broadcasting import known_dims
from .tvm_converter import convert_as_tvm


def convert_squeeze(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Squeeze; a symbolic size is cast to 1, and a run with another size fails."""
    axes = _axes(inputs, attrs)
    dims = None if _is_size(inputs[0]) else known_dims(inputs[0])
    if axes is None or dims is None or isinstance(inputs[0], Constant):
        return convert_as_tvm("Squeeze", bb, inputs, attrs, params)
    for axis in axes:
        if not -len(dims) <= axis < len(dims):
            raise UnsupportedError(f"axis {axis} is out of range for rank {len(dims)}")
    unknown = [axis for axis in axes if as_int(dims[axis]) is None]
    if not unknown:
        return convert_as_tvm("Squeeze", bb, inputs, attrs, params)
    for axis in unknown:
        dims[axis] = 1
    unit = bb.match_cast(inputs[0], relax.TensorType(dims, inputs[0].ty.dtype))
    return convert_as_tvm("Squeeze", bb, [unit, *inputs[1:]], attrs, params)


def convert_unsqueeze(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Unsqueeze; onnxruntime takes one axis without a dimension, and so do exporters."""
    if isinstance(inputs[1], Constant) and inputs[1].value.numpy().ndim == 0:
        inputs = [inputs[0], relax.const(inputs[1].value.numpy().reshape(1), "int64")]
    return convert_as_tvm("Unsqueeze", bb, inputs, attrs, params)


def _is_size(value: Any) -> bool:
    return bool(tvm.ir.is_prim_expr(value)) or isinstance(value, relax.ShapeExpr)


def _axes(inputs: Any, attrs: dict[str, Any]) -> list[int] | None:
    if "axes" in attrs:
        return list(attrs["axes"])
    if isinstance(inputs[1], Constant):
        return [int(axis) for axis in inputs[1].value.numpy().reshape(-1)]
    return None
