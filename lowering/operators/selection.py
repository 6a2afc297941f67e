"""TopK and Split with sizes that are computed."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from ...rewrite.errors import UnsupportedError
from ..tvm_onnx import InputList
from ..values import as_int, as_tensor
from .broadcasting import known_dims, with_size
from .runtime_shapes import size_of, sizes_of
from .tvm_converter import convert_as_tvm, known_content

_ZERO = tirx.IntImm("int64", 0)
_LAST_MAY_BE_SMALLER = 18
"""The version from which on parts of equal size need not add up to the axis."""


def convert_top_k(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """TopK, see https://onnx.ai/onnx/operators/onnx__TopK.html.

    The results are in order also where any order would do. A run in which the count is negative or
    larger than the axis fails, as in onnxruntime.
    """
    data, given = as_tensor(bb, inputs[0]), InputList(inputs)[1]
    dims = known_dims(data)
    if dims is None:
        raise UnsupportedError("the shape of the data is not known")
    axis = attrs.get("axis", -1) % len(dims)
    count = tirx.IntImm("int64", attrs["k"]) if given is None else size_of(bb, given, params)
    too_many = tirx.max(count - dims[axis], _ZERO) + tirx.max(-count, _ZERO)
    data = with_size(bb, data, axis, dims[axis] + too_many)
    largest = bool(attrs.get("largest", 1))
    known = as_int(count)
    first = -1 if known is None else known
    found = relax.op.topk(data, first, axis, ret_type="both", largest=largest, dtype="int64")
    if known:
        return found
    fields = [bb.emit(relax.TupleGetItem(bb.emit(found), field)) for field in range(2)]
    return relax.Tuple([_part(bb, field, axis, _ZERO, count) for field in fields])


def convert_split(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Split, see https://onnx.ai/onnx/operators/onnx__Split.html.

    A run in which a size is negative, or they do not add up to that of the data, fails.
    """
    inputs = InputList([as_tensor(bb, inputs[0]), *inputs[1:]])
    data, dims = inputs[0], known_dims(inputs[0])
    if dims is None:
        raise UnsupportedError("the shape of the data is not known")
    axis = attrs.get("axis", 0) % len(dims)
    sizes = _split_sizes(bb, inputs[1], dims[axis], attrs, params)
    for lengths in (sizes, [tirx.max(size, _ZERO) for size in sizes]):
        data = with_size(bb, data, axis, functools.reduce(operator.add, lengths))
    if inputs[1] is None or known_content(inputs[1], params) is not None:
        return convert_as_tvm("Split", bb, [data, *inputs[1:]], attrs, params)
    parts, start = [], _ZERO
    for size in sizes:
        parts.append(_part(bb, data, axis, start, size))
        start = start + size
    return relax.Tuple(parts)


def _split_sizes(
    bb: Any, given: Any, size: Any, attrs: dict[str, Any], params: Any
) -> Sequence[Any]:
    """How much of an axis of some size each part has."""
    content = attrs.get("split") if given is None else known_content(given, params)
    if content is not None:
        return [tirx.IntImm("int64", int(length)) for length in content]
    if given is not None:
        return sizes_of(bb, given)
    count = attrs["tvm_custom"]["num_outputs"]
    if attrs["tvm_custom"]["opset"] < _LAST_MAY_BE_SMALLER:
        return [tirx.floordiv(size, count)] * count
    chunk = tirx.floordiv(size + (count - 1), count)
    return [*[chunk] * (count - 1), size - chunk * (count - 1)]


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
