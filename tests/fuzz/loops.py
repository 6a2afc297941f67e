"""Random models with Loop and Scan nodes, and Ifs in their bodies."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from . import operators
from .axis_loops import axis_loop
from .carried_values import IN_LOOPS, IN_SCANS, Carried, collected
from .conditions import make_stop, trip_count
from .scope import STACKED, Kind, Names, Scope, Value

OPSETS = range(11, 24)
DATA_TYPES = {
    TensorProto.FLOAT: 10,
    TensorProto.DOUBLE: 2,
    TensorProto.FLOAT16: 2,
    TensorProto.INT32: 2,
    TensorProto.INT64: 1,
    TensorProto.INT8: 1,
    TensorProto.UINT8: 1,
    TensorProto.BOOL: 1,
}
"""The types that models compute in, and how often."""
DEEPEST = 2
"""The deepest nesting of bodies."""

INPUTS = {
    "x": Kind.ROW,
    "y": Kind.ROW,
    "table": Kind.TABLE,
    "block": Kind.BLOCK,
    "m": Kind.INT,
    "n": Kind.INT,
    "j": Kind.INT32,
    "c": Kind.BOOL,
}


def make_model(seed: int) -> onnx.ModelProto:
    """The model of a seed, the same in every process."""
    random = Random(seed)
    opset = random.choice(OPSETS)
    data = random.choices(list(DATA_TYPES), list(DATA_TYPES.values()))[0]
    scope = Scope(random, Names(random, random.random() < 0.5, data), opset)
    inputs = [scope.declare(kind, name=name) for name, kind in INPUTS.items()]
    _add_operators(scope, random.randrange(3))
    results: list[Value] = []
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        results += random.choices((_loop, axis_loop, _scan, _branches), (5, 4, 1, 1))[0](scope)
        _add_operators(scope, random.randrange(3))
    outputs = _outputs(scope, results)
    graph = scope.graph("g", inputs, outputs, exact=True)
    ir_version = 8 if opset < 19 else 10
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version
    )


def _add_operators(scope: Scope, count: int) -> None:
    for _ in range(count):
        operators.random_operator(scope)


def _outputs(scope: Scope, results: list[Value]) -> list[Value]:
    """Most results of loops, and sometimes values that are computed from them."""
    made = {name for node in scope.nodes for name in node.output}
    chosen = [v for v in results if v.name in made and scope.chance(0.8)] or results[:1]
    later = [v for v in scope.values[-4:] if v.name in made and v not in chosen]
    chosen += [v for v in later if scope.chance(0.3)]
    if scope.chance(0.3):
        _stack_lists(scope, chosen)
    return chosen or [operators.unary(scope)]


def _stack_lists(scope: Scope, chosen: list[Value]) -> None:
    for value in [v for v in chosen if v.kind is Kind.LIST]:
        chosen.remove(value)
        stacked = scope.add("ConcatFromSequence", [value], Kind.TABLE, axis=0, new_axis=1)
        chosen.append(stacked)


def _add_body_operators(scope: Scope) -> None:
    for _ in range(scope.random.randrange(5)):
        way = scope.random.random()
        if way < 0.1 and scope.depth <= DEEPEST:
            _branches(scope)
        elif way < 0.14 and scope.depth < DEEPEST:
            scope.random.choices((_loop, axis_loop, _scan), (5, 2, 2))[0](scope)
        else:
            operators.random_operator(scope)


def _branches(scope: Scope) -> list[Value]:
    """An If, or two Ifs with the same or the opposite condition."""
    condition = scope.pick(Kind.BOOL)
    results = _branch_on(scope, condition)
    if scope.chance(0.3):
        if scope.chance(0.3):
            condition = scope.add("Not", [condition], Kind.BOOL)
        results += _branch_on(scope, condition)
    return results


def _branch_on(scope: Scope, condition: Value) -> list[Value]:
    kinds = [Kind.ROW, Kind.SCALAR, Kind.INT, Kind.BOOL, Kind.SERIES, Kind.TABLE]
    chosen = scope.random.choices(kinds, (4, 2, 2, 1, 1, 1), k=scope.random.choice([1, 1, 2, 3]))
    graphs = []
    for name in ("then", "otherwise"):
        branch = scope.inner()
        _add_body_operators(branch)
        if scope.chance(0.15):
            branch.add("Identity", [condition], Kind.BOOL)
        graphs.append(branch.graph(name, [], _returned(branch, [branch.pick(k) for k in chosen])))
    results = [scope.declare(kind, readable=False) for kind in chosen]
    names = [result.name for result in results]
    graph_of = {"then_branch": graphs[0], "else_branch": graphs[1]}
    scope.nodes.append(helper.make_node("If", [condition.name], names, **graph_of))
    scope.values += [value for value in results if scope.chance(0.9)]
    return results


def _own(
    body: Scope, value: Value, allowed: Sequence[str] = (), taken: Sequence[str] = ()
) -> Value:
    """A value that a body may return: the result of a node, or an allowed one, each only once.

    onnxruntime rejects an outer value. For a scan output that is a body input or an initializer, it
    returns values that differ from the specification.
    """
    made = {name for node in body.nodes for name in node.output}.union(allowed)
    if value.name in made and value.name not in taken:
        return value
    return body.add("Identity", [value], value.kind)


# --- Loop ----------------------------------------------------------------------------------------


def _loop(scope: Scope) -> list[Value]:
    """A Loop; returns its results that may be read."""
    body = scope.inner()
    iteration = _counted(body, Kind.INT, Kind.ONE_INT)
    condition = _counted(body, Kind.BOOL, Kind.ONE_BOOL)
    # Loops carry sequences since opset 13.
    makers = tuple(m for m in IN_LOOPS if m[1] is not collected or scope.opset >= 13)
    carried = _carried(scope, body, makers)
    _add_body_operators(body)
    updates = [each.update(body) for each in carried]
    _add_body_operators(body)
    stop = make_stop(scope, body, condition, carried, updates)
    rows = [
        body.pick(kind) for kind in scope.random.sample(list(STACKED), scope.random.randrange(3))
    ]
    trip = trip_count(scope, stop.always_ends)
    inputs = [iteration, condition, *(each.input for each in carried)]
    allowed = [v.name for v in inputs[1:]] + [t.name for t in body.stored]
    returned = _returned(body, [stop.next, *updates], allowed)
    returned += _returned(body, rows, (), returned)
    graph = body.graph("body", inputs, returned)
    operands = [trip, stop.first, *(each.initial for each in carried)]
    return _place(scope, "Loop", operands, carried, rows, body=graph)


def _counted(body: Scope, kind: Kind, wide: Kind) -> Value:
    """The iteration number or the condition: a scalar, now and then of shape [1]."""
    if not body.chance(0.04):
        return body.declare(kind)
    given = body.declare(wide)
    body.squeeze(given, 0, kind)
    return given


def _carried(scope: Scope, body: Scope, makers: tuple[tuple[int, object], ...]) -> list[Carried]:
    made: list[Carried] = []
    for _ in range(scope.random.choice([1, 1, 2, 2, 3, 4])):
        maker = scope.random.choices([m for _, m in makers], [w for w, _ in makers])[0]
        made += maker(scope, body)  # type: ignore[operator]
    return made


def _returned(
    body: Scope, values: list[Value], allowed: Sequence[str] = (), before: Sequence[Value] = ()
) -> list[Value]:
    taken = [v.name for v in before]
    returned: list[Value] = []
    for value in values:
        returned.append(_own(body, value, allowed, taken))
        taken.append(returned[-1].name)
    return returned


def _place(
    scope: Scope,
    op: str,
    operands: list[Value | None],
    carried: list[Carried],
    rows: list[Value],
    **attributes: Any,
) -> list[Value]:
    """Adds the node; returns the results that may be outputs of the model."""
    finals = [scope.declare(each.initial.kind, readable=False) for each in carried]
    stacked = [scope.declare(STACKED[row.kind], readable=False) for row in rows]
    names = ["" if o is None else o.name for o in operands]
    results = [v.name for v in (*finals, *stacked)]
    scope.nodes.append(helper.make_node(op, names, results, **attributes))
    readable = [v for v, each in zip(finals, carried) if each.is_read or scope.chance(0.1)]
    readable += [v for v in stacked if scope.chance(0.8)]
    scope.values += [v for v in readable if scope.chance(0.8)]
    return readable


# --- Scan ----------------------------------------------------------------------------------------


def _scan(scope: Scope) -> list[Value]:
    body = scope.inner()
    carried = _carried(scope, body, IN_SCANS) if scope.chance(0.9) else []
    across = scope.chance(0.15)
    count = scope.random.choice([1, 1, 2])
    table = scope.pick(Kind.TABLE)
    slices = [body.declare(Kind.SERIES if across else Kind.ROW) for _ in range(count)]
    _add_body_operators(body)
    updates = [each.update(body) for each in carried]
    kinds = [kind for kind in STACKED if kind is not Kind.SERIES]
    rows = [body.pick(kind) for kind in scope.random.sample(kinds, scope.random.randrange(3))]
    if not carried and not rows:
        rows = [body.pick(Kind.ROW)]
    axes = [scope.random.choice([1, -1]) if across else scope.random.choice([0, 0, -2])] * count
    attributes: dict[str, Any] = {"num_scan_inputs": count, "scan_input_axes": axes}
    if scope.chance(0.3):
        attributes["scan_input_directions"] = [scope.random.randrange(2) for _ in range(count)]
    if rows and scope.chance(0.3):
        attributes["scan_output_directions"] = [scope.random.randrange(2) for _ in rows]
    returned = _returned(body, [*updates, *rows])
    graph = body.graph("body", [*(each.input for each in carried), *slices], returned)
    operands: list[Value | None] = [each.initial for each in carried]
    return _place(
        scope, "Scan", [*operands, *[table] * count], carried, rows, body=graph, **attributes
    )


# --- inputs --------------------------------------------------------------------------------------


def make_feeds(model: onnx.ModelProto, seed: int) -> list[dict[str, Any]]:
    """Values for the inputs: trip counts 0, 1, 2 and 7, both conditions, several limits."""
    rng = np.random.default_rng(seed)
    feeds = []
    for trips in (0, 1, 2, 7):
        for condition in (True, False):
            length = 7 if rng.random() < 0.7 else int(rng.integers(0, 4))
            feed = {
                "x": rng.normal(size=3),
                "y": rng.normal(size=3),
                "table": rng.normal(size=(length, 3)),
                "block": _block(rng, trips),
                "m": trips,
                "n": rng.choice([trips, 0, 3, 5, -2, 8]),
                "j": rng.choice([trips, 1, 4, -1, 6]),
                "c": condition,
            }
            feeds.append({i.name: _as_declared(i, feed[i.name]) for i in model.graph.input})
    return feeds


def _as_declared(info: onnx.ValueInfoProto, value: Any) -> np.ndarray:
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
    if dtype.kind in "fb" or info.name in ("m", "n", "j"):
        return np.asarray(value > 0 if dtype.kind == "b" and np.ndim(value) else value, dtype)
    whole: np.ndarray = np.rint(3 * np.asarray(value)).astype(np.int64).astype(dtype)
    return whole


def _block(rng: np.random.Generator, trips: int) -> np.ndarray:
    """A tensor of random sizes, one of which often equals the trip count."""
    sizes = rng.choice([0, 1, 1, 2, 3], size=3)
    if rng.random() < 0.8:
        sizes[rng.integers(3)] = trips
    return rng.normal(size=tuple(sizes))
