"""Random operators; each adds a few nodes to a graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from .scope import DATA, FLOATS, NARROW, Kind, Scope, Value, working_type

COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")


def unary(scope: Scope) -> Value:
    x = scope.pick(scope.random.choice(DATA))
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
    kind = scope.random.choice([*DATA, Kind.INT, Kind.INT32, Kind.BOOL])
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


def masked(scope: Scope) -> Value:
    """A choice by elements, whose condition may have fewer axes."""
    kind = scope.random.choice([Kind.ROW, Kind.TABLE])
    compared = [scope.pick(scope.random.choice([Kind.ROW, Kind.SCALAR, kind])) for _ in range(2)]
    mask = scope.add(scope.random.choice(["Less", "Greater"]), list(compared), Kind.MASK)
    scope.values.remove(mask)
    return scope.add("Where", [mask, scope.pick(kind), scope.pick(Kind.ROW)], kind)


def normalise(scope: Scope) -> Value:
    """Subtracts or scales by a reduction along an axis that stays as 1."""
    kind = scope.random.choice([Kind.ROW, Kind.TABLE])
    x, axis = scope.pick(kind), -1
    if kind is Kind.ROW and scope.chance(0.5):
        axis = 0
    op = scope.random.choice(["ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean"])
    since = 13 if op == "ReduceSum" else 18
    if scope.opset < since:
        level = scope.add(op, [x], kind, axes=[axis], keepdims=1)
    else:
        level = scope.add(op, [x, scope.constant([axis], Kind.INTS)], kind, keepdims=1)
    scope.values.remove(level)
    return scope.add(scope.random.choice(["Sub", "Mul", "Add"]), [x, level], kind)


def along_axis(scope: Scope) -> Value:
    """An operator along the last axis."""
    kind = scope.random.choice([Kind.ROW, Kind.ROW, Kind.TABLE])
    x, way = scope.pick(kind), scope.random.randrange(6)
    if way == 0:
        return scope.add("Softmax", [x], kind, axis=-1)
    if way == 1:
        flags = {"exclusive": scope.random.randrange(2), "reverse": scope.random.randrange(2)}
        return scope.add("CumSum", [x, scope.integer(-1)], kind, **flags)
    if way == 2:
        bounds = [scope.constant([v], Kind.INTS) for v in (-1, -(2**62), -1, -1)]
        return scope.add("Slice", [x, *bounds], kind)
    if way == 3:
        order = scope.random.sample([0, 1, -1], 3)
        return scope.add("Gather", [x, scope.constant(order, Kind.INTS)], kind, axis=-1)
    if way == 4:
        return _rotated(scope, x)
    return _sorted(scope, x)


def _rotated(scope: Scope, x: Value) -> Value:
    """The last axis, split and joined in another order."""
    parts = [scope.fresh(), scope.fresh()]
    if scope.opset < 13:
        scope.node("Split", [x.name], parts, axis=-1, split=[1, 2])
    else:
        scope.node("Split", [x.name, scope.constant([1, 2], Kind.INTS).name], parts, axis=-1)
    value = scope.declare(x.kind, readable=False)
    scope.node("Concat", parts[::-1], [value.name], axis=-1)
    scope.values.append(value)
    return value


def _sorted(scope: Scope, x: Value) -> Value:
    """The elements in order; nothing reads their positions."""
    operands = [x.name, scope.constant([3], Kind.INTS).name]
    value = scope.declare(x.kind, readable=False)
    if working_type("TopK", scope.names.data) is not None:
        operands[0] = scope.node("Cast", [x.name], to=TensorProto.FLOAT)
        largest = scope.node("TopK", operands, [scope.fresh(), scope.fresh()], axis=-1)
        scope.node("Cast", [largest], [value.name], to=scope.names.data)
    else:
        scope.node("TopK", operands, [value.name, scope.fresh()], axis=-1)
    scope.values.append(value)
    return value


def largest(scope: Scope) -> Value:
    """The position of the largest element."""
    row = scope.pick(Kind.ROW)
    return scope.add("ArgMax", [row], Kind.INT, axis=scope.random.choice([0, -1]), keepdims=0)


def reshaped(scope: Scope) -> Value:
    """A change of the shape and back."""
    x, way = scope.pick(Kind.TABLE), scope.random.randrange(4)
    if way == 0:
        turned = scope.add("Transpose", [x], Kind.GRID, perm=[1, 0])
        return scope.add("Transpose", [turned], Kind.TABLE)
    if way == 1:
        flat = scope.add("Reshape", [x, scope.constant([-1], Kind.INTS)], Kind.SERIES)
        return scope.add("Reshape", [flat, scope.constant([-1, 3], Kind.INTS)], Kind.TABLE)
    if way == 2:
        wide = scope.unsqueeze(x, scope.random.choice([0, 1, 2, -1]), Kind.BLOCK)
        return scope.add("Reshape", [wide, scope.constant([-1, 3], Kind.INTS)], Kind.TABLE)
    row = scope.unsqueeze(scope.pick(Kind.ROW), 0, Kind.TABLE)
    return scope.add("Concat", [x, row] if scope.chance(0.5) else [row, x], Kind.TABLE, axis=-2)


def converted(scope: Scope) -> Value:
    """A cast to another type and back, with an operator between."""
    kind = scope.random.choice([Kind.ROW, Kind.SCALAR, Kind.TABLE])
    element = scope.random.choice([*FLOATS, *NARROW, TensorProto.INT32, TensorProto.INT64])
    x = scope.pick(kind)
    if scope.names.data in FLOATS and element not in FLOATS:
        # The cast of a negative or large float to an integer is not defined.
        x = scope.add("Tanh", [x], kind)
        x = scope.add("Abs", [x], kind)
    other = scope.node("Cast", [x.name], to=element)
    if element in FLOATS:
        other = scope.node("Neg", [other])
    elif element in (TensorProto.INT32, TensorProto.INT64):
        other = scope.node("Add", [other, other])
    else:
        other = scope.node("Where", [scope.pick(Kind.BOOL).name, other, other])
    value = scope.declare(kind, readable=False)
    scope.node("Cast", [other], [value.name], to=scope.names.data)
    scope.values.append(value)
    return value


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
    (1, masked),
    (1, normalise),
    (2, along_axis),
    (1, largest),
    (1, reshaped),
    (1, converted),
)


def random_operator(scope: Scope) -> Value:
    """Adds one random operator."""
    makers = [make for _, make in OPERATORS]
    return scope.random.choices(makers, [weight for weight, _ in OPERATORS])[0](scope)
