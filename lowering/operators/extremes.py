"""The greatest and least element of axes, and its position, for data that may be infinite.

TVM's kernels begin with the least finite number: of elements that are all -inf they give that
number, and -1 for its position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from tvm import relax, te, tirx

from ..processor import is_for_gpu
from ..tvm_onnx import Converter
from ..values import Constant, as_tensor, is_tensor
from .broadcasting import known_dims
from .tvm_converter import convert_as_tvm

_ONE = tirx.IntImm("int64", 1)


def reduce_extreme(
    bb: Any, data: Any, axes: Sequence[int], *, greatest: bool, keepdims: bool
) -> Any:
    """The extreme of floating point data along axes: TVM's, or infinity where all elements are."""
    worst = relax.const(-math.inf if greatest else math.inf, data.ty.dtype)
    reduce = relax.op.max if greatest else relax.op.min
    better = relax.op.astype(bb.normalize(relax.op.not_equal(data, worst)), "int32")
    found = relax.op.max(bb.normalize(better), list(axes), keepdims)
    extreme = reduce(data, list(axes), keepdims)
    return bb.normalize(relax.op.where(relax.op.astype(found, "bool"), extreme, worst))


def _converter(op_type: str, *, greatest: bool) -> Converter:
    def convert(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
        data = as_tensor(bb, inputs[0])
        if known_dims(data) is None:
            return convert_as_tvm(op_type, bb, [data], attrs, params)
        if is_for_gpu():
            position = bb.normalize(convert_as_tvm(op_type, bb, [data], attrs, params))
            return _inside(bb, position, data.ty.shape.values[attrs.get("axis", 0)])
        axis, keepdims = attrs.get("axis", 0) % data.ty.ndim, bool(attrs.get("keepdims", 1))
        takes_last = bool(attrs.get("select_last_index", 0))

        def compute(data: Any) -> Any:
            along = {axis: te.reduce_axis((0, data.shape[axis]))}
            search = te.comm_reducer(_better(greatest, takes_last), _nothing, name="position")

            def element(*at: Any) -> Any:
                position = along[axis].var
                return search((position, data(*_source(along, at, keepdims))), axis=along[axis])

            shape = _shape(data, along, keepdims)
            position, _ = te.compute(shape, element, name="found")
            return te.compute(shape, lambda *at: position(*at), name="position")

        data = _in_own_type(bb, data)
        return bb.normalize(bb.call_te(compute, data, primfunc_name_hint="position"))

    return convert


def _in_own_type(bb: Any, data: Any) -> Any:
    """The data, cast to the type that it has.

    ToMixedPrecision in TVM 0.27 fails where a kernel reads what it has turned into float16. The
    cast, which it knows, turns that back, and is fused into the kernel otherwise.
    """
    if not is_tensor(data) or "float" not in str(data.ty.dtype) or isinstance(data, Constant):
        return data
    return bb.emit(relax.op.astype(data, data.ty.dtype))


def _inside(bb: Any, position: Any, size: Any) -> Any:
    """Positions that are the first or the last where TVM's kernels found none."""

    def compute(position: Any, size: Any) -> Any:
        def element(*at: Any) -> Any:
            return tirx.max(tirx.min(position(*at), size - 1), tirx.IntImm("int64", 0))

        return te.compute(position.shape, element, name="inside")

    return bb.normalize(bb.call_te(compute, position, size, primfunc_name_hint="inside"))


def _nothing(position: str, dtype: str) -> tuple[Any, Any]:
    return tirx.const(-1, position), tirx.const(0, dtype)


def _better(greatest: bool, takes_last: bool) -> Any:
    """Which of two found elements, (position, value), to keep. A negative position is none."""

    def choose(left: Any, right: Any) -> tuple[Any, Any]:
        wins = right[1] > left[1] if greatest else right[1] < left[1]
        comes_first = right[0] > left[0] if takes_last else right[0] < left[0]
        is_equal = tirx.all(right[1] == left[1], comes_first)
        takes_right = tirx.any(left[0] < 0, tirx.all(right[0] >= 0, tirx.any(wins, is_equal)))
        pairs = zip(left, right, strict=True)
        position, value = (tirx.Select(takes_right, theirs, own) for own, theirs in pairs)
        return position, value

    return choose


def _shape(data: Any, along: dict[int, Any], keepdims: bool) -> list[Any]:
    sizes = [_ONE if axis in along else size for axis, size in enumerate(data.shape)]
    return [size for axis, size in enumerate(sizes) if keepdims or axis not in along]


def _source(along: dict[int, Any], at: Sequence[Any], keepdims: bool) -> list[Any]:
    """Where in the data the elements of one result are."""
    rank = len(at) if keepdims else len(at) + len(along)
    kept = iter(at)
    place = []
    for axis in range(rank):
        position = next(kept) if keepdims or axis not in along else None
        place.append(along.get(axis, position))
    return place


POSITIONS = MappingProxyType[str, Converter](
    {
        "ArgMax": _converter("ArgMax", greatest=True),
        "ArgMin": _converter("ArgMin", greatest=False),
    }
)
"""All of the standard domain that give positions."""
