"""The operands of Slice by axis (ONNX operator specification, Slice).

Bounds, axes and steps are attributes until opset 9 and inputs since. `axis_slices` in
`looplift.rewrite.facts.reads` decodes them with what is known of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .. import symbolic
from ..graph.ir import Node, Tensor
from ..symbolic import Dim

END = 2**31 - 2
"""A bound at least this large means "to the end" in exported models and in the specification, and
one below its negative means "to the very start"."""
LONGEST_AXIS = 10**9
"""No axis in practice is longer. Converters write an end of this size for "to the end"."""

Elements = Sequence[Dim | None]
Look = Callable[[Tensor], Elements | None]
"""Looks up the elements of a vector: None for an unknown element, or for an unknown length."""


@dataclass(frozen=True)
class AxisSlice:
    """`x[start:end:step]` along one axis; negative bounds count from the end of the axis."""

    number: int
    """The position of this axis among the operands of the Slice."""
    axis: int
    """Never negative."""
    start: Dim | None
    """None where it is not known; likewise the end."""
    end: Dim | None
    step: int

    @property
    def extent(self) -> Dim | None:
        """The end minus the start: the number of elements where both lie on the axis."""
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
        """Whether it is known to take all elements of the axis in their order."""
        return self.start == 0 and self.step == 1 and self.reaches_end(length)

    def is_whole_in_practice(self, length: Dim) -> bool:
        """Whether it takes all elements of the axis unless that is longer than LONGEST_AXIS."""
        far = isinstance(self.end, int) and self.end >= LONGEST_AXIS
        return self.is_whole(length) or (self.start == 0 and self.step == 1 and far)

    def is_reversal(self, length: Dim) -> bool:
        """Whether it is known to take all elements of the axis in reverse order."""
        if self.step != -1 or not isinstance(self.start, int) or not isinstance(self.end, int):
            return False
        known = isinstance(length, int)
        last = self.start == -1 or (known and self.start == symbolic.sub(length, 1))
        return last and self.end < -(length if isinstance(length, int) else END)


def decode_slice(node: Node, rank: int, look: Look) -> list[AxisSlice] | None:
    """The slices of a Slice node along its axes; None where the axes or steps are not known.

    `rank` is the rank of the operand. Omitted axes are the first ones, omitted steps are 1.
    """
    starts, ends = _operand(node, 1, "starts", look), _operand(node, 2, "ends", look)
    given = starts if starts is not None else ends
    if given is None:
        return None
    unknown: Elements = [None] * len(given)
    axes = _integers(_operand(node, 3, "axes", look, range(len(given))))
    steps = _integers(_operand(node, 4, "steps", look, [1] * len(given)))
    starts, ends = (unknown if bounds is None else bounds for bounds in (starts, ends))
    if axes is None or steps is None or len({len(v) for v in (starts, ends, axes, steps)}) != 1:
        return None
    return [
        AxisSlice(number, axis % rank, start, end, step)
        for number, (axis, start, end, step) in enumerate(zip(axes, starts, ends, steps))
    ]


def _operand(
    node: Node, slot: int, name: str, look: Look, omitted: Elements | None = None
) -> Elements | None:
    if name in node.attrs:
        return list(node.attrs[name])
    if slot >= len(node.inputs) or not node.inputs[slot].name:
        return omitted
    return look(node.inputs[slot])


def _integers(elements: Elements | None) -> list[int] | None:
    """The elements if all of them are known numbers."""
    known = [value for value in elements or () if isinstance(value, int)]
    return known if elements is not None and len(known) == len(elements) else None
