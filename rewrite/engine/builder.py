"""Builds operators for a patch, in the form that the opset of the model has.

What depends on the opset is decided here: whether an operator takes its axes as an attribute or as
an input, whether Max and Min take integers, whether Reshape can produce a size of 0. Where the
opset lacks an operator altogether, the engine undoes the patch and records the reason (see
`looplift.rewrite.engine.patch_check`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import symbolic
from ..facts.fact import BFLOAT16
from ..graph.ir import Tensor
from .miss import Miss

if TYPE_CHECKING:
    from ..facts.counted_loop import CountedLoop, SliceRead
    from ..facts.facts import Facts
    from ..graph.views import ScanOutput
    from .edits import Edits, Place

Indices = slice  # `slice` names a method below

_AXES_ARE_INPUTS = 13
"""The first opset in which Squeeze, Unsqueeze, Split and ReduceSum take axes or sizes as inputs."""
_INTEGER_MAX = 12
"""The first opset in which Max and Min take integers."""
EMPTY_RESHAPES = 14
"""The first opset in which Reshape can produce a size of 0."""
NO_EMPTY_RESHAPES = "Reshape cannot produce a size of 0 before opset 14"
_SLICE_TAKES_INPUTS = 10
_REDUCTIONS_TAKE_AXES = 18
TO_THE_END = np.iinfo(np.int64).max
"""As the end of a Slice: after the last element of any axis."""
BEFORE_FIRST = np.iinfo(np.int64).min
"""As the end of a Slice with a negative step: before the first element of any axis."""
_MOST_STORED_NUMBERS = 1 << 17
"""The most iteration numbers that become a constant, which has a megabyte."""
_MOST_NUMBERS = 1 << 24
"""The most iteration numbers that a run holds: a loop needs no memory for them."""


class Builder:
    """Builds nodes at one place of a graph, with results named after one value.

    Calling the builder makes a node with one output: `emit("Add", a, b)`. `Patch.builder` and
    `Patch.builder_after` make builders.
    """

    def __init__(self, patch: Edits, like: Tensor, before: Place | None = None) -> None:
        self.patch = patch
        self.like = like
        """The value that results are named after."""
        self._before: Place = patch.root if before is None else before

    def __call__(self, op: str, *inputs: Tensor, **attrs: Any) -> Tensor:
        """Adds a node with one output and returns the output."""
        return self.outputs(op, inputs, [self.like], **attrs)[0]

    def outputs(
        self, op: str, inputs: Sequence[Tensor], like: Sequence[Tensor], **attrs: Any
    ) -> list[Tensor]:
        """Adds a node with one output for each value of `like`, named after it."""
        return self.patch.node(op, inputs, like, attrs, self._before)

    # --- constants ---

    def constant(self, values: np.ndarray) -> Tensor:
        """Adds an initializer to the graph that the new nodes stand in."""
        return self.patch.constant(values, self.like, self.patch.home(self._before))

    def vector(self, *values: int) -> Tensor:
        """A constant int64 vector."""
        return self.constant(np.array(values, np.int64))

    def scalar(self, value: int) -> Tensor:
        """A constant int64 scalar."""
        return self.constant(np.array(value, np.int64))

    # --- shapes and axes ---

    def unsqueeze(self, value: Tensor, axes: Sequence[int]) -> Tensor:
        """Inserts axes of size 1; `axes` are positions in the result, as in Unsqueeze."""
        return self._with_axes("Unsqueeze", value, axes, _AXES_ARE_INPUTS) if axes else value

    def squeeze(self, value: Tensor, axes: Sequence[int]) -> Tensor:
        """Removes these axes of size 1."""
        return self._with_axes("Squeeze", value, axes, _AXES_ARE_INPUTS) if axes else value

    def transpose(self, value: Tensor, perm: Sequence[int]) -> Tensor:
        """Transposes; returns the value itself for the identity permutation."""
        if list(perm) == list(range(len(perm))):
            return value
        return self("Transpose", value, perm=list(perm))

    def move_axis(self, value: Tensor, source: int, target: int, rank: int) -> Tensor:
        """Moves one axis to another position, like `numpy.moveaxis`."""
        perm = [axis for axis in range(rank) if axis != source]
        perm.insert(target, source)
        return self.transpose(value, perm)

    def reshape(self, value: Tensor, shape: Tensor) -> Tensor:
        """Reshapes to a computed shape, whose sizes may be 0.

        Raises Miss before opset 14, where a 0 in the shape copies the size of the operand.
        """
        if self.patch.opset < EMPTY_RESHAPES:
            raise Miss(NO_EMPTY_RESHAPES)
        return self("Reshape", value, shape, allowzero=1)

    def merge_axes(self, value: Tensor, axis: int, rank: int) -> Tensor:
        """Merges an axis with the next one. Raises Miss before opset 14."""
        both = self("ReduceProd", self.shape(value, axis, axis + 2), keepdims=1)
        parts = [self.shape(value, 0, axis), both, self.shape(value, axis + 2, rank)]
        return self.reshape(value, self.concat(parts))

    def shape(self, value: Tensor, first: int, last: int) -> Tensor:
        """The sizes of axes first … last - 1, an int64 vector."""
        return self.slice(self("Shape", value), 0, slice(first, last, 1))

    # --- elements ---

    def split(
        self, value: Tensor, axis: int, sizes: Sequence[int], like: Sequence[Tensor]
    ) -> list[Tensor]:
        """Splits an axis into pieces of these sizes, named after the values of `like`."""
        if self.patch.opset >= _AXES_ARE_INPUTS:
            return self.outputs("Split", [value, self.vector(*sizes)], like, axis=axis)
        return self.outputs("Split", [value], like, axis=axis, split=list(sizes))

    def slice(self, value: Tensor, axis: int, indices: Indices) -> Tensor:
        """`value[indices]` along one axis; the slice must give its start and step.

        Raises Miss for a step other than 1 before opset 10, where Slice has no steps.
        """
        start, end, step = indices.start, indices.stop, indices.step
        if end is None:
            end = TO_THE_END if step > 0 else BEFORE_FIRST
        if self.patch.opset >= _SLICE_TAKES_INPUTS:
            operands = [start, end, axis, step] if step != 1 else [start, end, axis]
            return self("Slice", value, *(self.vector(number) for number in operands))
        if step != 1:
            raise Miss("Slice has no steps before opset 10")
        return self("Slice", value, starts=[start], ends=[end], axes=[axis])

    def reverse(self, value: Tensor, axis: int) -> Tensor:
        """Reverses an axis. Raises Miss before opset 10, as `slice` does."""
        return self.slice(value, axis, slice(-1, None, -1))

    def concat(self, vectors: Sequence[Tensor]) -> Tensor:
        """Concatenates along axis 0; returns the value itself if there is only one."""
        return vectors[0] if len(vectors) == 1 else self("Concat", *vectors, axis=0)

    def repeat(self, value: Tensor, count: Tensor) -> Tensor:
        """Repeats a value along a new axis 0; `count` is an int64 vector of one element."""
        if self.patch.facts.dtype(value) == BFLOAT16:
            # onnxruntime has neither Expand nor Tile of bfloat16.
            first = self("Expand", self.vector(0), count)
            return self("Gather", self.unsqueeze(value, [0]), first)
        return self("Expand", value, self.concat([count, self("Shape", value)]))

    # --- arithmetic ---

    def combine(self, op: str, values: Sequence[Tensor]) -> Tensor:
        """Combines values from the first to the last by a binary operator; needs at least one."""
        return functools.reduce(lambda a, b: self(op, a, b), values)

    def max(self, a: Tensor, b: Tensor) -> Tensor:
        """The elementwise maximum of integers."""
        if self.patch.opset >= _INTEGER_MAX:
            return self("Max", a, b)
        return self("Where", self("Greater", a, b), a, b)

    def min(self, a: Tensor, b: Tensor) -> Tensor:
        """The elementwise minimum of integers."""
        if self.patch.opset >= _INTEGER_MAX:
            return self("Min", a, b)
        return self("Where", self("Less", a, b), a, b)

    def reduce(self, op: str, value: Tensor, axes: Sequence[int], keepdims: int) -> Tensor:
        """Reduces axes, at least one, with ReduceSum, ReduceMax or a similar operator."""
        since = _AXES_ARE_INPUTS if op == "ReduceSum" else _REDUCTIONS_TAKE_AXES
        return self._with_axes(op, value, axes, since, keepdims=keepdims)

    def _with_axes(
        self, op: str, value: Tensor, axes: Sequence[int], since: int, **attrs: Any
    ) -> Tensor:
        """Adds a node whose axes are an input from opset `since` on, and an attribute before."""
        if self.patch.opset >= since:
            return self(op, value, self.vector(*axes), **attrs)
        return self(op, value, axes=list(axes), **attrs)

    # --- what a counted loop reads and writes, outside the loop ---

    def trip_count(self, loop: CountedLoop) -> Tensor:
        """The number of iterations, an int64 vector of one element that is never negative."""
        if isinstance(loop.count, int):
            return self.vector(max(loop.count, 0))
        if loop.trip is None:
            read = loop.reads[0]
            return self.shape(read.sequence, read.axis, read.axis + 1)
        count = self("Reshape", loop.trip, self.vector(1))
        if loop.count is not None and symbolic.nonnegative(loop.count):
            return count
        return self.max(count, self.vector(0))

    def iteration_numbers(self, loop: CountedLoop) -> Tensor:
        """0, 1, … as an int64 vector with one element for each iteration.

        A run computes long ones, which would make the file large. Raises Miss for more than it
        should hold.
        """
        if isinstance(loop.count, int):
            if loop.count > _MOST_NUMBERS:
                raise Miss("the numbers of {} iterations would fill memory", loop.count)
            if loop.count <= _MOST_STORED_NUMBERS:
                return self.constant(np.arange(max(loop.count, 0), dtype=np.int64))
        count = self.squeeze(self.trip_count(loop), [0])
        return self("Range", self.scalar(0), count, self.scalar(1))

    def all_slices(self, facts: Facts, loop: CountedLoop, read: SliceRead) -> Tensor:
        """The slices that the iterations read, in their order, stacked along axis 0."""
        shape = facts.known_shape(read.sequence)
        slices = read.sequence
        if not loop.reads_whole_axis(shape[read.axis]):
            slices = self(
                "Slice", slices, self.vector(0), self.trip_count(loop), self.vector(read.axis)
            )
        slices = self.move_axis(slices, read.axis, 0, len(shape))
        return self.reverse(slices, 0) if read.reverse else slices

    def scan_output(self, stacked: Tensor, output: ScanOutput, rank: int | None) -> Tensor:
        """Turns values stacked along axis 0 into what the Scan output holds.

        `rank` is the rank of the value of one iteration; it may be None only for axis 0.
        """
        if output.reverse:
            stacked = self.reverse(stacked, 0)
        if output.axis == 0:
            return stacked
        if rank is None:
            raise Miss("the rank of {} is not known", output.slice, at=output.slice)
        return self.move_axis(stacked, 0, output.axis, rank + 1)
