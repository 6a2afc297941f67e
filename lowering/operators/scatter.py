"""ScatterND of updates whose symbolic sizes are not known to be those that are asked for."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..tvm_onnx import InputList
from ..values import Constant, as_int, match
from .broadcasting import known_dims
from .tvm_converter import convert_as_tvm


def convert_scatter_nd(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """ScatterND, see https://onnx.ai/onnx/operators/onnx__ScatterND.html.

    The updates are cast to the shape they must have; a run with others fails.
    """
    data, indices, updates = inputs[0], inputs[1], inputs[2]
    into, places, own = (known_dims(value) for value in (data, indices, updates))
    depth = as_int(places[-1]) if places else None
    if into is None or places is None or own is None or depth is None:
        return convert_as_tvm("ScatterND", bb, inputs, attrs, params)
    wanted = [*places[:-1], *into[depth:]]
    fixed = all(as_int(size) is not None for size in (*wanted, *own))
    if not fixed and len(own) == len(wanted) and not isinstance(updates, Constant):
        updates = match(bb, updates, relax.TensorType(wanted, updates.ty.dtype))
    return convert_as_tvm("ScatterND", bb, InputList([data, indices, updates]), attrs, params)
