"""Recurrent loops on onnxruntime: as exported, as rewritten, and as one operator.

    python benchmarks/fused.py [--steps 100] [--rounds 21]

The third model is one LSTM, GRU or RNN with the weights in the order of the operator. The rewritten
model should be as fast. All run with one thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from harness import alternate, report
from onnx import TensorProto, helper, numpy_helper

import looplift

Array = npt.NDArray[Any]
FEATURES = 64
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
ORDER = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""Where the operator's gates stand in the source framework's order (i f g o, r z n)."""


class Nodes:
    """A graph under construction; names the results by number."""

    def __init__(self, prefix: str = "v") -> None:
        self.prefix = prefix
        self.protos: list[onnx.NodeProto] = []

    def __call__(self, op: str, *inputs: str, count: int = 1, **attributes: Any) -> Any:
        names = [f"{self.prefix}{len(self.protos)}_{k}" for k in range(count)]
        self.protos.append(helper.make_node(op, inputs, names, **attributes))
        return names[0] if count == 1 else names


def weights_of(op: str, hidden: int) -> dict[str, Array]:
    """Weights in the source framework's layout."""
    random, size = np.random.default_rng(0), GATES[op] * hidden
    shapes = {"w": (size, FEATURES), "r": (size, hidden), "wb": (size,), "rb": (size,)}
    bound = 1 / np.sqrt(hidden)
    return {n: random.uniform(-bound, bound, s).astype(np.float32) for n, s in shapes.items()}


def cell(op: str, nodes: Nodes, x: str) -> list[str]:
    """The states after one time step."""
    given = nodes("Gemm", x, "w", "wb", transB=1)
    carried = nodes("Gemm", "h", "r", "rb", transB=1)
    if op == "RNN":
        return [nodes("Tanh", nodes("Add", given, carried))]
    if op == "GRU":
        a, b = (nodes("Split", v, count=3, axis=1) for v in (given, carried))
        r, z = (nodes("Sigmoid", nodes("Add", *pair)) for pair in zip(a, b[:2]))
        n = nodes("Tanh", nodes("Add", a[2], nodes("Mul", r, b[2])))
        return [nodes("Add", n, nodes("Mul", z, nodes("Sub", "h", n)))]
    i, f, g, o = nodes("Split", nodes("Add", given, carried), count=4, axis=1)
    i, f, o = (nodes("Sigmoid", gate) for gate in (i, f, o))
    c = nodes("Add", nodes("Mul", f, "c"), nodes("Mul", i, nodes("Tanh", g)))
    return [nodes("Mul", o, nodes("Tanh", c)), c]


def tensor(name: str, shape: Sequence[int | str], kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def exported(op: str, hidden: int) -> onnx.ModelProto:
    """A Loop that reads `x[t]` and collects h."""
    inner, outer = Nodes("cell"), Nodes()
    states = cell(op, inner, inner("Gather", "x", "t", axis=0))
    row = inner("Identity", states[0])
    again = inner("Identity", "again")
    names = ["h", "c"][: len(states)]
    body = helper.make_graph(
        inner.protos,
        "cell",
        [tensor("t", [], TensorProto.INT64), tensor("again", [], TensorProto.BOOL),
         *(tensor(n, ["B", hidden]) for n in names)],
        [tensor(again, [], TensorProto.BOOL), *(tensor(n, ["B", hidden]) for n in (*states, row))],
    )  # fmt: skip
    shape = outer("Shape", "x")
    sizes = outer("Concat", outer("Gather", shape, "one_1"), "hidden", axis=0)
    zeros = outer("ConstantOfShape", sizes)
    *_, stacked = outer("Loop", outer("Gather", shape, "zero"), "", *[zeros] * len(states),
                        count=len(states) + 1, body=body)  # fmt: skip
    numbers = {"zero": 0, "one_1": [1], "hidden": [hidden]}
    constants = {n: np.array(v, np.int64) for n, v in numbers.items()}
    return model(outer, stacked, hidden, weights_of(op, hidden) | constants)


def by_hand(op: str, hidden: int) -> onnx.ModelProto:
    """The operator in place of the loop."""
    found = weights_of(op, hidden)

    def ordered(array: Array) -> Array:
        parts = np.split(array, GATES[op])
        return np.concatenate([parts[k] for k in ORDER[op]])

    constants = {
        "w": ordered(found["w"])[None],
        "r": ordered(found["r"])[None],
        "b": np.concatenate([ordered(found["wb"]), ordered(found["rb"])])[None],
        "axis": np.array([1], np.int64),
    }
    nodes = Nodes()
    more = {"linear_before_reset": 1} if op == "GRU" else {}
    y = nodes(op, "x", "w", "r", "b", hidden_size=hidden, **more)
    return model(nodes, nodes("Squeeze", y, "axis"), hidden, constants)


def model(nodes: Nodes, result: str, hidden: int, constants: dict[str, Array]) -> onnx.ModelProto:
    nodes.protos.append(helper.make_node("Identity", [result], ["y"]))
    graph = helper.make_graph(
        nodes.protos, "recurrence", [tensor("x", ["T", "B", FEATURES])],
        [tensor("y", ["T", "B", hidden])],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def runner(proto: onnx.ModelProto, x: Array) -> Callable[[], Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return partial(session.run, None, {"x": x})


def measure(op: str, hidden: int, batch: int, steps: int, rounds: int) -> dict[str, Any]:
    """The milliseconds of the three models, which take turns."""
    original = exported(op, hidden)
    x = np.random.default_rng(1).standard_normal((steps, batch, FEATURES)).astype(np.float32)
    calls = {
        "original": runner(original, x),
        "looplift": runner(looplift.rewrite(original).model, x),
        "by hand": runner(by_hand(op, hidden), x),
    }
    difference = max(np.abs(call()[0] - calls["original"]()[0]).max() for call in calls.values())
    times = alternate(calls, rounds)
    return {
        "operator": op,
        "hidden": hidden,
        "batch": batch,
        **{f"{name} (ms)": 1000 * value for name, value in times.items()},
        "times as fast": times["original"] / times["looplift"],
        "looplift / by hand": times["looplift"] / times["by hand"],
        "difference": float(difference),
    }


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    rows = [
        measure(op, hidden, batch, options.steps, options.rounds)
        for op in GATES
        for hidden in (32, 128, 512)
        for batch in (1, 8)
    ]
    title = f"A cell over {options.steps} steps of {FEATURES} features: a loop, looplift, by hand"
    report("fused", title, rows)


if __name__ == "__main__":
    main()
