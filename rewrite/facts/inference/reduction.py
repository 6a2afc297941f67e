"""Reductions, arg-reductions and running sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from ... import symbolic
from ...symbolic import Dim
from ..facts import INT64, INTEGERS, Fact, Value
from .elementwise import representable
from .registry import Site, shape_of

_FOLDS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "ReduceSum": symbolic.add,
    "ReduceProd": symbolic.mul,
    "ReduceMin": symbolic.minimum,
    "ReduceMax": symbolic.maximum,
}


@shape_of(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
def reduction(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    keep = bool(site.attr("keepdims", 1))
    axes = list(site.attr("axes")) if "axes" in site.node.attrs else _axes_input(site)
    if x.shape is None or axes is None:
        return [Fact(x.dtype, None, x.possible_ranks() if keep else None)]
    if not axes and not site.attr("noop_with_empty_axes", 0):
        axes = list(range(len(x.shape)))
    rank = max(1, len(x.shape))
    if any(not -rank <= a < rank for a in axes) and not site.surely_has_elements(0):
        return [Fact(x.dtype)]
    # onnxruntime lets a scalar be reduced along axis 0.
    dropped = {site.axis(a, max(1, len(x.shape))) for a in axes}
    if any(x.shape[axis] == 0 for axis in dropped if axis < len(x.shape)):
        return [Fact(x.dtype)]  # onnxruntime keeps such an axis
    dims: list[Dim] = []
    for axis, dim in enumerate(x.shape):
        if axis not in dropped:
            dims.append(dim)
        elif keep:
            # An axis without elements stays one in onnxruntime.
            dims.append(1 if symbolic.positive(dim) else site.fresh(axis, low=0, high=1))
    fold = _FOLDS.get(site.node.op)
    values: tuple[Value, ...] | None = None
    if fold and x.values and x.dtype in INTEGERS and len(dropped) == len(x.shape):
        values = representable([reduce(fold, [v for v in x.values if v is not None])], x.dtype)
    return [Fact(x.dtype, tuple(dims), None, values)]


def _axes_input(site: Site) -> list[int] | None:
    return site.ints(1) if site.present(1) else []


@shape_of("ArgMax", "ArgMin")
def arg_reduction(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    if x.shape is None:
        return [Fact(INT64, None, x.ranks if site.attr("keepdims", 1) else None)]
    if not x.shape or not site.surely_has_elements(0):
        return [_unchecked_arg(site, x)]
    axis = site.axis(site.attr("axis", 0), len(x.shape))
    middle: tuple[Dim, ...] = (1,) if site.attr("keepdims", 1) else ()
    return [Fact(INT64, x.shape[:axis] + middle + x.shape[axis + 1 :])]


def _unchecked_arg(site: Site, x: Fact) -> Fact:
    """ArgMax of a scalar, or of what may have no elements: the axis is not checked there."""
    rank, axis = len(x.shape or ()), int(site.attr("axis", 0))
    if not x.shape or not -rank <= axis < rank:
        return Fact(INT64, () if not x.shape else None)
    axis %= rank
    kept = x.shape[axis]
    middle = (1 if symbolic.positive(kept) else site.fresh(axis, low=0, high=1),)
    return Fact(
        INT64, x.shape[:axis] + (middle if site.attr("keepdims", 1) else ()) + x.shape[axis + 1 :]
    )


@shape_of("CumSum", "CumProd")
def running(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    return [Fact(x.dtype, x.shape, x.ranks)]


@shape_of("TopK")
def top_k(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    if x.shape is None:
        return [Fact(x.dtype, None, x.ranks), Fact(INT64, None, x.ranks)]
    axis = site.axis(site.attr("axis", -1), len(x.shape))
    count = [int(site.attr("k"))] if "k" in site.node.attrs else site.dims(1)
    size: Dim = count[0] if count else site.fresh(axis)
    dims = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    return [Fact(x.dtype, dims), Fact(INT64, dims)]
