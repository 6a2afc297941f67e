"""The minimum or maximum along axes, and its position (ArgMin, ArgMax), for infinite data too.

TVM's kernels start from the lowest finite number: for elements that are all -inf they give that
number as the maximum, and -1 as its position.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ...rewrite.errors import UnsupportedError
from ..scheduling.relax.size_names import OPAQUE
from ..values import Constant, Value, as_int, is_tensor
from .accumulation import widen_bfloat16
from .broadcasting import ONE, ZERO, known_dims
from .registry import ConverterContext, converts
from .sizes import may_be_zero, name_sizes, require_zero

_LONGEST_CONSTANT = 1 << 20
"""The longest axis whose positions are a constant of the module."""
_FIRST = 0x00800000
"""The bits of the least positive float32 that is not denormal."""
_LARGEST = float(np.finfo(np.float32).max)
_MOST_POSITIONS = 0x7F7FFFFF - _FIRST
"""How many numbers of float32 there are from that on, less than the largest."""


def lowest(dtype: str) -> float:
    """The lowest number of a type."""
    kind = np.dtype(dtype)
    return int(np.iinfo(kind).min) if kind.kind in "iu" else -np.inf


def highest(dtype: str) -> float:
    """The highest number of a type."""
    kind = np.dtype(dtype)
    return int(np.iinfo(kind).max) if kind.kind in "iu" else np.inf


def initial_of_tvm(dtype: str, *, greatest: bool) -> float:
    """The finite number from which TVM's maximum or minimum starts."""
    return float((tirx.min_value if greatest else tirx.max_value)(dtype).value)


def reduce_extreme(
    ctx: ConverterContext, data: Value, axes: Sequence[int], *, greatest: bool, keepdims: bool
) -> Value:
    """The minimum or maximum of floating point data along axes.

    Where all elements are infinite, the reduction of their halves is TVM's initial value, which
    half of a finite number never is. All of these are operators that TVM's passes know.
    """
    bb, kind = ctx.bb, data.ty.dtype
    worst = -math.inf if greatest else math.inf
    initial = initial_of_tvm(str(kind), greatest=greatest)
    reduce = relax.op.max if greatest else relax.op.min
    half = bb.normalize(relax.op.multiply(data, relax.const(0.5, kind)))
    is_worst = relax.op.equal(reduce(half, list(axes), keepdims), relax.const(initial, kind))
    extreme = reduce(data, list(axes), keepdims)
    return bb.normalize(relax.op.where(is_worst, relax.const(worst, kind), extreme))


@converts("ArgMax", "ArgMin")
@widen_bfloat16
def arg_extreme(ctx: ConverterContext) -> Value:
    """ArgMax and ArgMin, see https://onnx.ai/onnx/operators/onnx__ArgMax.html.

    As in onnxruntime, a run fails in which there is a result but no element along the axis.
    """
    dims = known_dims(ctx.inputs[0])
    if dims is None:
        return ctx.by_tvm()
    axis = ctx.attr("axis", 0) % len(dims)
    if may_be_zero(dims[axis]):
        results = functools.reduce(operator.mul, (*dims[:axis], *dims[axis + 1 :]), ONE)
        require_zero(ctx.bb, tirx.if_then_else(dims[axis] == 0, results, ZERO))
    return position_of_extreme(ctx, dims, axis)


def position_of_extreme(ctx: ConverterContext, dims: Sequence[Any], axis: int) -> Value:
    """The result of ArgMax or ArgMin; any numbers if there is no element along the axis."""
    data, keepdims = ctx.inputs[0], bool(ctx.attr("keepdims", 1))
    greatest, takes_last = ctx.op_type == "ArgMax", bool(ctx.attr("select_last_index", 0))
    if str(data.ty.dtype) == "float32" and as_int(dims[axis]) != 0:
        return _position_of_floats(ctx, axis, dims[axis], greatest, takes_last, keepdims)
    better = better_position(greatest, takes_last)

    def compute(data: Any) -> Any:
        along = {axis: te.reduce_axis((0, data.shape[axis]))}
        search = te.comm_reducer(better, no_position, name="position")

        def element(*at: Any) -> Any:
            position = along[axis].var
            return search((position, data(*source_indices(along, at, keepdims))), axis=along[axis])

        shape = reduced_shape(data, along, keepdims)
        position, _ = te.compute(shape, element, name="found")
        return te.compute(shape, lambda *at: position(*at), name="position")

    return ctx.call_te(compute, _in_own_type(ctx.bb, data), name="position")


