"""TopK and Split with sizes that are computed."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from tvm import relax, sym, te, tirx

from ...rewrite.errors import UnsupportedError
from ..tvm_onnx import InputList
from ..values import as_tensor
from .broadcasting import cast_sizes, known_dims
from .runtime_shapes import size_of, sizes_of
from .tvm_converter import convert_as_tvm, known_content


def convert_top_k(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """TopK, see https://onnx.ai/onnx/operators/onnx__TopK.html.

    The results are in order also where any order would do. A count larger than the axis, for
    which onnxruntime fails, gives all there is.
    """
    inputs = InputList([as_tensor(bb, inputs[0]), *inputs[1:]])
    attrs = {**attrs, "sorted": 1}
    if inputs[1] is None or known_content(inputs[1], params) is not None:
        return convert_as_tvm("TopK", bb, inputs, attrs, params)
    dims = known_dims(inputs[0])
    if dims is None:
        raise UnsupportedError("the shape of the data is not known")
    axis = attrs.get("axis", -1) % len(dims)
    count = size_of(bb, inputs[1], params)
    if not sym.Analyzer().can_prove(count <= dims[axis]):
        count = tirx.max(tirx.min(count, dims[axis]), tirx.IntImm("int64", 0))
    largest = bool(attrs.get("largest", 1))
    in_order = bb.emit(
        relax.op.topk(inputs[0], -1, axis, ret_type="both", largest=largest, dtype="int64")
    )
    return relax.Tuple(
        [
            _part(bb, bb.emit(relax.TupleGetItem(in_order, field)), axis, 0, count)
            for field in range(2)
        ]
    )


def convert_split(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Split, see https://onnx.ai/onnx/operators/onnx__Split.html.

    A run in which the sizes do not add up to that of the data fails.
    """
    inputs = InputList([as_tensor(bb, inputs[0]), *inputs[1:]])
    if inputs[1] is None or known_content(inputs[1], params) is not None:
        return convert_as_tvm("Split", bb, inputs, attrs, params)
    data, sizes = inputs[0], sizes_of(bb, inputs[1])
    dims = known_dims(data)
    if dims is None:
        raise UnsupportedError("the shape of the data is not known")
    axis = attrs.get("axis", 0) % len(dims)
    dims[axis] = functools.reduce(operator.add, sizes)
    data = cast_sizes(bb, data, dims)
    parts, start = [], tirx.IntImm("int64", 0)
    for size in sizes:
        parts.append(_part(bb, data, axis, start, size))
        start = start + size
    return relax.Tuple(parts)


def _part(bb: Any, data: Any, axis: int, start: Any, size: Any) -> Any:
    """`size` slices of a tensor along an axis."""

    def compute(data: Any, start: Any, size: Any) -> Any:
        shape: Sequence[Any] = [*data.shape[:axis], size, *data.shape[axis + 1 :]]
        return te.compute(
            shape,
            lambda *at: data(*at[:axis], start + at[axis], *at[axis + 1 :]),
            name="part",
        )

    return bb.emit(bb.call_te(compute, data, start, size, primfunc_name_hint="part"))
