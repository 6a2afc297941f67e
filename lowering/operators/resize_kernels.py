"""The kernels of Resize: nearest for all axes at once, linear and cubic one axis after another.

The formulas are those of https://onnx.ai/onnx/operators/onnx__Resize.html.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
    window: tuple[float, float]
    """The part that is sampled when cropping."""


def resize(bb: Any, data: Any, axes: Sequence[Axis], sampling: Sampling, scales: Any = None) -> Any:
    """The data resized along some axes; `scales` may be a tensor with a scale for each of them.

    Raises UnsupportedError for a mode that has no formula here.
    """
    _check_supported(sampling)
    moving = [
        pair for pair in enumerate(axes) if sampling.crops or not _is_unchanged(pair[1], scales)
    ]
    if not moving:
        return data
    if sampling.mode == "nearest":
        return _emit(bb, data, moving, sampling, scales)
    dtype = str(data.ty.dtype)
    if not dtype.startswith("float"):
        data = bb.normalize(relax.op.astype(data, "float32"))
    for pair in moving:
        data = _emit(bb, data, [pair], sampling, scales)
    return data if dtype.startswith("float") else bb.normalize(relax.op.astype(data, dtype))


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
    bb: Any, data: Any, axes: Sequence[tuple[int, Axis]], sampling: Sampling, scales: Any
) -> Any:
    """A call of a kernel that resizes axes, each given with its position among the scales."""

    def compute(data: Any, sizes: Sequence[Any], *scales: Any) -> Any:
        resized = {
            axis.index: _KernelAxis(axis, sampling, size, _scale(axis, data, size, place, *scales))
            for (place, axis), size in zip(axes, sizes, strict=True)
        }
        shape = [
            resized[index].after if index in resized else size
            for index, size in enumerate(data.shape)
        ]
        sample = _nearest if sampling.mode == "nearest" else _interpolated
        return te.compute(shape, lambda *at: sample(data, resized, at), name="resize")

    sizes = [axis.after for _, axis in axes]
    tensors = [] if scales is None else [scales]
    return bb.normalize(bb.call_te(compute, data, sizes, *tensors, primfunc_name_hint="resize"))


def _scale(axis: Axis, data: Any, after: Any, place: int, scales: Any = None) -> Any:
    if axis.scale is not None:
        return tirx.const(axis.scale, "float32")
    if scales is not None:
        return scales(place)
    return _float(after) / _float(data.shape[axis.index])


@dataclass(frozen=True)
class _KernelAxis:
    """An axis inside a kernel."""

    axis: Axis
    sampling: Sampling
    after: Any
    scale: Any

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
    return place / along.scale


def _from_centre(along: _KernelAxis, place: Any, before: Any) -> Any:
    return (place + 0.5) / along.scale - 0.5


def _from_centre_or_first(along: _KernelAxis, place: Any, before: Any) -> Any:
    return tirx.Select(along.after > 1, _from_centre(along, place, before), _number(0))


def _from_middle(along: _KernelAxis, place: Any, before: Any) -> Any:
    adjustment = _float(along.after) / (along.scale * before)
    return before / 2 * (1 - adjustment) + _from_centre(along, place, before)


def _from_corner_to_corner(along: _KernelAxis, place: Any, before: Any) -> Any:
    spread = place * (before - 1) / _float(tirx.max(along.after - 1, 1))
    return tirx.Select(along.after > 1, spread, _number(0))


def _from_window(along: _KernelAxis, place: Any, before: Any) -> Any:
    start, end = along.axis.window
    spread = (before - 1) / _float(tirx.max(along.after - 1, 1))
    several = start * (before - 1) + place * (end - start) * spread
    return tirx.Select(along.after > 1, several, 0.5 * (start + end) * (before - 1))


_COORDINATES: dict[str, Callable[[_KernelAxis, Any, Any], Any]] = {
    "asymmetric": _from_corner,
    "half_pixel": _from_centre,
    "pytorch_half_pixel": _from_centre_or_first,
    "half_pixel_symmetric": _from_middle,
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
