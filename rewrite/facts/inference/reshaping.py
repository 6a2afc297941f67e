"""Operators that keep the elements and change the axes: Reshape, Squeeze, Expand …"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ... import symbolic
from ...symbolic import Dim
from ..facts import MOST_VALUES, Fact
from .broadcast import broadcast
from .registry import Site, like, shape_of


def _axes(site: Site, slot: int) -> list[int] | None:
    """The `axes`, an attribute until opset 12 and an input since; [] when absent."""
    if "axes" in site.node.attrs:
        return [int(v) for v in site.attr("axes")]
    return site.ints(slot) if site.present(slot) else []


@shape_of("Squeeze")
def squeeze(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    axes = _axes(site, 1)
    if x.shape is None or axes is None:
        ranks = None
        if axes and x.ranks is not None:
            ranks = frozenset(r - len(axes) for r in x.ranks if r >= len(axes))
        return [Fact(x.dtype, None, ranks)]
    if not axes:  # absent, or an input without elements: onnxruntime drops every axis of size 1
        if any(symbolic.eq(d, 1) is None for d in x.shape):
            return [Fact(x.dtype)]
        axes = [i for i, d in enumerate(x.shape) if d == 1]
    drop = {site.axis(a, len(x.shape)) for a in axes}
    for axis in drop:
        if symbolic.eq(x.shape[axis], 1) is False:
            site.fail(f"axis {axis} has size {x.shape[axis]}, not 1")
    kept = tuple(d for axis, d in enumerate(x.shape) if axis not in drop)
    return [Fact(x.dtype, kept, None, x.values)]


@shape_of("Unsqueeze")
def unsqueeze(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    axes = _axes(site, 1)
    if x.shape is None or axes is None:
        ranks = None
        if axes is not None and x.ranks is not None:
            ranks = frozenset(r + len(axes) for r in x.ranks)
        return [Fact(x.dtype, None, ranks)]
    rank = len(x.shape) + len(axes)
    added = {site.axis(a, rank) for a in axes}
    rest = iter(x.shape)
    return [
        Fact(x.dtype, tuple(1 if i in added else next(rest) for i in range(rank)), None, x.values)
    ]


@shape_of("Reshape")
def reshape(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    target = list(site.attr("shape")) if "shape" in site.node.attrs else site.dims(1)
    if target is None:
        count = site.shape(1)
        rank = count[0] if count and isinstance(count[0], int) else None
        return [Fact(x.dtype, None if rank is None else site.unknown_shape(rank))]
    keep_zero = bool(site.attr("allowzero", 0))
    dims = [_target_dim(site, x, target, axis, keep_zero) for axis in range(len(target))]
    return [like(x, _fill_wildcard(site, x, dims), x.array())]


def _target_dim(site: Site, x: Fact, target: list[Dim], axis: int, keep_zero: bool) -> Dim:
    """One dim of the result; -1 where it is to be inferred from the element count."""
    dim = target[axis]
    if dim == -1 or symbolic.positive(dim) or (keep_zero and symbolic.nonnegative(dim)):
        return dim
    if keep_zero:
        return site.fresh(axis)
    copied = x.shape[axis] if x.shape is not None and axis < len(x.shape) else None
    if dim == 0:
        if x.shape is not None and copied is None:
            site.fail(f"dim {axis} of the target copies an axis the input has not")
        return site.fresh(axis) if copied is None else copied
    # A dim that turns out 0 means "copy", which is the same only for the axis it is the size of.
    if symbolic.nonnegative(dim) and (copied == dim or _zero_would_fail(x, target, axis)):
        return dim
    return site.fresh(axis)


def _zero_would_fail(x: Fact, target: list[Dim], axis: int) -> bool:
    """Whether a 0 at this place of the target copies a size with which the elements do not fit."""
    symbol = symbolic.single_symbol(target[axis])
    if x.shape is None or symbol is None:
        return False
    if axis >= len(x.shape):
        return True
    at_zero: dict[symbolic.Symbol, Dim] = {symbol: 0}
    before = [d if isinstance(d, int) else symbolic.substitute(d, at_zero) for d in x.shape]
    after = [d if isinstance(d, int) else symbolic.substitute(d, at_zero) for d in target]
    copied = [before[k] if d == 0 and k < len(before) else d for k, d in enumerate(after)]
    there, wanted = symbolic.product(before), symbolic.product(copied)
    return -1 not in copied and symbolic.eq(there, wanted) is False


def _fill_wildcard(site: Site, x: Fact, dims: list[Dim]) -> tuple[Dim, ...]:
    unknown = [axis for axis, dim in enumerate(dims) if dim == -1]
    if len(unknown) > 1:
        for axis in unknown:
            dims[axis] = site.fresh(axis)
        return tuple(dims)
    if x.shape is None:
        return tuple(site.fresh(a) if d == -1 else d for a, d in enumerate(dims))
    total = symbolic.product(x.shape)
    if not unknown:
        if symbolic.eq(total, symbolic.product(dims)) is False:
            site.fail(f"{total} elements cannot take the shape {dims}")
        return tuple(dims)
    rest = symbolic.product(d for d in dims if d != -1)
    dims[unknown[0]] = _quotient(site, unknown[0], total, rest)
    return tuple(dims)


def _quotient(site: Site, axis: int, total: Dim, rest: Dim) -> Dim:
    if isinstance(total, int) and isinstance(rest, int):
        if rest == 0:
            return site.fresh(axis)
        if total % rest:
            site.fail(f"{total} elements cannot be divided by {rest}")
        return total // rest
    if rest == 0 or symbolic.eq(rest, 0) is not False:
        shared = _without_common(site.shape(0) or (), rest)
        return shared if shared is not None else site.fresh(axis)
    quotient = symbolic.floordiv(total, rest)
    return quotient if symbolic.mul(quotient, rest) == total else site.fresh(axis)


def _without_common(shape: tuple[Dim, ...], rest: Dim) -> Dim | None:
    """(N, 4, H) reshaped to (N, -1): N cancels even where it may be 0.

    The run fails when N is 0, since the missing dim cannot be inferred then, so in every run that
    goes on the quotient is the product of the other dims.
    """
    for drop in range(len(shape)):
        if shape[drop] == rest:
            return symbolic.product(shape[:drop] + shape[drop + 1 :])
    return None


@shape_of("Flatten")
def flatten(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    if x.shape is None:
        return [Fact(x.dtype, site.unknown_shape(2))]
    axis = site.attr("axis", 1)
    axis = axis + len(x.shape) if axis < 0 else axis
    pair = (symbolic.product(x.shape[:axis]), symbolic.product(x.shape[axis:]))
    return [Fact(x.dtype, pair)]


@shape_of("Expand")
def expand(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    target = site.dims(1)
    if x.shape is None:
        return [Fact(x.dtype)]
    if target is None:
        asked = site.shape(1)
        length = asked[0] if asked else None
        if not isinstance(length, int):
            return [Fact(x.dtype)]
        return [Fact(x.dtype, site.unknown_shape(max(len(x.shape), length)))]
    result = broadcast(site, x.shape, tuple(target))
    array = x.array()
    if array is None or result is None or not all(isinstance(d, int) for d in result):
        return [Fact(x.dtype, result)]
    if symbolic.product(result) > MOST_VALUES:  # type: ignore[operator]
        return [Fact(x.dtype, result)]
    return [like(x, result, np.broadcast_to(array, [int(d) for d in result]))]  # type: ignore[arg-type]


@shape_of("Tile")
def tile(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    repeats = site.dims(1)
    if x.shape is None or repeats is None:
        return [Fact(x.dtype, None if x.shape is None else site.unknown_shape(len(x.shape)))]
    return [Fact(x.dtype, tuple(symbolic.mul(d, r) for d, r in zip(x.shape, repeats)))]


@shape_of("DepthToSpace", "SpaceToDepth")
def blocks(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    if x.shape is None or len(x.shape) != 4:
        return [Fact(x.dtype)]
    n, c, h, w = x.shape
    b = int(site.attr("blocksize"))
    if site.node.op == "DepthToSpace":
        dims = (n, symbolic.floordiv(c, b * b), symbolic.mul(h, b), symbolic.mul(w, b))
    else:
        dims = (n, symbolic.mul(c, b * b), symbolic.floordiv(h, b), symbolic.floordiv(w, b))
    return [Fact(x.dtype, dims)]
