"""Kinds of loop-carried values: the initial value and the update of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .operators import read_at
from .scope import Kind, Scope, Value


@dataclass(frozen=True)
class Carried:
    """A carried value of a loop under construction."""

    initial: Value
    input: Value
    update: Callable[[Scope], Value]
    """Adds the computation of the next value to the body."""
    is_read: bool = True
    """Whether the final value may be read."""


def working(outer: Scope, body: Scope) -> list[Carried]:
    """Combined with another value in each iteration."""
    kind = outer.random.choice([Kind.ROW, Kind.ROW, Kind.SCALAR, Kind.TABLE])
    inside = body.declare(kind)
    other_kind = Kind.ROW if kind is Kind.TABLE else kind
    op = outer.random.choice(["Add", "Add", "Mul", "Max", "Min", "Sub"])
    return [
        Carried(outer.pick(kind), inside, lambda b: b.add(op, [inside, b.pick(other_kind)], kind))
    ]


def free(outer: Scope, body: Scope) -> list[Carried]:
    """Any value at the end of the body: outer, constant, an input, another carried value."""
    kind = outer.random.choice([Kind.ROW, Kind.SCALAR, Kind.INT, Kind.BOOL, Kind.INT32])
    return [Carried(outer.pick(kind), body.declare(kind), lambda b: b.pick(kind))]


def invariant(outer: Scope, body: Scope) -> list[Carried]:
    """Unchanged: itself, a copy, or its initial value."""
    kind = outer.random.choice([Kind.ROW, Kind.TABLE, Kind.INT, Kind.SERIES])
    initial, inside = outer.pick(kind), body.declare(kind)
    way = outer.random.randrange(4)
    if way == 0:
        return [Carried(initial, inside, lambda b: inside)]
    source = initial if way == 1 else inside
    return [Carried(initial, inside, lambda b: b.add("Identity", [source], kind))]


def dead(outer: Scope, body: Scope) -> list[Carried]:
    """Read only by its own update."""
    kind = outer.random.choice([Kind.ROW, Kind.INT])
    inside = body.declare(kind, readable=False)
    return [
        Carried(
            outer.pick(kind),
            inside,
            lambda b: b.add("Add", [inside, b.pick(kind)], kind),
            is_read=False,
        )
    ]


def mutually_dead(outer: Scope, body: Scope) -> list[Carried]:
    """Two that are read only by each other's updates."""
    first, second = (body.declare(Kind.ROW, readable=False) for _ in range(2))
    return [
        Carried(
            outer.pick(Kind.ROW), first, lambda b: _hidden(b, "Neg", [second], Kind.ROW), False
        ),
        Carried(
            outer.pick(Kind.ROW),
            second,
            lambda b: _hidden(b, "Add", [first, second], Kind.ROW),
            False,
        ),
    ]


def _hidden(body: Scope, op: str, inputs: list[Value | None], kind: Kind) -> Value:
    value = body.add(op, inputs, kind)
    body.values.remove(value)
    return value


def duplicate(outer: Scope, body: Scope) -> list[Carried]:
    """Two with the same initial value and the same update, or a similar one."""
    initial, other = outer.pick(Kind.ROW), outer.pick(Kind.ROW)
    ops = ["Add", "Add"] if outer.chance(0.7) else ["Add", "Sub"]
    insides = [body.declare(Kind.ROW) for _ in ops]

    def make(op: str, inside: Value) -> Callable[[Scope], Value]:
        return lambda b: b.add(op, [inside, other], Kind.ROW)

    return [Carried(initial, i, make(op, i)) for op, i in zip(ops, insides)]


def swapped(outer: Scope, body: Scope) -> list[Carried]:
    """Two that are exchanged in each iteration."""
    kind = outer.random.choice([Kind.ROW, Kind.INT])
    first, second = body.declare(kind), body.declare(kind)
    return [
        Carried(outer.pick(kind), first, lambda b: second),
        Carried(outer.pick(kind), second, lambda b: first),
    ]


def delayed(outer: Scope, body: Scope) -> list[Carried]:
    """The value of another one, one and two iterations ago."""
    first, second = body.declare(Kind.ROW), body.declare(Kind.ROW)
    return [
        Carried(outer.pick(Kind.ROW), first, lambda b: b.add("Identity", [second], Kind.ROW)),
        Carried(outer.pick(Kind.ROW), second, lambda b: b.pick(Kind.ROW)),
    ]


def growing(outer: Scope, body: Scope) -> list[Carried]:
    """A series that grows by a row in each iteration."""
    inside = body.declare(Kind.SERIES)

    def update(b: Scope) -> Value:
        parts: list[Value | None] = [inside, b.pick(Kind.ROW)]
        return b.add("Concat", parts if b.chance(0.7) else parts[::-1], Kind.SERIES, axis=0)

    return [Carried(outer.pick(Kind.SERIES), inside, update)]