def _position_of_floats(
    ctx: ConverterContext, axis: int, size: Any, greatest: bool, takes_last: bool, keepdims: bool
) -> Value:
    """The position of float32 data in two reductions of float32, which TVM computes in vectors.

    As in onnxruntime, NaN counts in the first place only.
    """
    data = _in_own_type(ctx.bb, ctx.inputs[0])
    positions = _positions(ctx, size)
    of_values = _reducer(greatest, math.inf)
    of_positions = _reducer(takes_last, _LARGEST)  # No position is NaN, as this start says.
    worst = tirx.const(-math.inf if greatest else math.inf, "float32")

    def is_number(value: Any) -> Any:
        # Not `value == value`, which TVM simplifies to true, also for NaN.
        return value >= worst if greatest else value <= worst

    def compute(data: Any, positions: Any) -> Any:
        along = {axis: te.reduce_axis((0, data.shape[axis]))}

        def extreme(*at: Any) -> Any:
            value = data(*source_indices(along, at, True))
            value = tirx.Select(is_number(value), value, worst)
            return of_values(value, axis=list(along.values()))

        found = te.compute(reduced_shape(data, along, True), extreme, name="extreme")

        def place(*at: Any) -> Any:
            source = source_indices(along, at, keepdims)
            there = [ZERO if k == axis else index for k, index in enumerate(source)]
            is_extreme = data(*source) == found(*there)
            none = tirx.const(-_LARGEST if takes_last else _LARGEST, "float32")
            value = tirx.Select(is_extreme, positions(along[axis].var), none)
            return of_positions(value, axis=list(along.values()))

        return te.compute(reduced_shape(data, along, keepdims), place, name="place")

    def position(place: Any, data: Any) -> Any:
        def element(*at: Any) -> Any:
            source = source_indices({axis: ZERO}, at, keepdims)
            first = data(*(ZERO if k == axis else index for k, index in enumerate(source)))
            number = tirx.reinterpret("int32", place(*at)) - tirx.const(_FIRST, "int32")
            return tirx.Select(is_number(first), tirx.Cast("int64", number), ZERO)

        return te.compute(place.shape, element, name="position")

    found = ctx.call_te(compute, data, positions, name="place")
    return ctx.call_te(position, found, data, name="position")


def _positions(ctx: ConverterContext, size: Any) -> Value:
    """Numbers of float32 in the order of the positions along an axis, which are in their bits.

    As numbers, positions above 2^24 would not be exact. A run with a longer axis than there are
    numbers fails.
    """
    known = as_int(size)
    if known is not None and known > _MOST_POSITIONS:
        raise UnsupportedError(f"the axis is longer than {_MOST_POSITIONS} elements")
    if known is not None and known <= _LONGEST_CONSTANT:
        return relax.const(np.arange(_FIRST, _FIRST + known, dtype=np.int32).view(np.float32))
    if known is None:
        require_zero(ctx.bb, tirx.max(size - _MOST_POSITIONS, 0))

    def compute(size: Any) -> Any:
        def number(place: Any) -> Any:
            bits = tirx.Cast("int32", place) + tirx.const(_FIRST, "int32")
            return tirx.reinterpret("float32", bits)

        return te.compute((size,), number, name="positions")

    own_kernel = {"op_pattern": OPAQUE}
    sizes = name_sizes(ctx.bb, [size])
    return ctx.call_te(compute, *sizes, name="positions", attributes=own_kernel)


def _reducer(greatest: bool, largest: float) -> Any:
    """The reduction of floating point numbers up to `largest` to the greatest or the least."""
    choose, worst = (tirx.max, -largest) if greatest else (tirx.min, largest)
    return te.comm_reducer(
        lambda a, b: choose(a, b), lambda dtype: tirx.const(worst, dtype), name="extreme"
    )


def _in_own_type(bb: Any, data: Value) -> Value:
    """The data, cast to the type that it has.

    ToMixedPrecision in TVM 0.27 fails where a kernel reads what it has turned into float16. The
    cast, which it knows, turns that back, and is fused into the kernel otherwise.
    """
    if not is_tensor(data) or "float" not in str(data.ty.dtype) or isinstance(data, Constant):
        return data
    return bb.emit(relax.op.astype(data, data.ty.dtype))


def no_position(position: str, dtype: str) -> tuple[Any, Any]:
    """The initial (position, value) of the search."""
    return tirx.const(-1, position), tirx.const(0, dtype)


def better_position(greatest: bool, takes_last: bool) -> Callable[[Any, Any], tuple[Any, Any]]:
    """The reducer that keeps one of two pairs (position, value); no element has position -1."""

    def choose(left: Any, right: Any) -> tuple[Any, Any]:
        wins = right[1] > left[1] if greatest else right[1] < left[1]
        comes_first = right[0] > left[0] if takes_last else right[0] < left[0]
        is_equal = tirx.all(right[1] == left[1], comes_first)
        takes_right = tirx.any(left[0] < 0, tirx.all(right[0] >= 0, tirx.any(wins, is_equal)))
        pairs = zip(left, right, strict=True)
        position, value = (tirx.Select(takes_right, theirs, own) for own, theirs in pairs)
        return position, value

    return choose


def reduced_shape(data: Any, along: dict[int, Any], keepdims: bool) -> list[Any]:
    """The shape of a reduction of data. `along` has the variable of each axis that is reduced."""
    sizes = [ONE if axis in along else size for axis, size in enumerate(data.shape)]
    return [size for axis, size in enumerate(sizes) if keepdims or axis not in along]


def source_indices(along: dict[int, Any], at: Sequence[Any], keepdims: bool) -> list[Any]:
    """The indices of the elements of the data that one element of the result reduces."""
    rank = len(at) if keepdims else len(at) + len(along)
    kept = iter(at)
    place = []
    for axis in range(rank):
        position = next(kept) if keepdims or axis not in along else None
        place.append(along.get(axis, position))
    return place
