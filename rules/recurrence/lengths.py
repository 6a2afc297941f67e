"""Length masks: what a body does only while the iteration number is below a length.

Padded batches are run to the longest sequence, and every row keeps its state from its own length on.
However that is spelled (Where, `m*new + (1-m)*old`, …), the body is the cell where the comparison
`iteration < length` holds, and hands its states on where it does not. The operators take the lengths
as `sequence_lens` (ONNX operator specification, LSTM, GRU, RNN) and fill Y with zeros from there on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import CarriedValue
from ...rewrite.symbolic import Dim
from . import forms
from .common_batch import Rows
from .length_reads import (
    INTEGERS,
    MIRRORED,
    Comparison,
    Length,
    compared,
    compared_outside,
    first_position,
)
from .lifting import numpy_type
from .prefix_masks import asserted_outside
from .shapes import only_number
from .values import Axis, Batch, Value


@dataclass(frozen=True, eq=False)
class Mask:
    """What a body knows of the lengths of its rows."""

    length: Length
    comparisons: dict[Tensor, bool]
    """Values of the body, and what they are within the length; beyond it they are the opposite.
    Masks that were cast to floats are 1 and 0.
    """

    def known(self, facts: Facts, within: bool) -> dict[Tensor, Value]:
        """The comparisons as what they are on one side of the length."""
        values = {}
        for tensor, truth in self.comparisons.items():
            number = np.array([truth == within], numpy_type(facts, tensor))
            values[tensor] = Value(forms.constant(number), _axes(facts, tensor))
        return values


def _axes(facts: Facts, tensor: Tensor) -> tuple[Axis, ...]:
    """The axis that a mask has is one of the batch: the lifter sees to it that it stays there."""
    return tuple(1 if n == 1 else Batch(n) for n in facts.shape(tensor) or ())


def masks_of(facts: Facts, steps: CountedLoop) -> list[Mask]:
    """The masks of a body, told apart by their lengths."""
    found: dict[Length, Mask] = {}
    for tensor, (length, within) in _comparisons(facts, steps):
        shape = facts.shape(tensor)
        if shape is not None and sum(n != 1 for n in shape) < 2:
            mask = found.setdefault(length, Mask(length, {}))
            mask.comparisons[tensor] = within
    return list(found.values())


def _comparisons(facts: Facts, steps: CountedLoop) -> Iterator[tuple[Tensor, Comparison]]:
    for read in steps.reads:
        found = compared_outside(facts, read) or asserted_outside(facts, read)
        if found is not None:
            yield read.slice, found
    counters = dict(_counters(facts, steps))
    for node in facts.index.nodes(steps.body) if counters else ():
        found = _comparison(facts, steps, counters, node)
        if found is not None:
            yield node.outputs[0], found


def _comparison(
    facts: Facts, steps: CountedLoop, counters: dict[Dim, int], node: Node
) -> Comparison | None:
    """A comparison of the iteration number with a limit from outside."""
    if node.domain or node.op not in MIRRORED:
        return None
    (left, right), op = node.inputs, node.op
    start = _ahead(facts, counters, left)
    if start is None:
        (left, right), op = (right, left), MIRRORED[op]
        start = _ahead(facts, counters, left)
    limit = _from_outside(facts, steps, right)
    return None if start is None or limit is None else compared(op, start, limit)


def _from_outside(facts: Facts, steps: CountedLoop, tensor: Tensor) -> Tensor | None:
    """The integers from outside that a value is, up to axes of size 1."""
    while (home := facts.index.home(tensor)) is not None and facts.dtype(tensor) in INTEGERS:
        if not facts.index.encloses(steps.body, home):
            return tensor
        node = facts.index.producer(tensor)
        if node is None or node.domain or node.op not in ("Identity", "Squeeze", "Unsqueeze"):
            return None
        tensor = node.inputs[0]
    return None


def _ahead(facts: Facts, counters: dict[Dim, int], tensor: Tensor) -> int | None:
    """k where a value is the iteration number plus k."""
    number = only_number(facts, tensor)
    if number is None or isinstance(number, int):
        return None
    for counter, start in counters.items():
        distance = symbolic.sub(number, counter)
        if isinstance(distance, int):
            return start + distance
    return None


def _counters(facts: Facts, steps: CountedLoop) -> Iterator[tuple[Dim, int]]:
    """Numbers of the body that are k, k+1, k+2, … in the iterations, and k."""
    if steps.iteration is not None:
        yield from _numbered(facts, steps.iteration, 0)
    for state in steps.carried:
        start = facts.scalar(state.initial)
        if isinstance(start, int) and _grows_by_one(facts, state):
            yield from _numbered(facts, state.input, start)
    for read in steps.reads:
        first = None if read.reverse else first_position(facts, read.sequence, read.axis)
        if first is not None:
            yield from _numbered(facts, read.slice, first)


def _grows_by_one(facts: Facts, state: CarriedValue) -> bool:
    node = facts.index.producer(state.output)
    if node is None or node.domain or node.op != "Add" or state.input not in node.inputs:
        return False
    other = node.inputs[1] if node.inputs[0] is state.input else node.inputs[0]
    return facts.scalar(other) == 1 and facts.dtype(other) in INTEGERS


def _numbered(facts: Facts, tensor: Tensor, start: int) -> Iterator[tuple[Dim, int]]:
    number = facts.scalar(tensor)
    if number is not None and not isinstance(number, (bool, int)):
        yield number, start


# --- into the graph ---


def row_limits(emit: Builder, facts: Facts, steps: CountedLoop, length: Length) -> Rows:
    """A number per row, or one for all, from 0 to the number of steps: onnxruntime refuses others."""
    shift = length.shift
    flat = emit("Reshape", _limit(emit, facts, length), emit.vector(-1))
    count = emit.trip_count(steps)
    # The shift comes behind the bounds, so that no sum overflows.
    last = emit("Sub", count, emit.vector(shift)) if shift else count
    bounded = emit.max(emit.min(flat, last), emit.vector(-shift))
    value = emit("Add", bounded, emit.vector(shift)) if shift else bounded
    shape = facts.shape(length.limit) or ()
    sizes = [n for k, n in enumerate(shape) if k != length.counted and n != 1]
    return Rows(value, 0, 1, sizes[0] if sizes else 1)


def _limit(emit: Builder, facts: Facts, length: Length) -> Tensor:
    """One int64 per row, or one for all."""
    limit = length.limit
    if facts.dtype(limit) != TensorProto.INT64:
        limit = emit("Cast", limit, to=TensorProto.INT64)
    if length.counted is not None:
        limit = emit.reduce("ReduceSum", limit, [length.counted], keepdims=0)
    return limit


class Lengths:
    """The lengths of a mask as the operators take them, and what is computed from them."""

    def __init__(self, emit: Builder, steps: CountedLoop, limits: Tensor, x: Tensor) -> None:
        """`x` is the operator's input (time, batch, features)."""
        self._emit, self._steps = emit, steps
        self._clamped = emit("Expand", limits, emit.shape(x, 1, 2))
        self.operand = emit("Cast", self._clamped, to=TensorProto.INT32)
        """sequence_lens: int32, one per row, from 0 to the number of steps."""

    def final(self, value: Tensor, initial: Tensor | None) -> Tensor:
        """Y_h or Y_c, which are zero for rows of length 0, with the initial state there."""
        if initial is None:
            return value
        empty = self._emit("Less", self._clamped, self._emit.vector(1))
        return self._emit("Where", self._emit.unsqueeze(empty, [1]), initial, value)

    def held(self, sequence: Tensor, last: Tensor) -> Tensor:
        """Y with the last state in place of the zeros beyond the length."""
        emit = self._emit
        numbers = emit.iteration_numbers(self._steps)
        lengths = emit.unsqueeze(self._clamped, [1])
        within = emit("Less", emit.unsqueeze(numbers, [1, 2, 3]), lengths)
        return emit("Where", within, sequence, last)
