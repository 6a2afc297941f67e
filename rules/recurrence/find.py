"""Looks for a cell in a counted loop, and for what of it the rest of the loop needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...rewrite import symbolic
from ...rewrite.facts.counted_loop import CountedLoop, SliceRead
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Node, Tensor, bodies
from ...rewrite.graph.views import CarriedValue
from ...rewrite.symbolic import Dim
from . import weights
from .body import Body, find_cell
from .cells import Cell, NoCell, Part
from .common_batch import check_covered, open_batches
from .layout import Layout
from .lengths import Mask, masks_of
from .lifting import Invariant
from .masked_rows import is_masked_behind
from .obstacles import NO_STATE, NO_UPDATE, explained
from .probe import Disproved, probe


@dataclass(frozen=True, eq=False)
class Result:
    """A value of the body that is the new h and is read other than by the cell."""

    value: Tensor
    layout: Layout
    held: bool
    """Whether it stays as it is beyond the length of a row, where Y is zero."""


@dataclass(frozen=True, eq=False)
class CellInLoop:
    """A cell in a loop, with what surrounds it."""

    cell: Cell
    states: list[CarriedValue]
    """h and, for an LSTM, c."""
    layouts: list[Layout]
    """Of the states."""
    reads: list[tuple[SliceRead | Invariant, Layout]]
    """What the cell's inputs stand for, in the order of `cell.inputs`."""
    results: list[Result]
    mask: Mask | None
    """Where rows have lengths of their own."""
    is_broadcast: bool
    """Whether batches that may differ are broadcast together."""


@dataclass(frozen=True, eq=False)
class Reading:
    """A way to read a body: as it is, or within and beyond the lengths of a mask."""

    body: Body
    beyond: Body | None = None
    mask: Mask | None = None
    same: Sequence[Dim] = ()
    """Open sizes of batches that count as one, broadcast together."""


def find_recurrence(facts: Facts, steps: CountedLoop) -> CellInLoop:
    """The first cell of a body. Raises NoCell with what is most telling of what is in the way."""
    first: NoCell | None = None
    for reading in _readings(facts, steps):
        try:
            return _first_cell(reading, steps)
        except NoCell as reason:
            first = first or explained(facts, steps, reason)
    assert first is not None, "a body is also read as it is"
    raise first


def _first_cell(reading: Reading, steps: CountedLoop) -> CellInLoop:
    """Raises NoCell where no state is that of a cell."""
    reasons: list[NoCell] = []
    parts = reading.body.parts()
    for state in steps.carried:
        if state.input not in parts:
            continue
        try:
            return _recurrence(reading, parts[state.input], parts)
        except NoCell as reason:
            reasons.append(reason)
    reasons = reasons or [NoCell(NO_STATE)]
    raise next((r for r in reasons if r.sentence != NO_UPDATE), reasons[0])


def _readings(facts: Facts, steps: CountedLoop) -> Iterator[Reading]:
    masks = masks_of(facts, steps)
    for mask in masks:
        yield _within(facts, steps, mask)
    body = Body(facts, steps)
    yield Reading(body)
    contexts = body.possible_contexts()
    if contexts:
        yield Reading(Body(facts, steps, contexts=contexts))
    same = open_batches(facts, steps, [t for mask in masks for t in mask.comparisons])
    if len(same) > 1:
        yield from (_within(facts, steps, mask, same) for mask in masks)
        yield Reading(Body(facts, steps, same=same), same=same)


def _within(facts: Facts, steps: CountedLoop, mask: Mask, same: Sequence[Dim] = ()) -> Reading:
    """Within and beyond the lengths of a mask."""
    within, beyond = (
        Body(facts, steps, mask.known(facts, side), same=same) for side in (True, False)
    )
    return Reading(within, beyond, mask, same)


def _recurrence(reading: Reading, h: Part, parts: Mapping[Tensor, Part]) -> CellInLoop:
    """Raises NoCell with what is in the way."""
    body = reading.body
    cell = find_cell(h, [part for part in parts.values() if part is not h])
    states = [_origin_state(p) for p in (cell.h, cell.c) if p is not None]
    _check_kept(reading, states)
    layouts = [_layout(body, s.input) for s in states]
    for state, layout in zip(states, layouts):
        if len(layout.features) != 1:
            raise NoCell("the features of the state {} have {} axes", state.input,
                         len(layout.features))  # fmt: skip
    reads = [(read, _layout(body, inside(read))) for read in _reads(cell)]
    if not reads:
        raise NoCell("it reads no sequence")
    for read, layout in reads:
        _check_batch(read, layout, states[0], layouts[0])
    operands = [*(inside(read) for read, _ in reads), *(s.input for s in states)]
    if reading.same:
        masks = [] if reading.mask is None else reading.mask.comparisons
        check_covered(body.facts, reading.same, [*operands, *masks], [s.output for s in states])
    results = _uses_of_output(reading, cell, states)
    if not results and not any(is_read(body.facts, s) for s in states):
        raise NoCell("nothing of it is read")
    _prove(reading, cell, reads, list(zip(states, layouts)))
    return CellInLoop(cell, states, layouts, reads, results, reading.mask, bool(reading.same))


