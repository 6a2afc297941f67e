"""Transposed convolutions as ordinary ones, without multiplying by inserted zeros.

A transposed convolution with stride s is one convolution for each phase, whose results are
interleaved: the sub-pixel convolution of Shi et al. (Real-Time Single Image and Video
Super-Resolution, 2016, and the note of the same authors on its equivalence).

    y[o·s + p] = Σ x[o - j] · w[j·s + p]        p = 0 … s - 1

Phases that have as many taps and read the same elements are the channels of one convolution. With a
stride of 1 there is a single phase, and nothing to interleave.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
        weight = call.args[1].value.numpy()
        groups = int(attrs.groups)
        if _is_one_phase(attrs):
            padding = _padding_of_one_phase(attrs, weight.shape[2:])
            taps = [PhaseRange(0, 1, size, 0, 0) for size in weight.shape[2:]]
            phases = _taps_of(weight, [1] * rank, taps, groups)
            return _convolved(data, phases, padding, groups, dilation=attrs.dilation)
        strides = [int(stride) for stride in attrs.strides]
        axes = [_ranges(attrs, axis, size) for axis, size in enumerate(weight.shape[2:])]
        if weight.shape[1] < _FEWEST_CHANNELS:
            axes = [[_joined(ranges)] for ranges in axes]
        parts: dict[tuple[PhaseRange, ...], Any] = {}
        for part in itertools.product(*axes):
            if all(of_axis.taps for of_axis in part):
                padding = [of_axis.before for of_axis in part] + [of_axis.after for of_axis in part]
                phases = _taps_of(weight, strides, part, groups)
                parts[part] = self.builder_.emit(_convolved(data, phases, padding, groups))
        first = [int(size) for size in attrs.padding[:rank]]
        shape = list(call.ty.shape.values)

        def interleaved(*operands: te.Tensor) -> te.Tensor:
            def element(image: Any, channel: Any, *positions: Any) -> Any:
                places = [p + before for p, before in zip(positions, first, strict=True)]
                phase = [tirx.floormod(p, s) for p, s in zip(places, strides, strict=True)]
                whole = [tirx.floordiv(p, s) for p, s in zip(places, strides, strict=True)]
                value = tirx.const(0, str(call.ty.dtype))
                for part, operand in zip(reversed(parts), reversed(operands), strict=True):
                    index = [image, channel]
                    for of_axis, p, o in zip(part, phase, whole, strict=True):
                        index[1] = index[1] * of_axis.phases + (p - of_axis.start)
                        index.append(o - of_axis.first)
                    within = [
                        tirx.all(p >= of_axis.start, p < of_axis.stop)
                        for of_axis, p, s in zip(part, phase, strides, strict=True)
                        if of_axis.phases < s
                    ]
                    read = operand(*index)
                    value = tirx.if_then_else(tirx.all(*within), read, value) if within else read
                return value

            return te.compute(shape, element, name="interleaved")

        name = "interleave_phases"
        return self.builder_.call_te(interleaved, *parts.values(), primfunc_name_hint=name)


_FEWEST_CHANNELS = 16
"""Output channels below which all phases are one convolution, to fill its vectors."""


@dataclass(frozen=True)
class PhaseRange:
    """Phases along one axis that have as many taps and read the same elements.

    Their results are of the positions from `first` on, and the data is padded by `before` and
    `after`.
    """

    start: int
    stop: int
    taps: int
    first: int
    after: int

    @property
    def phases(self) -> int:
        return self.stop - self.start

    @property
    def before(self) -> int:
        return self.taps - 1 - self.first


def _ranges(attrs: Any, axis: int, size: int) -> list[PhaseRange]:
    """The phases along an axis of the data, as few ranges as possible; `size` is all their taps."""
    rank, stride = len(attrs.strides), int(attrs.strides[axis])
    cut, cut_after = int(attrs.padding[axis]), int(attrs.padding[rank + axis])
    reach = size + int(attrs.output_padding[axis]) - cut_after
    ranges: list[PhaseRange] = []
    for phase in range(stride):
        taps = -(-(size - phase) // stride)
        # The positions whose results are kept; nothing is cut from the data itself.
        first = min(-(-(cut - phase) // stride), taps - 1)
        after = max((reach - 1 - phase) // stride, 0)
        same = PhaseRange(phase, phase + 1, max(taps, 0), first, after)
        if ranges and replace(same, start=ranges[-1].start) == replace(ranges[-1], stop=phase + 1):
            same = replace(same, start=ranges.pop().start)
        ranges.append(same)
    return ranges


def _joined(ranges: Sequence[PhaseRange]) -> PhaseRange:
    """One range of all phases: some taps are 0, and some results are not kept."""
    taps = max(of_some.taps for of_some in ranges)
    first = min(of_some.first for of_some in ranges if of_some.taps)
    after = max(of_some.after for of_some in ranges)
    return PhaseRange(ranges[0].start, ranges[-1].stop, taps, first, after)


def _convolved(data: Any, weight: Any, padding: Any, groups: int, dilation: Any = 1) -> Any:
    convolve = relax.op.nn.conv1d if weight.ndim == 3 else relax.op.nn.conv2d
    constant = relax.const(weight)
    return convolve(data, constant, padding=padding, dilation=dilation, groups=groups)


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
    if _is_one_phase(attrs):
        taps = [int(size) for size in call.args[1].ty.shape.values][2:]
        return min(_padding_of_one_phase(attrs, taps)) >= 0
    return all(int(dilation) == 1 for dilation in attrs.dilation)


def _is_one_phase(attrs: Any) -> bool:
    return all(int(stride) == 1 for stride in attrs.strides)


def _padding_of_one_phase(attrs: Any, taps: Sequence[int]) -> list[int]:
    """The padding before and after each axis of the convolution that stands for one phase."""
    reach = [
        (size - 1) * int(dilation) for size, dilation in zip(taps, attrs.dilation, strict=True)
    ]
    return [r - int(cut) for r, cut in zip(reach * 2, attrs.padding, strict=True)]


def _taps_of(weight: Any, strides: Sequence[int], part: Sequence[PhaseRange], groups: int) -> Any:
    """The weight [in, out, taps…] as [out · phases, in, taps of a phase…], flipped.

    `in` and `out` are the channels of a group, except that the first axis has those of all groups.
    """
    rank = len(strides)
    wholes = [stride * of_axis.taps for stride, of_axis in zip(strides, part, strict=True)]
    missing = (max(whole - taps, 0) for whole, taps in zip(wholes, weight.shape[2:], strict=True))
    padded = np.pad(weight, [(0, 0), (0, 0), *((0, more) for more in missing)])
    used = (slice(None), slice(None), *(slice(whole) for whole in wholes))
    padded = padded[used]
    pairs = itertools.chain(*((of_axis.taps, s) for of_axis, s in zip(part, strides, strict=True)))
    channels = weight.shape[0] // groups
    split = padded.reshape(groups, channels, weight.shape[1], *pairs)
    for axis, of_axis in enumerate(part):
        split = split.take(range(of_axis.start, of_axis.stop), axis=4 + 2 * axis)
    tap_axes = [3 + 2 * axis for axis in range(rank)]
    phase_axes = [4 + 2 * axis for axis in range(rank)]
    moved = split.transpose(0, 2, *phase_axes, 1, *tap_axes)
    flipped = np.flip(moved, tuple(range(3 + rank, 3 + 2 * rank)))
    kept = [of_axis.taps for of_axis in part]
    return np.ascontiguousarray(flipped.reshape(-1, channels, *kept))
