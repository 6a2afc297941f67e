"""Reductions along axes that are computed: what is reduced is brought into one last axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from ...rewrite.errors import UnsupportedError
from ..values import as_int, as_tensor
from .broadcasting import known_dims
from .runtime_shapes import sizes_of

_ZERO, _ONE = (tirx.IntImm("int64", number) for number in (0, 1))


def gather_reduced(bb: Any, data: Any, axes: Any) -> Any:
    """The data with another axis, for all that is reduced, and size 1 in its place.

    No axes stand for all.
    """
    rank = data.ty.ndim
    sizes = _sizes_by_axes(bb, data, axes, _kept_and_reduced, 2 * rank)
    kept, reduced = sizes[:rank], sizes[rank:]
    call = bb.call_te(_gathered, data, kept, reduced, primfunc_name_hint="gather_reduced")
    return bb.normalize(call)


def sizes_left(bb: Any, data: Any, axes: Any) -> list[Any]:
    """The sizes of the axes that are not reduced."""
    count = as_int((known_dims(axes) or [None])[0])
    if count is None:
        raise UnsupportedError("the number of axes, and so the rank of the result, is not known")
    if count in (0, data.ty.ndim):
        return []
    return _sizes_by_axes(bb, data, axes, _left, data.ty.ndim - count)


def _sizes_by_axes(bb: Any, data: Any, axes: Any, choose: Any, length: int) -> list[Any]:
    """The sizes that `choose` makes of what is reduced and what the sizes of the data are."""
    dims = known_dims(data)
    if dims is None:
        raise UnsupportedError("the shape of the data is not known")

    def compute(axes: Any, dims: Any) -> Any:
        flags = _flags(axes, len(data.ty.shape.values))
        items = choose(flags, dims)[:length]
        return te.compute([length], lambda at: _item(items, at), name="sizes")

    vector = as_tensor(bb, relax.ShapeExpr(dims))
    return sizes_of(bb, bb.normalize(bb.call_te(compute, axes, vector, primfunc_name_hint="sizes")))


def _flags(axes: Any, rank: int) -> list[Any]:
    """Whether each axis is reduced."""
    count = axes.shape[0]
    place = te.reduce_axis((0, count), name="place")

    def hit(axis: Any) -> Any:
        given = tirx.Cast("int64", axes(place))
        is_meant = tirx.any(given == axis, given == axis - rank)
        return te.sum(tirx.Select(is_meant, _ONE, _ZERO), axis=place)

    hits = te.compute([tirx.IntImm("int64", rank)], hit, name="hits")
    return [tirx.any(count == 0, hits(axis) > 0) for axis in range(rank)]


def _kept_and_reduced(flags: Sequence[Any], dims: Any) -> list[Any]:
    """How much of each axis is kept, then how much of it is reduced."""
    kept = [tirx.Select(flag, _ONE, dims(axis)) for axis, flag in enumerate(flags)]
    return kept + [tirx.Select(flag, dims(axis), _ONE) for axis, flag in enumerate(flags)]


def _left(flags: Sequence[Any], dims: Any) -> list[Any]:
    """The sizes of the axes that are not reduced, as many as there may be."""
    places, before = [], _ZERO
    for flag in flags:
        places.append(before)
        before = before + tirx.Select(flag, _ZERO, _ONE)
    left = []
    for place in range(len(flags)):
        size = _ONE
        for axis, flag in enumerate(flags):
            is_there = tirx.all(tirx.Not(flag), places[axis] == place)
            size = tirx.Select(is_there, dims(axis), size)
        left.append(size)
    return left


def _item(items: Sequence[Any], at: Any) -> Any:
    chosen = items[-1]
    for place, item in enumerate(items[:-1]):
        chosen = tirx.Select(at == place, item, chosen)
    return chosen


def _gathered(data: Any, kept: Sequence[Any], reduced: Sequence[Any]) -> Any:
    total: Any = _ONE
    for size in reduced:
        total = total * size

    def element(*at: Any) -> Any:
        *places, rest = at
        for axis in reversed(range(len(reduced))):
            # Of an axis, either all is kept or all is reduced: one of the two places is 0.
            places[axis] = places[axis] + tirx.floormod(rest, reduced[axis])
            rest = tirx.floordiv(rest, reduced[axis])
        return data(*places)

    return te.compute([*kept, total], element, name="gather_reduced")
