"""Makes new operators, all at one place of a graph and named after one value.

What depends on the opset is decided here: whether an operator takes its axes as an attribute or as
an input, how integers are compared, and whether Reshape can be told of sizes of 0. A patch with an
operator that the opset lacks altogether is not made: see `rewrite.engine.opset_check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..graph.ir import Tensor
from .patch import Patch, Place
from .rule import Miss

_AXES_ARE_INPUTS = 13
"""The opset from which on Squeeze, Unsqueeze, Split and ReduceSum take axes or sizes as inputs."""
_INTEGER_EXTREMES = 12
"""The opset from which on Max and Min take integers."""
EMPTY_RESHAPES = 14
"""The opset from which on Reshape can be asked for a size of 0."""
NO_EMPTY_RESHAPES = "before opset 14 no Reshape can be told of sizes that may be 0"
_SLICE_TAKES_INPUTS = 10
_REDUCTIONS_TAKE_AXES = 18
TO_THE_END = np.iinfo(np.int64).max
"""As the end of a Slice: behind every axis."""
BEFORE_FIRST = np.iinfo(np.int64).min
"""As the end of a Slice that goes backwards: in front of every axis."""


class Builder:
    """New nodes at one place, by default just before the root of a patch, named after one value."""

    def __init__(self, patch: Patch, like: Tensor, before: Place | None = None) -> None:
        self.patch = patch
        self.like = like
        self._before: Place = patch.root if before is None else before

    @classmethod
    def behind(cls, patch: Patch, like: Tensor, results: Iterable[Tensor] = ()) -> Builder:
        """New nodes behind the root, before whatever first reads one of its results.

        The results are those given, or `like` alone.
        """
        return cls(patch, like, patch.behind(tuple(results) or (like,)))

    def nodes(
        self, op: str, inputs: Sequence[Tensor], like: Sequence[Tensor], **attrs: Any
    ) -> list[Tensor]:
        """A node with one output for each value of `like`."""
        return self.patch.node(op, inputs, like, attrs, self._before)

    def __call__(self, op: str, *inputs: Tensor, **attrs: Any) -> Tensor:
        """A node with one output."""
        return self.nodes(op, inputs, [self.like], **attrs)[0]

    def array(self, values: np.ndarray) -> Tensor:
        """A constant of the graph in which the new nodes stand."""
        return self.patch.constant(values, self.like, self.patch.home(self._before))

    def ints(self, *values: int) -> Tensor:
        """A constant int64 vector."""
        return self.array(np.array(values, np.int64))

    def number(self, value: int) -> Tensor:
        """A constant int64 scalar."""
        return self.array(np.array(value, np.int64))

    def unsqueezed(self, value: Tensor, axes: Sequence[int]) -> Tensor:
        """With axes of size 1, at these places of the result."""
        return self._with_axes("Unsqueeze", value, axes, _AXES_ARE_INPUTS) if axes else value

    def squeezed(self, value: Tensor, axes: Sequence[int]) -> Tensor:
        """Without these axes of size 1."""
        return self._with_axes("Squeeze", value, axes, _AXES_ARE_INPUTS) if axes else value

    def split(
        self, value: Tensor, axis: int, sizes: Sequence[int], like: Sequence[Tensor]
    ) -> list[Tensor]:
        """Pieces of these sizes along an axis, named after the values of `like`."""
        if self.patch.opset >= _AXES_ARE_INPUTS:
            return self.nodes("Split", [value, self.ints(*sizes)], like, axis=axis)
        return self.nodes("Split", [value], like, axis=axis, split=list(sizes))

    def maximum(self, a: Tensor, b: Tensor) -> Tensor:
        """The larger of integers, element by element."""
        if self.patch.opset >= _INTEGER_EXTREMES:
            return self("Max", a, b)
        return self("Where", self("Greater", a, b), a, b)

    def minimum(self, a: Tensor, b: Tensor) -> Tensor:
        """The smaller of integers, element by element."""
        if self.patch.opset >= _INTEGER_EXTREMES:
            return self("Min", a, b)
        return self("Where", self("Less", a, b), a, b)

    def reduced(self, op: str, value: Tensor, axes: Sequence[int], keepdims: int) -> Tensor:
        """A reduction over axes, ReduceSum or another that gives them alike."""
        since = _AXES_ARE_INPUTS if op == "ReduceSum" else _REDUCTIONS_TAKE_AXES
        return self._with_axes(op, value, axes, since, keepdims=keepdims)

    def _with_axes(
        self, op: str, value: Tensor, axes: Sequence[int], since: int, **attrs: Any
    ) -> Tensor:
        """A node with axes as an input since some opset, and as an attribute before."""
        if self.patch.opset >= since:
            return self(op, value, self.ints(*axes), **attrs)
        return self(op, value, axes=list(axes), **attrs)

    def transposed(self, value: Tensor, order: Sequence[int]) -> Tensor:
        """With its axes in another order; the value itself where that is the one it has."""
        if list(order) == list(range(len(order))):
            return value
        return self("Transpose", value, perm=list(order))

    def moved(self, value: Tensor, source: int, target: int, rank: int) -> Tensor:
        """With one axis at another place."""
        order = [axis for axis in range(rank) if axis != source]
        order.insert(target, source)
        return self.transposed(value, order)

    def sliced(self, value: Tensor, axis: int, order: slice) -> Tensor:
        """value[order] along an axis, for an order that gives start and step.

        Raises Miss for a step other than 1 before opset 10, where Slice has no steps.
        """
        start, end, step = order.start, order.stop, order.step
        if end is None:
            end = TO_THE_END if step > 0 else BEFORE_FIRST
        if self.patch.opset >= _SLICE_TAKES_INPUTS:
            operands = [start, end, axis, step] if step != 1 else [start, end, axis]
            return self("Slice", value, *(self.ints(number) for number in operands))
        if step != 1:
            raise Miss("before opset 10 a Slice takes neighbours in their order", (), None)
        return self("Slice", value, starts=[start], ends=[end], axes=[axis])

    def reversed(self, value: Tensor, axis: int) -> Tensor:
        """With the elements of an axis in the opposite order; as `sliced` before opset 10."""
        return self.sliced(value, axis, slice(-1, None, -1))

    def reshaped(self, value: Tensor, sizes: Tensor) -> Tensor:
        """In a shape of computed sizes, of which any may be 0.

        Raises Miss before opset 14, where a 0 copies the size at its place.
        """
        if self.patch.opset < EMPTY_RESHAPES:
            raise Miss(NO_EMPTY_RESHAPES, (), None)
        return self("Reshape", value, sizes, allowzero=1)

    def merged(self, value: Tensor, axis: int, rank: int) -> Tensor:
        """With an axis and the next as one; raises Miss before opset 14."""
        both = self("ReduceProd", self.dims(value, axis, axis + 2), keepdims=1)
        parts = [self.dims(value, 0, axis), both, self.dims(value, axis + 2, rank)]
        return self.reshaped(value, self.joined(parts))

    def dims(self, value: Tensor, first: int, last: int) -> Tensor:
        """The sizes of axes first … last - 1, an int64 vector."""
        return self.sliced(self("Shape", value), 0, slice(first, last, 1))

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Vectors one behind the other."""
        return parts[0] if len(parts) == 1 else self("Concat", *parts, axis=0)

    def repeated(self, value: Tensor, count: Tensor) -> Tensor:
        """The value once per iteration along a new axis 0; `count` is a vector of one number."""
        return self("Expand", value, self.joined([count, self("Shape", value)]))
