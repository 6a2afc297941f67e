"""Reductions, arg-reductions and running sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from ... import symbolic
from ...symbolic import Dim
from ..fact import INT64, INTEGERS, Element, Fact
from .elementwise import representable
from .registry import NodeContext, register

_FOLDS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "ReduceSum": symbolic.add,
    "ReduceProd": symbolic.mul,
    "ReduceMin": symbolic.minimum,
    "ReduceMax": symbolic.maximum,
}


@register(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
def reduction(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    keep = bool(ctx.attr("keepdims", 1))
    axes = ctx.axes()
    reduces_all = axes == [] and not ctx.attr("noop_with_empty_axes", 0)
    if x.shape is None and reduces_all and not keep:
        return [Fact(x.dtype, ())]
    if x.shape is None or axes is None:
        return [Fact(x.dtype, None, x.possible_ranks() if keep else None)]
    if reduces_all:
        axes = list(range(len(x.shape)))
    rank = max(1, len(x.shape))
    if any(not -rank <= a < rank for a in axes) and not ctx.is_nonempty(0):
        return [Fact(x.dtype)]
    # onnxruntime accepts axis 0 for a scalar.
    dropped = {ctx.axis(a, max(1, len(x.shape))) for a in axes}
    to_scalar = not keep and not ctx.axes() and bool(x.shape)
    if not to_scalar and any(x.shape[axis] == 0 for axis in dropped if axis < len(x.shape)):
        return [Fact(x.dtype)]  # onnxruntime keeps an axis of size 0
    dims: list[Dim] = []
    for axis, dim in enumerate(x.shape):
        if axis not in dropped:
            dims.append(dim)
        elif keep:
            # onnxruntime keeps an axis of size 0.
            dims.append(1 if symbolic.positive(dim) else ctx.fresh(axis, low=0, high=1))
    fold = _FOLDS.get(ctx.node.op)
    values: tuple[Element, ...] | None = None
    if fold and x.values and x.dtype in INTEGERS and len(dropped) == len(x.shape):
        values = representable([reduce(fold, [v for v in x.values if v is not None])], x.dtype)
    return [Fact(x.dtype, tuple(dims), None, values)]


@register("ArgMax", "ArgMin")
def arg_reduction(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    if x.shape is None:
        return [Fact(INT64, None, x.ranks if ctx.attr("keepdims", 1) else None)]
    if not x.shape or not ctx.is_nonempty(0):
        return [_arg_of_empty(ctx, x)]
    axis = ctx.axis(ctx.attr("axis", 0), len(x.shape))
    middle: tuple[Dim, ...] = (1,) if ctx.attr("keepdims", 1) else ()
    return [Fact(INT64, x.shape[:axis] + middle + x.shape[axis + 1 :])]


def _arg_of_empty(ctx: NodeContext, x: Fact) -> Fact:
    """ArgMax of a scalar or a tensor that may be empty: onnxruntime does not check the axis."""
    rank, axis = len(x.shape or ()), int(ctx.attr("axis", 0))
    if not x.shape or not -rank <= axis < rank:
        return Fact(INT64, () if not x.shape else None)
    axis %= rank
    kept = x.shape[axis]
    middle = (1 if symbolic.positive(kept) else ctx.fresh(axis, low=0, high=1),)
    return Fact(
        INT64, x.shape[:axis] + (middle if ctx.attr("keepdims", 1) else ()) + x.shape[axis + 1 :]
    )


@register("CumSum", "CumProd")
def running(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    return [Fact(x.dtype, x.shape, x.ranks)]


@register("TopK")
def top_k(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    if x.shape is None:
        return [Fact(x.dtype, None, x.ranks), Fact(INT64, None, x.ranks)]
    axis = ctx.axis(ctx.attr("axis", -1), len(x.shape))
    count = [int(ctx.attr("k"))] if "k" in ctx.node.attrs else ctx.dims(1)
    size: Dim = count[0] if count else ctx.fresh(axis)
    dims = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    return [Fact(x.dtype, dims), Fact(INT64, dims)]
