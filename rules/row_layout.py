"""Where the rows that a loop collects go: what rules about accumulators have in common.

A Loop stacks rows along a new axis 0. An accumulator has them along another axis, side by side
along an axis they already have, or last row first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..rewrite.ir import Node, Tensor, Variable
from ..rewrite.patch import Patch
from ..rewrite.views import State
from .loop_states import without_states

_BEFORE_FIRST = np.iinfo(np.int64).min
_LAST = np.iinfo(np.int64).max


class Behind:
    """Makes nodes behind the root that stand in for one of its results."""

    def __init__(self, patch: Patch, result: Tensor) -> None:
        self.patch = patch
        self.result = result

    def node(
        self, op: str, inputs: Sequence[Tensor], attrs: dict[str, object] | None = None
    ) -> Tensor:
        return self.patch.node_behind(op, inputs, [self.result], attrs, ahead_of=self.result)[0]

    def numbers(self, *values: int) -> Tensor:
        """A constant int64 vector."""
        return self.patch.constant(np.array(values, np.int64), like=self.result)

    def reversed(self, rows: Tensor) -> Tensor:
        """The rows, the last first."""
        bounds = [self.numbers(v) for v in (-1, _BEFORE_FIRST, 0, -1)]
        return self.node("Slice", [rows, *bounds])

    def moved(self, rows: Tensor, axis: int, rank: int) -> Tensor:
        """Rows stacked along `axis` of a value of `rank` axes instead of axis 0."""
        if axis == 0:
            return rows
        others = list(range(1, rank))
        return self.node("Transpose", [rows], {"perm": [*others[:axis], 0, *others[axis:]]})

    def merged(self, rows: Tensor, axis: int, rank: int, model: Tensor | None) -> Tensor:
        """Rows of `rank` axes side by side along their axis `axis`; from opset 14 on.

        The sizes of the other axes are those of `model` where given: no rows have none.
        """
        apart = self.moved(rows, axis, rank + 1)
        shape = self.node("Shape", [apart])
        both = self.node("Slice", [shape, self.numbers(axis), self.numbers(axis + 2)])
        extent = self.node("ReduceProd", [both], {"keepdims": 1})
        if model is not None:
            return self.resized(apart, axis, rank, extent, model)
        before, behind = self.numbers(0), self.numbers(rank + 1)
        parts = [
            self.node("Slice", [shape, before, self.numbers(axis)]),
            extent,
            self.node("Slice", [shape, self.numbers(axis + 2), behind]),
        ]
        return self._reshaped(apart, self.node("Concat", parts, {"axis": 0}))

    def resized(self, rows: Tensor, axis: int, rank: int, extent: Tensor, model: Tensor) -> Tensor:
        """Rows in the shape of `model`, but for the size of one axis."""
        shape = self.node("Shape", [model])
        parts = [
            self.node("Slice", [shape, self.numbers(0), self.numbers(axis)]),
            extent,
            self.node("Slice", [shape, self.numbers(axis + 1), self.numbers(rank)]),
        ]
        return self._reshaped(rows, self.node("Concat", parts, {"axis": 0}))

    def unsqueezed(self, value: Tensor, axis: int) -> Tensor:
        """The value with a new axis of size 1."""
        if self.patch.opset < 13:
            return self.node("Unsqueeze", [value], {"axes": [axis]})
        return self.node("Unsqueeze", [value, self.numbers(axis)])

    def alike(self, rows: Tensor, model: Tensor) -> Tensor:
        """Rows in the shape of `model`, but for their number along axis 0: no rows have none."""
        others = self.node("Shape", [model])
        others = self.node("Slice", [others, self.numbers(1), self.numbers(_LAST)])
        shape = self.node("Concat", [self.count(rows), others], {"axis": 0})
        return self._reshaped(rows, shape)

    def shaped_like(self, rows: Tensor, model: Tensor) -> Tensor:
        """Rows in the shape of another value: no rows at all have none of their own."""
        return self._reshaped(rows, self.node("Shape", [model]))

    def count(self, rows: Tensor) -> Tensor:
        """How many rows there are, as a vector of one number."""
        return self.node("Slice", [self.node("Shape", [rows]), self.numbers(0), self.numbers(1)])

    def _reshaped(self, rows: Tensor, shape: Tensor) -> Tensor:
        """Before opset 14 a 0 in the target copies the size there, which is 0 in all uses here."""
        attrs: dict[str, object] = {"allowzero": 1} if self.patch.opset >= 14 else {}
        return self.node("Reshape", [rows, shape], attrs)


def collect_rows(patch: Patch, node: Node, row: Tensor, like: Tensor) -> Tensor:
    """Lets a Loop collect a value of its body; returns the rows stacked along axis 0."""
    rows = Variable(like.name)
    body = node.attrs["body"]
    patch.set_interface(node, node.inputs, body.inputs, [*body.outputs, row], [*node.outputs, rows])
    return rows


def drop_state(patch: Patch, node: Node, number: int, state: State) -> None:
    """Drops a state whose final value has no readers; what still reads it in the body is dead."""
    patch.replace(state.input, state.initial)
    without_states(patch, node, [number])
