"""Random operators; each adds a few nodes to a graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .scope import FLOAT_OR_DOUBLE, Kind, Scope, Value

COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")


def unary(scope: Scope) -> Value:
    x = scope.pick(scope.random.choice(FLOAT_OR_DOUBLE))
    op = scope.random.choice(["Neg", "Abs", "Tanh", "Sigmoid", "Sin", "Relu", "Exp"])
    # Bounds the operand of Exp, which could grow without limit in a loop.
    return scope.add(op, [scope.add("Tanh", [x], x.kind) if op == "Exp" else x], x.kind)


def binary(scope: Scope) -> Value:
    kind = scope.random.choice([Kind.SCALAR, Kind.ROW, Kind.ROW, Kind.TABLE])
    x = scope.pick(kind)
    y = scope.pick(scope.random.choice([Kind.SCALAR, Kind.ROW]) if kind is Kind.TABLE else kind)
    if kind is Kind.ROW and scope.chance(0.2):
        y = scope.pick(Kind.SCALAR)
    pair: list[Value | None] = [x, y] if scope.chance(0.7) else [y, x]
    return scope.add(scope.random.choice(["Add", "Sub", "Mul", "Max", "Min"]), pair, kind)


def product(scope: Scope) -> Value:
    weights = np.round(np.random.default_rng(scope.random.randrange(99)).normal(size=(3, 3)), 2)
    return scope.add(
        "MatMul", [scope.pick(Kind.ROW), scope.constant(weights, Kind.TABLE)], Kind.ROW
    )


def reduce(scope: Scope) -> Value:
    x = scope.pick(scope.random.choice([Kind.ROW, Kind.SERIES, Kind.TABLE]))
    op = scope.random.choice(["ReduceSum", "ReduceMax", "ReduceMean"])
    # An empty maximum fails.
    op = "ReduceSum" if x.kind is not Kind.ROW else op
    return scope.add(op, [x], Kind.SCALAR, keepdims=0)


def integers(scope: Scope) -> Value:
    kind = scope.random.choice([Kind.INT, Kind.INT, Kind.INT32])
    x, y = scope.pick(kind), scope.pick(kind)
    if scope.chance(0.5):
        y = scope.constant(scope.random.choice([1, 2, -1, 3, 0]), kind)
    op = scope.random.choice(["Add", "Sub", "Mul", "Max", "Min"] if scope.opset >= 12 else ["Add"])
    return scope.add(op, [x, y], kind)


def cast(scope: Scope) -> Value:
    ways = [
        (Kind.INT, Kind.SCALAR),
        (Kind.INT, Kind.INT32),
        (Kind.INT32, Kind.INT),
        (Kind.BOOL, Kind.SCALAR),
        (Kind.BOOL, Kind.INT),
    ]
    source, target = scope.random.choice(ways)
    return scope.add("Cast", [scope.pick(source)], target, to=target.element)


def size(scope: Scope) -> Value:
    return scope.size_of(scope.pick(scope.random.choice([Kind.SERIES, Kind.TABLE])))


def compare(scope: Scope) -> Value:
    kind = scope.random.choice([Kind.INT, Kind.INT, Kind.INT32, Kind.SCALAR])
    ops = COMPARISONS if scope.opset >= 12 else ("Less", "Greater")
    return scope.add(scope.random.choice(ops), [scope.pick(kind), scope.pick(kind)], Kind.BOOL)


def logic(scope: Scope) -> Value:
    if scope.chance(0.4):
        return scope.add("Not", [scope.pick(Kind.BOOL)], Kind.BOOL)
    pair: list[Value | None] = [scope.pick(Kind.BOOL), scope.pick(Kind.BOOL)]
    return scope.add(scope.random.choice(["And", "Or"]), pair, Kind.BOOL)


def choose(scope: Scope) -> Value:
    kind = scope.random.choice([Kind.ROW, Kind.SCALAR, Kind.INT])
    return scope.add("Where", [scope.pick(Kind.BOOL), scope.pick(kind), scope.pick(kind)], kind)


def copy(scope: Scope) -> Value:
    kind = scope.random.choice([*FLOAT_OR_DOUBLE, Kind.INT, Kind.INT32, Kind.BOOL])
    return scope.add("Identity", [scope.pick(kind)], kind)


def append(scope: Scope) -> Value:
    """Appends a row to a series, so that it grows slowly in loops."""
    return scope.add("Concat", [scope.pick(Kind.SERIES), scope.pick(Kind.ROW)], Kind.SERIES, axis=0)


def read(scope: Scope) -> Value:
    return read_at(scope, scope.pick(Kind.TABLE), scope.pick(Kind.INT))


def read_at(scope: Scope, table: Value, place: Value) -> Value:
    """A read of one row of a table, in one of several forms; some fail beyond the end, some wrap."""
    spelling = scope.random.randrange(5)
    if spelling == 0:
        return scope.add("Gather", [table, place], Kind.ROW, axis=0)
    if spelling == 1:
        turned = scope.add("Transpose", [table], Kind.GRID, perm=[1, 0])
        return scope.add("Gather", [turned, place], Kind.ROW, axis=1)
    one = scope.unsqueeze(place, 0, Kind.INTS)
    if spelling == 2:
        return scope.squeeze(scope.add("Gather", [table, one], Kind.GRID, axis=0), 0, Kind.ROW)
    if spelling == 3:
        return scope.add("GatherND", [table, one], Kind.ROW)
    end = scope.add("Add", [one, scope.constant([1], Kind.INTS)], Kind.INTS)
    first = scope.constant([0], Kind.INTS)
    return scope.squeeze(scope.add("Slice", [table, one, end, first], Kind.GRID), 0, Kind.ROW)


OPERATORS: tuple[tuple[int, Callable[[Scope], Value]], ...] = (
    (6, unary),
    (8, binary),
    (1, product),
    (2, reduce),
    (4, integers),
    (3, cast),
    (1, size),
    (3, compare),
    (2, logic),
    (2, choose),
    (3, copy),
    (1, append),
    (2, read),
)


def random_operator(scope: Scope) -> Value:
    """Adds one random operator."""
    makers = [make for _, make in OPERATORS]
    return scope.random.choices(makers, [weight for weight, _ in OPERATORS])[0](scope)
