"""Carried values that collect one row per iteration: sequences, written buffers, growing tensors.

The rows of one loop have the shape of the slices that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .positions import PLAIN, Axis, Walk, as_vector, position
from .scope import BY_RANK, Kind, Scope, Value


@dataclass(frozen=True)
class Accumulator:
    """A carried value of a loop under construction, and the reads of its final value."""

    initial: Value
    input: Value
    update: Callable[[Scope, Value, Value], Value]
    """Adds the collection of a row to the body: (body, row, iteration number) to the next value."""
    results: Callable[[Scope, Value], list[Value]]
    """Adds the reads of the final value."""


@dataclass(frozen=True)
class Rows:
    """The shape of the rows of a loop, as one vector per axis."""

    rank: int
    sizes: tuple[Value, ...]

    @property
    def kind(self) -> Kind:
        return BY_RANK[self.rank]

    @property
    def stacked(self) -> Kind:
        return BY_RANK[self.rank + 1]


def rows_of(scope: Scope, axis: Axis) -> Rows:
    """Of the shape of a slice."""
    shape = scope.add("Shape", [axis.tensor], Kind.INTS)
    others = [k for k in range(axis.rank) if k != axis.number]
    sizes = [
        scope.add("Gather", [shape, scope.constant([k], Kind.INTS)], Kind.INTS) for k in others
    ]
    return Rows(axis.rank - 1, tuple(sizes))


def filled(scope: Scope, sizes: Sequence[Value], number: float) -> Value:
    """A tensor of one number."""
    kind = BY_RANK[len(sizes)]
    if not sizes:
        return scope.constant(number, kind)
    shape = scope.add("Concat", list(sizes), Kind.INTS, axis=0) if len(sizes) > 1 else sizes[0]
    if scope.chance(0.5):
        return scope.add("Expand", [scope.constant(number, Kind.SCALAR), shape], kind)
    zeros = scope.add("ConstantOfShape", [shape], kind)
    return zeros if not number else scope.add("Add", [zeros, _of(scope, number)], kind)


def _of(scope: Scope, number: float) -> Value:
    return scope.constant(number, Kind.SCALAR)


# --- sequences -----------------------------------------------------------------------------------


def listed(outer: Scope, body: Scope, axis: Axis, rows: Rows) -> Accumulator:
    """A sequence into which each iteration inserts a row, at its end or start."""
    first = [
        filled(outer, rows.sizes, 1.5 + k) for k in range(outer.random.choice([0, 0, 0, 1, 2]))
    ]
    inside = body.declare(Kind.ROWS, readable=False)
    in_front = outer.chance(0.3)

    def update(b: Scope, row: Value, iteration: Value) -> Value:
        where = b.integer(0) if in_front else None
        return b.add("SequenceInsert", [inside, row, where], Kind.ROWS)

    return Accumulator(
        _sequence(outer, first), inside, update, lambda s, final: _read_sequence(s, final, rows)
    )


def _sequence(scope: Scope, parts: list[Value]) -> Value:
    if parts and scope.chance(0.5):
        return scope.add("SequenceConstruct", list(parts), Kind.ROWS)
    sequence = scope.add("SequenceEmpty", [], Kind.ROWS)
    for part in parts:
        sequence = scope.add("SequenceInsert", [sequence, part], Kind.ROWS)
    return sequence


def _read_sequence(scope: Scope, sequence: Value, rows: Rows) -> list[Value]:
    ways = scope.random.sample(range(4), scope.random.choice([1, 1, 2]))
    return [_READS[way](scope, sequence, rows) for way in ways]


def _stacked(scope: Scope, sequence: Value, rows: Rows) -> Value:
    axis = scope.random.randrange(-rows.rank - 1, rows.rank + 1)
    return scope.add("ConcatFromSequence", [sequence], rows.stacked, axis=axis, new_axis=1)


def _joined(scope: Scope, sequence: Value, rows: Rows) -> Value:
    if rows.rank == 0:
        return _stacked(scope, sequence, rows)
    axis = scope.random.randrange(-rows.rank, rows.rank)
    return scope.add("ConcatFromSequence", [sequence], rows.kind, axis=axis, new_axis=0)


def _counted(scope: Scope, sequence: Value, rows: Rows) -> Value:
    return scope.add("SequenceLength", [sequence], Kind.INT)


def _element(scope: Scope, sequence: Value, rows: Rows) -> Value:
    return scope.add("SequenceAt", [sequence, _end(scope)], rows.kind)


def _end(scope: Scope) -> Value:
    return scope.integer(scope.random.choice([0, -1, 1]))


_READS = (_stacked, _joined, _counted, _element)


# --- buffers -------------------------------------------------------------------------------------


def written(outer: Scope, body: Scope, axis: Axis, rows: Rows) -> Accumulator:
    """A buffer with a slice for each iteration, or with more slices, along any axis."""
    along = outer.random.randrange(rows.rank + 1)
    length = outer.unsqueeze(axis.size, 0, Kind.INTS)
    if outer.chance(0.25):
        length = outer.add("Add", [length, outer.constant([2], Kind.INTS)], Kind.INTS)
    sizes = [*rows.sizes[:along], length, *rows.sizes[along:]]
    initial = filled(outer, sizes, outer.random.choice([0.0, 0.5]))
    inside = body.declare(rows.stacked, readable=False)
    walk = outer.random.choice([PLAIN, PLAIN, PLAIN, Walk(-1, -1), Walk(1, 1), Walk(0, 2)])
    target = Axis(inside, rows.rank + 1, along, axis.size)
    write = outer.random.choice([_scattered, _scattered, _scattered_elements, _spliced])

    def update(b: Scope, row: Value, iteration: Value) -> Value:
        return write(b, target, rows, row, position(b, axis, iteration, walk))

    return Accumulator(initial, inside, update, lambda s, final: [_passed(s, final)])


def _passed(scope: Scope, final: Value) -> Value:
    return final if scope.chance(0.6) else scope.add("Neg", [final], final.kind)


def _scattered(body: Scope, buffer: Axis, rows: Rows, row: Value, place: Value) -> Value:
    """ScatterND at a grid of index tuples over the axes before the buffer's axis."""
    if buffer.number == 0:
        ones = body.constant([1, 1], Kind.INTS)
        places = body.add("Reshape", [place, ones], Kind.INTS)
        new = body.unsqueeze(row, 0, rows.stacked)
        return body.add("ScatterND", [buffer.tensor, places, new], rows.stacked)
    front = rows.sizes[: buffer.number]
    one = body.constant([1], Kind.INTS)
    grid = body.add("Concat", [*front, one], Kind.INTS, axis=0)
    columns: list[Value | None] = [
        _counting(body, size, k, len(front), grid) for k, size in enumerate(front)
    ]
    columns.append(body.add("Expand", [place, grid], Kind.INTS))
    places = body.add("Concat", columns, Kind.INTS, axis=-1)
    return body.add("ScatterND", [buffer.tensor, places, row], rows.stacked)


