"""What a Slice takes, where it cuts one axis at known places (ONNX operator specification, Slice)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...rewrite.facts import Facts
from ...rewrite.ir import Node
from .weights import Array


class Cut(NamedTuple):
    """Elements start … end - 1 of one axis of known length; all numbers count from the front."""

    axis: int
    start: int
    end: int


def one_axis_cut(facts: Facts, node: Node) -> Cut | None:
    """The cut of a Slice along a single axis in steps of 1; None for any other.

    Axes that are left out are the first ones, steps that are left out are 1. Axes that are cut from
    end to end count as not cut.
    """
    shape = facts.shape(node.inputs[0])
    starts, ends = _numbers(facts, node, 1, "starts"), _numbers(facts, node, 2, "ends")
    if shape is None or starts is None or ends is None:
        return None
    axes = _numbers(facts, node, 3, "axes", np.arange(len(starts)))
    steps = _numbers(facts, node, 4, "steps", np.ones(len(starts), np.int64))
    if axes is None or steps is None or np.any(steps != 1):
        return None
    cuts: list[Cut] = []
    for start, end, axis in zip(starts.tolist(), ends.tolist(), axes.tolist()):
        length = shape[axis]
        if isinstance(length, int):
            first, last, _ = slice(start, end).indices(length)
            if (first, last) != (0, length):
                cuts.append(Cut(axis % len(shape), first, last))
        elif start != 0 or end < _ENDLESS:
            return None
    return cuts[0] if len(cuts) == 1 else None


_ENDLESS = np.iinfo(np.int32).max
"""Exporters slice to the end with this number or a larger one."""


def _numbers(
    facts: Facts, node: Node, slot: int, name: str, absent: Array | None = None
) -> Array | None:
    """The elements of an input, an attribute until opset 9; `absent` for one that is left out."""
    if name in node.attrs:
        return np.asarray(node.attrs[name], np.int64)
    if slot >= len(node.inputs) or not node.inputs[slot].name:
        return absent
    array = facts.constant(node.inputs[slot])
    return None if array is None else array.ravel()
