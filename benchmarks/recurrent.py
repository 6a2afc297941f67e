"""LSTM and GRU on TVM and on onnxruntime, on one thread and on two.

    python benchmarks/recurrent.py [--target native] [--rounds 15] [--steps 10 100 1000]
        [--threads 1 2]

Times are medians of calls in one process. On one thread, the calls of both take turns; on several
they do not, because idle threads of one keep spinning while the other runs. looplift is faster
where the ratio is below 1.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from functools import partial
from typing import Any

# TVM reads it when it is imported; its default is half of the cores.
os.environ["TVM_NUM_THREADS"] = str(os.cpu_count())

import numpy as np
import onnx
import onnxruntime
import tvm
from harness import alternate, report, session
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import looplift
from looplift.lowering.compile import as_target

COLUMNS, HIDDEN = 64, 128
GATES = {"LSTM": 4, "GRU": 3}
BATCHES = (1, 16)
PAUSE = 0.1
"""Seconds after which idle threads stop spinning."""


def layer(op: str) -> onnx.ModelProto:
    """A model of one layer, whose input has a symbolic length and batch; it returns Y and Y_h."""
    rng = np.random.default_rng(0)
    rows = GATES[op] * HIDDEN
    shapes = {"W": (1, rows, COLUMNS), "R": (1, rows, HIDDEN), "B": (1, 2 * rows)}
    weights = [
        numpy_helper.from_array((rng.standard_normal(shape) * 0.1).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    graph = helper.make_graph(
        [helper.make_node(op, ["X", "W", "R", "B"], ["Y", "Y_h"], hidden_size=HIDDEN)],
        "layer",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["n", "b", COLUMNS])],
        [
            helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["n", 1, "b", HIDDEN]),
            helper.make_tensor_value_info("Y_h", TensorProto.FLOAT, [1, "b", HIDDEN]),
        ],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(description="Compare recurrent layers with onnxruntime.")
    parser.add_argument("--target", default="native", help='native, or JSON such as {"kind": …}')
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    configure = tvm.get_global_func("runtime.config_threadpool")
    cores = os.sched_getaffinity(0)
    for op in GATES:
        model = layer(op)
        target = as_target(arguments.target)
        with target:  # The target decides the layout of the weights.
            module = looplift.from_onnx(model)
        executable = looplift.compile(module, target)
        machine = relax.VirtualMachine(executable, tvm.cpu())
        for threads, batch in itertools.product(arguments.threads, BATCHES):
            configure(1, threads)
            # That pins this thread to a core; onnxruntime's threads would inherit it.
            os.sched_setaffinity(0, cores)
            oracle = session(model, threads)
            for length in arguments.steps:
                x = np.random.default_rng(1).standard_normal((length, batch, COLUMNS))
                x = x.astype(np.float32)
                rows.append(
                    {"layer": op, "threads": threads, "batch": batch, "steps": length}
                    | compare(machine, oracle, x, threads, arguments.rounds)
                )
    title = f"Input {COLUMNS}, hidden {HIDDEN}, target {arguments.target}"
    report("recurrent", title, rows)


def compare(
    machine: Any,
    oracle: onnxruntime.InferenceSession,
    x: np.ndarray[Any, Any],
    threads: int,
    rounds: int,
) -> dict[str, float]:
    """One row: the microseconds of both, their ratio, and the largest difference of outputs."""
    tensor = tvm.runtime.tensor(x)
    wanted = oracle.run(None, {"X": x})
    got = [output.numpy() for output in machine["main"](tensor)]
    calls = {
        "onnxruntime": partial(oracle.run, None, {"X": x}),
        "TVM": partial(machine["main"], tensor),
    }
    times: dict[str, float] = {}
    if threads == 1:
        times = alternate(calls, rounds)
    else:
        for name, call in calls.items():
            time.sleep(PAUSE)
            times |= alternate({name: call}, rounds)
    return {
        "onnxruntime, us": 1e6 * times["onnxruntime"],
        "TVM, us": 1e6 * times["TVM"],
        "ratio": times["TVM"] / times["onnxruntime"],
        "difference": float(max(np.abs(a - b).max() for a, b in zip(got, wanted, strict=True))),
    }


if __name__ == "__main__":
    main()
