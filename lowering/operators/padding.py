"""Pad by amounts that are computed, or with a value that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tvm import relax, te, tirx

from ...rewrite.errors import UnsupportedError
from ..tvm_onnx import InputList
from ..values import Constant, as_tensor
from .broadcasting import known_dims
from .runtime_shapes import sizes_of
from .tvm_converter import convert_as_tvm, is_weight


def convert_pad(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Pad, see https://onnx.ai/onnx/operators/onnx__Pad.html; a negative amount removes."""
    data = as_tensor(bb, inputs[0])
    inputs = InputList([data, *inputs[1:]])
    given = [inputs[1], inputs[2], inputs[3]]
    fixed = (Constant, type(None))
    if all(isinstance(value, fixed) or is_weight(value, params) for value in given):
        return convert_as_tvm("Pad", bb, inputs, attrs, params)
    dims = known_dims(data)
    if dims is None:
        raise UnsupportedError("the rank of the data is not known")
    before, after = _amounts(sizes_of(bb, inputs[1]), _axes(inputs[3], len(dims)), len(dims))
    mode = attrs.get("mode", b"constant").decode()
    if mode == "constant":
        fill = inputs[2] if inputs[2] is not None else relax.const(0, data.ty.dtype)
        return bb.call_te(pad_constant, data, fill, before, after, primfunc_name_hint="pad")
    copy = partial(_pad_copy, _SOURCES[mode])
    return bb.call_te(copy, data, before, after, primfunc_name_hint="pad")


def _axes(value: Any, rank: int) -> list[int]:
    if value is None:
        return list(range(rank))
    if not isinstance(value, Constant):
        raise UnsupportedError("the axes to pad are not constant")
    return [int(axis) % rank for axis in value.value.numpy()]


def _amounts(pads: Sequence[Any], axes: Sequence[int], rank: int) -> tuple[list[Any], list[Any]]:
    """What to add before and after each axis."""
    if len(pads) != 2 * len(axes):
        raise UnsupportedError(f"there are {len(pads)} amounts to pad {len(axes)} axes by")
    sides = []
    for given in (pads[: len(axes)], pads[len(axes) :]):
        amounts = [tirx.IntImm("int64", 0)] * rank
        for axis, amount in zip(axes, given, strict=True):
            amounts[axis] = amount
        sides.append(amounts)
    return sides[0], sides[1]


def _padded(data: Any, before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    return [size + a + b for size, a, b in zip(data.shape, before, after, strict=True)]


def pad_constant(data: Any, fill: Any, before: Sequence[Any], after: Sequence[Any]) -> Any:
    """The computation of a tensor with `fill`, a scalar, around it."""

    def element(*positions: Any) -> Any:
        places = [position - a for position, a in zip(positions, before, strict=True)]
        inside = [
            tirx.all(place >= 0, place < size)
            for place, size in zip(places, data.shape, strict=True)
        ]
        value = fill(*[0] * len(fill.shape))
        return tirx.if_then_else(tirx.all(*inside), data(*places), value) if places else data()

    return te.compute(_padded(data, before, after), element, name="pad")


def _pad_copy(
    source: Callable[[Any, Any], Any], data: Any, before: Sequence[Any], after: Sequence[Any]
) -> Any:
    def element(*positions: Any) -> Any:
        triples = zip(positions, before, data.shape, strict=True)
        return data(*(source(position - a, size) for position, a, size in triples))

    return te.compute(_padded(data, before, after), element, name="pad")


def _mirrored(place: Any, size: Any) -> Any:
    """Reflection without repeating the edge; one size further it goes back and forth."""
    period = tirx.max(2 * (size - 1), 1)
    within = tirx.floormod(place, period)
    return tirx.min(within, period - within)


_SOURCES: dict[str, Callable[[Any, Any], Any]] = {
    "edge": lambda place, size: tirx.max(tirx.min(place, size - 1), 0),
    "reflect": _mirrored,
    "wrap": tirx.floormod,
}
"""Which element of an axis stands at a place outside of it."""
