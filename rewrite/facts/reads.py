"""Recognises reads along one axis, whatever operator reads: Slice, Gather, Split, Squeeze, Reshape.

`axis_slices` decodes any Slice. `reversed_axis` recognises a reversed axis, and `axis_range` a
value as a range of elements along one axis of another value, at known positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from ..graph.ir import Node, Tensor
from .elements import vector
from .facts import Facts
from .slices import AxisSlice, decode_slice


@dataclass(frozen=True)
class AxisRange:
    """Elements start … end - 1 along one axis of a value; the length of the axis is known."""

    source: Tensor
    """The value that is read."""
    axis: int
    """Never negative."""
    start: int
    """Counted from the front."""
    end: int
    """Counted from the front; the first position after the range."""
    length: int
    """The length of the axis of the source."""
    keeps_axis: bool = True
    """False for a single element whose axis was removed."""

    @property
    def is_element(self) -> bool:
        """Whether the range has exactly one element."""
        return self.end == self.start + 1

    def element(self, number: int) -> AxisRange:
        """Another element of the same axis."""
        return replace(self, start=number, end=number + 1)


def axis_slices(facts: Facts, node: Node) -> list[AxisSlice] | None:
    """The slices of a Slice node along its axes; None where its rank, axes or steps are not known.

    Bounds are symbolic, or None where they are not known.
    """
    rank = facts.rank(node.inputs[0])
    return None if rank is None else decode_slice(node, rank, lambda t: vector(facts, t))


def reversed_axis(facts: Facts, node: Node) -> int | None:
    """The axis that a Slice reverses from end to end, if it does nothing else."""
    if node.op != "Slice" or node.domain:
        return None
    shape, slices = facts.shape(node.inputs[0]), axis_slices(facts, node)
    if shape is None or slices is None or len(slices) != 1:
        return None
    axis = slices[0].axis
    return axis if slices[0].is_reversal(shape[axis]) else None


def axis_range(facts: Facts, tensor: Tensor) -> AxisRange | None:
    """The range of another value that a tensor equals; None if none is recognised.

    Recognises an output of Split, a Slice with step 1 that shortens one axis, a Gather of one
    position, and a Squeeze or Reshape that removes the axis of a single element.
    """
    node = facts.index.producer(tensor)
    if node is None or node.domain:
        return None
    if node.op in ("Squeeze", "Reshape"):
        return _without_its_axis(facts, node, tensor)
    reader = _READERS.get(node.op)
    return None if reader is None else reader(facts, node, tensor)


def axis_element(facts: Facts, tensor: Tensor) -> AxisRange | None:
    """The single element along an axis that a tensor equals, with or without the axis; or None."""
    found = axis_range(facts, tensor)
    return found if found is not None and found.is_element else None


def _slice_range(facts: Facts, node: Node, _tensor: Tensor) -> AxisRange | None:
    shape, slices = facts.shape(node.inputs[0]), axis_slices(facts, node)
    if shape is None or slices is None:
        return None
    ranges = []
    for each in slices:
        length = shape[each.axis]
        if each.is_whole(length):
            continue
        if each.step != 1 or not isinstance(length, int):
            return None
        if not isinstance(each.start, int) or not isinstance(each.end, int):
            return None
        first, last, _ = slice(each.start, each.end).indices(length)
        if (first, last) != (0, length):
            ranges.append(AxisRange(node.inputs[0], each.axis, first, last, length))
    return ranges[0] if len(ranges) == 1 else None


def _gather_range(facts: Facts, node: Node, _tensor: Tensor) -> AxisRange | None:
    position = facts.constant(node.inputs[1])
    along = _axis_and_length(facts, node)
    if position is None or position.ndim > 1 or position.size != 1 or along is None:
        return None
    axis, length = along
    number = int(position.ravel()[0])
    if not -length <= number < length:
        return None
    start = number % length
    return AxisRange(node.inputs[0], axis, start, start + 1, length, position.ndim == 1)


def _split_range(facts: Facts, node: Node, tensor: Tensor) -> AxisRange | None:
    along = _axis_and_length(facts, node)
    if along is None:
        return None
    axis, length = along
    sizes = []
    for output in node.outputs:
        shape = facts.shape(output)
        size = None if shape is None else shape[axis]
        if not isinstance(size, int):
            return None
        sizes.append(size)
    number = next(k for k, output in enumerate(node.outputs) if output is tensor)
    start = [0, *accumulate(sizes)][number]
    return AxisRange(node.inputs[0], axis, start, start + sizes[number], length)


def _without_its_axis(facts: Facts, node: Node, tensor: Tensor) -> AxisRange | None:
    """The element whose axis, and no other, a Squeeze or Reshape removes."""
    inner = axis_range(facts, node.inputs[0])
    if inner is None or not inner.is_element or not inner.keeps_axis:
        return None
    whole, own = facts.shape(node.inputs[0]), facts.shape(tensor)
    if whole is None or own != whole[: inner.axis] + whole[inner.axis + 1 :]:
        return None
    return replace(inner, keeps_axis=False)


def _axis_and_length(facts: Facts, node: Node) -> tuple[int, int] | None:
    """The axis of a Gather or Split, never negative, and its length; None where it is not known."""
    shape = facts.shape(node.inputs[0])
    if not shape:
        return None
    axis = int(node.attrs.get("axis", 0)) % len(shape)
    length = shape[axis]
    return (axis, length) if isinstance(length, int) else None


_READERS = {"Slice": _slice_range, "Gather": _gather_range, "Split": _split_range}
