"""Operators that shorten or extend axes: Slice, Split, Pad."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ... import symbolic
from ...graph.ir import Tensor
from ...symbolic import Dim
from ..fact import MOST_VALUES, Fact
from ..slices import END, slice_operands
from .registry import NodeContext, fact_like, register


@register("Slice")
def slice_(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    if x.shape is None:
        return [Fact(x.dtype, None, x.ranks)]
    operands = slice_operands(ctx.node, lambda tensor: _elements(ctx, tensor))
    if operands is None:
        return [Fact(x.dtype, ctx.unknown_shape(len(x.shape)))]
    dims = list(x.shape)
    array = x.array()
    for start, end, axis, step in zip(*operands):
        axis = ctx.axis(axis, len(x.shape))
        dims[axis] = _sliced(ctx, axis, x.shape[axis], start, end, step)
        array = None if array is None else _taken(array, axis, start, end, step)
    return [fact_like(x, tuple(dims), array)]


def _elements(ctx: NodeContext, tensor: Tensor) -> Sequence[Dim | None] | None:
    """The elements of an operand, None for unknown ones; None where its length is not known."""
    known = ctx.elements(tensor)
    shape = ctx.facts.shape(tensor)
    length = shape[0] if shape else None
    if known is None and isinstance(length, int) and length <= MOST_VALUES:
        return [None] * length
    return known


def _taken(
    array: np.ndarray, axis: int, start: Dim | None, end: Dim | None, step: Dim | None
) -> np.ndarray | None:
    """The elements that a slice takes; None where they are not known."""
    positions = _positions(array.shape[axis], start, end, step)
    if positions is None or _differs_from_spec(end, step):
        return None
    return np.take(array, list(positions), axis=axis)


def _differs_from_spec(end: Dim | None, step: Dim | None) -> bool:
    """Whether this is a backward slice that ends at the largest integer.

    Such a slice is empty by the specification, but onnxruntime takes it to the first element.
    """
    return isinstance(end, int) and end >= END and isinstance(step, int) and step < 0


def _positions(length: int, start: Dim | None, end: Dim | None, step: Dim | None) -> range | None:
    """The positions on an axis that a slice takes (ONNX: Slice); None where they are not known.

    For a backward slice the start is clamped to the last position, the end to one before the first.
    """
    if not isinstance(start, int) or not isinstance(end, int) or not isinstance(step, int):
        return None
    if step > 0 or not length:
        return range(length)[start:end:step]
    first = min(max(start + length if start < 0 else start, 0), length - 1)
    last = max(min(end + length if end < 0 else end, length - 1), -1)
    return range(first, last, step)


def _sliced(
    ctx: NodeContext, axis: int, dim: Dim, start: Dim | None, end: Dim | None, step: Dim | None
) -> Dim:
    """The size of one sliced axis; a fresh dim where it is not known how the bounds are clamped."""
    if not isinstance(step, int) or step == 0:
        return ctx.fresh(axis)
    if step < 0:
        return _sliced_backward(ctx, axis, dim, start, end, step)
    first, last = _clamped(start, dim), _clamped(end, dim)
    if first is None or last is None:
        return ctx.fresh(axis, high=symbolic.bounds(dim)[1])
    extent = symbolic.maximum(symbolic.sub(last, first), 0)
    return symbolic.ceildiv(extent, step)


def _clamped(bound: Dim | None, dim: Dim) -> Dim | None:
    """A slice bound as a position in [0, dim]; None where its sign is not known."""
    if bound is None:
        return None
    if isinstance(bound, int) and bound >= END:
        return dim
    low, high = symbolic.bounds(bound)
    if low is not None and low >= 0:
        return symbolic.minimum(bound, dim)
    if high is not None and high < 0:
        return symbolic.maximum(symbolic.add(bound, dim), 0)
    return None


def _sliced_backward(
    ctx: NodeContext, axis: int, dim: Dim, start: Dim | None, end: Dim | None, step: int
) -> Dim:
    unknown = ctx.fresh(axis, high=symbolic.bounds(dim)[1])
    if _differs_from_spec(end, step):
        return unknown
    from_last = start == -1 or (isinstance(start, int) and start >= END)
    if from_last and isinstance(end, int) and end < -END:
        return symbolic.ceildiv(dim, -step)
    positions = _positions(dim, start, end, step) if isinstance(dim, int) else None
    return unknown if positions is None else len(positions)


@register("Pad")
def pad(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    if x.shape is None:
        return [Fact(x.dtype, None, x.ranks)]
    rank = len(x.shape)
    pads = ctx.attr_or_dims("pads", 1)
    axes = ctx.ints(3) if ctx.present(3) else list(range(rank))
    if pads is None or axes is None or len(pads) != 2 * len(axes):
        return [Fact(x.dtype, ctx.unknown_shape(rank))]
    dims = list(x.shape)
    for place, axis in enumerate(axes):
        both = symbolic.add(pads[place], pads[place + len(axes)])
        axis = ctx.axis(axis, rank)
        dims[axis] = symbolic.add(dims[axis], both)
    return [Fact(x.dtype, tuple(dims))]


@register("Split")
def split(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    count = len(ctx.node.outputs)
    if x.shape is None:
        return [Fact(x.dtype, None, x.ranks)] * count
    axis = ctx.axis(ctx.attr("axis", 0), len(x.shape))
    sizes = ctx.attr_or_dims("split", 1)
    if sizes is not None:
        whole, parts = x.shape[axis], [size for size in sizes if isinstance(size, int)]
        if isinstance(whole, int) and len(parts) == len(sizes) and sum(parts) != whole:
            ctx.fail(f"parts of {parts} do not make up {whole}")
    facts = []
    array = x.array()
    start = 0
    for place in range(count):
        size: Dim
        if sizes is not None and len(sizes) == count:
            size = sizes[place]
        elif not ctx.present(1):
            size = _even_part(x.shape[axis], count, place)
        else:
            size = ctx.fresh(axis, place)
        values = None
        if array is not None and isinstance(size, int):
            window = [slice(None)] * array.ndim
            window[axis] = slice(start, start + size)
            values = array[tuple(window)]
            start += size
        else:
            array = None  # the start of the next part is not known
        dims = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        facts.append(fact_like(x, dims, values))
    return facts


def _even_part(dim: Dim, count: int, place: int) -> Dim:
    """The size of one of equal parts; the last one may be smaller (Split, opset 18)."""
    part = symbolic.ceildiv(dim, count)
    if place < count - 1:
        return part
    return symbolic.sub(dim, symbolic.mul(part, count - 1))
