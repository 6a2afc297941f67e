"""Makes operators outside a loop: in front of it, or behind it where a result is read.

What was computed once per iteration is computed there for all iterations at once, the time axis
first. The helpers hide which operator took its axes as attribute until which opset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..rewrite import symbolic
from ..rewrite.facts import Facts
from ..rewrite.ir import Tensor
from ..rewrite.patch import Patch
from ..rewrite.rule import Miss
from ..rewrite.steps import Read, Steps

OLDEST = 13
"""The opset from which on Squeeze, Unsqueeze, Split and ReduceSum take what is emitted here."""
EMPTY_RESHAPES = 14
"""The opset from which on Reshape can be asked for a size of 0."""
_REDUCTIONS_TAKE_AXES = 18
_BEFORE_FIRST = np.iinfo(np.int64).min


class Emit:
    """New nodes just before the root of a patch, named after one value."""

    def __init__(self, patch: Patch, like: Tensor) -> None:
        self.patch = patch
        self.like = like

    def _make(
        self, op: str, inputs: Sequence[Tensor], like: Sequence[Tensor], attrs: Mapping[str, Any]
    ) -> list[Tensor]:
        return self.patch.node(op, inputs, like, attrs)

    def nodes(
        self, op: str, inputs: Sequence[Tensor], like: Sequence[Tensor], **attrs: Any
    ) -> list[Tensor]:
        """A node with one output for each value of `like`."""
        return self._make(op, inputs, like, attrs)

    def __call__(self, op: str, *inputs: Tensor, **attrs: Any) -> Tensor:
        """A node with one output."""
        return self._make(op, inputs, [self.like], attrs)[0]

    def array(self, values: np.ndarray) -> Tensor:
        return self.patch.constant(values, like=self.like)

    def ints(self, *values: int) -> Tensor:
        """A constant int64 vector."""
        return self.array(np.array(values, np.int64))

    def number(self, value: int) -> Tensor:
        """A constant int64 scalar."""
        return self.array(np.array(value, np.int64))

    def unsqueezed(self, value: Tensor, axes: Sequence[int]) -> Tensor:
        """With axes of size 1, at these places of the result."""
        return self("Unsqueeze", value, self.ints(*axes)) if axes else value

    def squeezed(self, value: Tensor, axes: Sequence[int]) -> Tensor:
        return self("Squeeze", value, self.ints(*axes)) if axes else value

    def transposed(self, value: Tensor, order: Sequence[int]) -> Tensor:
        if list(order) == list(range(len(order))):
            return value
        return self("Transpose", value, perm=list(order))

    def moved(self, value: Tensor, source: int, target: int, rank: int) -> Tensor:
        """With one axis at another place."""
        order = [axis for axis in range(rank) if axis != source]
        order.insert(target, source)
        return self.transposed(value, order)

    def reversed(self, value: Tensor, axis: int) -> Tensor:
        bounds = [self.ints(v) for v in (-1, _BEFORE_FIRST, axis, -1)]
        return self("Slice", value, *bounds)

    def reshaped(self, value: Tensor, sizes: Tensor) -> Tensor:
        """In a shape of computed sizes, of which any may be 0.

        Raises Miss before opset 14, where a 0 copies the size at its place.
        """
        if self.patch.opset < 14:
            raise Miss("before opset 14 no Reshape can be told of sizes that may be 0", (), None)
        return self("Reshape", value, sizes, allowzero=1)

    def dims(self, value: Tensor, first: int, last: int) -> Tensor:
        """The sizes of axes first … last - 1, an int64 vector."""
        return self("Slice", self("Shape", value), self.ints(first), self.ints(last))

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Vectors one behind the other."""
        return parts[0] if len(parts) == 1 else self("Concat", *parts, axis=0)

    def reduced(self, op: str, value: Tensor, axes: Sequence[int], keepdims: int) -> Tensor:
        if op == "ReduceSum" or self.patch.opset >= _REDUCTIONS_TAKE_AXES:
            return self(op, value, self.ints(*axes), keepdims=keepdims)
        return self(op, value, axes=list(axes), keepdims=keepdims)

    def repeated(self, value: Tensor, count: Tensor) -> Tensor:
        """The value once per iteration along a new axis 0; `count` is a vector of one number."""
        ones = self("Shape", value)
        ones = self("Concat", count, ones, axis=0)
        return self("Expand", value, ones)


class EmitBehind(Emit):
    """New nodes behind the root of a patch, before whatever reads one of its results first."""

    def __init__(self, patch: Patch, like: Tensor, results: Sequence[Tensor]) -> None:
        super().__init__(patch, like)
        self._ahead_of = min(results, key=lambda t: _first_reader(patch, t))

    def _make(
        self, op: str, inputs: Sequence[Tensor], like: Sequence[Tensor], attrs: Mapping[str, Any]
    ) -> list[Tensor]:
        return self.patch.node_behind(op, inputs, like, attrs, ahead_of=self._ahead_of)


def _first_reader(patch: Patch, result: Tensor) -> float:
    home = patch.index.graph_of(patch.root)
    readers = [patch.index.ancestor_in(node, home) for node in patch.index.consumers(result)]
    return min((reader.order for reader in readers if reader is not None), default=float("inf"))


def surely_runs(facts: Facts, steps: Steps) -> bool:
    """Whether there is a first iteration in every run; onnxruntime refuses a Scan without."""
    return steps.trip is None or (steps.count is not None and symbolic.positive(steps.count))


def count_vector(emit: Emit, facts: Facts, steps: Steps) -> Tensor:
    """The number of iterations, an int64 vector of one element."""
    if isinstance(steps.count, int):
        return emit.ints(max(steps.count, 0))
    if steps.trip is None:
        read = steps.reads[0]
        return emit.dims(read.sequence, read.axis, read.axis + 1)
    count = emit("Reshape", steps.trip, emit.ints(1))
    if steps.count is not None and symbolic.nonnegative(steps.count):
        return count
    return emit("Max", count, emit.ints(0))


def all_slices(emit: Emit, facts: Facts, steps: Steps, read: Read) -> Tensor:
    """What the iterations read, in their order, stacked along axis 0."""
    shape = facts.shape(read.sequence)
    assert shape is not None, "the view holds only reads of known rank"
    slices = read.sequence
    if not is_read_whole(steps, shape[read.axis]):
        end = count_vector(emit, facts, steps)
        slices = emit("Slice", slices, emit.ints(0), end, emit.ints(read.axis))
    slices = emit.moved(slices, read.axis, 0, len(shape))
    return emit.reversed(slices, 0) if read.reverse else slices


def is_read_whole(steps: Steps, length: symbolic.Dim) -> bool:
    """Whether the iterations read all of an axis: no run reads beyond its end."""
    if steps.trip is None:
        return True
    if steps.count is None:
        return False
    return symbolic.eq(symbolic.maximum(steps.count, 0), length) is True


def iteration_numbers(emit: Emit, facts: Facts, steps: Steps) -> Tensor:
    """0, 1, … as an int64 vector."""
    if isinstance(steps.count, int):
        return emit.array(np.arange(max(steps.count, 0), dtype=np.int64))
    count = emit.squeezed(count_vector(emit, facts, steps), [0])
    return emit("Range", emit.number(0), count, emit.number(1))
