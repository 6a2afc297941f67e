"""Finds the cell of a counted loop.

The body is lifted: every value becomes an affine form over the slices that an iteration reads, the
carried values and the constants. The update of each state is matched against the equations of LSTM,
GRU and RNN, and a numeric probe confirms the match. What the rest of the loop reads of the cell must
be the hidden state, before or after the update, because the operator returns nothing else for each
time step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from ...rewrite import symbolic
from ...rewrite.engine.miss import Miss
from ...rewrite.facts.counted_loop import CountedLoop, SliceRead
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Node, Tensor, bodies
from ...rewrite.graph.views import CarriedValue
from ...rewrite.symbolic import Dim
from . import weights
from .cell_diagnostics import NO_STATE, UNKNOWN_UPDATE, explain
from .cell_matching import match_cell
from .cells import Cell, RecurrentState
from .length_masks import LengthMasks, is_masked_after_loop, length_masks
from .lifting import (
    RNN_FLOATS,
    Axis,
    BatchAxis,
    CellLayout,
    LiftedValue,
    Lifter,
    LoopInvariant,
    input_value,
    merge_sizes,
)
from .probe import backward_slice, probe

_NO_MASKS: Mapping[Tensor, LiftedValue] = MappingProxyType({})

CellInput = SliceRead | LoopInvariant
"""The origin of an input of a cell."""


@dataclass(frozen=True, eq=False)
class HiddenResult:
    """A value of the body that equals h and that the body needs without the cell, too."""

    value: Tensor
    layout: CellLayout
    keeps_state: bool
    """Whether it equals the carried state beyond the length of a row, where Y is zero."""
    is_before: bool = False
    """Whether it equals h before the update, not after it."""
    is_read_inside: bool = False
    """Whether the rest of the body reads it, or returns it as another carried value."""


@dataclass(frozen=True, eq=False)
class LoopCell:
    """A cell in a counted loop, with what surrounds it."""

    loop: CountedLoop
    cell: Cell
    states: list[CarriedValue]
    """h and, for an LSTM, c."""
    layouts: list[CellLayout]
    """The layouts of the states."""
    inputs: list[tuple[CellInput, CellLayout]]
    """The origins of `cell.inputs`, with the layout of what an iteration reads."""
    results: list[HiddenResult]
    masks: LengthMasks | None
    """The length masks, if rows have lengths of their own."""
    is_broadcast: bool
    """Whether operands whose batches may differ are broadcast to a common batch."""

    @property
    def is_reverse(self) -> bool:
        """Whether the lengths count from the last iteration, which has the first time step."""
        return self.masks is not None and self.masks.lengths.is_reverse


# --- the lifted body ---


class LiftedBody:
    """The lifted values of one iteration of a loop."""

    def __init__(
        self,
        facts: Facts,
        loop: CountedLoop,
        masks: Mapping[Tensor, LiftedValue] = _NO_MASKS,
        contexts: Collection[Tensor] = (),
        merged_sizes: Sequence[Dim] = (),
    ) -> None:
        """`masks` are values of the body that are taken for all true or all false, `contexts` outer
        values of static shape that are inputs, not weights. All `merged_sizes` count as one size.
        """
        self.facts = facts
        self.loop = loop
        self._contexts = contexts
        self._merged_sizes = merged_sizes
        self._inputs = {
            t: LiftedValue(v.form, _merge_batches(v.axes, merged_sizes)) for t, v in masks.items()
        }
        for state in loop.carried:
            self._add_input(state.input, ("state", id(state.input)), state)
        self._batch = {size for value in self._inputs.values() for size in value.batch_sizes}
        for read in loop.reads:
            name = ("read", id(read.sequence), read.axis, read.reverse)
            self._add_input(read.slice, name, read, self._batch)
        self._lifter = Lifter(facts, self._inputs, self._is_inside, self._outer, merged_sizes)

    def _is_inside(self, node: Node) -> bool:
        return self.facts.index.graph_of(node) is self.loop.body

    def _add_input(
        self,
        tensor: Tensor,
        name: object,
        origin: SliceRead | CarriedValue,
        batch: Collection[Dim] = (),
    ) -> None:
        shape = self.facts.shape(tensor)
        if shape is None or self.facts.dtype(tensor) not in RNN_FLOATS or tensor in self._inputs:
            return
        shape = merge_sizes(shape, self._merged_sizes)
        value = input_value(self.facts, tensor, shape, name, origin, batch)
        if not isinstance(value, Miss):
            self._inputs[tensor] = value

    def _outer(self, tensor: Tensor) -> LiftedValue | Miss:
        """A weight if the shape is static, otherwise an input that is loop-invariant."""
        if self.facts.index.home(tensor) is self.loop.body:
            return Miss("{} is not a slice or carried value of a float type", tensor)
        weight = self._lifter.weight_value(tensor)
        if weight is not None and tensor not in self._contexts:
            return weight
        shape = self.facts.shape(tensor)
        if shape is None or self.facts.dtype(tensor) not in RNN_FLOATS:
            return Miss("{} is computed outside the loop", tensor)
        name, origin = ("invariant", id(tensor)), LoopInvariant(tensor)
        shape = merge_sizes(shape, self._merged_sizes)
        return input_value(self.facts, tensor, shape, name, origin, self._batch)

    def possible_contexts(self) -> set[Tensor]:
        """The computed outer values that have an axis of the size of a static batch."""
        return {
            tensor
            for tensor in self.facts.index.captures(self.loop.node)
            if self.facts.constant(tensor) is None
            and self._batch.intersection((self.facts.shape(tensor) or ())[:-1])
        }

    def states(self) -> dict[Tensor, RecurrentState]:
        """The carried values whose updates have a form and the same axes, by their input."""
        found = ((state.input, self._state(state)) for state in self.loop.carried)
        return {tensor: state for tensor, state in found if state is not None}

    def _state(self, state: CarriedValue) -> RecurrentState | None:
        before, after = self._inputs.get(state.input), self.value(state.output)
        if before is None or after is None or after.axes != before.axes:
            return None
        (source,) = before.form.inputs()
        return RecurrentState(source, np.arange(source.width), after.form)

    def value(self, tensor: Tensor) -> LiftedValue | None:
        """The lifted value of a tensor of the body; None where it has no form."""
        return self._lifter.value_or_none(tensor)

    def are_equal(self, tensor: Tensor, other: Tensor) -> bool:
        """Whether two values of the body are known to be equal."""
        value, expected = self.value(tensor), self.value(other)
        return value is not None and expected is not None and value.equals(expected)

    def layout(self, tensor: Tensor) -> CellLayout:
        """The layout of a value with a form. Raises Miss for several batch axes."""
        value = self.value(tensor)
        layout = None if value is None else value.layout()
        if layout is None:
            raise Miss("{} has several batch axes", tensor)
        return layout


def _merge_batches(axes: tuple[Axis, ...], merged_sizes: Sequence[Dim]) -> tuple[Axis, ...]:
    return tuple(
        BatchAxis(merged_sizes[0]) if isinstance(a, BatchAxis) and a.size in merged_sizes else a
        for a in axes
    )


# --- the ways to lift a body ---


@dataclass(frozen=True, eq=False)
class _Interpretation:
    """A lifted body: as it is, or within and beyond the lengths of masks."""

    body: LiftedBody
    beyond: LiftedBody | None = None
    """The body where the masks have their values beyond the length of a row."""
    masks: LengthMasks | None = None
    merged_sizes: Sequence[Dim] = ()
    """Open batch sizes that count as one, because the operands are broadcast to one batch."""


def find_loop_cell(facts: Facts, loop: CountedLoop) -> LoopCell:
    """The first cell of a loop. Raises Miss with the most specific reason if there is none."""
    first: Miss | None = None
    for interpretation in _interpretations(facts, loop):
        try:
            return _first_cell(interpretation)
        except Miss as reason:
            first = first or explain(facts, loop, reason)
    raise first or Miss(NO_STATE)


def _interpretations(facts: Facts, loop: CountedLoop) -> Iterator[_Interpretation]:
    all_masks = length_masks(facts, loop)
    for masks in all_masks:
        yield _within(facts, loop, masks)
    body = LiftedBody(facts, loop)
    yield _Interpretation(body)
    contexts = body.possible_contexts()
    if contexts:
        yield _Interpretation(LiftedBody(facts, loop, contexts=contexts))
    sizes = _open_batch_sizes(facts, loop, [t for masks in all_masks for t in masks.within])
    if len(sizes) > 1:
        yield from (_within(facts, loop, masks, sizes) for masks in all_masks)
        yield _Interpretation(LiftedBody(facts, loop, merged_sizes=sizes), merged_sizes=sizes)


def _within(
    facts: Facts, loop: CountedLoop, masks: LengthMasks, merged_sizes: Sequence[Dim] = ()
) -> _Interpretation:
    within, beyond = (
        LiftedBody(facts, loop, masks.lifted(facts, side), merged_sizes=merged_sizes)
        for side in (True, False)
    )
    return _Interpretation(within, beyond, masks, merged_sizes)


def _first_cell(interpretation: _Interpretation) -> LoopCell:
    """The cell of the first state that has one. Raises Miss if none has."""
    reasons: list[Miss] = []
    states = interpretation.body.states()
    for state in states.values():
        try:
            return _loop_cell(interpretation, state, states)
        except Miss as reason:
            reasons.append(reason)
    reasons = reasons or [Miss(NO_STATE)]
    raise next((r for r in reasons if r.sentence != UNKNOWN_UPDATE), reasons[0])


# --- the cell and what surrounds it ---


def _loop_cell(
    interpretation: _Interpretation, h: RecurrentState, others: Mapping[Tensor, RecurrentState]
) -> LoopCell:
    """The cell with the hidden state h. Raises Miss if there is none."""
    body, masks = interpretation.body, interpretation.masks
    cell = match_cell(h, [state for state in others.values() if state is not h])
    states = [_carried(state) for state in (cell.h, cell.c) if state is not None]
    _check_kept_beyond(interpretation, states)
    layouts = [body.layout(s.input) for s in states]
    for state, layout in zip(states, layouts):
        if len(layout.features) != 1:
            raise Miss("the features of {} have {} axes", state.input, len(layout.features))
    inputs = [(origin, body.layout(inner_value(origin))) for origin in _origins(cell)]
    if not inputs:
        raise Miss("the cell reads no sequence")
    for origin, layout in inputs:
        _check_same_batch(origin, layout, states[0], layouts[0])
    if interpretation.merged_sizes:
        operands = [*(inner_value(origin) for origin, _ in inputs), *(s.input for s in states)]
        operands += [] if masks is None else masks.within
        after = [s.output for s in states]
        _check_sizes_of_operands(body.facts, interpretation.merged_sizes, operands, after)
    results = _hidden_results(interpretation, cell, states)
    if not results and not any(is_final_read(body.facts, s) for s in states):
        raise Miss("nothing reads its results")
    probe(
        body.facts,
        cell,
        [(inner_value(origin), layout) for origin, layout in inputs],
        [(state.input, layout) for state, layout in zip(states, layouts)],
        [state.output for state in states],
        {} if masks is None else masks.within,
    )
    is_broadcast = bool(interpretation.merged_sizes)
    return LoopCell(body.loop, cell, states, layouts, inputs, results, masks, is_broadcast)


def _carried(state: RecurrentState) -> CarriedValue:
    origin = state.source.origin
    assert isinstance(origin, CarriedValue), "the states of a lifted body are carried values"
    return origin


def _origins(cell: Cell) -> list[CellInput]:
    return [s.origin for s in cell.inputs if isinstance(s.origin, (SliceRead, LoopInvariant))]


def inner_value(origin: CellInput) -> Tensor:
    """The value that the body reads."""
    return origin.slice if isinstance(origin, SliceRead) else origin.value


def is_final_read(facts: Facts, state: CarriedValue) -> bool:
    """Whether anything reads the final value of a carried value."""
    return state.final is not None and facts.index.use_count(state.final) > 0


def _check_kept_beyond(interpretation: _Interpretation, states: Sequence[CarriedValue]) -> None:
    """Raises Miss for a state that a row changes beyond its length."""
    beyond, masks = interpretation.beyond, interpretation.masks
    if beyond is None or masks is None:
        return
    for state in states:
        if not beyond.are_equal(state.output, state.input):
            raise Miss(
                "the state {} changes beyond the length {}", state.input, masks.lengths.limit
            )


def _check_same_batch(
    origin: CellInput, layout: CellLayout, state: CarriedValue, of_state: CellLayout
) -> None:
    """Raises Miss where an input and the state may have different batches."""
    if symbolic.eq(layout.size, of_state.size) is not True:
        raise Miss(
            "{} has a batch of size {}, but the state {} one of size {}: they may differ",
            origin.sequence if isinstance(origin, SliceRead) else origin.value,
            layout.size,
            state.input,
            of_state.size,
        )


# --- what the rest of the loop reads ---


def _hidden_results(
    interpretation: _Interpretation, cell: Cell, states: Sequence[CarriedValue]
) -> list[HiddenResult]:
    """The values that equal h, before or after the update, and that the rest of the body reads.

    Raises Miss where the rest reads c, which the operator does not return for each time step.
    """
    body, index = interpretation.body, interpretation.body.facts.index
    found: dict[Tensor, HiddenResult] = {}
    inputs = {s.input for s in states}
    waiting = list(_remaining_outputs(body.loop, states))
    seen: set[Tensor] = set()
    read_inside = {s.output for s in body.loop.carried if s not in states}
    while waiting:
        tensor = waiting.pop()
        if tensor in seen or not tensor.name:
            continue
        seen.add(tensor)
        if tensor in inputs:
            found[tensor] = _state_before(interpretation, cell, states, tensor)
            continue
        node = index.producer(tensor)
        if node is None or not index.encloses(body.loop.body, index.graph_of(node)):
            continue
        result = _as_hidden_result(interpretation, cell, states[0], tensor)
        if result is not None:
            found[tensor] = result
        else:
            captures = index.captures(node) if bodies(node) else ()
            read_inside.update((*node.inputs, *captures))
            waiting += [*node.inputs, *captures]
    results = [replace(r, is_read_inside=r.value in read_inside) for r in found.values()]
    for result in results:
        _check_beyond(interpretation, result)
    return results


def _remaining_outputs(loop: CountedLoop, states: Sequence[CarriedValue]) -> Iterator[Tensor]:
    """The outputs of the body that stay when the loop no longer carries the states."""
    dropped = {s.output for s in states}
    carried = {s.output for s in loop.carried if s not in states}
    scanned = {output.slice for output in loop.scan_outputs}
    for tensor in loop.body.outputs:
        if tensor not in dropped or tensor in scanned or tensor in carried:
            yield tensor


def _as_hidden_result(
    interpretation: _Interpretation, cell: Cell, h: CarriedValue, tensor: Tensor
) -> HiddenResult | None:
    """A value that equals the new h, feature by feature; None for any other."""
    value = interpretation.body.value(tensor)
    if value is None or value.form.key != cell.h.update.key:
        return None
    layout = interpretation.body.layout(tensor)
    beyond = interpretation.beyond
    keeps_state = beyond is not None and beyond.are_equal(tensor, h.input)
    return HiddenResult(tensor, layout, keeps_state)


def _state_before(
    interpretation: _Interpretation, cell: Cell, states: Sequence[CarriedValue], tensor: Tensor
) -> HiddenResult:
    """The state h before the update. Raises Miss for c, and for a batch that may grow."""
    text = "{} is read by more than the cell in each iteration: "
    if tensor is not states[0].input:
        raise Miss(text + "an {} returns that state for the last time step only", tensor, cell.op)
    if interpretation.merged_sizes:
        raise Miss(text + "its batch may be larger from the second iteration on", tensor)
    layout, keeps_state = interpretation.body.layout(tensor), interpretation.beyond is not None
    return HiddenResult(tensor, layout, keeps_state, is_before=True)


def _check_beyond(interpretation: _Interpretation, result: HiddenResult) -> None:
    """Raises Miss for a result that is read beyond the length, where it is not zero or the state."""
    beyond, masks = interpretation.beyond, interpretation.masks
    if beyond is None or masks is None or result.keeps_state:
        return
    value = beyond.value(result.value)
    if value is not None and not value.form.terms and weights.is_zero(value.form.bias):
        return
    facts, loop = beyond.facts, beyond.loop
    if result.is_read_inside or not is_masked_after_loop(
        facts, loop, masks.lengths, result.value, result.layout
    ):
        text = "{} is read beyond the length of a row, where it is neither zero nor the state"
        raise Miss(text, result.value)


# --- operands whose batches have different sizes ---
#
# A learned initial state may have one row for all, and lengths a batch size of their own. Every
# operator of a cell broadcasts, row by row. So from the first iteration on all states have the rows
# of all operands broadcast together, and the iterations compute what they would if every operand
# had been broadcast before the loop.


def _open_batch_sizes(facts: Facts, loop: CountedLoop, masks: Iterable[Tensor]) -> list[Dim]:
    """The open sizes of states, slices and masks that have a single one each."""
    found: dict[Dim, None] = {}
    values = [s.input for s in loop.carried] + [r.slice for r in loop.reads]
    for tensor in (*(t for t in values if facts.dtype(t) in RNN_FLOATS), *masks):
        sizes = list(_open_sizes(facts, tensor))
        if len(sizes) == 1:
            found[sizes[0]] = None
    return list(found)


def _open_sizes(facts: Facts, tensor: Tensor) -> Iterator[Dim]:
    return (n for n in facts.shape(tensor) or () if not isinstance(n, int))


def _check_sizes_of_operands(
    facts: Facts, merged_sizes: Sequence[Dim], operands: Sequence[Tensor], after: Sequence[Tensor]
) -> None:
    """Raises Miss where the states `after` an iteration depend on a batch of no operand."""
    known = {n for tensor in operands for n in _open_sizes(facts, tensor)}
    nodes, outer = backward_slice(facts, after, set(operands))
    for tensor in (*outer, *(t for node in nodes for t in node.outputs)):
        for size in _open_sizes(facts, tensor):
            if size in merged_sizes and size not in known:
                raise Miss(
                    "{} has a batch of size {}, which no operand of the cell has", tensor, size
                )
