"""Resize and Upsample: the scales, sizes and attributes; `resize_kernels` has the computation.

TVM's converter takes constant scales or sizes only, computes symbolic sizes with floats, and
derives the scale from the sizes even where it is given, which moves the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import relax, tirx

from ...rewrite.errors import UnsupportedError
from ..values import Sizes, Value, as_int, as_tensor
from .broadcasting import dims_of, known_dims
from .registry import Accepts, ConverterContext, converts
from .resize_kernels import Axis, Sampling, resize
from .sizes import sizes_of, with_length

_LARGEST_DENOMINATOR = 64


@dataclass(frozen=True)
class _ResizeOperands:
    """The data, the axes to resize, and how to sample them."""

    ctx: ConverterContext
    data: Value
    axes: Sequence[int]
    windows: Sequence[tuple[float, float] | None]
    """The part of each axis that is sampled, from 0 to 1; None if a run computes it."""
    sampling: Sampling
    roi: Value = None
    """The windows as a tensor, if a run computes them."""

    @property
    def sizes(self) -> list[Any]:
        """The sizes of the axes before."""
        dims = dims_of(self.data, "data")
        return [dims[axis] for axis in self.axes]

    def resize(
        self,
        sizes: Sequence[Any],
        factors: Sequence[float | None] | None = None,
        scales: Value = None,
    ) -> Value:
        """The data resized to `sizes`.

        `factors` are the scales if they are known; `scales` is a tensor of them if they are not.
        Without either, the ratio of the sizes is the scale.
        """
        factors = [None] * len(self.axes) if factors is None else factors
        rows = zip(self.axes, self.sizes, sizes, factors, self.windows, strict=True)
        axes = [Axis(*row) for row in rows]
        return resize(self.ctx.bb, self.data, axes, self.sampling, scales, self.roi)


@converts("Resize", accepts=Accepts.SIZES)
def convert_resize(ctx: ConverterContext) -> Value:
    """Resize, see https://onnx.ai/onnx/operators/onnx__Resize.html."""
    is_old = ctx.opset < 11
    slots = (None, 1, None) if is_old else (1, 2, 3)
    roi, scales, sizes = (None if slot is None else ctx.inputs[slot] for slot in slots)
    data = ctx.tensor(0)
    sampling = _sampling(ctx, is_old=is_old)
    rank = len(dims_of(data, "data"))
    axes = [axis % rank for axis in ctx.attr("axes", range(rank))]
    if scales is None or sizes is None:  # The one that is given has a number for each axis.
        scales, sizes = (with_length(ctx.bb, value, len(axes)) for value in (scales, sizes))
    windows = _windows(ctx, roi, sampling, len(axes))
    computed = ctx.cast(ctx.tensor(1), "float32") if None in windows else None
    operands = _ResizeOperands(ctx, data, axes, windows, sampling, computed)
    # Exactly one of the two has elements.
    if not _is_absent(ctx, scales) and not _has_elements(sizes):
        return _by_scales(operands, scales)
    policy = ctx.attr("keep_aspect_ratio_policy", "stretch")
    wanted = _wanted_sizes(operands, sizes)
    if policy == "stretch":
        return operands.resize(wanted)
    return _by_computed_scales(operands, _common_scale(operands, wanted, policy), rounded=True)


@converts("Upsample")
def convert_upsample(ctx: ConverterContext) -> Value:
    """Upsample, see https://onnx.ai/onnx/operators/onnx__Upsample.html.

    It samples like the first version of Resize, which has replaced it.
    """
    data = ctx.inputs[0]
    rank = len(dims_of(data, "data"))
    scales = ctx.attrs.get("scales", ctx.inputs[1])
    if not isinstance(scales, relax.Expr):
        scales = relax.const(np.array(scales, "float32"))
    sampling = _sampling(ctx, is_old=True)
    return _by_scales(
        _ResizeOperands(ctx, data, range(rank), [(0.0, 1.0)] * rank, sampling), scales
    )


def _sampling(ctx: ConverterContext, *, is_old: bool) -> Sampling:
    return Sampling(
        ctx.attr("mode", "nearest"),
        ctx.attr("coordinate_transformation_mode", "asymmetric" if is_old else "half_pixel"),
        ctx.attr("nearest_mode", "simple" if is_old else "round_prefer_floor"),
        ctx.attr("cubic_coeff_a", -0.75),
        bool(ctx.attr("exclude_outside", 0)),
        ctx.attr("extrapolation_value", 0.0),
        bool(ctx.attr("antialias", 0)) and ctx.attr("mode", "nearest") != "nearest",
    )


