"""Emits the operator of a cell, with its operands and results (ONNX: LSTM, GRU, RNN).

X has the shape (time, batch, features), sequence_lens (batch,), initial_h, initial_c, Y_h and Y_c
(directions, batch, hidden), and Y (time, directions, batch, hidden). There is one direction.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from ...rewrite import symbolic
from ...rewrite.engine.builder import TO_THE_END, Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Tensor, Variable
from ...rewrite.symbolic import Dim, symbols
from . import weights
from .cells import DEFAULT_ACTIVATIONS, Cell
from .length_masks import RowLengths
from .lifting import CellLayout
from .weights import GraphBackend, Weight


def omitted() -> Variable:
    """An operand or result that is left out."""
    return Variable("")


# --- weights and attributes ---


@dataclass(frozen=True, eq=False)
class OperatorWeights:
    """The weights of a cell in the layout of the operator; None for those that can be omitted."""

    w: Weight
    """W (1, gates * hidden, features)"""
    r: Weight
    """R (1, gates * hidden, hidden)"""
    b: Weight | None
    """B (1, 2 * gates * hidden): the biases of W, then those of R"""
    p: Weight | None
    """P (1, 3 * hidden)"""


def operator_weights(cell: Cell) -> OperatorWeights:
    """The weights of a cell whose X has the values of `cell.inputs` side by side."""
    matrices = [input_matrix(cell, number) for number in range(len(cell.gates))]
    w = _one_direction(weights.concat([weights.transpose(m) for m in matrices], 0))
    r = _one_direction(weights.concat([weights.transpose(g.recurrent) for g in cell.gates], 0))
    zeros = np.zeros(cell.h.size, cell.h.update.dtype)
    biases = [gate.bias for gate in cell.gates]
    biases += [zeros if g.recurrent_bias is None else g.recurrent_bias for g in cell.gates]
    b = None
    if not all(weights.is_zero(v) for v in biases):
        b = _one_direction(weights.concat(biases, 0))
    p = None if cell.peepholes is None else _one_direction(weights.concat(cell.peepholes, 0))
    return OperatorWeights(w, r, b, p)


def input_matrix(cell: Cell, number: int) -> Weight:
    """The matrix of a gate for all inputs together: (features, hidden)."""
    parts: list[Weight] = []
    for source in cell.inputs:
        zeros = np.zeros((source.width, cell.h.size), cell.h.update.dtype)
        found = cell.gates[number].inputs.get(source.key)
        parts.append(zeros if found is None else found[1])
    return weights.concat(parts, 0)


def _one_direction(weight: Weight) -> Weight:
    return weights.reshape(weight, (1, *weight.shape))


def operator_attributes(cell: Cell) -> dict[str, Any]:
    """The attributes of the operator without defaults."""
    attrs: dict[str, Any] = {"hidden_size": cell.h.size}
    names = [name for name, _ in cell.functions]
    if names != DEFAULT_ACTIVATIONS[cell.op]:
        attrs["activations"] = names
        for position, name in enumerate(("activation_alpha", "activation_beta")):
            values = [p[position] for _, p in cell.functions if len(p) > position]
            attrs |= {name: values} if values else {}
    for name, value in cell.attributes.items():
        attrs[name] = value if name == "clip" else int(value)
    return attrs


def emit_operator(
    emit: Builder,
    cell: Cell,
    x: Tensor,
    initial: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
    sequence_lens: Tensor | None = None,
    *,
    is_reverse: bool = False,
) -> list[Tensor]:
    """Adds the operator; returns Y, Y_h and, of an LSTM, Y_c.

    `initial` are the initial states, None for zeros. Results are named after `outputs`; one whose
    name is empty is omitted. If `is_reverse`, the operator runs from the last time step to the
    first.
    """
    backend = GraphBackend(emit)

    def built(weight: Weight | None) -> Tensor:
        return omitted() if weight is None else backend.build(weight)

    found = operator_weights(cell)
    optional = [omitted() if t is None else t for t in (sequence_lens, *initial)]
    inputs = [x, built(found.w), built(found.r), built(found.b), *optional]
    if found.p is not None:
        inputs.append(built(found.p))
    attrs = operator_attributes(cell) | ({"direction": "reverse"} if is_reverse else {})
    results = emit.outputs(cell.op, _trimmed(inputs), _trimmed(outputs), **attrs)
    return [*results, *outputs[len(results) :]]


def _trimmed(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The tensors without the omitted ones at the end."""
    last = max((k for k, t in enumerate(tensors) if t.name), default=-1)
    return tensors[: last + 1]


CRASHES = "crashes on an empty"
"""What notes say of an operator that crashes onnxruntime on an empty tensor."""
ABOUT_ONNXRUNTIME = "onnxruntime's "
"""The start of notes that matter to onnxruntime only."""


def note_empty_batch(patch: Patch, op: str, layout: CellLayout) -> None:
    """Notes that onnxruntime's operator may fail on an empty batch, which the original ran."""
    if op != "RNN" and not symbolic.positive(layout.size):
        patch.note(empty_note(op, "batch", layout.size))


