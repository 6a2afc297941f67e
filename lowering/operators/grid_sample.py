"""GridSample: interpolates an image at the coordinates in a tensor."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from ...rewrite.errors import UnsupportedError
from ..scheduling.relax.size_names import OPAQUE
from ..values import Value, as_int
from .broadcasting import dims_of, match_dims
from .registry import ConverterContext, converts

_FARTHEST = float(1 << 62)
"""Onnxruntime takes the first edge for positions at least this large, and for NaN."""
_CUBIC = -0.75
"""The coefficient a of cubic interpolation, which the specification fixes."""

_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
"""How many elements are read along an axis, by mode."""
_OWN_KERNEL = {"op_pattern": OPAQUE}
"""Keeps TVM from fusing a kernel, which would compute the taps again for each channel."""


@dataclass(frozen=True)
class _Sampling:
    """The attributes of GridSample."""

    mode: str
    padding: str
    aligns: bool
    dtype: str
    """The type of weights and sums."""


@converts("GridSample")
def grid_sample(ctx: ConverterContext) -> Value:
    """GridSample, see https://onnx.ai/onnx/operators/onnx__GridSample.html.

    (x [n, c, *sizes], grid [n, *positions, number of sizes]) -> [n, c, *positions]. The last
    coordinate is along the first of the sizes. From -1 to 1, coordinates span the image: from
    center to center of the outermost elements if `align_corners` is set, else from edge to edge.

    All channels read the same elements, the *taps*. One kernel computes where they are, one their
    weights, and one their sums.
    """
    x, grid = ctx.tensors()
    batch, channels, *sizes = dims_of(x, "data")
    own = dims_of(grid, "grid")
    coordinates = as_int(own[-1])
    if len(own) != len(sizes) + 2 or coordinates not in (None, len(sizes)):
        raise UnsupportedError(
            f"the grid has rank {len(own)} and {own[-1]} coordinates, and must have rank "
            f"{len(sizes) + 2} and {len(sizes)}"
        )
    count = tirx.IntImm("int64", len(sizes))
    grid = match_dims(ctx.bb, grid, [batch, *own[1:-1], count])
    dtypes = {str(value.ty.dtype) for value in (x, grid)}
    sampling = _Sampling(
        mode=ctx.attr("mode", "bilinear").removeprefix("bi"),
        padding=ctx.attr("padding_mode", "zeros"),
        aligns=bool(ctx.attr("align_corners", 0)),
        dtype="float64" if "float64" in dtypes else "float32",
    )
    if sampling.mode not in _TAPS or sampling.padding not in _PADDINGS:
        raise UnsupportedError(
            f"mode {sampling.mode!r} with padding_mode {sampling.padding!r} is not supported"
        )

    def of_taps(compute: Callable[..., Any], name: str) -> Value:
        return ctx.bb.emit_te(
            functools.partial(compute, sampling), grid, sizes,
            primfunc_name_hint=name, primfunc_attrs=_OWN_KERNEL,
        )  # fmt: skip

    places = of_taps(_places, "tap_places")
    weights = [] if sampling.mode == "nearest" else [of_taps(_weights, "tap_weights")]
    shape = [batch, channels, functools.reduce(operator.mul, sizes)]
    lines = ctx.bb.emit(relax.op.reshape(x, relax.ShapeExpr(shape)))
    sums = functools.partial(_sums, sampling.dtype)
    return ctx.call_te(sums, lines, places, *weights, name="grid_sample")


def _sums(dtype: str, lines: Any, places: Any, *weights: Any) -> Any:
    """The elements [n, c, *positions] at the places, times their weights if there are any."""

    def element(entry: Any, channel: Any, *at: Any) -> Any:
        terms = []
        for tap in range(int(places.shape[1])):
            place = places(entry, tap, *at)
            value = lines(entry, channel, tirx.max(place, 0))
            value = tirx.Select(place >= 0, value, tirx.const(0, lines.dtype))
            if weights:
                value = tirx.Cast(dtype, value) * weights[0](entry, tap, *at)
            terms.append(value)
        total = tirx.Cast(str(lines.dtype), functools.reduce(operator.add, terms))
        # Without elements, there is none that could be read in place of those outside.
        return tirx.if_then_else(lines.shape[2] > 0, total, tirx.const(0, lines.dtype))

    return te.compute([*lines.shape[:2], *places.shape[2:]], element, name="grid_sample")


def _places(sampling: _Sampling, grid: Any, sizes: Sequence[Any]) -> Any:
    """The number of each tap's element in its channel, -1 outside: [n, taps, *positions]."""

    def element(entry: Any, tap: Any, *at: Any) -> Any:
        place: Any = tirx.const(0, "int64")
        inside = []
        for size, (first, _, offset) in zip(
            sizes, _along_axes(sampling, grid, sizes, entry, tap, at), strict=True
        ):
            index = _PADDINGS[sampling.padding](first + offset, size, sampling.aligns)
            inside += [index >= 0, index < size]
            place = place * size + index
        return tirx.Select(tirx.all(*inside), place, tirx.const(-1, "int64"))

    return te.compute(_taps_shape(sampling, grid, sizes), element, name="tap_places")