def _check_kept(reading: Reading, states: Sequence[CarriedValue]) -> None:
    """Beyond its length a row must hand its states on."""
    if reading.beyond is None or reading.mask is None:
        return
    for state in states:
        if not _is_same(reading.beyond, state.output, state.input):
            raise NoCell(
                "the state {} changes beyond the length {}", state.input, reading.mask.length.limit
            )


def _is_same(body: Body, tensor: Tensor, other: Tensor) -> bool:
    """Whether two values of a body are surely equal."""
    value, expected = body.value(tensor), body.value(other)
    if value is None or expected is None:
        return False
    return value.form.key == expected.form.key and value.axes == expected.axes


def inside(read: SliceRead | Invariant) -> Tensor:
    """What the body has of it."""
    return read.slice if isinstance(read, SliceRead) else read.value


def _check_batch(
    read: SliceRead | Invariant, layout: Layout, state: CarriedValue, other: Layout
) -> None:
    if symbolic.eq(layout.size, other.size) is not True:
        raise NoCell(
            "the batch of {}, {}, and that of the state {}, {}, may differ",
            read.sequence if isinstance(read, SliceRead) else read.value,
            layout.size,
            state.input,
            other.size,
        )


def _prove(
    reading: Reading,
    cell: Cell,
    reads: Sequence[tuple[SliceRead | Invariant, Layout]],
    states: Sequence[tuple[CarriedValue, Layout]],
) -> None:
    """Raises NoCell where the operator differs from the body on random numbers."""
    inputs = [(inside(read), layout) for read, layout in reads]
    before = [(state.input, layout) for state, layout in states]
    after = [state.output for state, _ in states]
    known = {} if reading.mask is None else reading.mask.comparisons
    try:
        probe(reading.body.facts, cell, inputs, before, after, known)
    except Disproved as reason:
        raise NoCell("{}", reason) from None


def is_read(facts: Facts, state: CarriedValue) -> bool:
    """Whether anyone reads what a state is in the end."""
    return state.final is not None and facts.index.use_count(state.final) > 0


def _origin_state(part: Part) -> CarriedValue:
    origin = part.source.origin
    assert isinstance(origin, CarriedValue), "parts are made of states"
    return origin


def _reads(cell: Cell) -> list[SliceRead | Invariant]:
    return [s.origin for s in cell.inputs if isinstance(s.origin, (SliceRead, Invariant))]


def _layout(body: Body, tensor: Tensor) -> Layout:
    layout = body.layout(tensor)
    if layout is None:
        raise NoCell("{} has several batch axes", tensor)
    return layout


def _uses_of_output(reading: Reading, cell: Cell, states: Sequence[CarriedValue]) -> list[Result]:
    """The values that are the new h and that the rest of the body needs.

    Raises NoCell where the rest needs the states themselves: the operator returns h only.
    """
    body, index = reading.body, reading.body.facts.index
    found: dict[Tensor, Result] = {}
    before = {s.input: s for s in states}
    waiting = list(_roots(body.steps, states))
    seen: set[Tensor] = set()
    inside_too: set[Tensor] = set()
    while waiting:
        tensor = waiting.pop()
        if tensor in seen or not tensor.name:
            continue
        seen.add(tensor)
        if tensor in before:
            raise NoCell("{} is read by more than the cell, step by step", tensor)
        node = index.producer(tensor)
        if node is None or not index.encloses(body.steps.body, index.graph_of(node)):
            continue
        result = _as_result(reading, cell, states[0], tensor)
        if result is not None:
            found[tensor] = result
        else:
            read = [*node.inputs, *_captures(body.facts, node)]
            inside_too.update(read)
            waiting += read
    for result in found.values():
        _check_beyond(reading, result, only_rows=result.value not in inside_too)
    return list(found.values())


def _captures(facts: Facts, node: Node) -> Sequence[Tensor]:
    return list(facts.index.captures(node)) if bodies(node) else ()


def _roots(steps: CountedLoop, states: Sequence[CarriedValue]) -> Iterator[Tensor]:
    gone = {s.output for s in states}
    finals = {s.output for s in steps.carried if s not in states}
    rows = {row.slice for row in steps.scan_outputs}
    for tensor in steps.body.outputs:
        if tensor not in gone or tensor in rows or tensor in finals:
            yield tensor


def _as_result(reading: Reading, cell: Cell, h: CarriedValue, tensor: Tensor) -> Result | None:
    """A value that is the new h, feature by feature; None for any other."""
    value = reading.body.value(tensor)
    if value is None or value.form.key != cell.h.update.key:
        return None
    layout = _layout(reading.body, tensor)
    held = reading.beyond is not None and _is_same(reading.beyond, tensor, h.input)
    return Result(tensor, layout, held)


def _check_beyond(reading: Reading, result: Result, *, only_rows: bool) -> None:
    """Raises NoCell where a result is read beyond the length, but is neither zero nor the state."""
    if reading.beyond is None or reading.mask is None or result.held:
        return
    tensor, facts, steps = result.value, reading.body.facts, reading.body.steps
    there = reading.beyond.value(tensor)
    is_zero = there is not None and not there.form.terms and weights.is_zero(there.form.bias)
    length = reading.mask.length
    if is_zero or (only_rows and is_masked_behind(facts, steps, length, tensor, result.layout)):
        return
    raise NoCell("{} is read beyond the length, where it is neither zero nor the state", tensor)
