"""Transposed convolutions as ordinary ones, without multiplying by inserted zeros.

A transposed convolution with stride s is a convolution with s times as many output channels, one
for each phase, whose results are interleaved: the sub-pixel convolution of Shi et al. (Real-Time
Single Image and Video Super-Resolution, 2016, and the note of the same authors on its equivalence).

    y[o·s + p] = Σ x[o - j] · w[j·s + p]        p = 0 … s - 1

With a stride of 1 there is a single phase, and nothing to interleave.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..values import Constant
from .dataflow import rewritten_functions

_RANKS = {"relax.nn.conv1d_transpose": 1, "relax.nn.conv2d_transpose": 2}
_LAYOUTS = {1: ("NCW", "IOW"), 2: ("NCHW", "IOHW")}


def split_into_phases(module: tvm.IRModule) -> tvm.IRModule:
    """The module with ordinary convolutions for transposed ones by a constant.

    Those with a dilation stay, unless all strides are 1.
    """
    return rewritten_functions(_Phases(module), module)


@mutator
class _Phases(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        rank = _RANKS.get(getattr(call.op, "name", ""))
        if rank is None or not _splits(call, rank):
            return call
        return self._convolution(call, rank)

    def _convolution(self, call: Any, rank: int) -> Any:
        data, attrs = call.args[0], call.attrs
        strides = [int(stride) for stride in attrs.strides]
        weight = call.args[1].value.numpy()
        taps = weight.shape[2:]
        depths = [-(-size // stride) for size, stride in zip(taps, strides, strict=True)]
        emit = self.builder_.emit
        groups = int(attrs.groups)
        convolve = relax.op.nn.conv1d if rank == 1 else relax.op.nn.conv2d
        phases = relax.const(_by_phase(weight, strides, depths, groups))
        if _is_one_phase(attrs):
            padding = _padding_of_one_phase(attrs, taps)
            return convolve(data, phases, padding=padding, dilation=attrs.dilation, groups=groups)
        padding = [depth - 1 for depth in depths] * 2
        result = emit(convolve(data, phases, padding=padding, groups=groups))
        first = [int(size) for size in attrs.padding[:rank]]
        shape = list(call.ty.shape.values)

        def interleaved(operand: te.Tensor) -> te.Tensor:
            def element(image: Any, channel: Any, *positions: Any) -> Any:
                places = [
                    position + before for position, before in zip(positions, first, strict=True)
                ]
                for place, stride in zip(places, strides, strict=True):
                    channel = channel * stride + tirx.floormod(place, stride)
                whole = (
                    tirx.floordiv(p, stride) for p, stride in zip(places, strides, strict=True)
                )
                indices = (image, channel, *whole)
                return operand[indices]

            return te.compute(shape, element, name="interleaved")

        return self.builder_.call_te(interleaved, result, primfunc_name_hint="interleave_phases")


def _splits(call: Any, rank: int) -> bool:
    """Whether phases compute all that a call does."""
    attrs = call.attrs
    plain = (
        isinstance(call.args[1], Constant)
        and (str(attrs.data_layout), str(attrs.kernel_layout)) == _LAYOUTS[rank]
        and str(call.args[0].ty.dtype) == "float32"
        and isinstance(getattr(call.ty, "shape", None), relax.ShapeExpr)
    )
    if not plain:
        return False
    taps = [int(size) for size in call.args[1].ty.shape.values][2:]
    if _is_one_phase(attrs):
        return min(_padding_of_one_phase(attrs, taps)) >= 0
    if any(int(dilation) > 1 for dilation in attrs.dilation):
        return False
    after = [int(size) for size in attrs.padding[rank:]]
    added = [int(size) for size in attrs.output_padding]
    # The phases end with the last whole stride that a tap reaches.
    return all(
        extra - end <= -size % int(stride)
        for size, end, extra, stride in zip(taps, after, added, attrs.strides, strict=True)
    )


def _is_one_phase(attrs: Any) -> bool:
    return all(int(stride) == 1 for stride in attrs.strides)


def _padding_of_one_phase(attrs: Any, taps: Sequence[int]) -> list[int]:
    """The padding before and after each axis of the convolution that stands for one phase."""
    reach = [
        (size - 1) * int(dilation) for size, dilation in zip(taps, attrs.dilation, strict=True)
    ]
    return [r - int(cut) for r, cut in zip(reach * 2, attrs.padding, strict=True)]


def _by_phase(weight: Any, strides: list[int], depths: list[int], groups: int) -> Any:
    """The weight [in, out, taps…] as [out · phases, in, depths…], flipped.

    `in` and `out` are the channels of a group, except that the first axis has those of all groups.
    """
    rank = len(strides)
    whole = [stride * depth for stride, depth in zip(strides, depths, strict=True)]
    ends = [(0, size - taps) for size, taps in zip(whole, weight.shape[2:], strict=True)]
    padded = np.pad(weight, [(0, 0), (0, 0), *ends])
    pairs = itertools.chain(*zip(depths, strides, strict=True))
    channels = weight.shape[0] // groups
    split = padded.reshape(groups, channels, weight.shape[1], *pairs)
    depth_axes = [3 + 2 * axis for axis in range(rank)]
    phase_axes = [4 + 2 * axis for axis in range(rank)]
    moved = split.transpose(0, 2, *phase_axes, 1, *depth_axes)
    flipped = np.flip(moved, tuple(range(3 + rank, 3 + 2 * rank)))
    return np.ascontiguousarray(flipped.reshape(-1, channels, *depths))