def _weights(sampling: _Sampling, grid: Any, sizes: Sequence[Any]) -> Any:
    """The weight of each tap: [n, taps, *positions]."""
    weight = _linear_weight if sampling.mode == "linear" else _cubic_weight

    def element(entry: Any, tap: Any, *at: Any) -> Any:
        axes = _along_axes(sampling, grid, sizes, entry, tap, at)
        factors = [weight(part, tirx.Cast(sampling.dtype, offset)) for _, part, offset in axes]
        return functools.reduce(operator.mul, factors)

    return te.compute(_taps_shape(sampling, grid, sizes), element, name="tap_weights")


def _taps_shape(sampling: _Sampling, grid: Any, sizes: Sequence[Any]) -> list[Any]:
    return [grid.shape[0], _TAPS[sampling.mode] ** len(sizes), *grid.shape[1:-1]]


def _along_axes(
    sampling: _Sampling, grid: Any, sizes: Sequence[Any], entry: Any, tap: Any, at: Sequence[Any]
) -> list[tuple[Any, Any, Any]]:
    """For each axis: the first element that is read, the part of an element from the one before the
    position to the position, and how many elements after the first a tap lies.
    """
    found = []
    count = _TAPS[sampling.mode]
    for axis, size in enumerate(sizes):
        coordinate = tirx.Cast(sampling.dtype, grid(entry, *at, len(sizes) - 1 - axis))
        position = _position(coordinate, size, sampling)
        low = tirx.nearbyint(position) if sampling.mode == "nearest" else tirx.floor(position)
        first = tirx.Cast("int64", low) - (count - 1) // 2
        offset = tirx.floormod(tirx.floordiv(tap, count ** (len(sizes) - 1 - axis)), count)
        found.append((first, position - low, offset))
    return found


def _position(coordinate: Any, size: Any, sampling: _Sampling) -> Any:
    """Where a coordinate is, in elements; the center of the first one is at 0."""
    size = tirx.Cast(sampling.dtype, size)
    if sampling.aligns:
        position, first = (coordinate + 1) * (size - 1) / 2, 0.0
    else:
        position, first = (coordinate + 1) * size / 2 - 0.5, -0.5
    is_near = tirx.abs(position) < tirx.const(_FARTHEST, sampling.dtype)
    return tirx.Select(is_near, position, tirx.const(first, sampling.dtype))


def _linear_weight(part: Any, offset: Any) -> Any:
    return tirx.Select(offset == 0, 1 - part, part)


def _cubic_weight(part: Any, offset: Any) -> Any:
    distance = tirx.abs(part + 1 - offset)
    near = ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance * distance + 1
    far = ((_CUBIC * distance - 5 * _CUBIC) * distance + 8 * _CUBIC) * distance - 4 * _CUBIC
    return tirx.Select(distance <= 1, near, far)


def _unchanged(index: Any, size: Any, aligns: bool) -> Any:
    return index


def _clamped(index: Any, size: Any, aligns: bool) -> Any:
    return tirx.max(tirx.min(index, size - 1), 0)


def _reflected(index: Any, size: Any, aligns: bool) -> Any:
    """The index reflected at the outermost elements, or at the edges between them and the next."""
    period = tirx.max((size - 1 if aligns else size) * 2, 1)
    place = tirx.floormod(index, period)
    mirrored = period - place - (0 if aligns else 1)
    return _clamped(tirx.Select(place < size, place, mirrored), size, aligns)


_PADDINGS: dict[str, Callable[[Any, Any, bool], Any]] = {
    "zeros": _unchanged,
    "border": _clamped,
    "reflection": _reflected,
}
"""The element that an index along an axis stands for, which may lie outside, by padding_mode."""
