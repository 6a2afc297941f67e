"""Resize and Upsample, see https://onnx.ai/onnx/operators/onnx__Resize.html.

TVM's converter takes constant scales or sizes only, gives formulas with floats for symbolic sizes,
and derives the scale from the sizes also where it is given, which moves the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import relax, tirx

from ...rewrite.errors import UnsupportedError
from ..values import as_int, as_tensor
from .broadcasting import known_dims
from .resize_kernels import Axis, Sampling, resize
from .runtime_shapes import sizes_of
from .tvm_converter import known_content

_LARGEST_DENOMINATOR = 64


def convert_resize(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Resize of any version."""
    is_old = attrs["tvm_custom"]["opset"] < 11
    roi, scales, sizes = (None, inputs[1], None) if is_old else (inputs[1], inputs[2], inputs[3])
    data = as_tensor(bb, inputs[0])
    _refuse(attrs)
    sampling = _sampling(attrs, is_old=is_old)
    dims = known_dims(data)
    if dims is None:
        raise UnsupportedError("the shape of the data is not known")
    axes = [axis % len(dims) for axis in attrs.get("axes", range(len(dims)))]
    windows = _windows(roi, sampling, axes, params)
    policy = _text(attrs, "keep_aspect_ratio_policy", "stretch")
    if _is_absent(scales, params) and policy != "stretch":
        scales = _common_scale(bb, dims, axes, sizes, policy)
        return _by_unknown_scales(bb, data, axes, scales, windows, sampling, rounded=True)
    if _is_absent(scales, params):
        resized = _to_sizes(bb, dims, axes, sizes, windows)
        return resize(bb, data, resized, sampling)
    return _by_scales(bb, data, axes, scales, windows, sampling, params)


