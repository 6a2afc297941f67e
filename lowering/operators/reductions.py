"""Reductions: over axes without elements, and over axes that are computed at run time.

A TVM kernel writes the neutral element when it meets the first element of an axis. Without any
element, the result keeps whatever the memory held before.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx

from ...rewrite.errors import UnsupportedError
from ..values import Value, as_int, as_tensor
from .accumulation import accumulate_in_float32, widen_bfloat16
from .broadcasting import ONE, ZERO, broadcast_to, dims_of, known_dims
from .extremes import highest, lowest, position_of_extreme, reduce_extreme
from .registry import Accepts, ConverterContext, converts
from .sizes import combine_sizes, may_be_zero, read_symbolic, sizes_of, write_sizes


def _zero(_: str) -> float:
    return 0


def _one(_: str) -> float:
    return 1


_SUMS: dict[str, Callable[[str], float]] = {
    "ReduceL1": _zero,
    "ReduceL2": _zero,
    "ReduceLogSum": lowest,
    "ReduceLogSumExp": lowest,
    "ReduceMean": _zero,
    "ReduceSum": _zero,
    "ReduceSumSquare": _zero,
}
_EXTREMES = {"ReduceMax": lowest, "ReduceMin": highest}
_OF_NO_ELEMENTS = {**_SUMS, **_EXTREMES, "ReduceProd": _one}
"""The reduction of no elements, by the type of the result; as in onnxruntime."""
_FLOAT_FUNCTIONS = frozenset({"ReduceL2", "ReduceLogSum", "ReduceLogSumExp"})
"""The reductions that TVM has for floats only."""
_UNCHANGED_ALONE = frozenset({*_EXTREMES, "ReduceMean", "ReduceProd", "ReduceSum"})
"""The reductions that leave a single element as it is."""


_OF_SIZES: dict[str, tuple[Callable[[Any, Any], Any], int | None]] = {
    "ReduceMax": (tirx.max, None),
    "ReduceMin": (tirx.min, None),
    "ReduceProd": (operator.mul, 1),
    "ReduceSum": (operator.add, 0),
}
"""The reductions that keep sizes symbolic: a function, and the reduction of no sizes if known."""


@converts(*_SUMS, *_EXTREMES, "ReduceProd", accepts=Accepts.SYMBOLIC)
@accumulate_in_float32
def reduce_axes(ctx: ConverterContext) -> Value:
    """Reductions, see https://onnx.ai/onnx/operators/onnx__ReduceSum.html and the others."""
    of_sizes = _reduced_sizes(ctx)
    return _reduce(ctx.derive(inputs=ctx.tensors())) if of_sizes is None else of_sizes


_HARDMAX_OF_ONE_AXIS = 13
"""The opset since which Hardmax takes one axis; before, it takes all from `axis` on as one."""


