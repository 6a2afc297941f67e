"""The kernels of Resize: nearest for all axes at once, linear and cubic one axis after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, sym, te, tirx

from ...rewrite.errors import UnsupportedError


@dataclass(frozen=True)
class Sampling:
    """How values between the elements are found; the fields are attributes of Resize."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    excludes_outside: bool
    extrapolation: float

    @property
    def crops(self) -> bool:
        """Whether a part of the data is sampled, and what lies outside of it has a fixed value."""
        return self.coordinates == "tf_crop_and_resize"


@dataclass(frozen=True)
class Axis:
    """An axis that is resized."""

    index: int
    before: Any
    after: Any
    scale: float | None
    """None if it is the ratio of the sizes, or a tensor tells it."""
    window: tuple[float, float]
    """The part that is sampled when cropping."""


def resize(bb: Any, data: Any, axes: Sequence[Axis], sampling: Sampling, scales: Any = None) -> Any:
    """The data resized along some axes; `scales` may be a tensor with a scale for each of them."""
    check_supported(sampling)
    moving = [pair for pair in enumerate(axes) if sampling.crops or not _stays(pair[1], scales)]
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


def check_supported(sampling: Sampling) -> None:
    """Raises UnsupportedError for a value of an attribute that has no formula here."""
    known = {
        "mode": (sampling.mode, ("nearest", "linear", "cubic")),
        "coordinate_transformation_mode": (sampling.coordinates, _COORDINATES),
        "nearest_mode": (sampling.nearest, _ROUNDINGS),
    }
    for name, (value, values) in known.items():
        if value not in values:
            raise UnsupportedError(f"{name} {value!r} is not supported")


def _stays(axis: Axis, scales: Any) -> bool:
    """Whether every element of an axis stays what it is."""
    if axis.scale is not None:
        return axis.scale == 1.0
    return scales is None and bool(sym.Analyzer().can_prove_equal(axis.before, axis.after))


def _emit(
    bb: Any, data: Any, axes: Sequence[tuple[int, Axis]], sampling: Sampling, scales: Any
) -> Any:
    """One kernel that resizes some axes, each given with its place among the scales."""

    def compute(data: Any, sizes: Sequence[Any], *scales: Any) -> Any:
        lines = {
            axis.index: _Line(axis, sampling, size, _scale(axis, data, size, place, *scales))
            for (place, axis), size in zip(axes, sizes, strict=True)
        }
        shape = [
            lines[index].after if index in lines else size for index, size in enumerate(data.shape)
        ]
        sample = _nearest if sampling.mode == "nearest" else _interpolated
        return te.compute(shape, lambda *at: sample(data, lines, at), name="resize")

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
class _Line:
    """An axis inside a kernel, with `before` read from the data."""

    axis: Axis
    sampling: Sampling
    after: Any
    scale: Any

    def source(self, place: Any, before: Any) -> Any:
        """Where an element of the result lies between those of the data, as a float32."""
        return _COORDINATES[self.sampling.coordinates](self, _float(place), _float(before))

    def divisor(self) -> int | None:
        """How many elements of the result are copies of one, if that is all there is to it."""
        scale = self.axis.scale
        if scale is None or scale != int(scale):
            return None
        by = self.sampling.coordinates, self.sampling.nearest
        return int(scale) if by in _REPEATING else None


def _from_corner(line: _Line, place: Any, before: Any) -> Any:
    return place / line.scale


def _from_centre(line: _Line, place: Any, before: Any) -> Any:
    return (place + 0.5) / line.scale - 0.5


def _from_centre_or_first(line: _Line, place: Any, before: Any) -> Any:
    return tirx.Select(line.after > 1, _from_centre(line, place, before), _number(0))


def _from_middle(line: _Line, place: Any, before: Any) -> Any:
    adjustment = _float(line.after) / (line.scale * before)
    return before / 2 * (1 - adjustment) + _from_centre(line, place, before)


