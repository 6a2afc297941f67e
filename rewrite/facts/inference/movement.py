"""Operators that select, join or permute elements, and those that return shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ... import symbolic
from ...symbolic import Dim
from ..fact import INT64, Fact
from .registry import NodeContext, fact_like, register


@register("Shape")
def shape(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    if x.shape is None:
        return [Fact(INT64, (ctx.fresh(0),))]
    dims = x.shape[slice(ctx.attr("start", 0), ctx.attr("end"))]
    return [Fact(INT64, (len(dims),), None, tuple(dims))]


@register("Size")
def size(ctx: NodeContext) -> Sequence[Fact]:
    dims = ctx.shape(0)
    value = ctx.fresh(-1) if dims is None else symbolic.product(dims)
    return [Fact(INT64, (), None, (value,))]


@register("Gather")
def gather(ctx: NodeContext) -> Sequence[Fact]:
    x, index = ctx.fact(0), ctx.fact(1)
    if x.shape is None or index.shape is None:
        return [Fact(x.dtype)]
    axis = ctx.axis(ctx.attr("axis", 0), len(x.shape))
    result = x.shape[:axis] + index.shape + x.shape[axis + 1 :]
    picks = ctx.ints(1) if x.values is not None else None
    array = x.array()
    if array is None or picks is None:
        return [fact_like(x, result)]
    extent = array.shape[axis]
    if any(not -extent <= p < extent for p in picks):
        ctx.fail(f"an index of {picks} is outside axis {axis} of size {extent}")
    positions = np.asarray(picks, dtype=np.int64).reshape([int(d) for d in index.shape])  # type: ignore[arg-type]
    return [fact_like(x, result, np.take(array, positions, axis=axis))]


@register("GatherElements")
def gather_elements(ctx: NodeContext) -> Sequence[Fact]:
    return [Fact(ctx.fact(0).dtype, ctx.shape(1))]


@register("GatherND")
def gather_nd(ctx: NodeContext) -> Sequence[Fact]:
    x, index = ctx.fact(0), ctx.fact(1)
    if x.shape is None or index.shape is None or not isinstance(index.shape[-1], int):
        return [Fact(x.dtype)]
    batch = ctx.attr("batch_dims", 0)
    return [Fact(x.dtype, index.shape[:-1] + x.shape[batch + index.shape[-1] :])]


@register("ScatterND", "ScatterElements", "Scatter", "TensorScatter", "ReverseSequence")
def same_as_data(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    return [Fact(x.dtype, x.shape, x.ranks)]


@register("Transpose")
def transpose(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    order = ctx.attr("perm")
    if x.shape is None:
        return [Fact(x.dtype, ctx.unknown_shape(len(order)) if order else None, x.ranks)]
    order = order if order is not None else list(range(len(x.shape)))[::-1]
    if len(order) != len(x.shape):
        ctx.fail(f"perm has {len(order)} axes, the input has rank {len(x.shape)}")
    array = x.array()
    values = None if array is None else np.transpose(array, order)
    return [fact_like(x, tuple(x.shape[i] for i in order), values)]


@register("Concat")
def concat(ctx: NodeContext) -> Sequence[Fact]:
    parts = ctx.inputs()
    dtype = next((p.dtype for p in parts if p.dtype), 0)
    known = [p.shape for p in parts if p.shape is not None]
    if not known:
        return [Fact(dtype, None, parts[0].ranks)]
    rank = len(known[0])
    if any(len(s) != rank for s in known) or any(
        p.ranks is not None and rank not in p.ranks for p in parts if p.shape is None
    ):
        ctx.fail(f"operands of different ranks {sorted({len(s) for s in known})}")
    axis = ctx.axis(ctx.attr("axis", 1), rank)
    if len(known) < len(parts):
        return [Fact(dtype, _agreed(ctx, known, axis, rank))]
    total: Dim = 0
    for one in known:
        total = symbolic.add(total, one[axis])
    result = _agreed(ctx, known, axis, rank)
    result = (*result[:axis], total, *result[axis + 1 :])
    arrays = [p.array() for p in parts]
    if any(a is None for a in arrays):
        return [Fact(dtype, result)]
    return [fact_like(parts[0], result, np.concatenate([a for a in arrays if a is not None], axis))]


def _agreed(
    ctx: NodeContext, known: list[tuple[Dim, ...]], axis: int, rank: int
) -> tuple[Dim, ...]:
    """The dims that all operands share, as numbers where possible.

    onnxruntime ignores operands without elements, whatever their other dims are.
    """
    full = [s for s in known if all(map(symbolic.positive, s))]
    dims: list[Dim] = []
    for place in range(rank):
        column = [s[place] for s in known]
        if place == axis:
            dims.append(ctx.fresh(place))
        elif all(d == column[0] for d in column):
            dims.append(column[0])
        else:
            dims.append(_agreed_dim(ctx, [s[place] for s in full], place))
    return tuple(dims)


def _agreed_dim(ctx: NodeContext, column: list[Dim], place: int) -> Dim:
    """The common dim of operands that are known to have elements."""
    if any(symbolic.eq(a, column[0]) is False for a in column):
        ctx.fail(f"operands differ in axis {place}: {', '.join(map(str, column))}")
    numbers = [d for d in column if isinstance(d, int)]
    if numbers:
        return numbers[0]
    return column[0] if column else ctx.fresh(place)
