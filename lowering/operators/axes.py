"""Axes computed at run time: a view makes such an axis a known one."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx

from ..values import Value, as_tensor
from .broadcasting import ONE, ZERO, dims_of
from .registry import ConverterContext
from .sizes import name_sizes, size_of


def axis_position(ctx: ConverterContext, axis: Value, data: Value) -> Any:
    """The axis counted from the front: an int if it is known, else a symbolic expression."""
    rank = len(dims_of(data, "data"))
    content = ctx.known_elements(axis)
    if content is not None:
        return int(content.item()) % rank
    return size_of(ctx, counted_from_front(ctx, axis, rank))


def counted_from_front(ctx: ConverterContext, axes: Value, rank: int) -> Value:
    """Axes as int64, without negative ones: TVM takes it that a symbol is not negative."""
    given = ctx.cast(as_tensor(ctx.bb, axes), "int64")
    total = relax.op.add(given, relax.const(rank, "int64"))
    return ctx.bb.emit(relax.op.floor_mod(total, relax.const(rank, "int64")))


def middle_axis_view(bb: Any, data: Value, dims: Sequence[Any], position: Any) -> Value:
    """The data as [outer, size, inner, ...], where `position` is the axis of this size.

    `dims` are the axes of the data among which `position` counts; further axes stay.
    """
    axes = range(len(dims))
    outer = _product([tirx.Select(position > axis, dims[axis], ONE) for axis in axes])
    inner = _product([tirx.Select(position < axis, dims[axis], ONE) for axis in axes])
    size: Any = ZERO
    for axis in axes:
        size = tirx.Select(position == axis, dims[axis], size)
    others = dims_of(data, "data")[len(dims) :]
    sizes = name_sizes(bb, [outer, size, inner])
    return bb.emit(relax.op.reshape(data, relax.ShapeExpr([*sizes, *others])))


def _product(factors: Sequence[Any]) -> Any:
    return functools.reduce(operator.mul, factors, ONE)