def _from_corner_to_corner(line: _Line, place: Any, before: Any) -> Any:
    spread = place * (before - 1) / _float(tirx.max(line.after - 1, 1))
    return tirx.Select(line.after > 1, spread, _number(0))


def _from_window(line: _Line, place: Any, before: Any) -> Any:
    start, end = line.axis.window
    spread = (before - 1) / _float(tirx.max(line.after - 1, 1))
    several = start * (before - 1) + place * (end - start) * spread
    return tirx.Select(line.after > 1, several, 0.5 * (start + end) * (before - 1))


_COORDINATES: dict[str, Callable[[_Line, Any, Any], Any]] = {
    "asymmetric": _from_corner,
    "half_pixel": _from_centre,
    "pytorch_half_pixel": _from_centre_or_first,
    "half_pixel_symmetric": _from_middle,
    "align_corners": _from_corner_to_corner,
    "tf_crop_and_resize": _from_window,
}
"""The formulas of the operator's specification, by coordinate_transformation_mode."""


def _half_down(line: _Line, place: Any) -> Any:
    return tirx.ceil(place - 0.5)


def _half_up(line: _Line, place: Any) -> Any:
    below = tirx.floor(place)
    return tirx.Select(place - below < 0.5, below, below + 1)


def _up_if_smaller(line: _Line, place: Any) -> Any:
    """What the first Resize did, which had no attribute to say so."""
    return tirx.Select(line.scale < 1, tirx.ceil(place), tirx.floor(place))


_ROUNDINGS: dict[str, Callable[[_Line, Any], Any]] = {
    "round_prefer_floor": _half_down,
    "round_prefer_ceil": _half_up,
    "floor": lambda line, place: tirx.floor(place),
    "ceil": lambda line, place: tirx.ceil(place),
    "simple": _up_if_smaller,
}
"""By nearest_mode."""

_REPEATING = {
    ("asymmetric", "floor"),
    ("asymmetric", "simple"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
}
"""Coordinates and roundings by which scaling by a whole number repeats each element."""


def _nearest(data: Any, lines: dict[int, _Line], at: Sequence[Any]) -> Any:
    places, outside = list(at), []
    for index, line in lines.items():
        before, divisor = data.shape[index], line.divisor()
        if divisor is not None:
            places[index] = tirx.floordiv(at[index], divisor)
            continue
        source = line.source(at[index], before)
        outside += _outside(line, source, before)
        rounded = tirx.Cast("int64", _ROUNDINGS[line.sampling.nearest](line, source))
        places[index] = _clamped(rounded, before)
    return _unless(outside, data(*places), line.sampling, str(data.dtype))


def _interpolated(data: Any, lines: dict[int, _Line], at: Sequence[Any]) -> Any:
    ((index, line),) = lines.items()
    before = data.shape[index]
    source = line.source(at[index], before)

    def element(place: Any) -> Any:
        return data(*at[:index], _clamped(place, before), *at[index + 1 :])

    blend = _linear if line.sampling.mode == "linear" else _cubic
    value = blend(line.sampling, element, source, before, str(data.dtype))
    return _unless(_outside(line, source, before), value, line.sampling, str(data.dtype))


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


def _outside(line: _Line, source: Any, before: Any) -> list[Any]:
    """The conditions by which a place has the value for extrapolation."""
    return [source < 0, source > _float(before) - 1] if line.sampling.crops else []


def _unless(outside: Sequence[Any], value: Any, sampling: Sampling, dtype: str) -> Any:
    if not outside:
        return value
    return tirx.Select(tirx.any(*outside), tirx.const(sampling.extrapolation, dtype), value)


def _clamped(place: Any, size: Any) -> Any:
    return tirx.max(tirx.min(place, size - 1), 0)


def _float(value: Any) -> Any:
    return tirx.Cast("float32", value)


def _number(value: float) -> Any:
    return tirx.const(float(value), "float32")
