"""A counted loop around a cell becomes the operator of the cell.

   ys, h, c = Loop(n, , h0, c0) { x_t = Gather(x, i)  gates = x_t·W + h·R + b … }
-> Y, h, c = LSTM(x, W, R, B, , h0, c0)    ys = Squeeze(Y)

The states before the updates are those after them, one time step later: Concat(h0, Y)[:-1].

A loop over padded rows that runs from the last time step to the first becomes an operator with
direction=reverse. Any other loop becomes one that runs forward, over the sequence in the order in
which the loop reads it; `AbsorbReversal` turns that around where the results are reversed, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...rewrite import symbolic
from ...rewrite.engine.builder import TO_THE_END, Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop, SliceRead
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.splat import is_zero
from ...rewrite.graph.ir import Tensor, Variable
from ...rewrite.graph.views import CarriedValue
from ...rewrite.symbolic import Dim
from ..loops.counted_loop_checks import need_counted_loop
from .emission import (
    ABOUT_ONNXRUNTIME,
    BatchBroadcast,
    BatchedOperand,
    PaddedSequence,
    SequenceLengths,
    emit_operator,
    emit_row_lengths,
    from_operator_axes,
    may_be_empty_for_nonempty_inputs,
    note_empty_batch,
    note_empty_sequence,
    omitted,
    to_operator_axes,
)
from .length_masks import EXACT_IN_FLOAT, RowLengths
from .lifting import CellLayout
from .loop_cells import CellInput, LoopCell, find_loop_cell, inner_value, is_final_read

_SLICE_TAKES_INPUTS = 10
"""The first opset in which the end of a Slice may be a computed value."""
_SLOW_RNN = 128
"""From this hidden size on, onnxruntime's RNN was slower than the loop at batch 8."""


class FuseRecurrence(Rule[LoopCell]):
    """Replaces a counted loop around an LSTM, GRU or RNN cell by the operator."""

    root = ("Loop", "Scan")
    promise = Promise(
        rounds="the gates are computed by one product",
        nonfinite="saturated gates may hide an infinity or NaN",
        assumes="inputs that onnxruntime's operator takes: its LSTM, GRU and RNN crash on some empty ones; "
        "lengths that a comparison with positions neither rounds nor wraps around",
        accepts="those that read past the end of the sequence",
        always_accepts="empty sequences that the loop cannot run on",
    )
    fires = """g (float[T,B,2] x, float[B,3] h0) => (float[T,B,3] y)
      <float[2,3] w = {0.1, 0.2, 0.3, -0.1, -0.2, -0.3}, float[3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
      h, y = Scan <num_scan_inputs=1, body = b (float[B,3] s, float[B,2] xt) => (float[B,3] so, float[B,3] row) {
        p = MatMul(xt, w) q = MatMul(s, r) a = Add(q, p) so = Tanh(a) row = Identity(so) }> (h0, x) }"""
    spares = {
        "Sin": """g (float[T,B,2] x, float[B,3] h0) => (float[T,B,3] y)
      <float[2,3] w = {0.1, 0.2, 0.3, -0.1, -0.2, -0.3}, float[3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
      h, y = Scan <num_scan_inputs=1, body = b (float[B,3] s, float[B,2] xt) => (float[B,3] so, float[B,3] row) {
        p = MatMul(xt, w) q = MatMul(s, r) a = Add(q, p) so = Sin(a) row = Identity(so) }> (h0, x) }""",
        "linear recurrence": """g (float[T,B,3] x, float[B,3] h0) => (float[T,B,3] y) {
      h, y = Scan <num_scan_inputs=1, body = b (float[B,3] s, float[B,3] xt) => (float[B,3] so, float[B,3] row) {
        so = Add(s, xt) row = Identity(so) }> (h0, x) }""",
    }

    def match(self, m: Match) -> LoopCell:
        loop = need_counted_loop(m)
        m.need(bool(loop.carried), "it carries no value")
        found = find_loop_cell(m.facts, loop)
        if m.options.strict and found.masks is not None:
            lengths = found.masks.lengths
            rounded = _is_rounded(lengths, loop)
            m.need(not rounded, "--strict: positions are compared as floats")
            m.need(not lengths.is_difference, "--strict: a difference of positions may wrap around")
        return found

    def apply(self, patch: Patch, found: LoopCell) -> None:
        emit = patch.builder(found.states[0].output)
        outputs = _operator(emit, patch.facts, found)
        _replace_results(emit, patch, found, outputs)
        _replace_finals(emit, patch, found, outputs.states)
        _drop_cell(patch, found)
        # A body that goes on may read more scan inputs than it carries values less, but each time
        # there are fewer cells in it.
        patch.toward_normal_form()
        _note_limits(patch, found)


# --- the operator ---


@dataclass(frozen=True, eq=False)
class _OperatorResults:
    """The results of the operator, whose axes are (time, direction, batch, hidden).

    If `LoopCell.is_reverse`, iteration i has time step n - 1 - i of n.
    """

    sequence: Tensor
    """Y, with zeros beyond the length; without a name if nothing reads it."""
    sequence_with_state: Tensor | None
    """Y with the state of the loop beyond the length: the last one, or the initial one."""
    states: list[Tensor]
    """The states after the last time step, without the axis of the time."""


