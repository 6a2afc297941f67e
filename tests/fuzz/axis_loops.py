"""Random loops along an axis of a tensor that read slices and collect rows."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import helper

from .accumulators import ACCUMULATORS, Rows, filled, listed, rows_of
from .positions import (
    WALKS,
    Axis,
    Walk,
    axis_of,
    iterations_along,
    position,
    slice_at,
    summed_chunk,
)
from .scope import Kind, Scope, Value


@dataclass
class AxisLoop:
    """A loop under construction."""

    outer: Scope
    body: Scope
    axis: Axis
    rows: Rows
    iteration: Value
    condition: Value


def axis_loop(scope: Scope) -> list[Value]:
    """A Loop over slices; returns its results that may be read."""
    axis, body = axis_of(scope), scope.inner()
    iteration, condition = body.declare(Kind.INT), body.declare(Kind.BOOL)
    loop = AxisLoop(scope, body, axis, rows_of(scope, axis), iteration, condition)
    makers = [m for m in ACCUMULATORS if m is not listed or scope.opset >= 13]
    chosen = [scope.random.choice(makers) for _ in range(scope.random.choice([0, 1, 1, 2]))]
    accumulators = [make(scope, body, axis, loop.rows) for make in chosen]
    value = _carried(loop) if scope.chance(0.7) or not accumulators else None
    trip, read = _read(loop)
    new = read if value is None else _next(loop, value[1], read)
    row = _row(loop, read, new)
    updates = [a.update(body, row, iteration) for a in accumulators]
    carried = [] if value is None else [(*value, new)]
    carried += [(a.initial, a.input, update) for a, update in zip(accumulators, updates)]
    collected = [_row(loop, read, new)] if scope.chance(0.4) else []
    finals, stacked = _place(loop, trip, carried, collected)
    results = stacked + (finals[:1] if value is not None and scope.chance(0.7) else [])
    for accumulator, final in zip(accumulators, finals[value is not None :]):
        results += accumulator.results(scope, final)
    return results or finals


# --- the body ------------------------------------------------------------------------------------


def _carried(loop: AxisLoop) -> tuple[Value, Value]:
    """A carried value of the shape of a slice: its initial value, and its body input."""
    initial = filled(loop.outer, loop.rows.sizes, loop.outer.random.choice([0.0, 0.5]))
    return initial, loop.body.declare(loop.rows.kind, readable=False)


def _read(loop: AxisLoop) -> tuple[Value, Value]:
    """The trip count, and the value that an iteration reads."""
    scope, body, axis = loop.outer, loop.body, loop.axis
    if scope.chance(0.15):
        return _read_chunk(loop)
    walk = scope.random.choice(WALKS)
    trip = _trip(loop, walk)
    read = slice_at(body, axis, position(body, axis, loop.iteration, walk))
    if scope.chance(0.2):
        other = scope.random.choice(WALKS)
        if walk.is_plain or other == walk:
            again = slice_at(body, axis, position(body, axis, loop.iteration, other))
            read = body.add("Add", [read, again], read.kind)
    return trip, read


def _trip(loop: AxisLoop, walk: Walk) -> Value:
    scope, way = loop.outer, loop.outer.random.random()
    if way < 0.75:
        return iterations_along(scope, loop.axis.size, walk)
    if way < 0.85:
        return scope.input("m")
    if way < 0.93:
        return scope.integer(scope.random.choice([0, 1, 2, 7]))
    return scope.add("Min", [scope.input("m"), loop.axis.size], Kind.INT)


def _read_chunk(loop: AxisLoop) -> tuple[Value, Value]:
    """A read of several slices at once: consecutive chunks, or sliding windows."""
    scope, body, axis = loop.outer, loop.body, loop.axis
    extent = scope.random.choice([2, 3])
    if scope.chance(0.5):
        trip = scope.add("Div", [axis.size, scope.integer(extent)], Kind.INT)
        start = body.add("Mul", [loop.iteration, body.integer(extent)], Kind.INT)
    else:
        trip = scope.add("Sub", [axis.size, scope.integer(extent - 1)], Kind.INT)
        start = loop.iteration
    if scope.chance(0.3):
        # The last chunk has fewer slices, or none.
        trip = axis.size
    return trip, summed_chunk(body, axis, start, extent)


def _next(loop: AxisLoop, carried: Value, read: Value) -> Value:
    """The next carried value."""
    body, kind = loop.body, loop.rows.kind
    op = body.random.choice(["Add", "Max", "Mul", "Sub"])
    if body.chance(0.3):
        carried = body.add("Mul", [carried, body.constant(0.5, Kind.SCALAR)], kind)
    result = body.add(op, [carried, read], kind)
    return body.add("Tanh", [result], kind) if body.chance(0.4) else result


def _row(loop: AxisLoop, read: Value, new: Value) -> Value:
    """The value that an iteration collects, which has the shape of a slice."""
    body, kind, way = loop.body, loop.rows.kind, loop.body.random.randrange(7)
    if way == 0:
        return new
    if way == 1:
        return read
    if way == 2:
        return body.add("Tanh", [new], kind)
    number = body.add("Cast", [loop.iteration], Kind.SCALAR, to=Kind.SCALAR.element)
    if way == 3:
        return body.add("Add", [read, number], kind)
    source = body.random.choice([read, new])
    shape = body.add("Shape", [source], Kind.INTS)
    if way == 4:
        return body.add("Expand", [number, shape], kind)
    zeros = body.add("ConstantOfShape", [shape], kind)
    return body.add("Add", [zeros, body.random.choice([read, new, number])], kind)


# --- the node ------------------------------------------------------------------------------------


def _place(
    loop: AxisLoop,
    trip: Value,
    carried: list[tuple[Value, Value, Value]],
    collected: list[Value],
) -> tuple[list[Value], list[Value]]:
    """Adds the Loop; returns the final values and the scan outputs."""
    scope, body = loop.outer, loop.body
    returned: list[Value] = []
    for value in (_next_condition(loop, carried), *(new for _, _, new in carried), *collected):
        made = {name for node in body.nodes for name in node.output}
        own = value.name in made and value not in returned
        returned.append(value if own else body.add("Identity", [value], value.kind))
    inputs = [loop.iteration, loop.condition, *(inside for _, inside, _ in carried)]
    graph = body.graph("body", inputs, returned, honest=True)
    finals = [scope.declare(inside.kind, readable=False) for _, inside, _ in carried]
    stacked = [scope.declare(loop.rows.stacked, readable=False) for _ in collected]
    operands = [trip.name, "", *(initial.name for initial, _, _ in carried)]
    names = [v.name for v in (*finals, *stacked)]
    scope.nodes.append(helper.make_node("Loop", operands, names, body=graph))
    return finals, stacked


def _next_condition(loop: AxisLoop, carried: list[tuple[Value, Value, Value]]) -> Value:
    """The condition for the next iteration, which sometimes ends the loop early."""
    body, way = loop.body, loop.body.random.random()
    if way < 0.4:
        return body.constant(True, Kind.BOOL)
    if way < 0.8:
        return body.add("Identity", [loop.condition], Kind.BOOL)
    if way < 0.9:
        next_one = body.add("Add", [loop.iteration, body.integer(1)], Kind.INT)
        return body.add("Less", [next_one, body.input("n")], Kind.BOOL)
    total = body.add("ReduceSum", [carried[0][2]], Kind.SCALAR, keepdims=0) if (
        carried[0][1].kind is not Kind.ROWS
    ) else body.add("Cast", [loop.iteration], Kind.SCALAR, to=Kind.SCALAR.element)  # fmt: skip
    limit = body.constant(body.random.choice([0.5, 2.0, 5.0]), Kind.SCALAR)
    return body.add("Less", [total, limit], Kind.BOOL)
