"""What a Slice takes of each axis that it cuts (ONNX operator specification, Slice).

Operands are told by their position: bounds, axes and steps are attributes until opset 9, and any
input may be left out since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .. import symbolic
from ..graph.ir import Node, Tensor
from ..symbolic import Dim

FAR = 2**31 - 2
"""Bounds at least this large mean "to the end" in practice and in the specification, and those
below its negative "to the very start"."""

Elements = Sequence[Dim | None]
Look = Callable[[Tensor], Elements | None]
"""The elements of a vector, None for those that are not known; None where their number is not."""


@dataclass(frozen=True)
class Cut:
    """`x[start:end:step]` along one axis; bounds below zero count from its end."""

    place: int
    """Which element of the bounds is for this axis."""
    axis: int
    """Never negative."""
    start: Dim | None
    """None where it is not known, as the end."""
    end: Dim | None
    step: int

    @property
    def extent(self) -> Dim | None:
        """The end less the start: where both are on the axis, how far the elements reach."""
        if self.start is None or self.end is None:
            return None
        return symbolic.sub(self.end, self.start)

    def reaches_end(self, length: Dim) -> bool:
        """Whether a cut in forward direction surely goes to the end of its axis."""
        if self.end is None:
            return False
        far = isinstance(self.end, int) and self.end >= FAR
        return far or symbolic.le(length, self.end) is True

    def is_whole(self, length: Dim) -> bool:
        """Whether all elements of the axis are surely taken, in their order."""
        return self.start == 0 and self.step == 1 and self.reaches_end(length)

    def is_reversal(self, length: Dim) -> bool:
        """Whether all elements of the axis are surely taken, the last one first."""
        if self.step != -1 or not isinstance(self.start, int) or not isinstance(self.end, int):
            return False
        known = isinstance(length, int)
        last = self.start == -1 or (known and self.start == symbolic.sub(length, 1))
        return last and self.end < -(length if isinstance(length, int) else FAR)


def cuts_of(node: Node, rank: int, look: Look) -> list[Cut] | None:
    """The cuts of a Slice of a value of `rank` axes; None where their axes or steps are not known.

    Axes that are left out are the first ones, steps that are left out are 1.
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
        Cut(place, axis % rank, start, end, step)
        for place, (axis, start, end, step) in enumerate(zip(axes, starts, ends, steps))
    ]


def _operand(
    node: Node, slot: int, name: str, look: Look, absent: Elements | None = None
) -> Elements | None:
    if name in node.attrs:
        return list(node.attrs[name])
    if slot >= len(node.inputs) or not node.inputs[slot].name:
        return absent
    return look(node.inputs[slot])


def _integers(elements: Elements | None) -> list[int] | None:
    """The elements, where all of them are known numbers."""
    known = [value for value in elements or () if isinstance(value, int)]
    return known if elements is not None and len(known) == len(elements) else None