def _operator(emit: Builder, facts: Facts, found: LoopCell) -> _OperatorResults:
    """Adds the operator over all iterations."""
    loop = found.loop
    inputs = [
        to_operator_axes(emit, _all_values(emit, facts, found, origin), layout, 1)
        for origin, layout in found.inputs
    ]
    initial = [
        None
        if is_zero(facts, state.initial)
        else to_operator_axes(emit, state.initial, layout, 0, direction=True)
        for state, layout in zip(found.states, found.layouts)
    ]
    lengths = None
    if found.masks is not None:
        lengths = emit_row_lengths(emit, facts, loop, found.masks.lengths)
    if found.is_broadcast:
        inputs, initial = _broadcast(emit, facts, found, inputs, initial, lengths)
    x = inputs[0] if len(inputs) == 1 else emit("Concat", *inputs, axis=2)
    keeps_state = any(result.keeps_state for result in found.results)
    names = [found.states[0].output if found.results else omitted()]
    for number, state in enumerate(found.states):
        is_read = is_final_read(facts, state) or (
            keeps_state and number == 0 and not found.is_reverse
        )
        names.append(Variable((state.final or state.output).name) if is_read else omitted())
    lens = None if lengths is None else SequenceLengths(emit, loop, lengths.value, x)
    padded = (
        PaddedSequence(emit, x, found.cell.h.update.dtype)
        if _is_padded(found, facts.opset)
        else None
    )
    sequence, *finals = emit_operator(
        emit,
        found.cell,
        x if padded is None else padded.operand,
        initial,
        names,
        None if lens is None else lens.operand,
        is_reverse=found.is_reverse,
    )
    if padded is not None and sequence.name:
        sequence = padded.trimmed(sequence)
    if lens is None:
        return _OperatorResults(sequence, None, finals)
    finals = [lens.final_state(v, i) if v.name else v for v, i in zip(finals, initial)]
    with_state = None
    if keeps_state:
        # An initial state that is left out is zero, and so is Y beyond the length.
        beyond = initial[0] if found.is_reverse else finals[0]
        with_state = sequence if beyond is None else lens.with_state(sequence, beyond)
    return _OperatorResults(sequence, with_state, finals)


def _is_padded(found: LoopCell, opset: int) -> bool:
    """Whether the sequence gets a time step where the loop has no iteration."""
    may_be_empty = found.cell.op == "GRU" and may_be_empty_for_nonempty_inputs(found.loop)
    return may_be_empty and opset >= _SLICE_TAKES_INPUTS


def _all_values(emit: Builder, facts: Facts, found: LoopCell, origin: CellInput) -> Tensor:
    """What the iterations read, stacked along axis 0 in the order of the time steps."""
    if isinstance(origin, SliceRead):
        read = replace(origin, reverse=origin.reverse != found.is_reverse)
        return emit.all_slices(facts, found.loop, read)
    return emit.repeat(origin.value, emit.trip_count(found.loop))


def _broadcast(
    emit: Builder,
    facts: Facts,
    found: LoopCell,
    inputs: Sequence[Tensor],
    initial: Sequence[Tensor | None],
    lengths: BatchedOperand | None,
) -> tuple[list[Tensor], list[Tensor | None]]:
    """The inputs and initial states broadcast to one batch."""
    batched = [
        BatchedOperand(value, 1, 3, _batch_size(facts, inner_value(origin), layout))
        for value, (origin, layout) in zip(inputs, found.inputs)
    ]
    states = [
        _batched_state(facts, value, state, layout)
        for value, state, layout in zip(initial, found.states, found.layouts)
    ]
    trips = None if found.loop.runs_at_least_once else found.loop.trip
    operands = [*batched, *states, *([] if lengths is None else [lengths])]
    common = BatchBroadcast(emit, operands, trips)
    expanded = [
        None if value is None else common.expand(state) for value, state in zip(initial, states)
    ]
    return [common.expand(operand) for operand in batched], expanded


def _batched_state(
    facts: Facts, value: Tensor | None, state: CarriedValue, layout: CellLayout
) -> BatchedOperand:
    """An initial state of the operator; if that omits it, the initial value of the loop."""
    size = _batch_size(facts, state.initial, layout)
    if value is not None:
        return BatchedOperand(value, 1, 3, size)
    return BatchedOperand(state.initial, layout.batch or 0, layout.rank, size)


def _batch_size(facts: Facts, tensor: Tensor, layout: CellLayout) -> Dim:
    return 1 if layout.batch is None else facts.known_shape(tensor)[layout.batch]


# --- its results in place of the cell's ---


