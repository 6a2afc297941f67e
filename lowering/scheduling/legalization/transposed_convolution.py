"""Transposed convolutions as ordinary ones, without multiplying by inserted zeros.

A transposed convolution with stride s is one convolution for each phase, whose results are
interleaved: the sub-pixel convolution of Shi et al. (Real-Time Single Image and Video
Super-Resolution, 2016, and the note of the same authors on its equivalence).

    y[o·s + p] = Σ x[o - j] · w[j·s + p]        p = 0 … s - 1

Phases that have the same number of taps and read the same elements are channels of one convolution.
With few output channels all phases are, and some taps have the weight 0. With a stride of 1 there
is a single phase, and nothing to interleave.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...values import Constant
from ..relax.dataflow import rewritten_functions

_RANKS = {f"relax.nn.conv{rank}d_transpose": rank for rank in (1, 2, 3)}
_LAYOUTS = {1: ("NCW", "IOW"), 2: ("NCHW", "IOHW"), 3: ("NCDHW", "IODHW")}
_CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}


def split_into_phases(module: tvm.IRModule) -> tvm.IRModule:
    """The module with ordinary convolutions for transposed ones.

    Those with a dilation stay, unless all strides are 1; so do those by a weight of unknown sizes.
    """
    return rewritten_functions(_SplitIntoPhases(module), module)


@mutator
class _SplitIntoPhases(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        rank = _RANKS.get(getattr(call.op, "name", ""))
        if rank is None or not _splits(call, rank):
            return call
        return (
            self._one_phase(call, rank) if _is_one_phase(call.attrs) else self._phases(call, rank)
        )

    def _phases(self, call: Any, rank: int) -> Any:
        """The convolutions of all phases, and the kernel that interleaves them."""
        data, attrs = call.args[0], call.attrs
        strides = [int(stride) for stride in attrs.strides]
        groups = int(attrs.groups)
        _, channels, *taps = _static_shape(call.args[1])
        axes = [_ranges(attrs, axis, size) for axis, size in enumerate(taps)]
        if channels < _FEWEST_CHANNELS:
            axes = [[_joined(ranges)] for ranges in axes]
        parts: dict[tuple[_PhaseRange, ...], Any] = {}
        for ranges in itertools.product(*axes):
            if all(of_axis.taps for of_axis in ranges):
                padding = [r.before for r in ranges] + [r.after for r in ranges]
                of_phases = self._weight_of_phases(call.args[1], strides, ranges, groups)
                parts[ranges] = self.builder_.emit(_convolved(data, of_phases, padding, groups))
        cut = [int(size) for size in attrs.padding[:rank]]
        interleave = partial(_interleaved, list(parts), strides, cut, list(call.ty.shape.values))
        name = "interleave_phases"
        return self.builder_.call_te(interleave, list(parts.values()), primfunc_name_hint=name)

    def _one_phase(self, call: Any, rank: int) -> Any:
        """The convolution that a transposed one with strides of 1 is."""
        weight, attrs = call.args[1], call.attrs
        taps = _static_shape(weight)[2:]
        ranges = [_PhaseRange(0, 1, size, 0, 0) for size in taps]
        of_phase = self._weight_of_phases(weight, [1] * rank, ranges, int(attrs.groups))
        padding = _padding_of_one_phase(attrs, taps)
        return _convolved(call.args[0], of_phase, padding, int(attrs.groups), attrs.dilation)

    def _weight_of_phases(
        self, weight: Any, strides: Sequence[int], ranges: Sequence[_PhaseRange], groups: int
    ) -> Any:
        """The weight of the convolution of some phases; of a constant, a constant."""
        if isinstance(weight, Constant):
            return relax.const(_phases_of_array(weight.value.numpy(), strides, ranges, groups))
        made = partial(_phases_of_tensor, strides=strides, ranges=ranges, groups=groups)
        return self.builder_.emit(
            self.builder_.call_te(made, weight, primfunc_name_hint="weight_of_phases")
        )


def _static_shape(weight: Any) -> list[int]:
    return [int(size) for size in weight.ty.shape.values]


def _interleaved(
    parts: Sequence[tuple[_PhaseRange, ...]], strides: Sequence[int], cut: Sequence[int],
    shape: list[Any], results: Sequence[te.Tensor],
) -> te.Tensor:  # fmt: skip
    """The elements of a transposed convolution, from the results of the convolutions of `parts`."""

    def element(image: Any, channel: Any, *index: Any) -> Any:
        places = [i + before for i, before in zip(index, cut, strict=True)]
        phases = [tirx.floormod(place, s) for place, s in zip(places, strides, strict=True)]
        positions = [tirx.floordiv(place, s) for place, s in zip(places, strides, strict=True)]
        value: Any = tirx.const(0, str(results[0].dtype))
        for ranges, result in zip(reversed(parts), reversed(results), strict=True):
            of_part, conditions = channel, []
            for r, phase, stride in zip(ranges, phases, strides, strict=True):
                of_part = of_part * r.phases + (phase - r.start)
                if r.phases < stride:
                    conditions += [phase >= r.start, phase < r.stop]
            kept = [position - r.first for position, r in zip(positions, ranges, strict=True)]
            read = result(image, of_part, *kept)
            value = tirx.if_then_else(tirx.all(*conditions), read, value) if conditions else read
        return value

    return te.compute(shape, element, name="interleaved")


_FEWEST_CHANNELS = 16
"""Output channels of a group below which all phases are one convolution: fewer do not fill vectors
of 16 floats."""


@dataclass(frozen=True)
class _PhaseRange:
    """Consecutive phases along an axis that have as many taps as each other, and read the same."""

    start: int
    stop: int
    """One after the last phase."""
    taps: int
    first: int
    """The position of the first result."""
    after: int
    """The padding after the data."""

    @property
    def phases(self) -> int:
        """How many phases these are."""
        return self.stop - self.start

    @property
    def before(self) -> int:
        """The padding before the data."""
        return self.taps - 1 - self.first


def _ranges(attrs: Any, axis: int, size: int) -> list[_PhaseRange]:
    """The phases along an axis of the data, as few ranges as possible; `size` is all their taps."""
    rank, stride = len(attrs.strides), int(attrs.strides[axis])
    cut, cut_after = int(attrs.padding[axis]), int(attrs.padding[rank + axis])
    reach = size + int(attrs.output_padding[axis]) - cut_after

    def extent(phase: int) -> tuple[int, int, int]:
        taps = max(-(-(size - phase) // stride), 0)
        # No data is cut, but results are that are not needed.
        first = max(min(-(-(cut - phase) // stride), taps - 1), 0)
        # At least as many results as elements: TVM refuses a convolution without results.
        return taps, first, max((reach - 1 - phase) // stride, first)

    ranges = []
    for (taps, first, after), phases in itertools.groupby(range(stride), extent):
        start, *rest = phases
        ranges.append(_PhaseRange(start, start + 1 + len(rest), taps, first, after))
    return ranges


def _joined(ranges: Sequence[_PhaseRange]) -> _PhaseRange:
    """One range of all phases: some taps are 0, and some results are not kept."""
    taps = max(of_some.taps for of_some in ranges)
    first = min(of_some.first for of_some in ranges if of_some.taps)
    after = max(of_some.after for of_some in ranges)
    return _PhaseRange(ranges[0].start, ranges[-1].stop, taps, first, after)


def _convolved(data: Any, weight: Any, padding: Any, groups: int, dilation: Any = 1) -> Any:
    convolve = _CONVOLUTIONS[weight.ty.ndim - 2]
    return convolve(data, weight, padding=padding, dilation=dilation, groups=groups)


def _splits(call: Any, rank: int) -> bool:
    """Whether phases compute all that a call does."""
    attrs, shape = call.attrs, getattr(call.args[1].ty, "shape", None)
    plain = (
        isinstance(shape, relax.ShapeExpr)
        and all(isinstance(size, tirx.IntImm) for size in shape.values)
        and (str(attrs.data_layout), str(attrs.kernel_layout)) == _LAYOUTS[rank]
        and str(call.args[0].ty.dtype) == "float32"
        and isinstance(getattr(call.ty, "shape", None), relax.ShapeExpr)
    )
    if not plain:
        return False
    if _is_one_phase(attrs):
        taps = _static_shape(call.args[1])[2:]
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


def _phases_of_array(
    weight: Any, strides: Sequence[int], ranges: Sequence[_PhaseRange], groups: int
) -> Any:
    """The weight [in, out, taps…] as [out · phases, in, taps of a phase…], flipped.

    `in` and `out` are the channels of a group, except that the first axis has those of all groups.
    """
    rank = len(strides)
    wholes = [stride * of_axis.taps for stride, of_axis in zip(strides, ranges, strict=True)]
    missing = (max(whole - taps, 0) for whole, taps in zip(wholes, weight.shape[2:], strict=True))
    padded = np.pad(weight, [(0, 0), (0, 0), *((0, more) for more in missing)])
    used = (slice(None), slice(None), *(slice(whole) for whole in wholes))
    padded = padded[used]
    pairs = itertools.chain(*((r.taps, s) for r, s in zip(ranges, strides, strict=True)))
    channels = weight.shape[0] // groups
    split = padded.reshape(groups, channels, weight.shape[1], *pairs)
    for axis, of_axis in enumerate(ranges):
        split = split.take(range(of_axis.start, of_axis.stop), axis=4 + 2 * axis)
    tap_axes = [3 + 2 * axis for axis in range(rank)]
    phase_axes = [4 + 2 * axis for axis in range(rank)]
    moved = split.transpose(0, 2, *phase_axes, 1, *tap_axes)
    flipped = np.flip(moved, tuple(range(3 + rank, 3 + 2 * rank)))
    kept = [of_axis.taps for of_axis in ranges]
    return np.ascontiguousarray(flipped.reshape(-1, channels, *kept))


def _phases_of_tensor(
    weight: te.Tensor, strides: Sequence[int], ranges: Sequence[_PhaseRange], groups: int
) -> te.Tensor:
    """`_phases_of_array` of a weight that is computed at run time."""
    given, results, *taps = (int(size) for size in weight.shape)
    channels, counts = given // groups, [of_axis.phases for of_axis in ranges]
    kept = [of_axis.taps for of_axis in ranges]

    def element(result: Any, channel: Any, *places: Any) -> Any:
        phases: list[Any] = []
        for count in reversed(counts):
            result, phase = tirx.floordiv(result, count), tirx.floormod(result, count)
            phases.insert(0, phase)
        group, of_group = tirx.floordiv(result, results), tirx.floormod(result, results)
        at = [
            (of_axis.taps - 1 - place) * stride + of_axis.start + phase
            for of_axis, place, stride, phase in zip(ranges, places, strides, phases, strict=True)
        ]
        is_tap = [place < size for place, size in zip(at, taps, strict=True)]
        value = weight(group * channels + channel, of_group, *at)
        return tirx.if_then_else(tirx.all(*is_tap), value, tirx.const(0, str(weight.dtype)))

    shape = (groups * results * math.prod(counts), channels, *kept)
    return te.compute(shape, element, name="weight_of_phases")
