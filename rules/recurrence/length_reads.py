"""Length masks that are compared for all iterations at once and read slice by slice.

m = Less(Unsqueeze(Range(0, T, 1)), lengths)    Loop(…) { m_t = Gather(m, i) … }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from ...rewrite.facts import Facts
from ...rewrite.ir import Node, Tensor
from ...rewrite.steps import Read

INTEGERS = (TensorProto.INT32, TensorProto.INT64)
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


Comparison = tuple[Length, bool]
"""A length, and what a value is within it; beyond it is the opposite."""


def compared(op: str, start: int, limit: Tensor) -> Comparison:
    """The comparison `i + start op limit`."""
    shift = int(op in ("LessOrEqual", "Greater")) - start
    return Length(limit, shift), op in ("Less", "LessOrEqual")


def compared_outside(facts: Facts, read: Read) -> Comparison | None:
    """The comparison of which iteration i reads the slice for i; None where it is other data."""
    tensor, axis, negated = read.sequence, read.axis, False
    while (node := facts.index.producer(tensor)) is not None and not node.domain:
        if node.op in MIRRORED:
            found = None if read.reverse else _along(facts, node, axis)
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
        if rank is None or shape is None or rows is None or facts.dtype(limit) not in INTEGERS:
            return None
        own, there = axis - (rank - len(shape)), axis - (rank - len(rows))
        first = first_position(facts, positions, own) if _only_wide(shape, own) else None
        if first is not None and (there < 0 or rows[there] == 1) and sum(n != 1 for n in rows) < 2:
            return compared(op, first, limit)
    return None


def _only_wide(shape: Sequence[object], axis: int) -> bool:
    return axis >= 0 and all(n == 1 for k, n in enumerate(shape) if k != axis)


def first_position(facts: Facts, tensor: Tensor, axis: int) -> int | None:
    """k where the values along an axis are k, k+1, k+2, …; all other axes have size 1."""
    while facts.dtype(tensor) in INTEGERS:
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
        before = axis_before(facts, node, axis)
        if before is None:
            return None
        tensor, axis = node.inputs[0], before
    return None


def _first(numbers: np.ndarray) -> int | None:
    first = int(numbers[0])
    return first if np.array_equal(numbers, np.arange(first, first + numbers.size)) else None


def axis_before(facts: Facts, node: Node, axis: int) -> int | None:
    """Where an axis was before an operator that keeps the elements along it in their order."""
    if node.op in ("Cast", "Identity", "Not"):
        return axis
    if node.op == "Transpose" and (order := node.attrs.get("perm")) is not None:
        return int(order[axis])
    axes = facts.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    rank = facts.rank(node.outputs[0] if node.op == "Unsqueeze" else node.inputs[0])
    if axes is None or rank is None or node.op not in ("Unsqueeze", "Squeeze"):
        return None
    gone = {int(a) % rank for a in axes.ravel()}
    if node.op == "Unsqueeze":
        return None if axis in gone else axis - sum(a < axis for a in gone)
    return [k for k in range(rank) if k not in gone][axis]