def _counting(body: Scope, size: Value, axis: int, rank: int, grid: Value) -> Value:
    """0, 1, … along one axis of a grid of index tuples."""
    end = body.squeeze(size, 0, Kind.INT)
    numbers = body.add("Range", [body.integer(0), end, body.integer(1)], Kind.INTS)
    shape = np.ones(rank + 1)
    shape[axis] = -1
    column = body.add("Reshape", [numbers, body.constant(shape, Kind.INTS)], Kind.INTS)
    return body.add("Expand", [column, grid], Kind.INTS)


def _scattered_elements(body: Scope, buffer: Axis, rows: Rows, row: Value, place: Value) -> Value:
    new = body.unsqueeze(row, buffer.number, rows.stacked)
    shape = body.add("Shape", [new], Kind.INTS)
    ones = body.constant(np.ones(rows.rank + 1), Kind.INTS)
    start = body.add("Reshape", [place, ones], Kind.INTS)
    places = body.add("Expand", [start, shape], Kind.INTS)
    axis = buffer.number - (rows.rank + 1) * body.chance(0.2)
    return body.add("ScatterElements", [buffer.tensor, places, new], rows.stacked, axis=axis)


def _spliced(body: Scope, buffer: Axis, rows: Rows, row: Value, place: Value) -> Value:
    """The concatenation of what precedes the position, the row, and what follows it."""
    start = as_vector(body, place)
    behind = body.add("Add", [start, body.constant([1], Kind.INTS)], Kind.INTS)
    along = body.constant([buffer.number], Kind.INTS)
    zero, end = body.constant([0], Kind.INTS), body.constant([2**62], Kind.INTS)
    new = body.unsqueeze(row, buffer.number, rows.stacked)
    parts = [
        body.add("Slice", [buffer.tensor, zero, start, along], rows.stacked),
        new,
        body.add("Slice", [buffer.tensor, behind, end, along], rows.stacked),
    ]
    return body.add("Concat", list(parts), rows.stacked, axis=buffer.number)


# --- growing tensors -----------------------------------------------------------------------------


def grown(outer: Scope, body: Scope, axis: Axis, rows: Rows) -> Accumulator:
    """A tensor that grows along an axis in each iteration, at its end or start, by one or two rows."""
    if rows.rank > 0 and outer.chance(0.3):
        return _grown_by_rows(outer, body, rows)
    along = outer.random.randrange(rows.rank + 1)
    start = outer.constant([outer.random.choice([0, 0, 0, 1, 2])], Kind.INTS)
    initial = filled(outer, [*rows.sizes[:along], start, *rows.sizes[along:]], 0.25)
    inside = body.declare(rows.stacked, readable=False)
    copies, in_front = outer.random.choice([1, 1, 1, 2]), outer.chance(0.3)

    def update(b: Scope, row: Value, iteration: Value) -> Value:
        new = [b.unsqueeze(row, along, rows.stacked) for _ in range(copies)]
        parts = [*new, inside] if in_front else [inside, *new]
        return b.add("Concat", list(parts), rows.stacked, axis=along)

    return Accumulator(initial, inside, update, lambda s, final: [_passed(s, final)])


def _grown_by_rows(outer: Scope, body: Scope, rows: Rows) -> Accumulator:
    """A tensor that grows along an axis of the rows."""
    along = outer.random.randrange(rows.rank)
    sizes = list(rows.sizes)
    if outer.chance(0.7):
        sizes[along] = outer.constant([outer.random.choice([0, 1])], Kind.INTS)
    inside = body.declare(rows.kind, readable=False)
    in_front = outer.chance(0.3)

    def update(b: Scope, row: Value, iteration: Value) -> Value:
        parts: list[Value | None] = [row, inside] if in_front else [inside, row]
        return b.add("Concat", parts, rows.kind, axis=along - rows.rank * b.chance(0.3))

    return Accumulator(
        filled(outer, sizes, 0.25), inside, update, lambda s, final: [_passed(s, final)]
    )


ACCUMULATORS = (listed, listed, written, written, grown)
