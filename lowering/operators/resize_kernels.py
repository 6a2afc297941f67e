"""The kernels of Resize: nearest for all axes at once, linear and cubic one axis after another.

The formulas are those of https://onnx.ai/onnx/operators/onnx__Resize.html.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, sym, te, tirx

from ...rewrite.errors import UnsupportedError


@dataclass(frozen=True)
class Sampling:
    """How values between elements are interpolated: attributes of Resize, under shorter names."""

    mode: str
    coordinates: str
    """coordinate_transformation_mode."""
    nearest: str
    """nearest_mode."""
    cubic: float
    """cubic_coeff_a."""
    excludes_outside: bool
    extrapolation: float
    antialiases: bool = False

    @property
    def crops(self) -> bool:
        """Whether a part of the data is sampled, with a fixed value for elements outside of it."""
        return self.coordinates == "tf_crop_and_resize"


@dataclass(frozen=True)
class Axis:
    """An axis that is resized."""

    index: int
    before: Any
    """The size of the axis in the data."""
    after: Any
    """The size of the axis in the result."""
    scale: float | None
    """None if it is the ratio of the sizes, or an element of a tensor of scales."""
    window: tuple[float, float] | None
    """The part that is sampled when cropping; None if it is in a tensor."""


def resize(
    bb: Any,
    data: Any,
    axes: Sequence[Axis],
    sampling: Sampling,
    scales: Any = None,
    windows: Any = None,
) -> Any:
    """The data resized along some axes.

    `scales` may be a tensor with a scale for each of them, `windows` a float32 tensor with the
    start of the window of each, then the end of each.

    Raises UnsupportedError for a mode that has no formula here.
    """
    _check_supported(sampling)
    moving = [
        pair for pair in enumerate(axes) if sampling.crops or not _is_unchanged(pair[1], scales)
    ]
    if not moving:
        return data
    if sampling.mode == "nearest":
        return _emit(bb, data, moving, sampling, scales, windows)
    dtype = str(data.ty.dtype)
    if not dtype.startswith("float"):
        data = bb.normalize(relax.op.astype(data, "float32"))
    for pair in moving:
        data = _emit(bb, data, [pair], sampling, scales, windows)
    if dtype.startswith("float"):
        return data
    if sampling.antialiases:  # Only then does onnxruntime round, and saturate bytes.
        data = relax.op.round(data)
        if dtype in ("uint8", "int8"):
            limits = np.iinfo(dtype)
            data = relax.op.clip(data, float(limits.min), float(limits.max))
    return bb.normalize(relax.op.astype(data, dtype))


def _check_supported(sampling: Sampling) -> None:
    known = {
        "mode": (sampling.mode, ("nearest", "linear", "cubic")),
        "coordinate_transformation_mode": (sampling.coordinates, _COORDINATES),
        "nearest_mode": (sampling.nearest, _ROUNDINGS),
    }
    for name, (value, values) in known.items():
        if value not in values:
            raise UnsupportedError(f"{name} {value!r} is not supported")


def _is_unchanged(axis: Axis, scales: Any) -> bool:
    """Whether every element of an axis keeps its value."""
    if axis.scale is not None:
        return axis.scale == 1.0
    return scales is None and bool(sym.Analyzer().can_prove_equal(axis.before, axis.after))


def _emit(
    bb: Any,
    data: Any,
    axes: Sequence[tuple[int, Axis]],
    sampling: Sampling,
    scales: Any,
    windows: Any,
) -> Any:
    """A call of a kernel that resizes axes, each given with its position among the scales."""

    def compute(data: Any, sizes: Sequence[Any], *tensors: Any) -> Any:
        given = iter(tensors)
        factors, parts = (None if v is None else next(given) for v in (scales, windows))
        resized = {
            axis.index: _KernelAxis(
                axis,
                sampling,
                size,
                _scale(axis, data, size, place, factors),
                _window(axis, place, parts),
            )
            for (place, axis), size in zip(axes, sizes, strict=True)
        }
        if sampling.antialiases:
            return _antialiased(data, resized)
        shape = [
            resized[index].after if index in resized else size
            for index, size in enumerate(data.shape)
        ]
        sample = _nearest if sampling.mode == "nearest" else _interpolated
        return te.compute(shape, lambda *at: sample(data, resized, at), name="resize")

    sizes = [axis.after for _, axis in axes]
    tensors = [value for value in (scales, windows) if value is not None]
    return bb.normalize(bb.call_te(compute, data, sizes, *tensors, primfunc_name_hint="resize"))


def _scale(axis: Axis, data: Any, after: Any, place: int, scales: Any = None) -> Any:
    if axis.scale is not None:
        return tirx.const(axis.scale, "float32")
    if scales is not None:
        return scales(place)
    return _float(after) / _float(data.shape[axis.index])


def _window(axis: Axis, place: int, windows: Any) -> tuple[Any, Any]:
    if axis.window is not None:
        return axis.window
    count = tirx.floordiv(windows.shape[0], 2)
    return windows(place), windows(count + place)


@dataclass(frozen=True)
class _KernelAxis:
    """An axis inside a kernel."""

    axis: Axis
    sampling: Sampling
    after: Any
    scale: Any
    window: tuple[Any, Any]

    def source(self, place: Any, before: Any) -> Any:
        """The coordinate in the data of an element of the result, as a float32."""
        return _COORDINATES[self.sampling.coordinates](self, _float(place), _float(before))

    def divisor(self) -> int | None:
        """The number of copies of each element, if resizing only repeats elements."""
        scale = self.axis.scale
        if scale is None or scale != int(scale):
            return None
        by = self.sampling.coordinates, self.sampling.nearest
        return int(scale) if by in _REPEATING else None


def _from_corner(along: _KernelAxis, place: Any, before: Any) -> Any:
    # The analysis of intervals in TVM 0.27 fails on a quotient of two converted integers.
    return tirx.max(place, _number(0)) / along.scale


def _from_centre(along: _KernelAxis, place: Any, before: Any) -> Any:
    return (place + 0.5) / along.scale - 0.5


def _from_shifted_corner(along: _KernelAxis, place: Any, before: Any) -> Any:
    return (place + 0.5) / along.scale


def _from_centre_or_first(along: _KernelAxis, place: Any, before: Any) -> Any:
    return tirx.Select(along.after > 1, _from_centre(along, place, before), _number(0))


def _from_middle(along: _KernelAxis, place: Any, before: Any) -> Any:
    adjustment = _float(along.after) / (along.scale * before)
    return before / 2 * (1 - adjustment) + _from_centre(along, place, before)


def _from_corner_to_corner(along: _KernelAxis, place: Any, before: Any) -> Any:
    # The only element of an axis of size 1 has the place 0.
    return place * (before - 1) / _float(tirx.max(along.after - 1, 1))


def _from_window(along: _KernelAxis, place: Any, before: Any) -> Any:
    start, end = along.window
    spread = (before - 1) / _float(tirx.max(along.after - 1, 1))
    several = start * (before - 1) + place * (end - start) * spread
    return tirx.Select(along.after > 1, several, 0.5 * (start + end) * (before - 1))


_COORDINATES: dict[str, Callable[[_KernelAxis, Any, Any], Any]] = {
    "asymmetric": _from_corner,
    "half_pixel": _from_centre,
    "pytorch_half_pixel": _from_centre_or_first,
    "half_pixel_symmetric": _from_middle,
    "tf_half_pixel_for_nn": _from_shifted_corner,  # only before opset 13
    "align_corners": _from_corner_to_corner,
    "tf_crop_and_resize": _from_window,
}
"""By coordinate_transformation_mode."""


def _half_down(along: _KernelAxis, place: Any) -> Any:
    return tirx.ceil(place - 0.5)


def _half_up(along: _KernelAxis, place: Any) -> Any:
    below = tirx.floor(place)
    return tirx.Select(place - below < 0.5, below, below + 1)


def _up_if_smaller(along: _KernelAxis, place: Any) -> Any:
    """The rounding of the first version of Resize, which has no attribute for it."""
    return tirx.Select(along.scale < 1, tirx.ceil(place), tirx.floor(place))


_ROUNDINGS: dict[str, Callable[[_KernelAxis, Any], Any]] = {
    "round_prefer_floor": _half_down,
    "round_prefer_ceil": _half_up,
    "floor": lambda along, place: tirx.floor(place),
    "ceil": lambda along, place: tirx.ceil(place),
    "simple": _up_if_smaller,
}
"""By nearest_mode."""

_REPEATING = {
    ("asymmetric", "floor"),
    ("asymmetric", "simple"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
}
"""Coordinates and roundings with which scaling by an integer repeats each element."""


def _nearest(data: Any, resized: dict[int, _KernelAxis], at: Sequence[Any]) -> Any:
    places, outside = list(at), []
    for index, along in resized.items():
        before, divisor = data.shape[index], along.divisor()
        if divisor is not None:
            places[index] = tirx.floordiv(at[index], divisor)
            continue
        source = along.source(at[index], before)
        outside += _outside(along, source, before)
        rounded = tirx.Cast("int64", _ROUNDINGS[along.sampling.nearest](along, source))
        places[index] = _clamped(rounded, before)
    return _extrapolate(outside, data(*places), along.sampling, str(data.dtype))


def _interpolated(data: Any, resized: dict[int, _KernelAxis], at: Sequence[Any]) -> Any:
    ((index, along),) = resized.items()
    before = data.shape[index]
    source = along.source(at[index], before)

    def element(place: Any) -> Any:
        return data(*at[:index], _clamped(place, before), *at[index + 1 :])

    blend = _linear if along.sampling.mode == "linear" else _cubic
    value = blend(along.sampling, element, source, before, str(data.dtype))
    return _extrapolate(_outside(along, source, before), value, along.sampling, str(data.dtype))


def _linear(
    sampling: Sampling, element: Callable[[Any], Any], source: Any, before: Any, dtype: str
) -> Any:
    inside = tirx.max(tirx.min(source, _float(before) - 1), _number(0))
    below = tirx.floor(inside)
    first, part = tirx.Cast("int64", below), tirx.Cast(dtype, inside - below)
    return element(first) * (1 - part) + element(first + 1) * part


def _cubic(
    sampling: Sampling, element: Callable[[Any], Any], source: Any, before: Any, dtype: str
) -> Any:
    below = tirx.floor(source)
    first, weights = tirx.Cast("int64", below), _cubic_weights(sampling.cubic, source - below)
    places = [first + offset for offset in range(-1, 3)]
    if sampling.excludes_outside:
        inside = [tirx.all(place >= 0, place < before) for place in places]
        weights = [
            tirx.Select(is_inside, weight, _number(0))
            for is_inside, weight in zip(inside, weights, strict=True)
        ]
        total = sum(weights[1:], weights[0])
        weights = [weight / total for weight in weights]
    terms = [
        element(place) * tirx.Cast(dtype, weight)
        for place, weight in zip(places, weights, strict=True)
    ]
    return sum(terms[1:], terms[0])


def _cubic_weights(a: float, part: Any) -> list[Any]:
    """Keys' cubic convolution for the elements at -1, 0, 1 and 2."""

    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(part + 1), near(part), near(1 - part), far(2 - part)]