@converts("Hardmax")
@widen_bfloat16
def hardmax(ctx: ConverterContext) -> Value:
    """Hardmax, see https://onnx.ai/onnx/operators/onnx__Hardmax.html: 1 at the first maximum."""
    bb, data = ctx.bb, ctx.inputs[0]
    dims = dims_of(data, "data")
    is_one_axis = ctx.opset >= _HARDMAX_OF_ONE_AXIS
    axis = ctx.attr("axis", -1 if is_one_axis else 1) % max(len(dims), 1)
    if not is_one_axis:
        parts = (dims[:axis], dims[axis:])
        rows, columns = (functools.reduce(operator.mul, part, ONE) for part in parts)
        data, axis = bb.normalize(relax.op.reshape(data, [rows, columns])), 1
    search = ctx.derive("ArgMax", [data], axis=axis, keepdims=1, select_last_index=0)
    places = bb.emit(position_of_extreme(search, dims_of(data, "data"), axis))

    def compute(data: te.Tensor, places: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            first = places(*index[:axis], 0, *index[axis + 1 :])
            return tirx.Cast(data.dtype, index[axis].astype("int64") == first)

        return te.compute(data.shape, element, name="hardmax")

    result = ctx.call_te(compute, data, places, name="hardmax")
    return result if is_one_axis else relax.op.reshape(result, dims)


def _reduced_sizes(ctx: ConverterContext) -> Value | None:
    """The reduction of all symbolic sizes; None for data, and for other axes."""
    given, symbolic = ctx.inputs[1], read_symbolic(ctx.inputs[:1])
    if not symbolic or ctx.op_type not in _OF_SIZES:
        return None
    if given is not None and ctx.known_elements(given) is None:
        return None
    (sizes,), axes = symbolic, _axes(ctx)
    if any(not -sizes.rank <= axis < sizes.rank for axis in axes):
        return None
    reduced = {axis % sizes.rank for axis in axes}
    if not (len(reduced) == sizes.rank if axes else not _keeps_without_axes(ctx)):
        return None
    compute, empty = _OF_SIZES[ctx.op_type]
    if not sizes.items and empty is None:
        return None
    return write_sizes(combine_sizes(compute, sizes, bool(ctx.attr("keepdims", 1)), empty))


def _reduce(ctx: ConverterContext) -> Value:
    bb, data, given = ctx.bb, ctx.inputs[0], ctx.inputs[1]
    if str(data.ty.dtype) == "bool":  # TVM has no least and no greatest bool
        wide = bb.normalize(relax.op.astype(data, "uint8"))
        result = bb.normalize(_reduce(ctx.derive(inputs=[wide, *ctx.inputs[1:]])))
        return relax.op.astype(result, "bool")
    if given is not None and ctx.known_elements(given) is None:
        return _reduce_computed_axes(ctx)
    dims, axes = known_dims(data), _axes(ctx)
    if not axes and _keeps_without_axes(ctx):
        return _of_each_element(ctx)
    if dims is None:
        return ctx.by_tvm()
    axes = axes or list(range(len(dims)))
    is_float = "float" in str(data.ty.dtype)
    keepdims = bool(ctx.attr("keepdims", 1))
    if ctx.op_type in _EXTREMES and axes and is_float:
        greatest = ctx.op_type == "ReduceMax"
        result = reduce_extreme(ctx, data, axes, greatest=greatest, keepdims=keepdims)
    elif ctx.op_type == "ReduceLogSumExp" and axes and is_float:
        result = _log_sum_exp(bb, data, axes, keepdims)
    elif ctx.op_type in _FLOAT_FUNCTIONS and not is_float:
        wide = bb.normalize(relax.op.astype(data, "float64"))
        result = bb.normalize(_reduce(ctx.derive(inputs=[wide, *ctx.inputs[1:]])))
        return relax.op.astype(result, data.ty.dtype)
    elif ctx.op_type == "ReduceMean" and not is_float:
        result = _integer_mean(bb, data, axes, keepdims)
    else:
        result = bb.normalize(ctx.by_tvm())
    of_no_elements = _OF_NO_ELEMENTS[ctx.op_type](str(result.ty.dtype))
    return fill_if_empty(ctx, result, [dims[axis] for axis in axes], of_no_elements)


def _of_each_element(ctx: ConverterContext) -> Value:
    """What a reduction over no axis makes of each element."""
    data, kind = ctx.inputs[0], ctx.op_type
    if kind in ("ReduceL1", "ReduceL2"):
        return relax.op.abs(data)
    if kind == "ReduceLogSum":
        return relax.op.log(data)
    return relax.op.multiply(data, data) if kind == "ReduceSumSquare" else data


def _log_sum_exp(bb: Any, data: Value, axes: Sequence[int], keepdims: bool) -> Value:
    """The logarithm of a sum of exponentials, of elements minus the greatest one if it is finite.

    An infinity minus itself would be NaN.
    """
    dtype = str(data.ty.dtype)
    greatest = bb.normalize(relax.op.max(data, axes, keepdims=True))
    size = bb.normalize(relax.op.abs(greatest))
    is_finite = bb.normalize(relax.op.less(size, relax.const(math.inf, dtype)))
    shift = bb.normalize(relax.op.where(is_finite, greatest, relax.const(0, dtype)))
    scaled = bb.normalize(relax.op.exp(bb.normalize(relax.op.subtract(data, shift))))
    total = bb.normalize(relax.op.sum(scaled, axes, keepdims=True))
    result = bb.normalize(relax.op.add(bb.normalize(relax.op.log(total)), shift))
    return result if keepdims else bb.normalize(relax.op.squeeze(result, axes))


def _integer_mean(bb: Any, data: Value, axes: Sequence[int], keepdims: bool) -> Value:
    """The mean of integers, rounded towards zero; 0 for none."""
    dims = dims_of(data, "data")
    count = functools.reduce(operator.mul, [dims[axis] for axis in axes], ONE)
    wide = bb.normalize(relax.op.astype(data, "int64"))
    total = bb.normalize(relax.op.sum(wide, axes, keepdims=keepdims))
    divisor = as_tensor(bb, relax.prim_value(tirx.max(count, ONE)))
    mean = bb.normalize(relax.op.divide(total, divisor))
    return bb.normalize(relax.op.astype(mean, str(data.ty.dtype)))


def _axes(ctx: ConverterContext) -> list[int]:
    """The reduced axes; an empty list means all."""
    if "axes" in ctx.attrs:
        return list(ctx.attrs["axes"])
    content = ctx.known_elements(ctx.inputs[1])
    return [] if content is None else [int(axis) for axis in content]


def fill_if_empty(
    ctx: ConverterContext, tensor: Value, sizes: Sequence[Any], value: float
) -> Value:
    """The tensor, filled with `value` instead in a run in which one of the sizes is 0."""
    uncertain = [size for size in sizes if may_be_zero(size)]
    dims = known_dims(tensor)
    if not uncertain or dims is None:
        return tensor
    dtype = str(tensor.ty.dtype)
    if any(as_int(size) == 0 for size in uncertain):
        # TVM 0.27 cannot lower relax.op.full of an infinity.
        return broadcast_to(ctx.bb, relax.const(value, dtype), dims)

    def select(data: Any, sizes: Sequence[Any]) -> Any:
        is_empty = tirx.any(*(size == 0 for size in sizes))
        filling = tirx.const(value, dtype)
        return te.compute(
            data.shape,
            lambda *indices: tirx.Select(is_empty, filling, data(*indices)),
            name="unless_empty",
        )

    return ctx.call_te(select, tensor, uncertain, name="unless_empty")


# --- Axes that are computed at run time ----------------------------------------------------------


def _reduce_computed_axes(ctx: ConverterContext) -> Value:
    """Gathers all reduced elements along one new last axis, and reduces that axis."""
    data, axes = ctx.inputs[0], ctx.inputs[1]
    if axes.ty.ndim not in (1, -1):
        raise UnsupportedError(f"`axes` has rank {axes.ty.ndim}, but must be a vector")
    may_be_empty = may_be_zero((known_dims(axes) or [0])[0])
    if _keeps_without_axes(ctx) and may_be_empty and ctx.op_type not in _UNCHANGED_ALONE:
        raise UnsupportedError(
            "`axes` may be empty, and with `noop_with_empty_axes` that decides whether to reduce"
        )
    rank = data.ty.ndim
    sizes = _sizes_by_axes(ctx, _kept_and_reduced, 2 * rank)
    gathered = ctx.call_te(_gather, data, sizes[:rank], sizes[rank:], name="gather_reduced")
    last = relax.const([rank], "int64")
    result = _reduce(ctx.derive(inputs=[gathered, last], keepdims=0))
    if ctx.attr("keepdims", 1):
        return result
    return relax.op.reshape(ctx.bb.normalize(result), relax.ShapeExpr(_remaining_sizes(ctx)))


def _remaining_sizes(ctx: ConverterContext) -> list[Any]:
    """The sizes of the axes that are not reduced."""
    rank = ctx.inputs[0].ty.ndim
    count = as_int((known_dims(ctx.inputs[1]) or [None])[0])
    if count is None:
        raise UnsupportedError(
            "the number of `axes`, which decides the rank of the result, is not known"
        )
    if count == 0 and _keeps_without_axes(ctx):
        return dims_of(ctx.inputs[0], "data")
    return [] if count in (0, rank) else _sizes_by_axes(ctx, _remaining, rank - count)


def _keeps_without_axes(ctx: ConverterContext) -> bool:
    """Whether no axes mean that no axis is reduced."""
    return bool(ctx.attr("noop_with_empty_axes", 0))


def _sizes_by_axes(
    ctx: ConverterContext, choose: Callable[[Sequence[Any], Any], list[Any]], length: int
) -> list[Any]:
    """`length` sizes that a run computes by `choose(is each axis reduced, sizes of the data)`."""
    data, axes = ctx.inputs[0], ctx.inputs[1]
    dims = dims_of(data, "data")

    def compute(axes: Any, sizes: Any) -> Any:
        reduced = _is_reduced(axes, len(dims), all_if_empty=not _keeps_without_axes(ctx))
        items = choose(reduced, sizes)[:length]
        return te.compute([length], lambda at: _item(items, at), name="sizes")

    vector = as_tensor(ctx.bb, relax.ShapeExpr(dims))
    return sizes_of(ctx.bb, ctx.call_te(compute, axes, vector, name="sizes"))


def _is_reduced(axes: Any, rank: int, *, all_if_empty: bool) -> list[Any]:
    """Whether each axis is reduced."""
    count = axes.shape[0]
    place = te.reduce_axis((0, count), name="place")

    def hit(axis: Any) -> Any:
        given = tirx.Cast("int64", axes(place))
        is_named = tirx.any(given == axis, given == axis - rank)
        return te.sum(tirx.Select(is_named, ONE, ZERO), axis=place)

    hits = te.compute([tirx.IntImm("int64", rank)], hit, name="hits")
    if all_if_empty:
        return [tirx.any(count == 0, hits(axis) > 0) for axis in range(rank)]
    # The sum over no axes leaves the memory as it was.
    return [tirx.all(count > 0, hits(axis) > 0) for axis in range(rank)]


def _kept_and_reduced(flags: Sequence[Any], dims: Any) -> list[Any]:
    """The sizes with 1 for each reduced axis, then those with 1 for each axis that is kept."""
    kept = [tirx.Select(flag, ONE, dims(axis)) for axis, flag in enumerate(flags)]
    return kept + [tirx.Select(flag, dims(axis), ONE) for axis, flag in enumerate(flags)]


def _remaining(flags: Sequence[Any], dims: Any) -> list[Any]:
    """The sizes of the axes that are not reduced, filled up with 1 to the rank of the data."""
    places, before = [], ZERO
    for flag in flags:
        places.append(before)
        before = before + tirx.Select(flag, ZERO, ONE)
    remaining = []
    for place in range(len(flags)):
        size = ONE
        for axis, flag in enumerate(flags):
            is_there = tirx.all(tirx.Not(flag), places[axis] == place)
            size = tirx.Select(is_there, dims(axis), size)
        remaining.append(size)
    return remaining


def _item(items: Sequence[Any], at: Any) -> Any:
    chosen = items[-1]
    for place, item in enumerate(items[:-1]):
        chosen = tirx.Select(at == place, item, chosen)
    return chosen


def _gather(data: Any, kept: Sequence[Any], reduced: Sequence[Any]) -> Any:
    total: Any = ONE
    for size in reduced:
        total = total * size

    def element(*at: Any) -> Any:
        *places, rest = at
        for axis in reversed(range(len(reduced))):
            # An axis is either kept or reduced as a whole: one of the two positions is 0.
            places[axis] = places[axis] + tirx.floormod(rest, reduced[axis])
            rest = tirx.floordiv(rest, reduced[axis])
        return data(*places)

    return te.compute([*kept, total], element, name="gather_reduced")
