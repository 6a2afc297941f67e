"""What a Slice takes, where it cuts one axis at known places (ONNX operator specification, Slice)."""

from __future__ import annotations

from typing import NamedTuple

from ...rewrite.facts import Facts
from ...rewrite.ir import Node


class Cut(NamedTuple):
    """Elements start … end - 1 of one axis; numbers below zero count from the end."""

    axis: int
    start: int
    end: int


def one_axis_cut(facts: Facts, node: Node) -> Cut | None:
    """The cut of a Slice along a single axis in steps of 1; None for any other.

    Axes that are left out are the first ones, steps that are left out are 1.
    """
    if len(node.inputs) < 3:
        return None
    start, end = (_number(facts, node, slot, None) for slot in (1, 2))
    axis, step = _number(facts, node, 3, 0), _number(facts, node, 4, 1)
    if start is None or end is None or axis is None or step != 1:
        return None
    return Cut(axis, start, end)


def _number(facts: Facts, node: Node, slot: int, absent: int | None) -> int | None:
    """The only element of an input; `absent` for an input that is left out."""
    if slot >= len(node.inputs) or not node.inputs[slot].name:
        return absent
    array = facts.constant(node.inputs[slot])
    return int(array.ravel()[0]) if array is not None and array.size == 1 else None