def counter(outer: Scope, body: Scope) -> list[Carried]:
    """An integer with any start and a fixed or varying increment."""
    kind = outer.random.choice([Kind.INT, Kind.INT, Kind.INT32])
    initial = outer.constant(outer.random.choice([0, 0, 1, -3, 5]), kind)
    if outer.chance(0.3):
        initial = outer.pick(kind)
    inside = body.declare(kind)
    way = outer.random.random()

    def update(b: Scope) -> Value:
        increment = b.constant(b.random.choice([1, 1, 2, 3, -1, -2]), kind)
        if way < 0.15:
            increment = b.pick(kind)
        operands: list[Value | None] = [inside, increment]
        if way > 0.8:
            return b.add("Sub", operands, kind)
        return b.add("Add", operands if way < 0.6 else operands[::-1], kind)

    return [Carried(initial, inside, update)]


def accumulated_reads(outer: Scope, body: Scope) -> list[Carried]:
    """A sum or product over the rows of a table, forwards or backwards."""
    table = outer.pick(Kind.TABLE)
    inside = body.declare(Kind.ROW)
    op = outer.random.choice(["Add", "Mul", "Max"])

    def update(b: Scope) -> Value:
        place = b.visible(Kind.INT)[0]
        if b.chance(0.3):
            last = b.add("Sub", [b.size_of(table), b.integer(1)], Kind.INT)
            place = b.add("Sub", [last, place], Kind.INT)
        return b.add(op, [inside, read_at(b, table, place)], Kind.ROW)

    return [Carried(outer.pick(Kind.ROW), inside, update)]


def collected(outer: Scope, body: Scope) -> list[Carried]:
    """A sequence into which each iteration inserts rows, at its end or start."""
    inside = body.declare(Kind.LIST)

    def update(b: Scope) -> Value:
        place = b.integer(0) if b.chance(0.2) else None
        whole = b.add("SequenceInsert", [inside, b.pick(Kind.ROW), place], Kind.LIST)
        if b.chance(0.7):
            return whole
        return b.add("SequenceInsert", [whole, b.pick(Kind.ROW), place], Kind.LIST)

    return [Carried(outer.pick(Kind.LIST), inside, update)]


def written(outer: Scope, body: Scope) -> list[Carried]:
    """A table: each iteration overwrites one row, by a value that may depend on another row."""
    start = outer.pick(Kind.TABLE)
    if outer.chance(0.5):
        start = outer.constant(np.zeros((7, 3)), Kind.TABLE)
    inside = body.declare(Kind.TABLE)

    def update(b: Scope) -> Value:
        number = b.visible(Kind.INT)[0]
        place = b.unsqueeze(number, 0, Kind.INTS)
        row = b.pick(Kind.ROW)
        if b.chance(0.5):
            ahead = b.integer(b.random.choice([0, 0, 0, 1, -1]))
            read = read_at(b, inside, b.add("Add", [number, ahead], Kind.INT))
            row = b.add("Add", [row, read], Kind.ROW)
        if b.chance(0.5):
            # ScatterND takes a matrix of positions and one row for each.
            places = b.unsqueeze(place, 0, Kind.INTS)
            rows = b.unsqueeze(row, 0, Kind.TABLE)
            return b.add("ScatterND", [inside, places, rows], Kind.TABLE)
        spread = b.add("Expand", [place, b.constant([1, 3], Kind.INTS)], Kind.INTS)
        rows = b.unsqueeze(row, 0, Kind.TABLE)
        return b.add("ScatterElements", [inside, spread, rows], Kind.TABLE, axis=0)

    return [Carried(start, inside, update)]


def shifted(outer: Scope, body: Scope) -> list[Carried]:
    """The newest rows of those that the iterations append, at the end or at the start."""
    width, step = outer.random.choice([1, 2, 3, 4]), outer.random.choice([1, 1, 1, 2])
    start = outer.constant(np.arange(3 * width).reshape(width, 3) / 4, Kind.TABLE)
    inside = body.declare(Kind.TABLE)
    at_front = outer.chance(0.3)

    def update(b: Scope) -> Value:
        rows: list[Value | None] = [
            b.unsqueeze(b.pick(Kind.ROW), 0, Kind.TABLE) for _ in range(step)
        ]
        new = b.add("Concat", rows, Kind.TABLE, axis=0) if step > 1 else rows[0]
        whole = b.add("Concat", [new, inside] if at_front else [inside, new], Kind.TABLE, axis=0)
        first = 0 if at_front else step
        bounds = [b.constant([number], Kind.INTS) for number in (first, first + width, 0)]
        return b.add("Slice", [whole, *bounds], Kind.TABLE)

    return [Carried(start, inside, update)]


IN_LOOPS: tuple[tuple[int, Callable[[Scope, Scope], list[Carried]]], ...] = (
    (6, working),
    (2, free),
    (2, invariant),
    (1, dead),
    (1, mutually_dead),
    (1, duplicate),
    (1, swapped),
    (1, delayed),
    (1, growing),
    (4, counter),
    (2, accumulated_reads),
    (1, collected),
    (2, written),
    (2, shifted),
)

IN_SCANS = tuple(
    (weight, make)
    for weight, make in IN_LOOPS
    if make not in (growing, accumulated_reads, collected, written)
)
"""Carried values of a Scan keep their shape, and a Scan has no iteration number."""
