"""What a Slice takes, where it cuts one axis at known places (ONNX operator specification, Slice)."""

from __future__ import annotations

from typing import NamedTuple

from ...rewrite.facts.elements import cuts
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Node


class Piece(NamedTuple):
    """Elements start … end - 1 of one axis of known length; all numbers count from the front."""

    axis: int
    start: int
    end: int


def one_axis_cut(facts: Facts, node: Node) -> Piece | None:
    """The piece that a Slice takes along a single axis in steps of 1; None for any other. Axes of
    which it takes all count as not cut.
    """
    shape, found = facts.shape(node.inputs[0]), cuts(facts, node)
    if shape is None or found is None:
        return None
    pieces = []
    for cut in found:
        length = shape[cut.axis]
        if cut.is_whole(length):
            continue
        if cut.step != 1 or not isinstance(length, int):
            return None
        if not isinstance(cut.start, int) or not isinstance(cut.end, int):
            return None
        first, last, _ = slice(cut.start, cut.end).indices(length)
        if (first, last) != (0, length):
            pieces.append(Piece(cut.axis, first, last))
    return pieces[0] if len(pieces) == 1 else None