def convert_upsample(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Upsample, which Resize has replaced: it samples like the first Resize."""
    data = as_tensor(bb, inputs[0])
    dims = known_dims(data)
    if dims is None:
        raise UnsupportedError("the shape of the data is not known")
    scales = attrs.get("scales", inputs[1])
    if not isinstance(scales, relax.Expr):
        scales = relax.const(np.array(scales, "float32"))
    sampling = _sampling(attrs, is_old=True)
    windows = [(0.0, 1.0)] * len(dims)
    return _by_scales(bb, data, range(len(dims)), scales, windows, sampling, params)


def _refuse(attrs: dict[str, Any]) -> None:
    if attrs.get("antialias", 0):
        raise UnsupportedError("antialiasing is not supported")


def _text(attrs: dict[str, Any], name: str, default: str) -> str:
    value = attrs.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def _sampling(attrs: dict[str, Any], *, is_old: bool) -> Sampling:
    place = "asymmetric" if is_old else "half_pixel"
    return Sampling(
        _text(attrs, "mode", "nearest"),
        _text(attrs, "coordinate_transformation_mode", place),
        _text(attrs, "nearest_mode", "simple" if is_old else "round_prefer_floor"),
        attrs.get("cubic_coeff_a", -0.75),
        bool(attrs.get("exclude_outside", 0)),
        attrs.get("extrapolation_value", 0.0),
    )


def _is_absent(value: Any, params: Any) -> bool:
    """Whether an input is left out; an empty tensor counts as that."""
    content = known_content(value, params)
    return value is None or (content is not None and content.size == 0)


def _windows(
    roi: Any, sampling: Sampling, axes: Sequence[int], params: Any
) -> list[tuple[float, float]]:
    """The part of each axis that is sampled."""
    if not sampling.crops:
        return [(0.0, 1.0)] * len(axes)
    content = known_content(roi, params)
    if content is None or content.size != 2 * len(axes):
        raise UnsupportedError("the region to crop is not constant")
    starts, ends = content.reshape(2, -1)
    return [(float(start), float(end)) for start, end in zip(starts, ends, strict=True)]


def _to_sizes(
    bb: Any,
    dims: Sequence[Any],
    axes: Sequence[int],
    sizes: Any,
    windows: Sequence[tuple[float, float]],
) -> list[Axis]:
    given = _given_sizes(bb, axes, sizes)
    return [
        Axis(axis, dims[axis], size, None, window)
        for axis, size, window in zip(axes, given, windows, strict=True)
    ]


def _given_sizes(bb: Any, axes: Sequence[int], sizes: Any) -> list[Any]:
    if sizes is None:
        raise UnsupportedError("it has neither scales nor sizes")
    given = sizes_of(bb, sizes)
    if len(given) != len(axes):
        raise UnsupportedError(f"there are {len(given)} sizes for {len(axes)} axes")
    return given


def _common_scale(
    bb: Any, dims: Sequence[Any], axes: Sequence[int], sizes: Any, policy: str
) -> Any:
    """One scale for each axis, all equal, by which no size gets larger or smaller than is given."""
    choose = {"not_larger": relax.op.min, "not_smaller": relax.op.max}.get(policy)
    if choose is None:
        raise UnsupportedError(f"keep_aspect_ratio_policy {policy!r} is not known")
    wanted = _as_floats(bb, _given_sizes(bb, axes, sizes))
    before = _as_floats(bb, [dims[axis] for axis in axes])
    ratios = bb.normalize(relax.op.divide(wanted, before))
    scale = bb.normalize(choose(ratios, axis=0, keepdims=True))
    return bb.normalize(relax.op.broadcast_to(scale, (len(axes),)))


def _as_floats(bb: Any, sizes: Sequence[Any]) -> Any:
    return bb.normalize(relax.op.astype(as_tensor(bb, relax.ShapeExpr(sizes)), "float32"))


def _by_scales(
    bb: Any,
    data: Any,
    axes: Sequence[int],
    scales: Any,
    windows: Sequence[tuple[float, float]],
    sampling: Sampling,
    params: Any,
) -> Any:
    dims = known_dims(data) or []
    factors = known_content(scales, params)
    if factors is None:
        return _by_unknown_scales(bb, data, axes, scales, windows, sampling)
    if len(factors) != len(axes):
        raise UnsupportedError(f"there are {len(factors)} scales for {len(axes)} axes")
    resized = [
        Axis(axis, dims[axis], scaled(dims[axis], factor), float(factor), window)
        for axis, factor, window in zip(axes, factors, windows, strict=True)
    ]
    return resize(bb, data, resized, sampling)


def _by_unknown_scales(
    bb: Any,
    data: Any,
    axes: Sequence[int],
    scales: Any,
    windows: Sequence[tuple[float, float]],
    sampling: Sampling,
    *,
    rounded: bool = False,
) -> Any:
    """The sizes are computed at run time, rounded or cut off; a symbol stands for each."""
    dims = known_dims(data) or []
    products = relax.op.multiply(_as_floats(bb, [dims[axis] for axis in axes]), scales)
    if rounded:
        products = relax.op.add(products, relax.const(0.5, "float32"))
    sizes = sizes_of(bb, bb.normalize(relax.op.astype(relax.op.floor(products), "int64")))
    resized = [
        Axis(axis, dims[axis], size, None, window)
        for axis, size, window in zip(axes, sizes, windows, strict=True)
    ]
    return resize(bb, data, resized, sampling, scales)


def scaled(size: Any, factor: np.float32) -> Any:
    """`floor(size * factor)` as onnxruntime computes it, with float32; a formula of integers
    where that is the same for every size.

    With `factor = p / q` exactly, the product is exact. Where the nearest float32 to `p / q` is
    larger, the product is never rounded below an integer, and a product that is none lies `1 / q`
    away from the next, further than it is rounded.
    """
    number = as_int(size)
    if number is not None:
        return tirx.IntImm("int64", int(np.float32(number) * np.float32(factor)))
    exact = Fraction(float(factor))
    near = exact.limit_denominator(_LARGEST_DENOMINATOR)
    if np.float32(float(near)) == np.float32(factor) and near <= exact:
        return tirx.floordiv(size * near.numerator, near.denominator)
    return tirx.Cast("int64", tirx.Cast("float32", size) * tirx.const(float(factor), "float32"))
