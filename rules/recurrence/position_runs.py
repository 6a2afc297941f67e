"""Runs of positions: values that are k, k + 1, k + 2, … along an axis, or the same backward.

A run may be a Range, a CumSum of ones or a constant, plus or minus one number, and may then be cast,
transposed, reshaped, expanded or reversed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from ...rewrite import symbolic
from ...rewrite.facts.axes import named_axes
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.reads import axis_slices, reversed_axis
from ...rewrite.facts.splat import is_filled_with
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.symbolic import Dim

INDEX_TYPES = (TensorProto.INT32, TensorProto.INT64)
FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.DOUBLE)
MOST_OFFSET = 1 << 10
"""The largest number at which a run may start. Then no type wraps around or rounds its numbers before
the length of the run alone makes it do so."""
MOST_SUMS = 8
"""The most sums and differences that make a run: the search for it is recursive."""


@dataclass(frozen=True)
class PositionRun:
    """The numbers first, first + 1, …, or the same backward."""

    first: int
    """The least of them."""
    is_reverse: bool = False

    def turned(self, turns: bool) -> PositionRun:
        """The same numbers, in the opposite order if `turns`."""
        return replace(self, is_reverse=self.is_reverse != turns)


@dataclass(frozen=True)
class OperandAxis:
    """An axis of an operand that a result has, too."""

    axis: int
    is_reversed: bool = False
    """Whether the result has its elements in reverse order."""


def position_run(
    facts: Facts, tensor: Tensor, axis: int, sums: int = MOST_SUMS
) -> PositionRun | None:
    """The run of the values along an axis, the same at each place of the other axes; or None.

    It may be made by up to so many sums and differences.
    """
    is_reverse = False
    while facts.dtype(tensor) in (*INDEX_TYPES, *FLOAT_TYPES):
        found = _run_of(facts, tensor, axis, sums)
        if found is not None:
            return found.turned(is_reverse) if abs(found.first) <= MOST_OFFSET else None
        node = facts.index.producer(tensor)
        source = None if node is None or node.domain else operand_axis(facts, node, axis)
        if node is None or source is None:
            return None
        tensor, axis, is_reverse = node.inputs[0], source.axis, is_reverse != source.is_reversed
    return None


def _run_of(facts: Facts, tensor: Tensor, axis: int, sums: int) -> PositionRun | None:
    """The run that a constant is, or that one operator makes."""
    array = facts.constant(tensor)
    if array is not None:
        return _constant_run(np.moveaxis(array, axis, 0)) if array.size else None
    node = facts.index.producer(tensor)
    if node is None or node.domain:
        return None
    if node.op == "Range":
        return _range(facts, node)
    if node.op == "CumSum":
        return _running_count(facts, node, axis)
    return _shifted(facts, node, axis, sums) if node.op in ("Add", "Sub") and sums else None


def _range(facts: Facts, node: Node) -> PositionRun | None:
    """The run of a Range in steps of 1 or -1."""
    start, limit, step = (facts.scalar(tensor) for tensor in node.inputs)
    if step == 1 and isinstance(start, int):
        return PositionRun(start)
    if step == -1 and isinstance(limit, int):
        return PositionRun(limit + 1, is_reverse=True)
    return None


def _shifted(facts: Facts, node: Node, axis: int, sums: int) -> PositionRun | None:
    """The run of a run plus or minus one number, or of one number minus a run."""
    left, right = node.inputs
    shape = facts.shape(node.outputs[0])
    for operand, other in ((left, right), (right, left)):
        number = uniform_integer(facts, other)
        own = None if shape is None else axis_without_repetition(facts, operand, shape, axis)
        if number is None or own is None or shape is None:
            continue
        run = position_run(facts, operand, own, sums - 1)
        if run is None:
            continue
        if node.op == "Sub" and operand is right:  # n - 1 - Range(0, n) is a run backward
            last = symbolic.add(run.first, symbolic.sub(shape[axis], 1))
            first, turns = symbolic.sub(number, last), True
        else:
            signed = symbolic.neg(number) if node.op == "Sub" else number
            first, turns = symbolic.add(run.first, signed), False
        if isinstance(first, int):
            return PositionRun(first, run.is_reverse).turned(turns)
    return None


def _constant_run(numbers: np.ndarray) -> PositionRun | None:
    """The run of an array along its first axis."""
    for values, is_reverse in ((numbers, False), (numbers[::-1], True)):
        if not np.isfinite(values.flat[0]):
            return None
        first = int(values.flat[0])
        wanted = np.arange(first, first + len(values)).reshape(-1, *[1] * (values.ndim - 1))
        if np.array_equal(values, np.broadcast_to(wanted, values.shape)):
            return PositionRun(first, is_reverse)
    return None


def _running_count(facts: Facts, node: Node, axis: int) -> PositionRun | None:
    """The run of a CumSum of ones."""
    along, rank = facts.scalar(node.inputs[1]), facts.rank(node.inputs[0])
    if not isinstance(along, int) or rank is None or along % rank != axis:
        return None
    if not is_filled_with(facts, node.inputs[0], 1):
        return None
    first = 0 if node.attrs.get("exclusive", 0) else 1
    return PositionRun(first, is_reverse=bool(node.attrs.get("reverse", 0)))


# --- axes of operands ---


def operand_axis(facts: Facts, node: Node, axis: int) -> OperandAxis | None:
    """The axis of the operand whose elements a result has along an axis, in the same order or in
    reverse; None if there is none.
    """
    if reversed_axis(facts, node) == axis:
        return OperandAxis(axis, is_reversed=True)
    found = _axis_in_order(facts, node, axis)
    return None if found is None else OperandAxis(found)


def _axis_in_order(facts: Facts, node: Node, axis: int) -> int | None:
    if node.op in ("Cast", "Identity", "Not"):
        return axis
    if node.op == "Transpose" and (perm := node.attrs.get("perm")) is not None:
        return int(perm[axis])
    if node.op == "Reshape":
        return _axis_of_reshape(facts, node, axis)
    if node.op in ("Expand", "Tile"):
        return _repeated_axis(facts, node, axis)
    if node.op == "Slice":
        shape, slices = facts.shape(node.inputs[0]), axis_slices(facts, node)
        if shape is None or slices is None:
            return None
        return axis if all(each.is_whole(shape[each.axis]) for each in slices) else None
    axes = named_axes(facts, node) if node.op in ("Unsqueeze", "Squeeze") else None
    if axes is None:
        return None
    if node.op == "Unsqueeze":
        return None if axis in axes else axis - sum(a < axis for a in axes)
    return [k for k in range(axis + len(axes) + 1) if k not in axes][axis]


def _repeated_axis(facts: Facts, node: Node, axis: int) -> int | None:
    """The operand axis of an Expand or Tile that does not repeat elements along it."""
    before, after = facts.shape(node.inputs[0]), facts.shape(node.outputs[0])
    if before is None or after is None:
        return None
    own = axis - (len(after) - len(before))
    return own if own >= 0 and symbolic.eq(before[own], after[axis]) is True else None


def _axis_of_reshape(facts: Facts, node: Node, axis: int) -> int | None:
    """The operand axis of a Reshape that only adds or removes axes of size 1."""
    before, after = facts.shape(node.inputs[0]), facts.shape(node.outputs[0])
    if before is None or after is None:
        return None
    old_axes, new_axes = ([k for k, n in enumerate(shape) if n != 1] for shape in (before, after))
    pairs = list(zip(old_axes, new_axes))
    same = all(symbolic.eq(before[old], after[new]) is True for old, new in pairs)
    if len(old_axes) != len(new_axes) or not same:
        return None
    return next((old for old, new in pairs if new == axis), None)


def axis_without_repetition(
    facts: Facts, operand: Tensor, shape: Sequence[Dim], axis: int
) -> int | None:
    """The axis of an operand of a broadcast that is an axis of the result, without repetition.

    None where the operand lacks the axis, or may have one element that is repeated along it.
    """
    given = facts.shape(operand)
    own = axis - (len(shape) - len(given or ()))
    if given is None or own < 0 or symbolic.eq(given[own], shape[axis]) is not True:
        return None
    return own


# --- one number for all elements ---

_REPEATING = frozenset({"Cast", "Expand", "Identity", "Reshape", "Squeeze", "Tile", "Unsqueeze"})
"""Operators whose results consist of elements of their first operand."""


def uniform_integer(facts: Facts, tensor: Tensor) -> Dim | None:
    """The number that all elements of an integer tensor are; None where it is not known."""
    values = facts.of(tensor).values
    while not values:
        node = facts.index.producer(tensor)
        if facts.dtype(tensor) not in INDEX_TYPES or node is None or node.domain:
            return None  # a Cast to another type may wrap around
        sources = node.inputs[:1] if node.op in _REPEATING else []
        if node.op == "Add":
            pairs = zip(node.inputs, node.inputs[::-1])
            sources = [value for value, other in pairs if is_filled_with(facts, other, 0)]
        if not sources:
            return None
        tensor = sources[0]
        values = facts.of(tensor).values
    first = values[0]
    same = all(v == first for v in values)
    return first if same and first is not None and not isinstance(first, bool) else None
