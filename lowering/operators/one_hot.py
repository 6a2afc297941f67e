"""OneHot of a depth that is computed; TVM's converter gives values of the wrong type."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from ...rewrite.errors import UnsupportedError
from .broadcasting import known_dims
from .runtime_shapes import size_of


def convert_one_hot(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """OneHot, see https://onnx.ai/onnx/operators/onnx__OneHot.html.

    Negative indices count from the end; those out of range give no row its other value.
    """
    indices, depth, values = inputs[0], inputs[1], inputs[2]
    if known_dims(indices) is None:
        raise UnsupportedError("the shape of the indices is not known")
    size = size_of(bb, depth, params)
    axis = attrs.get("axis", -1) % (indices.ty.ndim + 1)
    call = bb.call_te(_one_hot, indices, values, size, axis, primfunc_name_hint="one_hot")
    return bb.normalize(call)


def _one_hot(indices: Any, values: Any, depth: Any, axis: int) -> Any:
    def element(*at: Any) -> Any:
        index = tirx.Cast("int64", indices(*at[:axis], *at[axis + 1 :]))
        is_meant = tirx.any(index == at[axis], index == at[axis] - depth)
        return tirx.Select(is_meant, values(1), values(0))

    shape = list(indices.shape)
    return te.compute([*shape[:axis], depth, *shape[axis:]], element, name="one_hot")
