"""Loops around a cell become the operator of the cell.

   ys, h, c = Loop(n, , h0, c0) { x_t = Gather(x, i)  gates = x_t·W + h·R + b … }
-> Y, h, c = LSTM(x, W, R, B, , h0, c0)    ys = Squeeze(Y)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...rewrite import symbolic
from ...rewrite.engine.builder import TO_THE_END, Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop, SliceRead
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.splat import is_zero
from ...rewrite.graph.ir import Tensor, Variable
from ..vectorization.independent_work import counted
from .cells import NoCell
from .common_batch import CommonBatch, Rows
from .emission import emit_operator, nothing, tell_of_empty_batch
from .find import CellInLoop, find_recurrence, inside, is_read
from .layout import Layout
from .length_reads import EXACT_IN_FLOAT, Length
from .lengths import Lengths, row_limits
from .lifting import Invariant
from .shapes import from_operator, to_operator

_SLOW_RNN = 128
"""The hidden size from which on onnxruntime's RNN was slower than the loop at batch 8."""


class FuseRecurrence(Rule):
    """A loop around an LSTM, GRU or RNN cell becomes that operator."""

    root = ("Loop", "Scan")
    fires = """g (float[T,B,2] x, float[B,3] h0) => (float[T,B,3] y)
      <float[2,3] w = {0.1, 0.2, 0.3, -0.1, -0.2, -0.3}, float[3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
      h, y = Scan <num_scan_inputs=1, body = b (float[B,3] s, float[B,2] xt) => (float[B,3] so, float[B,3] row) {
        p = MatMul(xt, w) q = MatMul(s, r) a = Add(q, p) so = Tanh(a) row = Identity(so) }> (h0, x) }"""
    spares = {
        "Sin": """g (float[T,B,2] x, float[B,3] h0) => (float[T,B,3] y)
      <float[2,3] w = {0.1, 0.2, 0.3, -0.1, -0.2, -0.3}, float[3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
      h, y = Scan <num_scan_inputs=1, body = b (float[B,3] s, float[B,2] xt) => (float[B,3] so, float[B,3] row) {
        p = MatMul(xt, w) q = MatMul(s, r) a = Add(q, p) so = Sin(a) row = Identity(so) }> (h0, x) }""",
        "no LSTM, GRU or RNN": """g (float[T,B,3] x, float[B,3] h0) => (float[T,B,3] y) {
      h, y = Scan <num_scan_inputs=1, body = b (float[B,3] s, float[B,3] xt) => (float[B,3] so, float[B,3] row) {
        so = Add(s, xt) row = Identity(so) }> (h0, x) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        steps = counted(m)
        m.need(bool(steps.carried), "it carries no state")
        try:
            found = find_recurrence(m.facts, steps)
        except NoCell as reason:
            raise Miss(reason.sentence, *reason.given, at=m.node) from None
        return {"steps": steps, "facts": m.facts, "found": found}

    def apply(self, patch: Patch, steps: CountedLoop, facts: Facts, found: CellInLoop) -> None:
        emit = patch.builder(found.states[0].output)
        outputs = _operator(emit, facts, steps, found)
        _results(emit, patch, steps, found, outputs)
        _finals(emit, patch, facts, steps, found, outputs.states)
        for state in found.states:
            patch.replace(state.input, state.initial)
        gone = [k for k, s in enumerate(steps.carried) if s in found.states]
        patch.loop(steps.node).drop_carried(gone)
        if patch.index.is_unused(steps.node):
            patch.remove(steps.node)
        _tell(patch, steps, found)


# --- into the graph ---


@dataclass(frozen=True, eq=False)
class Outputs:
    """What the operator computed, with the time, then the direction, then the batch in front."""

    rows: Tensor
    """h after each iteration, zeros beyond the length; a name that is empty where nobody reads it."""
    held: Tensor | None
    """The same with the state beyond the length."""
    states: list[Tensor]
    """The states after the last iteration."""


def _operator(emit: Builder, facts: Facts, steps: CountedLoop, found: CellInLoop) -> Outputs:
    """The operator over all iterations in their order."""
    slices = [
        to_operator(emit, _over_time(emit, facts, steps, read), layout, 1)
        for read, layout in found.reads
    ]
    initial = [
        None
        if is_zero(facts, state.initial)
        else to_operator(emit, state.initial, layout, 0, direction=True)
        for state, layout in zip(found.states, found.layouts)
    ]
    mask = found.mask
    limits = None if mask is None else row_limits(emit, facts, steps, mask.length)
    if found.is_broadcast:
        slices, initial = _broadcast(emit, facts, found, slices, initial, limits)
    x = slices[0] if len(slices) == 1 else emit("Concat", *slices, axis=2)
    holds = any(result.held for result in found.results)
    names = [found.states[0].output if found.results else nothing()]
    for number, state in enumerate(found.states):
        read = is_read(facts, state) or (holds and number == 0)
        names.append(Variable((state.final or state.output).name) if read else nothing())
    if limits is None:
        rows, *finals = emit_operator(emit, found.cell, x, initial, names)
        return Outputs(rows, None, finals)
    lengths = Lengths(emit, steps, limits.value, x)
    rows, *finals = emit_operator(emit, found.cell, x, initial, names, lengths.operand)
    finals = [lengths.final(v, i) if v.name else v for v, i in zip(finals, initial)]
    return Outputs(rows, lengths.held(rows, finals[0]) if holds else None, finals)


def _broadcast(
    emit: Builder,
    facts: Facts,
    found: CellInLoop,
    slices: Sequence[Tensor],
    initial: Sequence[Tensor | None],
    limits: Rows | None,
) -> tuple[list[Tensor], list[Tensor | None]]:
    """The inputs and the states of the operator with the rows of all of them."""
    inputs = [
        Rows(value, 1, 3, _size(facts, inside(read), layout))
        for value, (read, layout) in zip(slices, found.reads)
    ]
    states = [
        _state_rows(value, state.initial, layout, _size(facts, state.initial, layout))
        for value, state, layout in zip(initial, found.states, found.layouts)
    ]
    common = CommonBatch(emit, [*inputs, *states, *([] if limits is None else [limits])])
    spread = [
        None if value is None else common.spread(rows) for value, rows in zip(initial, states)
    ]
    return [common.spread(rows) for rows in inputs], spread


def _state_rows(value: Tensor | None, initial: Tensor, layout: Layout, size: symbolic.Dim) -> Rows:
    """A first state as the operator takes it or, where it is left out, as the loop does."""
    if value is not None:
        return Rows(value, 1, 3, size)
    return Rows(initial, layout.batch or 0, layout.rank, size)


def _size(facts: Facts, tensor: Tensor, layout: Layout) -> symbolic.Dim:
    """The size of the batch of a value."""
    shape = facts.shape(tensor)
    assert shape is not None, "operands of cells have known ranks"
    return 1 if layout.batch is None else shape[layout.batch]


def _over_time(
    emit: Builder, facts: Facts, steps: CountedLoop, read: SliceRead | Invariant
) -> Tensor:
    """What the iterations read, stacked along axis 0."""
    if isinstance(read, SliceRead):
        return emit.all_slices(facts, steps, read)
    return emit.repeat(read.value, emit.trip_count(steps))


def _results(
    emit: Builder, patch: Patch, steps: CountedLoop, found: CellInLoop, outputs: Outputs
) -> None:
    """Lets the rest of the body, and who reads the rows, read what the operator computed."""
    read: list[tuple[Tensor, Tensor]] = []
    for result in found.results:
        sequence = outputs.held if result.held and outputs.held is not None else outputs.rows
        stacked = from_operator(emit, sequence, result.layout, 1)
        for row in steps.scan_outputs:
            if row.slice is result.value and row.stacked is not None:
                patch.replace(row.stacked, emit.scan_output(stacked, row, result.layout.rank))
        if any(use.reader is not steps.body for use in patch.index.uses(result.value)):
            read.append((result.value, stacked))
    patch.loop(steps.node).read_slices(steps.iteration, read)


def _finals(
    emit: Builder,
    patch: Patch,
    facts: Facts,
    steps: CountedLoop,
    found: CellInLoop,
    last: Sequence[Tensor],
) -> None:
    """The states after the last iteration: the initial ones if there is none.

    What the operators return for an empty sequence is not specified; onnxruntime returns what
    happens to be in memory.
    """
    empty: Tensor | None = None
    for state, layout, final in zip(found.states, found.layouts, last):
        if state.final is None or not is_read(facts, state):
            continue
        value = from_operator(emit, final, layout, 0)
        if not steps.runs_at_least_once:
            assert steps.trip is not None, "a Scan surely runs"
            if empty is None:
                empty = emit("Less", steps.trip, emit.scalar(1))
            value = _unless_empty(emit, empty, state.initial, value, layout, found.is_broadcast)
        patch.replace(state.final, value)


def _unless_empty(
    emit: Builder, empty: Tensor, initial: Tensor, value: Tensor, layout: Layout, differ: bool
) -> Tensor:
    """The value, or the initial state if there is no iteration; their batches may differ."""
    if not differ or layout.batch is None:
        return emit("Where", empty, initial, value)
    axis = layout.batch
    count = emit.shape(initial, axis, axis + 1)
    both = emit("Concat", initial, value, axis=axis)
    start = emit("Where", empty, emit.vector(0), count)
    end = emit("Where", empty, count, emit.vector(TO_THE_END))
    return emit("Slice", both, start, end, emit.vector(axis))


def _tell(patch: Patch, steps: CountedLoop, found: CellInLoop) -> None:
    """Where onnxruntime does worse with the operator than with the loop."""
    op = found.cell.op
    if op == "GRU" and not steps.runs_at_least_once:
        patch.note("an empty sequence ends onnxruntime's process in GRU; the loop left it out")
    tell_of_empty_batch(patch, op, found.layouts[0])
    if found.is_broadcast:
        patch.note("the rows of its operands are broadcast together, as the first iteration does")
    if found.mask is not None and _may_be_rounded(steps, found.mask.length):
        patch.note(
            f"`{found.mask.length.limit.name}` is compared as a float: exact up to 2**24 iterations"
        )
    if found.mask is not None and found.mask.length.counted is not None:
        patch.note(
            f"rows end where `{found.mask.length.limit.name}` ends along axis "
            f"{found.mask.length.counted}: asserted, not proven"
        )
    if op == "RNN" and found.cell.h.hidden >= _SLOW_RNN:
        patch.note("onnxruntime's RNN may be slower than the loop for a batch of 8 or more")


def _may_be_rounded(steps: CountedLoop, length: Length) -> bool:
    known = steps.count is not None and symbolic.le(steps.count, EXACT_IN_FLOAT) is True
    return length.rounded and not known
