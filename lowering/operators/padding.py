"""Pad by amounts or with a value computed at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, sym, te, tirx

from ...rewrite.errors import UnsupportedError
from ..values import Constant, Value, as_int, fresh_dim
from .axes import counted_from_front
from .broadcasting import ONE, ZERO, dims_of, match_dims, require_size
from .registry import Accepts, ConverterContext, converts
from .sizes import read_sizes, sizes_of, with_length


@converts("Pad", accepts=Accepts.SIZES)
def pad(ctx: ConverterContext) -> Value:
    """Pad, see https://onnx.ai/onnx/operators/onnx__Pad.html; a negative amount removes."""
    data = ctx.tensor(0)
    _, pads, fill, axes = (ctx.inputs[slot] for slot in range(4))
    mode = ctx.attr("mode", "constant")
    are_known = all(v is None or ctx.known_elements(v) is not None for v in (pads, fill, axes))
    if are_known and mode == "constant":
        return ctx.by_tvm([data, *ctx.inputs[1:]])
    if pads is None:  # before opset 11
        pads = relax.const(np.array(ctx.attrs["pads"], np.int64))
    rank = len(dims_of(data, "data"))
    padded = _axes(ctx, axes, rank)
    given = sizes_of(ctx.bb, with_length(ctx.bb, pads, 2 * len(padded)))
    before, after = _amounts(given, padded, rank)
    if mode == "constant":
        fill = relax.const(0, data.ty.dtype) if fill is None else fill
        result = pad_with(ctx, data, fill, before, after)
    else:
        data = _with_something_to_copy(ctx, data, before, after)
        sources = partial(_pad_by_copies, _SOURCES[mode])
        result = ctx.call_te(sources, data, before, after, name="pad")
    if read_sizes(pads) is not None:
        return result
    # A symbol of a size is never negative, but one of an amount may be.
    dims = [
        fresh_dim("padded") if _is_padded(amounts) else size
        for size, *amounts in zip(dims_of(data, "data"), before, after, strict=True)
    ]
    return match_dims(ctx.bb, ctx.bb.normalize(result), dims)


def _axes(ctx: ConverterContext, value: Value, rank: int) -> list[Any]:
    """The padded axes from the front; symbolic expressions where they are not known."""
    if value is None:
        return list(range(rank))
    axes = ctx.known_elements(value)
    if axes is None:
        return sizes_of(ctx.bb, counted_from_front(ctx, value, rank))
    return [int(axis) % rank for axis in axes]


def _amounts(pads: Sequence[Any], axes: Sequence[Any], rank: int) -> tuple[list[Any], list[Any]]:
    """The padding before and after each axis."""
    if len(pads) != 2 * len(axes):
        raise UnsupportedError(
            f"`pads` has {len(pads)} elements, but {len(axes)} axes need {2 * len(axes)}"
        )
    sides = []
    for of_side in (pads[: len(axes)], pads[len(axes) :]):
        amounts = [ZERO] * rank
        for amount, given in zip(of_side, axes, strict=True):
            if isinstance(given, int):
                amounts[given] = amount
                continue
            for axis in range(rank):
                amounts[axis] = tirx.Select(given == axis, amount, amounts[axis])
        sides.append(amounts)
    return sides[0], sides[1]


def _padded_shape(data: Any, before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    simplify = sym.Analyzer().simplify
    return [simplify(size + a + b) for size, a, b in zip(data.shape, before, after, strict=True)]


def pad_with(
    ctx: ConverterContext,
    data: Value,
    fill: Value,
    before: Sequence[Any],
    after: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
) -> Value:
    """Data padded with `fill`, a scalar; the amounts are one symbolic expression for each axis.

    `attributes` are those of the kernel.
    """
    if isinstance(fill, Constant):
        # As a number: a kernel for padding with one can become a part of what reads it.
        number = tirx.const(fill.value.numpy().item(), str(fill.ty.dtype))
        compute = partial(_pad_with_number, number)
        return ctx.call_te(compute, data, before, after, name="pad", attributes=attributes)

    def padded(data: Any, fill: Any, before: Sequence[Any], after: Sequence[Any]) -> Any:
        return _pad_with_number(fill(*[0] * len(fill.shape)), data, before, after)

    return ctx.call_te(padded, data, fill, before, after, name="pad", attributes=attributes)


def _pad_with_number(number: Any, data: Any, before: Sequence[Any], after: Sequence[Any]) -> Any:
    def element(*positions: Any) -> Any:
        places = [position - a for position, a in zip(positions, before, strict=True)]
        inside = [
            tirx.all(place >= 0, place < size)
            for place, size, *amounts in zip(places, data.shape, before, after, strict=True)
            if _is_padded(amounts)
        ]
        if not inside:
            return data(*places)
        return tirx.if_then_else(tirx.all(*inside), data(*places), number)

    return te.compute(_padded_shape(data, before, after), element, name="pad")


def _with_something_to_copy(
    ctx: ConverterContext, data: Value, before: Sequence[Any], after: Sequence[Any]
) -> Value:
    """The data; a run fails if no element of a padded axis is left that the others could copy."""
    dims = dims_of(data, "data")
    for axis, (size, *amounts) in enumerate(zip(dims, before, after, strict=True)):
        missing = sym.Analyzer().simplify(tirx.max(ONE - _kept(size, *amounts), ZERO))
        if _is_padded(amounts) and as_int(missing) != 0:
            data = require_size(ctx.bb, data, axis, size + missing)
    return data


def _kept(size: Any, start: Any, end: Any) -> Any:
    """How many elements of an axis negative amounts leave."""
    return size + tirx.min(start, 0) + tirx.min(end, 0)


def _pad_by_copies(
    source: Callable[[Any, Any], Any], data: Any, before: Sequence[Any], after: Sequence[Any]
) -> Any:
    def copied(position: Any, size: Any, start: Any, end: Any) -> Any:
        if not _is_padded((start, end)):
            return position
        # A negative amount removes elements first: what is left is copied.
        place = source(position - tirx.max(start, 0), _kept(size, start, end))
        return place + tirx.max(-start, 0)

    def element(*positions: Any) -> Any:
        axes = zip(positions, data.shape, before, after, strict=True)
        return data(*(copied(*axis) for axis in axes))

    return te.compute(_padded_shape(data, before, after), element, name="pad")


def _is_padded(amounts: Sequence[Any]) -> bool:
    """Whether an axis may be padded."""
    return any(as_int(amount) != 0 for amount in amounts)


def _reflected(place: Any, size: Any) -> Any:
    """Reflection that does not repeat the edge, and goes back and forth beyond one size."""
    period = tirx.max(2 * (size - 1), 1)
    within = tirx.floormod(place, period)
    return tirx.min(within, period - within)


_SOURCES: dict[str, Callable[[Any, Any], Any]] = {
    "edge": lambda place, size: tirx.max(tirx.min(place, size - 1), 0),
    "reflect": _reflected,
    "wrap": tirx.floormod,
}
"""The position of the element that a position outside of an axis copies, by mode."""
