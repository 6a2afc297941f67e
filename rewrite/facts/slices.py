"""Decodes the operands of Slice (ONNX operator specification, Slice).

Bounds, axes and steps are attributes until opset 9 and inputs since. `axis_slices` in
`looplift.rewrite.facts.reads` decodes them with the facts of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .. import symbolic
from ..graph.ir import Node, Tensor
from ..symbolic import Dim
from .axes import attribute_or_input

END = 2**31 - 2
"""A bound at least this large means "to the end" in exported models and in the specification. One
below -END means "to the first element" of a backward slice."""
LONGEST_AXIS = 10**9
"""No axis in practice is longer. Converters write an end of this size for "to the end"."""

Elements = Sequence[Dim | None]
"""The elements of a vector; None for an unknown element."""
LookUp = Callable[[Tensor], Elements | None]
"""Returns the elements of a vector; None where its length is not known."""


@dataclass(frozen=True)
class AxisSlice:
    """`x[start:end:step]` along one axis; negative bounds count from the end of the axis."""

    number: int
    """The position of this axis in the operands of the Slice."""
    axis: int
    """Never negative."""
    start: Dim | None
    """None where it is not known."""
    end: Dim | None
    """None where it is not known."""
    step: int

    @property
    def extent(self) -> Dim | None:
        """The end minus the start: the number of elements if both are positions on the axis."""
        if self.start is None or self.end is None:
            return None
        return symbolic.sub(self.end, self.start)

    def reaches_end(self, length: Dim) -> bool:
        """Whether a forward slice is known to reach the end of an axis of this length."""
        if self.end is None:
            return False
        at_end = isinstance(self.end, int) and self.end >= END
        return at_end or symbolic.le(length, self.end) is True

    def is_whole(self, length: Dim) -> bool:
        """Whether the slice is known to be the whole axis."""
        return self.start == 0 and self.step == 1 and self.reaches_end(length)

    def is_whole_in_practice(self, length: Dim) -> bool:
        """Whether it takes all elements of the axis unless that is longer than LONGEST_AXIS."""
        far = isinstance(self.end, int) and self.end >= LONGEST_AXIS
        return self.is_whole(length) or (self.start == 0 and self.step == 1 and far)

    def is_reversal(self, length: Dim) -> bool:
        """Whether the slice is known to be the whole axis in reverse order."""
        if self.step != -1 or not isinstance(self.start, int) or not isinstance(self.end, int):
            return False
        known = isinstance(length, int)
        last = self.start == -1 or (known and self.start == symbolic.sub(length, 1))
        return last and self.end < -(length if isinstance(length, int) else END)


class SliceOperands(NamedTuple):
    """The operands of a Slice, which have one element for each sliced axis."""

    starts: Elements
    ends: Elements
    axes: Sequence[int]
    steps: Elements


def slice_operands(node: Node, look_up: LookUp) -> SliceOperands | None:
    """The operands of a Slice node; None where the axes, the steps or both bounds are not known.

    Omitted axes are the first ones, omitted steps are 1.
    """
    starts = attribute_or_input(node, "starts", 1, look_up)
    ends = attribute_or_input(node, "ends", 2, look_up)
    given = starts if starts is not None else ends
    if given is None:
        return None
    count = len(given)
    unknown: Elements = [None] * count
    first_axes: Elements = range(count)
    ones: Elements = [1] * count
    axes = _integers(attribute_or_input(node, "axes", 3, look_up, first_axes))
    steps = attribute_or_input(node, "steps", 4, look_up, ones)
    starts, ends = (unknown if bounds is None else bounds for bounds in (starts, ends))
    if axes is None or steps is None or len({len(v) for v in (starts, ends, axes, steps)}) != 1:
        return None
    return SliceOperands(starts, ends, axes, steps)


def decode_slice(node: Node, rank: int, look_up: LookUp) -> list[AxisSlice] | None:
    """The slices of a Slice node along its axes; None where the axes or steps are not known.

    `rank` is the rank of the operand.
    """
    operands = slice_operands(node, look_up)
    steps = None if operands is None else _integers(operands.steps)
    if operands is None or steps is None:
        return None
    rows = zip(operands.axes, operands.starts, operands.ends, steps)
    return [
        AxisSlice(number, axis % rank, start, end, step)
        for number, (axis, start, end, step) in enumerate(rows)
    ]


def _integers(elements: Elements | None) -> list[int] | None:
    """The elements if all of them are known numbers."""
    known = [value for value in elements or () if isinstance(value, int)]
    return known if elements is not None and len(known) == len(elements) else None