def _replace_results(
    emit: Builder, patch: Patch, found: LoopCell, outputs: _OperatorResults
) -> None:
    """Lets the rest of the body, and readers of scan outputs, read Y."""
    loop = found.loop
    read: list[tuple[Tensor, Tensor]] = []
    for result in found.results:
        sequence = outputs.sequence
        if result.keeps_state and outputs.sequence_with_state is not None:
            sequence = outputs.sequence_with_state
        if result.is_before:
            sequence = _before_updates(emit, found, sequence)
        stacked = from_operator_axes(emit, sequence, result.layout, 1)
        for output in loop.scan_outputs:
            if output.slice is result.value and output.stacked is not None:
                written = replace(output, reverse=output.reverse != found.is_reverse)
                whole = emit.scan_output(stacked, written, result.layout.rank)
                patch.replace(output.stacked, whole)
        if result.is_read_inside:
            ordered = emit.reverse(stacked, 0) if found.is_reverse else stacked
            read.append((result.value, ordered))
    patch.loop(loop.node).read_slices(read)


def _before_updates(emit: Builder, found: LoopCell, after: Tensor) -> Tensor:
    """The hidden states before the updates, from those after them: both have the axes of Y.

    The last one is cut off, not left out, so that nothing remains of an empty sequence.
    """
    axes = found.layouts[0]
    initial = to_operator_axes(emit, found.states[0].initial, axes, 0, direction=True)
    initial = emit.unsqueeze(initial, [0])
    if found.is_reverse:
        return emit.slice(emit("Concat", after, initial, axis=0), 0, slice(1, None, 1))
    return emit.slice(emit("Concat", initial, after, axis=0), 0, slice(0, -1, 1))


def _replace_finals(emit: Builder, patch: Patch, found: LoopCell, finals: Sequence[Tensor]) -> None:
    """Lets readers of final states read Y_h and Y_c, or the initial states if there is no iteration.

    The results of the operator for an empty sequence are not specified; onnxruntime returns
    whatever is in memory.
    """
    loop = found.loop
    is_empty: Tensor | None = None
    for state, layout, final in zip(found.states, found.layouts, finals):
        if state.final is None or not is_final_read(patch.facts, state):
            continue
        value = from_operator_axes(emit, final, layout, 0)
        if not loop.runs_at_least_once and loop.trip is not None:
            if is_empty is None:
                is_empty = emit("Less", loop.trip, emit.scalar(1))
            batch = layout.batch if found.is_broadcast else None
            value = _select(emit, is_empty, state.initial, value, batch)
        patch.replace(state.final, value)


def _select(
    emit: Builder, condition: Tensor, chosen: Tensor, other: Tensor, axis: int | None
) -> Tensor:
    """One of two values by a scalar condition; along `axis` they may have different sizes."""
    if axis is None:
        return emit("Where", condition, chosen, other)
    count = emit.shape(chosen, axis, axis + 1)
    both = emit("Concat", chosen, other, axis=axis)
    start = emit("Where", condition, emit.vector(0), count)
    end = emit("Where", condition, count, emit.vector(TO_THE_END))
    return emit("Slice", both, start, end, emit.vector(axis))


def _drop_cell(patch: Patch, found: LoopCell) -> None:
    """Drops the states and the scan outputs that the operator replaces."""
    loop, replaced = found.loop, {result.value for result in found.results}
    edit = patch.loop(loop.node)
    edit.drop_scan_outputs(k for k, o in enumerate(loop.scan_outputs) if o.slice in replaced)
    for state in found.states:
        patch.replace(state.input, state.initial)
    edit.drop_carried(k for k, s in enumerate(loop.carried) if s in found.states)
    edit.remove_if_unused()


def _note_limits(patch: Patch, found: LoopCell) -> None:
    """Notes what the result relies on, and where onnxruntime does worse with the operator."""
    op, loop = found.cell.op, found.loop
    if not _is_padded(found, patch.opset):
        note_empty_sequence(patch, op, loop)
    note_empty_batch(patch, op, found.layouts[0])
    if found.is_broadcast:
        patch.note(f"the operands are {BROADCASTS}, as in the first iteration of the loop")
    if found.masks is not None:
        lengths = found.masks.lengths
        if _is_rounded(lengths, loop):
            patch.note(
                f"`{lengths.limit.name}` is compared as a float: exact up to 2**24 iterations; "
                "--strict keeps the loop"
            )
        if lengths.is_difference:
            patch.note(
                f"a difference between positions and `{lengths.limit.name}` is compared with zero: "
                "right unless it wraps around at the end of its type; --strict keeps the loop"
            )
    if op == "RNN" and found.cell.h.size >= _SLOW_RNN:
        patch.note(
            f"{ABOUT_ONNXRUNTIME}RNN may be slower than the loop for a batch of 8 or more; measure it with "
            "`looplift check`"
        )


BROADCASTS = "broadcast to one batch"
"""What a note says of operands of different batch sizes."""


def _is_rounded(lengths: RowLengths, loop: CountedLoop) -> bool:
    """Whether a comparison of time steps with lengths may round them."""
    is_exact = loop.count is not None and symbolic.le(loop.count, EXACT_IN_FLOAT) is True
    return lengths.is_rounded and not is_exact