def _has_elements(sizes: Value) -> bool:
    """Whether a vector of sizes is known to have elements."""
    if isinstance(sizes, Sizes):
        return bool(sizes.items)
    return sizes is not None and bool(as_int((known_dims(sizes) or [None])[0]))


def _is_absent(ctx: ConverterContext, value: Value) -> bool:
    """Whether an input is omitted or an empty tensor, which means the same here."""
    if value is None:
        return True
    content = ctx.known_elements(value)
    return content is not None and content.size == 0


def _windows(
    ctx: ConverterContext, roi: Value, sampling: Sampling, count: int
) -> list[tuple[float, float] | None]:
    """The part of each of `count` axes that is sampled; None for each if a run computes them."""
    if not sampling.crops:
        return [(0.0, 1.0)] * count
    if roi is None:
        raise UnsupportedError("the region to crop, `roi`, is missing")
    content = ctx.known_elements(roi)
    if content is None:
        return [None] * count
    if content.size != 2 * count:
        raise UnsupportedError(
            f"`roi` has {content.size} elements, but {count} axes need {2 * count}"
        )
    starts, ends = content.reshape(2, -1)
    return [(float(start), float(end)) for start, end in zip(starts, ends, strict=True)]


def _wanted_sizes(operands: _ResizeOperands, sizes: Value) -> list[Any]:
    if sizes is None:
        raise UnsupportedError("the node has neither scales nor sizes")
    wanted = sizes_of(operands.ctx.bb, sizes)
    if len(wanted) != len(operands.axes):
        raise UnsupportedError(f"there are {len(wanted)} sizes for {len(operands.axes)} axes")
    return wanted


def _common_scale(operands: _ResizeOperands, wanted: Sequence[Any], policy: str) -> Value:
    """The scales of the axes, all equal, that keep the aspect ratio within the wanted sizes."""
    bb = operands.ctx.bb
    choose = {"not_larger": relax.op.min, "not_smaller": relax.op.max}.get(policy)
    if choose is None:
        raise UnsupportedError(f"keep_aspect_ratio_policy {policy!r} is not known")
    ratios = relax.op.divide(_as_floats(bb, wanted), _as_floats(bb, operands.sizes))
    scale = bb.normalize(choose(bb.normalize(ratios), axis=0, keepdims=True))
    return bb.normalize(relax.op.broadcast_to(scale, (len(operands.axes),)))


def _as_floats(bb: Any, sizes: Sequence[Any]) -> Value:
    return bb.normalize(relax.op.astype(as_tensor(bb, relax.ShapeExpr(sizes)), "float32"))


def _by_scales(operands: _ResizeOperands, scales: Value) -> Value:
    factors = operands.ctx.known_elements(scales)
    if factors is None:
        return _by_computed_scales(operands, scales)
    if len(factors) != len(operands.axes):
        raise UnsupportedError(f"there are {len(factors)} scales for {len(operands.axes)} axes")
    sizes = [scale_size(size, f) for size, f in zip(operands.sizes, factors, strict=True)]
    return operands.resize(sizes, [float(factor) for factor in factors])


def _by_computed_scales(
    operands: _ResizeOperands, scales: Value, *, rounded: bool = False
) -> Value:
    """Resizes to sizes that a run computes, rounded or truncated; each size is a new symbol."""
    bb = operands.ctx.bb
    products = relax.op.multiply(_as_floats(bb, operands.sizes), scales)
    if rounded:
        products = relax.op.add(products, relax.const(0.5, "float32"))
    sizes = sizes_of(bb, bb.normalize(relax.op.astype(relax.op.floor(products), "int64")))
    return operands.resize(sizes, scales=scales)


def scale_size(size: Any, factor: np.float32) -> Any:
    """`floor(size * factor)` with the float32 product of onnxruntime.

    The result is an expression of integers where that is the same for every size: with
    `factor = p / q` exactly, the product is exact. Where the nearest float32 to `p / q` is larger,
    the product is never rounded below an integer, and a product that is not an integer is `1 / q`
    away from the next one, further than it is rounded.
    """
    number = as_int(size)
    if number is not None:
        return tirx.IntImm("int64", int(np.float32(number) * np.float32(factor)))
    exact = Fraction(float(factor))
    near = exact.limit_denominator(_LARGEST_DENOMINATOR)
    if np.float32(float(near)) == np.float32(factor) and near <= exact:
        return tirx.floordiv(size * near.numerator, near.denominator)
    return tirx.Cast("int64", tirx.Cast("float32", size) * tirx.const(float(factor), "float32"))
