"""The axes of windows: how far windows span, and which taps read the input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx

from ..kernels.affine import int64
from ..kernels.emission import bound, ceil_div
from ..products.convolution_form import SpatialAxis


@dataclass(frozen=True)
class UsedAxis(SpatialAxis):
    """An axis with only its taps from `first` on, of `all_taps`."""

    taps: Any
    first: Any
    all_taps: int


def with_all_taps(axis: SpatialAxis) -> UsedAxis:
    """The axis with all its taps."""
    return UsedAxis(**vars(axis), first=int64(0), all_taps=axis.taps)


def with_used_taps(axis: SpatialAxis) -> UsedAxis:
    """The axis without the taps at either end that read only padding for all positions."""
    first, end = taps_inside(axis, int64(0), (axis.size - 1) * axis.stride)
    first = bound(tirx.min(first, int64(axis.taps - 1)))
    taps = bound(tirx.max(end - first, int64(1)))
    shift = first * axis.dilation
    low, high = (bound(limit - shift) for limit in (axis.low, axis.high))
    return replace(with_all_taps(axis), first=first, taps=taps, low=low, high=high)


def extent_of_window(axis: SpatialAxis) -> Any:
    """The elements that the window of one position spans."""
    return (axis.taps - 1) * axis.dilation + 1


def extent_of_windows(axis: SpatialAxis, count: Any) -> Any:
    """The elements that the windows of some positions span; none for no positions."""
    return tirx.max(count - 1, int64(0)) * axis.stride + extent_of_window(axis)


def taps_inside(axis: SpatialAxis, first_start: Any, last_start: Any) -> tuple[Any, Any]:
    """The first tap that may read the input, and the one after the last.

    `first_start` and `last_start` are the padded elements that the first tap reads, for the first
    and the last position.
    """
    first = ceil_div(axis.low - last_start, int64(axis.dilation))
    end = ceil_div(axis.high - first_start, int64(axis.dilation))
    first = bound(tirx.min(tirx.max(first, int64(0)), axis.taps))
    return first, bound(tirx.min(end, axis.taps))


def inside(axis: SpatialAxis, start: Any, extent: Any) -> tuple[Any, Any]:
    """The part of `extent` padded positions from `start` on that is not padding."""
    low = bound(tirx.min(tirx.max(axis.low - start, int64(0)), extent))
    return low, bound(tirx.max(tirx.min(axis.high - start, extent), low))
