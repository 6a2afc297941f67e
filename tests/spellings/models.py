"""A cell in a loop as a model, in a random spelling."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from . import cells
from .writer import FLOAT, Writer, tensor

INT64, BOOL = onnx.TensorProto.INT64, onnx.TensorProto.BOOL
_TIME_STEPS = {"LSTM": cells.lstm, "GRU": cells.gru, "RNN": cells.rnn}


@dataclass
class Shape:
    """The parts of a model around its cell."""

    features: int
    hidden: int
    loop: str
    """Scan or Loop."""
    batch_first: bool
    reverse: bool
    collected: str
    """How the sequence of h is collected: as a scan output (rows), in a list, in a tensor that grows,
    in a buffer at the iteration number, or not at all.
    """
    given: bool
    """Whether initial states are inputs; zeros otherwise."""
    swapped: bool
    """Whether c comes before h."""


def make_model(op: str, seed: int, flaw: str = "") -> onnx.ModelProto:
    """The model of a seed; with a flaw, no operator has its cell."""
    choose = random.Random(seed)
    numbers = np.random.default_rng(seed)
    shape = Shape(
        choose.randint(2, 4), choose.randint(2, 4), choose.choice(["Scan", "Loop", "Loop"]),
        choose.random() < 0.3, choose.random() < 0.3, choose.choice(["rows", "rows", "list", "grown", "buffer", ""]),
        choose.random() < 0.5, choose.random() < 0.5,
    )  # fmt: skip
    if shape.loop == "Scan" and shape.collected:
        shape.collected = "rows"
    constants: dict[str, np.ndarray] = {}
    outer = Writer(choose, constants)
    x = _sequence(outer, shape)
    states = ["h", "c"] if op == "LSTM" else ["h"]
    if shape.swapped:
        states.reverse()
    initial = [f"{s}0" if shape.given else _zeros(outer, x, shape) for s in states]
    body = _body(op, flaw, shape, states, choose, numbers, constants)
    finals = [f"{s}n" for s in states]
    _loop(outer, shape, body, x, initial, finals)
    return _model(outer, shape, states, finals, constants)


def _sequence(outer: Writer, shape: Shape) -> str:
    """x with the time first, as the loop reads it."""
    x = "x"
    if shape.batch_first:
        x = outer.op("Transpose", x, perm=[1, 0, 2])
    if shape.reverse and shape.loop == "Loop":
        minus = outer.integers(-1)
        start, end = minus, outer.integers(np.iinfo(np.int64).min)
        x = outer.op("Slice", x, start, end, outer.integers(0), outer.integers(-1))
    return x


def _zeros(outer: Writer, x: str, shape: Shape) -> str:
    batch = outer.op("Slice", outer.op("Shape", x), outer.integers(1), outer.integers(2))
    sizes = outer.op("Concat", batch, outer.integers(shape.hidden), axis=0)
    if outer.either(True, False):
        return str(outer.op("ConstantOfShape", sizes))
    return str(outer.op("Expand", outer.constant(0.0), sizes))


def _body(
    op: str, flaw: str, shape: Shape, states: list[str], choose: random.Random,
    numbers: np.random.Generator, constants: dict[str, np.ndarray],
) -> onnx.GraphProto:  # fmt: skip
    w = Writer(choose, constants)
    inputs = [tensor(s, ["B", shape.hidden]) for s in states]
    if shape.loop == "Scan":
        inputs.append(tensor("xt", ["B", shape.features]))
        xt = "xt"
    else:
        inputs = [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("ci", BOOL, []),
            *inputs,
        ]
        xt = w.op("Gather", "sequence", "i", axis=0)
    time_step = cells.TimeStep(w, numbers, xt, "h", "c", shape.features, shape.hidden, flaw)
    h, c = _TIME_STEPS[op](time_step)
    w.nodes.append(helper.make_node("Identity", [h], ["h_out"]))
    if c:
        w.nodes.append(helper.make_node("Identity", [c], ["c_out"]))
    outputs = [tensor(f"{s}_out", ["B", shape.hidden]) for s in states]
    if shape.loop == "Loop":
        w.nodes.append(helper.make_node("Identity", ["ci"], ["co"]))
        outputs.insert(0, helper.make_tensor_value_info("co", BOOL, []))
    if shape.collected == "rows":
        w.nodes.append(helper.make_node("Identity", [h], ["row"]))
        outputs.append(tensor("row", ["B", shape.hidden]))
    if shape.collected == "list":
        kind = helper.make_tensor_sequence_value_info("rows", FLOAT, None)
        inputs.append(kind)
        w.nodes.append(helper.make_node("SequenceInsert", ["rows", h], ["rows_out"]))
        outputs.append(helper.make_tensor_sequence_value_info("rows_out", FLOAT, None))
    if shape.collected in ("grown", "buffer"):
        rows = [None, "B", shape.hidden]
        inputs.append(tensor("rows", rows))
        row = w.op("Unsqueeze", h, w.integers(0))
        if shape.collected == "grown":
            w.nodes.append(helper.make_node("Concat", ["rows", row], ["rows_out"], axis=0))
        else:
            place = w.op("Reshape", "i", w.integers(1, 1))
            w.nodes.append(helper.make_node("ScatterND", ["rows", place, row], ["rows_out"]))
        outputs.append(tensor("rows_out", rows))
    return helper.make_graph(w.nodes, "body", inputs, outputs)


def _loop(
    outer: Writer, shape: Shape, body: onnx.GraphProto, x: str, initial: list[str],
    finals: list[str],
) -> None:  # fmt: skip
    results = [*finals, *(["stacked"] if shape.collected else [])]
    if shape.loop == "Scan":
        way = int(shape.reverse)
        node = helper.make_node(
            "Scan", [*initial, x], results, body=body, num_scan_inputs=1,
            scan_input_directions=[way],
        )  # fmt: skip
        outer.nodes.append(node)
    else:
        outer.nodes.append(helper.make_node("Identity", [x], ["sequence"]))
        length = outer.op("Gather", outer.op("Shape", x), outer.constant(0, np.int64))
        more = _empty(outer, shape, x)
        outer.nodes.append(helper.make_node("Loop", [length, "", *initial, *more], results,
                                            body=body))  # fmt: skip
    if shape.collected:
        y = "stacked"
        if shape.collected == "list":
            y = outer.op("ConcatFromSequence", y, axis=0, new_axis=1)
        outer.nodes.append(helper.make_node("Identity", [y], ["y"]))


def _empty(outer: Writer, shape: Shape, x: str) -> list[str]:
    """The initial value of what h is collected in, unless that is a scan output."""
    if shape.collected == "list":
        return [outer.op("SequenceEmpty", dtype=FLOAT)]
    if shape.collected not in ("grown", "buffer"):
        return []
    first = 0 if shape.collected == "buffer" else 1
    sizes = [outer.op("Slice", outer.op("Shape", x), outer.integers(first), outer.integers(2))]
    if shape.collected == "grown":
        sizes.insert(0, outer.integers(0))
    return [outer.op("ConstantOfShape", outer.op("Concat", *sizes, outer.integers(shape.hidden),
                                                 axis=0))]  # fmt: skip


def _model(
    outer: Writer, shape: Shape, states: list[str], finals: list[str],
    constants: dict[str, np.ndarray],
) -> onnx.ModelProto:  # fmt: skip
    order = ["B", "T"] if shape.batch_first else ["T", "B"]
    inputs = [tensor("x", [*order, shape.features])]
    if shape.given:
        inputs += [tensor(f"{s}0", ["B", shape.hidden]) for s in states]
    outputs = [tensor("y", ["T", "B", shape.hidden])] if shape.collected else []
    kept = finals if not shape.collected or outer.either(True, False) else []
    outputs += [tensor(f, ["B", shape.hidden]) for f in kept]
    weights = [numpy_helper.from_array(v, k) for k, v in constants.items()]
    graph = helper.make_graph(outer.nodes, "spelling", inputs, outputs, weights)
    imports = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def make_feeds(model: onnx.ModelProto, seed: int) -> list[dict[str, np.ndarray]]:
    """Inputs for several lengths and batches."""
    numbers = np.random.default_rng(seed)
    feeds = []
    for length, batch in ((1, 1), (2, 3), (7, 2), (7, 1)):
        sizes = {"T": length, "B": batch}
        feeds.append(
            {
                i.name: numbers.standard_normal(
                    [d.dim_value or sizes[d.dim_param] for d in i.type.tensor_type.shape.dim]
                ).astype(np.float32)
                for i in model.graph.input
            }
        )
    return feeds
