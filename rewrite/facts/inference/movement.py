"""Operators that pick, join or permute elements, and those that speak of shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ... import symbolic
from ...symbolic import Dim
from ..facts import INT64, Fact
from .registry import Site, like, shape_of


@shape_of("Shape")
def shape(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    if x.shape is None:
        return [Fact(INT64, (site.fresh(0),))]
    dims = x.shape[slice(site.attr("start", 0), site.attr("end"))]
    return [Fact(INT64, (len(dims),), None, tuple(dims))]


@shape_of("Size")
def size(site: Site) -> Sequence[Fact]:
    dims = site.shape(0)
    value = site.fresh(-1) if dims is None else symbolic.product(dims)
    return [Fact(INT64, (), None, (value,))]


@shape_of("Gather")
def gather(site: Site) -> Sequence[Fact]:
    x, index = site.fact(0), site.fact(1)
    if x.shape is None or index.shape is None:
        return [Fact(x.dtype)]
    axis = site.axis(site.attr("axis", 0), len(x.shape))
    result = x.shape[:axis] + index.shape + x.shape[axis + 1 :]
    picks = site.ints(1) if x.values is not None else None
    array = x.array()
    if array is None or picks is None:
        return [like(x, result)]
    extent = array.shape[axis]
    if any(not -extent <= p < extent for p in picks):
        site.fail(f"an index of {picks} is outside axis {axis} of size {extent}")
    positions = np.asarray(picks, dtype=np.int64).reshape([int(d) for d in index.shape])  # type: ignore[arg-type]
    return [like(x, result, np.take(array, positions, axis=axis))]


@shape_of("GatherElements")
def gather_elements(site: Site) -> Sequence[Fact]:
    return [Fact(site.fact(0).dtype, site.shape(1))]


@shape_of("GatherND")
def gather_nd(site: Site) -> Sequence[Fact]:
    x, index = site.fact(0), site.fact(1)
    if x.shape is None or index.shape is None or not isinstance(index.shape[-1], int):
        return [Fact(x.dtype)]
    batch = site.attr("batch_dims", 0)
    return [Fact(x.dtype, index.shape[:-1] + x.shape[batch + index.shape[-1] :])]


@shape_of("ScatterND", "ScatterElements", "Scatter", "TensorScatter", "ReverseSequence")
def same_as_data(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    return [Fact(x.dtype, x.shape, x.ranks)]


@shape_of("Transpose")
def transpose(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    order = site.attr("perm")
    if x.shape is None:
        return [Fact(x.dtype, site.unknown_shape(len(order)) if order else None, x.ranks)]
    order = order if order is not None else list(range(len(x.shape)))[::-1]
    if len(order) != len(x.shape):
        site.fail(f"perm has {len(order)} axes, the input has rank {len(x.shape)}")
    array = x.array()
    values = None if array is None else np.transpose(array, order)
    return [like(x, tuple(x.shape[i] for i in order), values)]


@shape_of("Concat")
def concat(site: Site) -> Sequence[Fact]:
    parts = site.inputs()
    dtype = next((p.dtype for p in parts if p.dtype), 0)
    known = [p.shape for p in parts if p.shape is not None]
    if not known:
        return [Fact(dtype, None, parts[0].ranks)]
    rank = len(known[0])
    if any(len(s) != rank for s in known) or any(
        p.ranks is not None and rank not in p.ranks for p in parts if p.shape is None
    ):
        site.fail(f"operands of different ranks {sorted({len(s) for s in known})}")
    axis = site.axis(site.attr("axis", 1), rank)
    if len(known) < len(parts):
        return [Fact(dtype, _agreed(site, known, axis, rank))]
    total: Dim = 0
    for one in known:
        total = symbolic.add(total, one[axis])
    result = _agreed(site, known, axis, rank)
    result = (*result[:axis], total, *result[axis + 1 :])
    arrays = [p.array() for p in parts]
    if any(a is None for a in arrays):
        return [Fact(dtype, result)]
    return [like(parts[0], result, np.concatenate([a for a in arrays if a is not None], axis))]


def _agreed(site: Site, known: list[tuple[Dim, ...]], axis: int, rank: int) -> tuple[Dim, ...]:
    """The dims that all operands share; a number says more than a symbol.

    onnxruntime leaves operands without elements out of account, whatever their other dims are.
    """
    full = [s for s in known if all(map(symbolic.positive, s))]
    dims: list[Dim] = []
    for place in range(rank):
        column = [s[place] for s in known]
        if place == axis:
            dims.append(site.fresh(place))
        elif all(d == column[0] for d in column):
            dims.append(column[0])
        else:
            dims.append(_agreed_dim(site, [s[place] for s in full], place))
    return tuple(dims)


def _agreed_dim(site: Site, column: list[Dim], place: int) -> Dim:
    """A dim by the operands that surely have elements."""
    if any(symbolic.eq(a, column[0]) is False for a in column):
        site.fail(f"operands differ in axis {place}: {', '.join(map(str, column))}")
    numbers = [d for d in column if isinstance(d, int)]
    if numbers:
        return numbers[0]
    return column[0] if column else site.fresh(place)
