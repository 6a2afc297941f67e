"""Convolutions of volumes as convolutions of planes.

    y[b, f, d, …] = Σ_k conv2d(x[b, :, d·s + k·r - p, …], w[f, :, k, …])

The planes that the taps along the depth read are the channels of one convolution of planes, and the
planes of the result its images. The copy is as many times as large as the data as there are taps.

Where all taps lie along the depth, planes are lines of one image, and nothing is copied.

A single tap with strides or padding needs no planes: what it reads is copied, and the convolution
of the copy has neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..convolutions.channel_lanes import HAS_LONG_LINES
from ..injective.ordered_copies import KEEPS_ORDER
from ..relax.dataflow import rewritten_functions
from ..relax.size_names import OPAQUE

_OPERATOR = "relax.nn.conv3d"
_LAYOUTS = ("NCDHW", "OIDHW")


def split_volumes(module: tvm.IRModule) -> tvm.IRModule:
    """The module with convolutions of planes for those of volumes.

    Those with a single tap stay, without strides and padding.
    """
    return rewritten_functions(_Volumes(module), module)


@mutator
class _Volumes(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if not _is_plain(call):
            return call
        if _is_along_depth(call):
            return self._by_lines(call)
        if any(int(n) > 1 for n in list(call.args[1].ty.shape.values)[2:]):
            return self._by_planes(call)
        is_strided = any(int(n) > 1 for n in call.attrs.strides)
        is_padded = any(int(n) > 0 for n in call.attrs.padding)
        return self._of_elements_read(call) if is_strided or is_padded else call

    def _by_lines(self, call: Any) -> Any:
        """The convolution along the depth of images whose lines are the planes."""
        data, weight = call.args
        attrs, emit = call.attrs, self.builder_.emit
        images, channels, depth, height, width = data.ty.shape.values
        lines = view(self.builder_, data, [images, channels, depth, height * width])
        taps = emit(relax.op.reshape(weight, [*list(weight.ty.shape.values)[:3], 1]))
        convolved = emit(
            self.builder_.call_te(
                topi.nn.conv, lines, taps, stride=[int(attrs.strides[0]), 1],
                padding=[int(attrs.padding[0]), 0, int(attrs.padding[3]), 0],
                dilation=[int(attrs.dilation[0]), 1], groups=int(attrs.groups),
                data_layout="NCHW", kernel_layout="OIHW", out_dtype=None,
                primfunc_name_hint="conv2d", primfunc_attrs={HAS_LONG_LINES: True},
            )
        )  # fmt: skip
        return view(self.builder_, convolved, list(call.ty.shape.values))

    def _of_elements_read(self, call: Any) -> Any:
        """The convolution with a single tap of a copy of what the tap reads."""
        data, weight = call.args
        steps = [int(n) for n in call.attrs.strides]
        before = [int(n) for n in call.attrs.padding[:3]]
        is_padded = any(int(n) > 0 for n in call.attrs.padding)
        sizes = list(data.ty.shape.values)[2:]

        def elements(x: te.Tensor) -> te.Tensor:
            def element(image: Any, channel: Any, *places: Any) -> Any:
                at = [p * step - n for p, step, n in zip(places, steps, before, strict=True)]
                read = x(image, channel, *at)
                if not is_padded:
                    return read
                is_inside = tirx.all(
                    *(tirx.all(p >= 0, p < size) for p, size in zip(at, sizes, strict=True))
                )
                return tirx.if_then_else(is_inside, read, tirx.const(0, str(x.dtype)))

            shape = [*list(data.ty.shape.values)[:2], *list(call.ty.shape.values)[2:]]
            return te.compute(shape, element, name="elements")

        copied = self.builder_.emit(
            self.builder_.call_te(elements, data, primfunc_name_hint="elements_read")
        )
        return relax.op.nn.conv3d(copied, weight, groups=call.attrs.groups)

    def _by_planes(self, call: Any) -> Any:
        data, weight = call.args
        attrs, emit = call.attrs, self.builder_.emit
        images, channels, depth, *plane = data.ty.shape.values
        results, of_group, taps, *of_plane = (int(n) for n in weight.ty.shape.values)
        depth_of_result = call.ty.shape.values[2]
        size = math.prod(plane)
        step, spread = int(attrs.strides[0]), int(attrs.dilation[0])
        before = int(attrs.padding[0])

        def windows(x: te.Tensor) -> te.Tensor:
            def element(image: Any, to: Any, channel: Any, tap: Any, place: Any) -> Any:
                at = to * step + tap * spread - before
                is_inside = tirx.all(at >= 0, at < depth)
                element = x(image, channel, at, place)
                return tirx.if_then_else(is_inside, element, tirx.const(0, str(x.dtype)))

            shape = (images, depth_of_result, channels, taps, size)
            return te.compute(shape, element, name="windows")

        lines = view(self.builder_, data, [images, channels, depth, size])
        copied = emit(self.builder_.call_te(windows, lines, primfunc_name_hint="depth_windows"))
        planes = view(self.builder_, copied, [images * depth_of_result, channels * taps, *plane])
        flat = emit(relax.op.reshape(weight, [results, of_group * taps, *of_plane]))
        padding = [int(attrs.padding[axis]) for axis in (1, 2, 4, 5)]
        convolved = emit(
            relax.op.nn.conv2d(
                planes, flat, strides=list(attrs.strides)[1:], padding=padding,
                dilation=list(attrs.dilation)[1:], groups=attrs.groups,
            )
        )  # fmt: skip
        of_result = list(convolved.ty.shape.values)[1:]
        volumes = view(self.builder_, convolved, [images, depth_of_result, *of_result])
        return relax.op.permute_dims(volumes, [0, 2, 1, 3, 4])


def _is_plain(call: Any) -> bool:
    """Whether a call is a convolution of volumes of float32 whose sizes are expressions, by a
    weight of known size.
    """
    if getattr(call.op, "name", "") != _OPERATOR:
        return False
    attrs = call.attrs
    types = [call.args[0].ty, call.args[1].ty, call.ty]
    is_plain = (str(attrs.data_layout), str(attrs.kernel_layout)) == _LAYOUTS and all(
        isinstance(getattr(kind, "shape", None), relax.ShapeExpr) and str(kind.dtype) == "float32"
        for kind in types
    )
    return is_plain and all(isinstance(n, tirx.IntImm) for n in types[1].shape.values)


def _is_along_depth(call: Any) -> bool:
    """Whether a convolution has several taps, all along the depth, and reads whole planes."""
    attrs = call.attrs
    taps, *of_plane = list(call.args[1].ty.shape.values)[2:]
    given = [*of_plane, *attrs.strides[1:], *(attrs.padding[axis] + 1 for axis in (1, 2, 4, 5))]
    return int(taps) > 1 and all(int(n) == 1 for n in given)


def view(builder: Any, tensor: Any, shape: Sequence[Any]) -> Any:
    """A reshape that `restore_reshapes` need not prove to be one, and that is not fused."""
    attributes = {KEEPS_ORDER: True, "op_pattern": OPAQUE}
    call = builder.call_te(topi.reshape, tensor, list(shape), primfunc_attrs=attributes)
    return builder.emit(call)
