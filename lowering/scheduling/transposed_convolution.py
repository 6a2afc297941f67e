"""Transposed convolutions as ordinary ones, without multiplying by inserted zeros.

A transposed convolution with stride s is a convolution with s times as many output channels, one
for each phase, whose results are interleaved: the sub-pixel convolution of Shi et al. (Real-Time
Single Image and Video Super-Resolution, 2016, and the note of the same authors on its equivalence).

    y[o·s + p] = Σ x[o - j] · w[j·s + p]        p = 0 … s - 1
"""

from __future__ import annotations

import itertools
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
    """The module with phases for transposed convolutions by a constant, in one group, undilated."""
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
        convolve = relax.op.nn.conv1d if rank == 1 else relax.op.nn.conv2d
        padding = [depth - 1 for depth in depths] * 2
        phases = relax.const(_by_phase(weight, strides, depths))
        result = emit(convolve(data, phases, strides=1, padding=padding))
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
        and int(attrs.groups) == 1
        and all(int(dilation) == 1 for dilation in attrs.dilation)
        and any(int(stride) > 1 for stride in attrs.strides)
        and str(call.args[0].ty.dtype) == "float32"
        and isinstance(getattr(call.ty, "shape", None), relax.ShapeExpr)
    )
    if not plain:
        return False
    taps = [int(size) for size in call.args[1].ty.shape.values][2:]
    after = [int(size) for size in attrs.padding[rank:]]
    added = [int(size) for size in attrs.output_padding]
    # The phases end with the last whole stride that a tap reaches.
    return all(
        extra - end <= -size % int(stride)
        for size, end, extra, stride in zip(taps, after, added, attrs.strides, strict=True)
    )


def _by_phase(weight: Any, strides: list[int], depths: list[int]) -> Any:
    """The weight [in, out, taps…] as [out · phases, in, depths…], turned round."""
    rank = len(strides)
    whole = [stride * depth for stride, depth in zip(strides, depths, strict=True)]
    ends = [(0, size - taps) for size, taps in zip(whole, weight.shape[2:], strict=True)]
    padded = np.pad(weight, [(0, 0), (0, 0), *ends])
    pairs = itertools.chain(*zip(depths, strides, strict=True))
    split = padded.reshape(*weight.shape[:2], *pairs)
    depth_axes = [2 + 2 * axis for axis in range(rank)]
    phase_axes = [3 + 2 * axis for axis in range(rank)]
    moved = split.transpose(1, *phase_axes, 0, *depth_axes)
    turned = np.flip(moved, tuple(range(2 + rank, 2 + 2 * rank)))
    return np.ascontiguousarray(turned.reshape(-1, weight.shape[0], *depths))