def _antialiased(data: Any, resized: dict[int, _KernelAxis]) -> Any:
    """Interpolation along one axis by a filter that is stretched where the axis shrinks."""
    ((index, along),) = resized.items()
    before, sampling = data.shape[index], along.sampling
    support = 1 if sampling.mode == "linear" else 2
    scale = tirx.min(along.scale, _number(1))
    # An axis of n elements never becomes shorter than n / (shrink + 1) elements.
    shrink = tirx.floordiv(before, tirx.max(along.after, 1)) + 1
    if along.axis.scale is not None:
        shrink = math.ceil(1 / min(along.axis.scale, 1.0))
    taps = 2 * support * shrink + 1

    def place_of(at: Any, tap: Any) -> Any:
        first = tirx.ceil(along.source(at, before) - support / scale)
        return tirx.Cast("int64", first) + tirx.Cast("int64", tap)

    def weight(at: Any, tap: Any) -> Any:
        place = place_of(at, tap)
        distance = tirx.abs(_float(place) - along.source(at, before)) * scale
        if support == 1:
            value = tirx.max(1 - distance, _number(0))
        else:
            near = _cubic_weights(sampling.cubic, distance)[1]
            far = _cubic_weights(sampling.cubic, distance - 1)[0]
            value = tirx.Select(distance < 2, far, _number(0))
            value = tirx.Select(distance <= 1, near, value)
        if sampling.excludes_outside:
            value = tirx.Select(tirx.all(place >= 0, place < before), value, _number(0))
        return value

    weights = te.compute([along.after, taps], weight, name="weights")
    tap = te.reduce_axis((0, taps), name="tap")
    total = te.compute([along.after], lambda at: te.sum(weights(at, tap), axis=tap), name="total")
    other = te.reduce_axis((0, taps), name="tap")
    shape = [along.after if axis == index else size for axis, size in enumerate(data.shape)]

    def element(*at: Any) -> Any:
        place = _clamped(place_of(at[index], other), before)
        value = data(*at[:index], place, *at[index + 1 :])
        factor = weights(at[index], other) / total(at[index])
        return te.sum(_float(value) * factor, axis=other)

    wide = te.compute(shape, element, name="filtered")
    return te.compute(shape, lambda *at: tirx.Cast(str(data.dtype), wide(*at)), name="resize")


def _outside(along: _KernelAxis, source: Any, before: Any) -> list[Any]:
    """The conditions under which an element has the value for extrapolation."""
    return [source < 0, source > _float(before) - 1] if along.sampling.crops else []


def _extrapolate(outside: Sequence[Any], value: Any, sampling: Sampling, dtype: str) -> Any:
    if not outside:
        return value
    return tirx.Select(tirx.any(*outside), tirx.const(sampling.extrapolation, dtype), value)


def _clamped(place: Any, size: Any) -> Any:
    return tirx.max(tirx.min(place, size - 1), 0)


def _float(value: Any) -> Any:
    return tirx.Cast("float32", value)


def _number(value: float) -> Any:
    return tirx.const(float(value), "float32")
