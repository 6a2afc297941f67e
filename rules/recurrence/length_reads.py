"""Length masks that are compared for all iterations at once and read slice by slice.

m = Less(Unsqueeze(Range(0, T, 1)), lengths)    Loop(…) { m_t = Gather(m, i) … }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from ...rewrite import symbolic
from ...rewrite.facts.axes import named_axes
from ...rewrite.facts.counted_loop import SliceRead
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Node, Tensor
from .shapes import only_number

INTEGERS = (TensorProto.INT32, TensorProto.INT64)
_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)
EXACT_IN_FLOAT = 1 << 24
"""Iterations whose numbers are exact in single precision. Their comparison with a limit is exact
too: rounding moves no limit across a number that is exact.
"""
_ENDLESS = 10**9
"""Masks are sliced to their ends with this number or a larger one: no mask has as many elements."""
MIRRORED = {
    "Less": "Greater",
    "LessOrEqual": "GreaterOrEqual",
    "Greater": "Less",
    "GreaterOrEqual": "LessOrEqual",
}
"""What a comparison is called when its operands change places."""


@dataclass(frozen=True)
class Length:
    """Iteration i is within the length of a row if i < limit + shift."""

    limit: Tensor
    """Integers, one per row or one for all (outside)."""
    shift: int = 0
    counted: int | None = None
    """The axis along which the limit is the number of elements that are true, where `limit` holds
    those instead of integers."""
    rounded: bool = False
    """Whether the iteration number is compared as a float."""


Comparison = tuple[Length, bool]
"""A length, and what a value is within it; beyond it is the opposite."""


def compared(op: str, start: int, limit: Tensor, *, rounded: bool = False) -> Comparison:
    """The comparison `i + start op limit`."""
    shift = int(op in ("LessOrEqual", "Greater")) - start
    return Length(limit, shift, rounded=rounded), op in ("Less", "LessOrEqual")


def compared_outside(facts: Facts, read: SliceRead) -> Comparison | None:
    """The comparison of which iteration i reads the slice for i; None where it is other data."""
    return None if read.reverse else compared_along(facts, read.sequence, read.axis)


def compared_along(facts: Facts, tensor: Tensor, axis: int) -> Comparison | None:
    """The comparison of which slice i along an axis is that of iteration i."""
    negated = False
    while (node := facts.index.producer(tensor)) is not None and not node.domain:
        if node.op in MIRRORED:
            found = _along(facts, node, axis)
            return found and (found[0], found[1] != negated)
        negated ^= node.op == "Not"
        is_mask = facts.dtype(node.inputs[0]) == TensorProto.BOOL
        before = axis_before(facts, node, axis) if is_mask else None
        if before is None:
            return None
        tensor, axis = node.inputs[0], before
    return None


def _along(facts: Facts, node: Node, axis: int) -> Comparison | None:
    """A comparison of the positions along an axis with one limit per row, or one for all."""
    rank = facts.rank(node.outputs[0])
    for op, (positions, limit) in (
        (node.op, node.inputs),
        (MIRRORED[node.op], list(node.inputs)[::-1]),
    ):
        shape, rows = facts.shape(positions), facts.shape(limit)
        whole = _as_integers(facts, limit)
        if rank is None or shape is None or rows is None or whole is None:
            continue
        own, there = axis - (rank - len(shape)), axis - (rank - len(rows))
        first = first_position(facts, positions, own) if _only_wide(shape, own) else None
        if first is not None and (there < 0 or rows[there] == 1) and sum(n != 1 for n in rows) < 2:
            return compared(op, first, whole, rounded=facts.dtype(limit) == TensorProto.FLOAT)
    return None


def _as_integers(facts: Facts, tensor: Tensor) -> Tensor | None:
    """The integers that a value is, or was before it was cast to a float; None for any other."""
    if facts.dtype(tensor) in INTEGERS:
        return tensor
    node = facts.index.producer(tensor)
    is_cast = node is not None and node.op == "Cast" and facts.dtype(tensor) in _FLOATS
    if node is None or not is_cast or facts.dtype(node.inputs[0]) not in INTEGERS:
        return None
    return node.inputs[0]


def _only_wide(shape: Sequence[object], axis: int) -> bool:
    return axis >= 0 and all(n == 1 for k, n in enumerate(shape) if k != axis)


def first_position(facts: Facts, tensor: Tensor, axis: int) -> int | None:
    """k where the values along an axis are k, k+1, k+2, …; all other axes have size 1."""
    while facts.dtype(tensor) in (*INTEGERS, *_FLOATS):
        array = facts.constant(tensor)
        if array is not None:
            numbers = array.ravel()
            return _first(numbers) if numbers.size and numbers.size == array.shape[axis] else None
        node = facts.index.producer(tensor)
        if node is None or node.domain:
            return None
        if node.op == "Range":
            start, step = facts.scalar(node.inputs[0]), facts.scalar(node.inputs[2])
            return start if isinstance(start, int) and step == 1 else None
        if node.op == "CumSum":
            return _first_sum(facts, node, axis)
        before = axis_before(facts, node, axis)
        if before is None:
            return None
        tensor, axis = node.inputs[0], before
    return None


def _first(numbers: np.ndarray) -> int | None:
    first = int(numbers[0])
    return first if np.array_equal(numbers, np.arange(first, first + numbers.size)) else None


def _first_sum(facts: Facts, node: Node, axis: int) -> int | None:
    """Running sums of ones."""
    along, rank = facts.scalar(node.inputs[1]), facts.rank(node.inputs[0])
    if node.attrs.get("reverse", 0) or not isinstance(along, int) or rank is None:
        return None
    is_whole = facts.dtype(node.inputs[0]) in INTEGERS
    if along % rank != axis or not is_whole or only_number(facts, node.inputs[0]) != 1:
        return None
    return 0 if node.attrs.get("exclusive", 0) else 1


def axis_before(facts: Facts, node: Node, axis: int) -> int | None:
    """Where an axis was before an operator that keeps the elements along it in their order."""
    if node.op in ("Cast", "Identity", "Not"):
        return axis
    if node.op == "Transpose" and (order := node.attrs.get("perm")) is not None:
        return int(order[axis])
    if node.op == "Reshape":
        return _axis_before_reshape(facts, node, axis)
    if node.op == "Slice":
        return axis if _is_whole(facts, node) else None
    gone = named_axes(facts, node) if node.op in ("Unsqueeze", "Squeeze") else None
    if gone is None:
        return None
    if node.op == "Unsqueeze":
        return None if axis in gone else axis - sum(a < axis for a in gone)
    return [k for k in range(axis + len(gone) + 1) if k not in gone][axis]


def _axis_before_reshape(facts: Facts, node: Node, axis: int) -> int | None:
    """Where an axis was before a Reshape that only adds or drops axes of size 1."""
    before, after = facts.shape(node.inputs[0]), facts.shape(node.outputs[0])
    if before is None or after is None:
        return None
    wide, kept = ([k for k, n in enumerate(shape) if n != 1] for shape in (before, after))
    pairs = list(zip(wide, kept))
    same = all(symbolic.eq(before[old], after[new]) is True for old, new in pairs)
    if len(wide) != len(kept) or not same:
        return None
    return next((old for old, new in pairs if new == axis), None)


def _is_whole(facts: Facts, node: Node) -> bool:
    """Whether a Slice leaves nothing out."""
    if len(node.inputs) < 3:
        return False
    starts, ends = facts.constant(node.inputs[1]), facts.constant(node.inputs[2])
    steps = facts.constant(node.inputs[4]) if len(node.inputs) > 4 else np.ones(1)
    if starts is None or ends is None or steps is None:
        return False
    return bool(np.all(starts == 0) and np.all(ends >= _ENDLESS) and np.all(steps == 1))
