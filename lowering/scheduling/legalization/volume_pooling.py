"""Pooling of volumes as pooling of planes and pooling along the depth.

    max(x[b, c, d·s + k, …] for k, …) = max(max(x[b, c, d·s + k, …] for …) for k)

Planes of all depths are channels of one image. Along the depth, each plane is a line of an image
of one channel. A mean is the mean along the depth of those of planes: the number of elements of a
window is the product of the numbers along the axes, with and without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..relax.dataflow import rewritten_functions
from .volume_convolution import view

_OPERATORS = {
    "relax.nn.avg_pool3d": (relax.op.nn.avg_pool2d, relax.op.nn.avg_pool3d),
    "relax.nn.max_pool3d": (relax.op.nn.max_pool2d, relax.op.nn.max_pool3d),
}
"""The operators for planes and for volumes by the name of the latter."""
_LAYOUT = "NCDHW"
_DEPTH, _PLANE = [0], [1, 2]
"""The axes along the depth and those of planes, without images and channels."""


def pool_by_planes(module: tvm.IRModule) -> tvm.IRModule:
    """The module with pooling of planes for that of volumes whose sizes are expressions.

    Windows that do not overlap are combined as fast where they are: such means stay, and such
    maxima along the depth.
    """
    return rewritten_functions(_Volumes(module), module)


@mutator
class _Volumes(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        return self._by_planes(call) if _is_plain(call) and not _stays(call) else call

    def _by_planes(self, call: Any) -> Any:
        (data,) = call.args
        of_planes, of_volumes = _OPERATORS[call.op.name]
        builder, emit = self.builder_, self.builder_.emit
        images, channels, depth, *plane = data.ty.shape.values
        result = list(call.ty.shape.values)
        is_along_depth = _has_windows(call, _DEPTH)
        if is_along_depth and _are_disjoint(call, _DEPTH):
            # First, as planes are fewer after it.
            data = emit(of_volumes(data, **_windows(call, _DEPTH, 2)))
            depth, is_along_depth = result[2], False
        if _has_windows(call, _PLANE):
            planes = view(builder, data, [images, channels * depth, *plane])
            planes = emit(of_planes(planes, **_windows(call, _PLANE)))
            plane = result[3:]
            data = view(builder, planes, [images, channels, depth, *plane])
        if not is_along_depth:
            return data
        height, width = plane
        # Each channel is an image, so that positions are in vectors: lines are long.
        lines = view(builder, data, [images * channels, 1, depth, height * width])
        return view(builder, emit(of_planes(lines, **_windows(call, _DEPTH, 1))), result)


def _is_plain(call: Any) -> bool:
    """Whether a call pools volumes whose sizes are expressions."""
    if getattr(call.op, "name", "") not in _OPERATORS:
        return False
    shapes = [getattr(part.ty, "shape", None) for part in (call.args[0], call)]
    layouts = {str(call.attrs.layout), str(call.attrs.out_layout)}
    return layouts == {_LAYOUT} and all(isinstance(shape, relax.ShapeExpr) for shape in shapes)


def _stays(call: Any) -> bool:
    if call.op.name == "relax.nn.max_pool3d" and _has_windows(call, _PLANE):
        return False
    return _are_disjoint(call, [*_DEPTH, *_PLANE])


def _has_windows(call: Any, axes: Sequence[int]) -> bool:
    """Whether windows along some of the axes are more than the elements themselves."""
    given = _windows(call, axes)
    ones = [1] * len(axes)
    return [given["pool_size"], given["strides"]] != [ones, ones] or any(given["padding"])


def _are_disjoint(call: Any, axes: Sequence[int]) -> bool:
    """Whether no windows along these axes overlap, and none reach beyond the data."""
    given = _windows(call, axes)
    is_whole = not any(given["padding"]) and not given["ceil_mode"]
    sizes = zip(given["pool_size"], given["strides"], given["dilation"], strict=True)
    return is_whole and all((taps - 1) * gap < stride for taps, stride, gap in sizes)


def _windows(call: Any, axes: Sequence[int], more: int = 0) -> dict[str, Any]:
    """The attributes of the windows along some of the axes, and `more` axes without windows."""
    attrs = call.attrs
    before, after = attrs.padding[:3], attrs.padding[3:]

    def along(numbers: Sequence[Any], otherwise: int) -> list[int]:
        return [int(numbers[axis]) for axis in axes] + [otherwise] * more

    return {
        "pool_size": along(attrs.pool_size, 1),
        "strides": along(attrs.strides, 1),
        "padding": [*along(before, 0), *along(after, 0)],
        "dilation": along(attrs.dilation, 1),
        "ceil_mode": bool(attrs.ceil_mode),
        "count_include_pad": bool(attrs.count_include_pad),
    }