def may_be_empty_for_nonempty_inputs(loop: CountedLoop) -> bool:
    """Whether the loop may not run although no size of an input is 0.

    The trip count is the length of a row, for example, or one less than a size.
    """
    if loop.trip is None or loop.runs_at_least_once:
        return False
    return loop.count is None or not _is_name(loop.count)


class PaddedSequence:
    """The operand X with a time step of zeros if it has no time steps, on which a GRU crashes."""

    def __init__(self, emit: Builder, x: Tensor, dtype: np.dtype[Any]) -> None:
        self._emit = emit
        self._count = emit.shape(x, 0, 1)
        added = emit("Cast", emit("Less", self._count, emit.vector(1)), to=TensorProto.INT64)
        # One step that is cut off where it is not needed: an Expand to a shape with a computed
        # size would hide the size of the batch, too.
        sizes = emit.concat([emit.vector(1), emit.shape(x, 1, 3)])
        zeros = emit("Expand", emit.constant(np.zeros((1, 1, 1), dtype)), sizes)
        zeros = emit("Slice", zeros, emit.vector(0), added, emit.vector(0))
        self.operand = emit("Concat", x, zeros, axis=0)

    def trimmed(self, sequence: Tensor) -> Tensor:
        """Y without the time step that was added."""
        emit = self._emit
        return emit("Slice", sequence, emit.vector(0), self._count, emit.vector(0))


def note_empty_sequence(patch: Patch, op: str, loop: CountedLoop) -> None:
    """Notes that onnxruntime's GRU may fail on an empty sequence, which the original ran."""
    if op == "GRU" and not loop.runs_at_least_once:
        patch.note(empty_note(op, "sequence", loop.count))


def empty_note(op: str, what: str, size: Dim | None) -> str:
    """What onnxruntime does for an empty batch or sequence, and what excludes it."""
    is_name = size is not None and _is_name(size)
    plural = {"batch": "batches", "sequence": "sequences"}[what]
    remedy = (
        f'If {plural} are never empty, assert `--dim "{size}>=1"`'
        if is_name
        else f"Check that {plural} are never empty in your program"
    )
    return f"{ABOUT_ONNXRUNTIME}{op} {CRASHES} {what}; the original does not. {remedy}"


def _is_name(size: Dim) -> bool:
    """Whether a size is one that the file or the user named."""
    return any(symbol.serial < 0 and symbol.name == str(size) for symbol in symbols(size))


# --- axes ---


def to_operator_axes(
    emit: Builder, value: Tensor, layout: CellLayout, leading: int, *, direction: bool = False
) -> Tensor:
    """A value as (leading axes, batch, features), with an axis before the batch for a direction."""
    if direction and _has_operator_axes(layout):
        return value
    value = emit.squeeze(value, [leading + k for k in layout.units])
    value = emit.transpose(value, [*range(leading), *(leading + k for k in layout.order)])
    if len(layout.features) != 1:
        value = emit("Reshape", value, _shape(emit, layout, leading, [math.prod(layout.sizes)]))
    added = [leading] if direction else []
    added += [leading + len(added)] if layout.batch is None else []
    return emit.unsqueeze(value, added)


def from_operator_axes(emit: Builder, value: Tensor, layout: CellLayout, leading: int) -> Tensor:
    """A result (leading axes, 1, batch, hidden) of the operator as (leading axes, layout)."""
    if _has_operator_axes(layout):
        return value
    value = emit.squeeze(value, [leading, *([leading + 1] if layout.batch is None else [])])
    if len(layout.features) != 1:
        value = emit("Reshape", value, _shape(emit, layout, leading, layout.sizes))
    inverse = [layout.order.index(k) for k in range(len(layout.order))]
    value = emit.transpose(value, [*range(leading), *(leading + k for k in inverse)])
    return emit.unsqueeze(value, [leading + k for k in layout.units])


def _shape(emit: Builder, layout: CellLayout, leading: int, features: Sequence[int]) -> Tensor:
    """A shape for Reshape that keeps leading axes and batch, as 0, and has these features."""
    return emit.vector(*[0] * (leading + (layout.batch is not None)), *features)


def _has_operator_axes(layout: CellLayout) -> bool:
    """Whether the axes are (1, batch, features), as those of a state of the operator."""
    return layout.units == [0] and layout.batch == 1 and layout.features == (2,)


# --- batches of different sizes ---


@dataclass(frozen=True)
class BatchedOperand:
    """An operand of the operator, and where its batch axis is."""

    value: Tensor
    axis: int
    rank: int
    size: Dim
    """The size of the batch."""


