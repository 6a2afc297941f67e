"""Loops around a cell become the operator of the cell.

   ys, h, c = Loop(n, , h0, c0) { x_t = Gather(x, i)  gates = x_t·W + h·R + b … }
-> Y, h, c = LSTM(x, W, R, B, , h0, c0)    ys = Squeeze(Y)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...rewrite import symbolic
from ...rewrite.facts import Facts
from ...rewrite.ir import Node, Tensor, Variable, bodies
from ...rewrite.patch import Patch
from ...rewrite.rule import Match, Miss, Rule
from ...rewrite.steps import Read, Steps
from ...rewrite.views import State
from ..loop_states import without_states
from ..step_parallel import counted
from ..step_edit import read_instead
from ..step_emit import Emit, all_slices, surely_runs
from ..step_map import placed
from .body import NO_UPDATE, Body, Layout, find_cell
from .cells import Cell, NoCell, Part
from .emission import emit_operator, nothing
from .probe import Disproved, probe
from .shapes import from_operator, is_zero, to_operator

_HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'


_SLOW_RNN = 128
"""The hidden size from which on onnxruntime's RNN was slower than the loop at batch 8."""


@dataclass(frozen=True, eq=False)
class Recurrence:
    """A cell in a loop, with what surrounds it."""

    cell: Cell
    states: list[State]
    """h and, for an LSTM, c."""
    layouts: list[Layout]
    """Of the states."""
    reads: list[tuple[Read, Layout]]
    """What the cell's inputs stand for, in the order of `cell.inputs`."""
    results: list[tuple[Tensor, Layout]]
    """The values of the body that are the new h and are read other than by the cell."""


