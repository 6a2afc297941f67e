"""Operators that cut or extend an axis: Slice, Split, Pad."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ... import symbolic
from ...symbolic import Dim
from ..facts import Fact
from ..slices import END
from .registry import Site, like, shape_of


@shape_of("Slice")
def slice_(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    if x.shape is None:
        return [Fact(x.dtype, None, x.ranks)]
    bounds = _slice_bounds(site, len(x.shape))
    if bounds is None:
        return [Fact(x.dtype, site.unknown_shape(len(x.shape)))]
    dims = list(x.shape)
    array = x.array()
    for axis, start, stop, step in bounds:
        dims[axis] = _sliced(site, axis, x.shape[axis], start, stop, step)
        known = all(isinstance(v, int) for v in (start, stop, step))
        if array is not None and known and not _ends_far_ahead(stop, step):
            taken = _taken(array.shape[axis], int(start), int(stop), int(step))  # type: ignore[arg-type]
            array = np.take(array, list(taken), axis=axis)
        else:
            array = None
    return [like(x, tuple(dims), array)]


def _ends_far_ahead(stop: Dim, step: Dim) -> bool:
    """A backward slice that ends at the largest integer: onnxruntime takes it to the very start,
    the specification ends it at once.
    """
    return isinstance(stop, int) and stop >= END and isinstance(step, int) and step < 0


def _taken(dim: int, start: int, stop: int, step: int) -> range:
    """The positions a slice takes (ONNX: Slice): backwards, the start is clamped to the last
    position and the stop to one before the first.
    """
    if step > 0 or not dim:
        return range(dim)[start:stop:step]
    first = min(max(start + dim if start < 0 else start, 0), dim - 1)
    last = max(min(stop + dim if stop < 0 else stop, dim - 1), -1)
    return range(first, last, step)


def _slice_bounds(site: Site, rank: int) -> list[tuple[int, Dim, Dim, Dim]] | None:
    """(axis, start, stop, step) per sliced axis; None when the axes are not known."""
    if site.opset < 10 and "starts" in site.node.attrs:
        starts: list[Dim] = list(site.attr("starts"))
        stops: list[Dim] = list(site.attr("ends"))
        axes = site.attr("axes") or list(range(len(starts)))
        return [(site.axis(a, rank), s, e, 1) for a, s, e in zip(axes, starts, stops)]
    starts_known, stops_known = site.dims(1), site.dims(2)
    axes_known = site.ints(3) if site.present(3) else None
    steps = site.dims(4) if site.present(4) else None
    if (site.present(3) and axes_known is None) or (starts_known is None and stops_known is None):
        return None
    count = len(starts_known if starts_known is not None else stops_known or [])
    axes_known = list(range(count)) if axes_known is None else axes_known
    unknown: list[Dim] = [site.fresh(100 + i, low=None) for i in range(count)]
    starts_known = starts_known if starts_known is not None else unknown
    stops_known = stops_known if stops_known is not None else unknown
    if site.present(4) and steps is None:
        return None
    steps = steps or [1] * count
    triples = zip(axes_known, starts_known, stops_known, steps)
    return [(site.axis(a, rank), s, e, k) for a, s, e, k in triples]


def _sliced(site: Site, axis: int, dim: Dim, start: Dim, stop: Dim, step: Dim) -> Dim:
    """The size of one sliced axis; a fresh dim where clamping cannot be decided."""
    if not isinstance(step, int) or step == 0:
        return site.fresh(axis)
    if step < 0:
        return _sliced_backward(site, axis, dim, start, stop, step)
    first, last = _clamped(start, dim), _clamped(stop, dim)
    if first is None or last is None:
        return site.fresh(axis, high=symbolic.bounds(dim)[1])
    extent = symbolic.maximum(symbolic.sub(last, first), 0)
    return symbolic.ceildiv(extent, step)


def _clamped(bound: Dim, dim: Dim) -> Dim | None:
    """A slice bound as a position in [0, dim]."""
    if isinstance(bound, int) and bound >= END:
        return dim
    low, high = symbolic.bounds(bound)
    if low is not None and low >= 0:
        return symbolic.minimum(bound, dim)
    if high is not None and high < 0:
        return symbolic.maximum(symbolic.add(bound, dim), 0)
    return None


def _sliced_backward(site: Site, axis: int, dim: Dim, start: Dim, stop: Dim, step: int) -> Dim:
    if _ends_far_ahead(stop, step):
        return site.fresh(axis, high=symbolic.bounds(dim)[1])
    whole = symbolic.eq(start, -1) or (isinstance(start, int) and start >= END)
    if whole and isinstance(stop, int) and stop < -END:
        return symbolic.ceildiv(dim, -step)
    if isinstance(dim, int) and isinstance(start, int) and isinstance(stop, int):
        return len(_taken(dim, start, stop, step))
    return site.fresh(axis, high=symbolic.bounds(dim)[1])


@shape_of("Pad")
def pad(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    if x.shape is None:
        return [Fact(x.dtype, None, x.ranks)]
    rank = len(x.shape)
    pads = list(site.attr("pads")) if "pads" in site.node.attrs else site.dims(1)
    axes = site.ints(3) if site.present(3) else list(range(rank))
    if pads is None or axes is None or len(pads) != 2 * len(axes):
        return [Fact(x.dtype, site.unknown_shape(rank))]
    dims = list(x.shape)
    for place, axis in enumerate(axes):
        both = symbolic.add(pads[place], pads[place + len(axes)])
        axis = site.axis(axis, rank)
        dims[axis] = symbolic.add(dims[axis], both)
    return [Fact(x.dtype, tuple(dims))]


@shape_of("Split")
def split(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    count = len(site.node.outputs)
    if x.shape is None:
        return [Fact(x.dtype, None, x.ranks)] * count
    axis = site.axis(site.attr("axis", 0), len(x.shape))
    sizes = site.attr("split") if "split" in site.node.attrs else None
    sizes = sizes if sizes is not None else (site.dims(1) if site.present(1) else None)
    facts = []
    array = x.array()
    start = 0
    for place in range(count):
        size: Dim
        if sizes is not None and len(sizes) == count:
            size = sizes[place]
        elif not site.present(1):
            size = _even_part(x.shape[axis], count, place)
        else:
            size = site.fresh(axis, place)
        values = None
        if array is not None and isinstance(size, int):
            window = [slice(None)] * array.ndim
            window[axis] = slice(start, start + size)
            values = array[tuple(window)]
            start += size
        else:
            array = None  # where the next part starts is not known
        dims = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        facts.append(like(x, dims, values))
    return facts


def _even_part(dim: Dim, count: int, place: int) -> Dim:
    """Equal parts, the last one smaller when the axis is not divisible (Split, opset 18)."""
    part = symbolic.ceildiv(dim, count)
    if place < count - 1:
        return part
    return symbolic.sub(dim, symbolic.mul(part, count - 1))