class BatchBroadcast:
    """Broadcasts operands to one common batch."""

    def __init__(
        self, emit: Builder, operands: Sequence[BatchedOperand], trips: Tensor | None
    ) -> None:
        """`operands` are all operands of the operator that have a batch.

        `trips` is the number of iterations if it may be 0. A loop without iterations never
        broadcasts its operands, so then batches that do not fit are cut to one row or none.
        """
        self._emit = emit
        self._most: Tensor | None = None
        by_size = {operand.size: operand for operand in operands if operand.size != 1}
        self._size = next(iter(by_size)) if len(by_size) == 1 else None
        counts = [emit.shape(o.value, o.axis, o.axis + 1) for o in by_size.values()]
        self._count = counts[0] if counts else emit.vector(1)
        if len(counts) > 1 and trips is not None:
            self._most = self._most_rows(counts, trips)
            counts = [emit.min(count, self._most) for count in counts]
        if len(counts) > 1:
            common = emit.vector(1)
            for count in counts:
                common = emit("Expand", common, count)
            self._count = emit("Shape", common)

    def expand(self, operand: BatchedOperand) -> Tensor:
        """The operand with the common batch."""
        if operand.size == self._size:
            return operand.value
        emit, value = self._emit, operand.value
        if self._most is not None and operand.size != 1:
            axis = emit.vector(operand.axis)
            value = emit("Slice", value, emit.vector(0), self._most, axis)
        sizes = [emit.vector(1)] * operand.rank
        sizes[operand.axis] = self._count
        return emit("Expand", value, emit.concat(sizes))

    def _most_rows(self, counts: Sequence[Tensor], trips: Tensor) -> Tensor:
        """1 if there is no iteration and the batches do not broadcast; no bound otherwise."""
        emit = self._emit
        zero, one = emit.vector(0), emit.vector(1)
        smallest, largest = (functools.reduce(least, counts) for least in (emit.min, emit.max))
        common = emit("Where", emit("Equal", smallest, zero), zero, largest)
        fitting = [emit("Or", emit("Equal", c, one), emit("Equal", c, common)) for c in counts]
        fit = emit.combine("And", fitting)
        runs = emit("Greater", emit("Reshape", trips, one), zero)
        return emit("Where", emit("Or", fit, runs), emit.vector(TO_THE_END), one)


# --- sequence_lens ---


def emit_row_lengths(
    emit: Builder, facts: Facts, loop: CountedLoop, lengths: RowLengths
) -> BatchedOperand:
    """The lengths as an int64 vector with an element for each row, or one for all.

    They are clamped to 0 … trip count: onnxruntime refuses others.
    """
    shift = lengths.shift
    limit = emit("Reshape", _limit(emit, facts, lengths), emit.vector(-1))
    count = emit.trip_count(loop)
    # Adding the shift after clamping cannot overflow.
    last = emit("Sub", count, emit.vector(shift)) if shift else count
    # Not Min and Max: those of onnxruntime 1.31 take the numbers from 2**31 to 2**32 for negative.
    clamped = emit("Where", emit("Less", limit, last), limit, last)
    least = emit.vector(-shift)
    clamped = emit("Where", emit("Less", clamped, least), least, clamped)
    value = emit("Add", clamped, emit.vector(shift)) if shift else clamped
    shape = facts.shape(lengths.limit) or ()
    sizes = [n for k, n in enumerate(shape) if k != lengths.mask_axis and n != 1]
    return BatchedOperand(value, 0, 1, sizes[0] if sizes else 1)


def _limit(emit: Builder, facts: Facts, lengths: RowLengths) -> Tensor:
    """An int64 for each row, or one for all."""
    limit = lengths.limit
    if facts.dtype(limit) != TensorProto.INT64:
        limit = emit("Cast", limit, to=TensorProto.INT64)
    if lengths.mask_axis is not None:
        limit = emit.reduce("ReduceSum", limit, [lengths.mask_axis], keepdims=0)
    return limit


class SequenceLengths:
    """The operand sequence_lens, and the results that depend on it."""

    def __init__(self, emit: Builder, loop: CountedLoop, lengths: Tensor, x: Tensor) -> None:
        """`lengths` are clamped, `x` is the operand X."""
        self._emit, self._loop = emit, loop
        self._lengths = emit("Expand", lengths, emit.shape(x, 1, 2))
        self.operand = emit("Cast", self._lengths, to=TensorProto.INT32)
        """sequence_lens: int32, one for each row, from 0 to the trip count."""

    def final_state(self, value: Tensor, initial: Tensor | None) -> Tensor:
        """Y_h or Y_c with the initial state for rows of length 0, where the operator has zeros."""
        if initial is None:
            return value
        empty = self._emit("Less", self._lengths, self._emit.vector(1))
        return self._emit("Where", self._emit.unsqueeze(empty, [1]), initial, value)

    def with_state(self, sequence: Tensor, state: Tensor) -> Tensor:
        """Y with a state of the operator beyond the lengths, where the operator has zeros."""
        emit = self._emit
        numbers = emit.iteration_numbers(self._loop)
        lengths = emit.unsqueeze(self._lengths, [1])
        within = emit("Less", emit.unsqueeze(numbers, [1, 2, 3]), lengths)
        return emit("Where", within, sequence, state)