class FuseRecurrence(Rule):
    """A loop around an LSTM, GRU or RNN cell becomes that operator."""

    root = ("Loop", "Scan")
    fires = (
        _HEADER
        + """g (float[T,B,2] x, float[B,3] h0) => (float[T,B,3] y)
      <float[2,3] w = {0.1, 0.2, 0.3, -0.1, -0.2, -0.3}, float[3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
      h, y = Scan <num_scan_inputs=1, body = b (float[B,3] s, float[B,2] xt) => (float[B,3] so, float[B,3] row) {
        p = MatMul(xt, w) q = MatMul(s, r) a = Add(q, p) so = Tanh(a) row = Identity(so) }> (h0, x) }"""
    )
    spares = {
        "Sin": _HEADER
        + """g (float[T,B,2] x, float[B,3] h0) => (float[T,B,3] y)
      <float[2,3] w = {0.1, 0.2, 0.3, -0.1, -0.2, -0.3}, float[3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
      h, y = Scan <num_scan_inputs=1, body = b (float[B,3] s, float[B,2] xt) => (float[B,3] so, float[B,3] row) {
        p = MatMul(xt, w) q = MatMul(s, r) a = Add(q, p) so = Sin(a) row = Identity(so) }> (h0, x) }""",
        "no LSTM, GRU or RNN": _HEADER
        + """g (float[T,B,3] x, float[B,3] h0) => (float[T,B,3] y) {
      h, y = Scan <num_scan_inputs=1, body = b (float[B,3] s, float[B,3] xt) => (float[B,3] so, float[B,3] row) {
        so = Add(s, xt) row = Identity(so) }> (h0, x) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        steps = counted(m)
        m.need(bool(steps.states), "it carries no state")
        body = Body(m.facts, steps)
        parts = body.parts()
        reasons: list[NoCell] = []
        for state in steps.states:
            if state.input not in parts:
                continue
            try:
                found = _recurrence(body, parts[state.input], parts)
            except NoCell as reason:
                reasons.append(reason)
            else:
                return {"steps": steps, "facts": m.facts, "found": found}
        reasons = reasons or [NoCell("no state keeps its shape and is of a float type")]
        telling = next((r for r in reasons if r.sentence != NO_UPDATE), reasons[0])
        raise Miss(telling.sentence, telling.given, m.node)

    def apply(self, patch: Patch, steps: Steps, facts: Facts, found: Recurrence) -> None:
        emit = Emit(patch, found.states[0].output)
        outputs = _operator(emit, facts, steps, found)
        _results(emit, patch, facts, steps, found, outputs[0])
        _finals(emit, patch, facts, steps, found, outputs[1:])
        for state in found.states:
            patch.replace(state.input, state.initial)
        gone = [k for k, s in enumerate(steps.states) if s in found.states]
        without_states(patch, steps.node, gone)
        if patch.index.is_unused(steps.node):
            patch.remove(steps.node)
        _tell(patch, facts, steps, found)


def _recurrence(body: Body, h: Part, parts: dict[Tensor, Part]) -> Recurrence:
    """Raises NoCell with what is in the way."""
    cell = find_cell(h, [part for part in parts.values() if part is not h])
    states = [_origin_state(p) for p in (cell.h, cell.c) if p is not None]
    layouts = [_layout(body, s.input) for s in states]
    reads = [(read, _layout(body, read.slice)) for read in _reads(cell)]
    if not reads:
        raise NoCell("it reads no sequence")
    for read, layout in reads:
        if symbolic.eq(layout.size, layouts[0].size) is not True:
            raise NoCell(
                "the batch of {}, {}, and that of the state {}, {}, may differ",
                read.sequence,
                layout.size,
                states[0].input,
                layouts[0].size,
            )
    results = _uses_of_output(body, cell, states)
    if not results and not any(_is_read(body.facts, s) for s in states):
        raise NoCell("nothing of it is read")
    try:
        probe(
            body.facts,
            cell,
            [r.slice for r, _ in reads],
            [s.input for s in states],
            [s.output for s in states],
        )
    except Disproved as reason:
        raise NoCell("{}", reason) from None
    return Recurrence(cell, states, layouts, reads, results)


def _is_read(facts: Facts, state: State) -> bool:
    return state.final is not None and facts.index.use_count(state.final) > 0


def _origin_state(part: Part) -> State:
    origin = part.source.origin
    assert isinstance(origin, State), "parts are made of states"
    return origin


def _reads(cell: Cell) -> list[Read]:
    return [s.origin for s in cell.inputs if isinstance(s.origin, Read)]


def _layout(body: Body, tensor: Tensor) -> Layout:
    layout = body.layout(tensor)
    if layout is None:
        raise NoCell("{} has several batch axes or several feature axes", tensor)
    return layout


def _uses_of_output(body: Body, cell: Cell, states: Sequence[State]) -> list[tuple[Tensor, Layout]]:
    """The values that are the new h and that the rest of the body needs.

    Raises NoCell where the rest needs the states themselves: the operator returns h only.
    """
    found: dict[Tensor, Layout] = {}
    before = {s.input: s for s in states}
    waiting = list(_roots(body.steps, states))
    seen: set[Tensor] = set()
    while waiting:
        tensor = waiting.pop()
        if tensor in seen or not tensor.name:
            continue
        seen.add(tensor)
        if tensor in before:
            raise NoCell("{} is read by more than the cell, step by step", tensor)
        node = body.facts.index.producer(tensor)
        if node is None or not body.facts.index.encloses(body.steps.body, _home(body, node)):
            continue
        layout = _as_output(body, cell, tensor)
        if layout is not None:
            found[tensor] = layout
        else:
            waiting += [*node.inputs, *(body.facts.index.captures(node) if bodies(node) else ())]
    return list(found.items())


def _home(body: Body, node: Node) -> Any:
    return body.facts.index.graph_of(node)


def _roots(steps: Steps, states: Sequence[State]) -> Iterator[Tensor]:
    gone = {s.output for s in states}
    finals = {s.output for s in steps.states if s not in states}
    rows = {row.row for row in steps.rows}
    for tensor in steps.body.outputs:
        if tensor not in gone or tensor in rows or tensor in finals:
            yield tensor


def _as_output(body: Body, cell: Cell, tensor: Tensor) -> Layout | None:
    """The layout of a value that is the new h, feature by feature."""
    value = body.value(tensor)
    if value is None or value.form.key != cell.h.update.key:
        return None
    return body.layout(tensor)


# --- into the graph ---


def _operator(emit: Emit, facts: Facts, steps: Steps, found: Recurrence) -> list[Tensor]:
    """Y, Y_h and Y_c over all iterations in their order."""
    slices = [
        to_operator(emit, all_slices(emit, facts, steps, read), layout, 1)
        for read, layout in found.reads
    ]
    x = slices[0] if len(slices) == 1 else emit("Concat", *slices, axis=2)
    initial = [
        None
        if is_zero(facts, state.initial)
        else to_operator(emit, state.initial, layout, 0, direction=True)
        for state, layout in zip(found.states, found.layouts)
    ]
    names = [found.states[0].output if found.results else nothing()]
    names += [
        Variable(s.final.name) if s.final is not None and _is_read(facts, s) else nothing()
        for s in found.states
    ]
    return emit_operator(emit, found.cell, x, initial, names)


def _results(
    emit: Emit, patch: Patch, facts: Facts, steps: Steps, found: Recurrence, sequence: Tensor
) -> None:
    """Lets the rest of the body, and who reads the rows, read what the operator computed."""
    read: list[tuple[Tensor, Tensor]] = []
    for tensor, layout in found.results:
        stacked = from_operator(emit, sequence, layout, 1)
        for row in steps.rows:
            if row.row is tensor and row.stacked is not None:
                patch.replace(row.stacked, placed(emit, stacked, row, layout.rank))
        if any(use.reader is not steps.body for use in patch.index.uses(tensor)):
            read.append((tensor, stacked))
    read_instead(patch, steps, read)


def _finals(
    emit: Emit, patch: Patch, facts: Facts, steps: Steps, found: Recurrence, last: Sequence[Tensor]
) -> None:
    """The states after the last iteration: the initial ones if there is none.

    What the operators return for an empty sequence is not specified; onnxruntime returns what
    happens to be in memory.
    """
    empty: Tensor | None = None
    for state, layout, final in zip(found.states, found.layouts, last):
        if state.final is None or not final.name:
            continue
        value = from_operator(emit, final, layout, 0)
        if not surely_runs(facts, steps):
            assert steps.trip is not None, "a Scan surely runs"
            if empty is None:
                empty = emit("Less", steps.trip, emit.number(1))
            value = emit("Where", empty, state.initial, value)
        patch.replace(state.final, value)


def _tell(patch: Patch, facts: Facts, steps: Steps, found: Recurrence) -> None:
    """Where onnxruntime does worse with the operator than with the loop."""
    op = found.cell.op
    if op == "GRU" and not surely_runs(facts, steps):
        patch.note("an empty sequence ends onnxruntime's process in GRU; the loop left it out")
    if op != "RNN" and not symbolic.positive(found.layouts[0].size):
        patch.note(f"an empty batch ends onnxruntime's process in {op}")
    if op == "RNN" and found.cell.h.hidden >= _SLOW_RNN:
        patch.note("onnxruntime's RNN may be slower than the loop for a batch of 8 or more")
