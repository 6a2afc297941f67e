"""A detector over a whole recording, whose LSTM is written as a scripting exporter writes it.

    python examples/scripted_detector.py scripted.onnx

One Loop over the frames contains the cell: two products, and gates that are sliced with computed
bounds. It collects the outputs in a list. Around it are two Ifs on sizes that the source checks.
The file has no LSTM operator and no real decision: it computes one LSTM, one product and a sigmoid.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from voice_activity import Array, Body, add_dimension, squeeze

FEATURES = 40
HIDDEN = 64


def scripted_detector(seed: int = 0) -> onnx.ModelProto:
    """The detector.

    Input: `features` float32 [time, batch, 40]. Output: `speech` float32 [time, batch], the
    probability of speech in each frame.
    """
    random = np.random.default_rng(seed)
    main = Body("")
    rank = main.op("Size", main.op("Shape", "features"))
    is_single = main.op("Equal", rank, main.constant(2))
    (frames,) = add_dimension(main, is_single, ["features"])
    outputs = add_loop(main, frames, random)
    weight = main.weight("head.weight", random.standard_normal((HIDDEN, 1)) / np.sqrt(HIDDEN))
    bias = main.weight("head.bias", random.standard_normal(1))
    logits = main.op("Add", main.op("MatMul", outputs, weight), bias)
    speech = main.op("Sigmoid", squeeze(main, logits, -1))
    main.nodes.append(helper.make_node("Identity", [speech], ["speech"], name="speech"))
    float32 = TensorProto.FLOAT
    graph = helper.make_graph(
        main.nodes,
        "scripted_detector",
        [helper.make_tensor_value_info("features", float32, ["time", "batch", FEATURES])],
        [helper.make_tensor_value_info("speech", float32, ["time", "batch"])],
        main.initializers,
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(
        graph, opset_imports=[opset], ir_version=8, producer_name="scripted_detector.py"
    )


def add_loop(main: Body, frames: str, random: np.random.Generator) -> str:
    """The recurrence over all frames; returns the outputs [time, batch, HIDDEN]."""
    scale = 1 / np.sqrt(HIDDEN)
    weights = {
        name: main.weight(f"cell.{name}", random.uniform(-scale, scale, shape))
        for name, shape in (
            ("w_ih", (4 * HIDDEN, FEATURES)),
            ("w_hh", (4 * HIDDEN, HIDDEN)),
            ("b_ih", (4 * HIDDEN,)),
            ("b_hh", (4 * HIDDEN,)),
        )
    }
    shape = main.op("Shape", frames)
    length = main.op("Gather", shape, main.constant(0), axis=0)
    batch = main.op("Gather", shape, main.constant([1]), axis=0)
    sizes = main.op("Concat", batch, main.constant([HIDDEN]), axis=0)
    zeros = main.op("ConstantOfShape", sizes)
    collected = main.op("SequenceEmpty", dtype=TensorProto.FLOAT)
    body = loop_body(frames, weights)
    always = main.constant(True, np.bool_)
    *_, rows = main.ops("Loop", length, always, zeros, zeros, collected, outputs=3, body=body)
    return main.op("ConcatFromSequence", rows, axis=0, new_axis=1)


def loop_body(frames: str, weights: dict[str, str]) -> onnx.GraphProto:
    """The loop body: takes and returns the condition, h, c and the list of outputs."""
    step = Body("/cell")
    x = step.op("Gather", frames, "t", axis=0)
    gates = step.op("Gemm", x, weights["w_ih"], transB=1)
    gates = step.op("Add", gates, weights["b_ih"])
    gates = step.op("Add", gates, step.op("Gemm", "h", weights["w_hh"], transB=1))
    gates = step.op("Add", gates, weights["b_hh"])
    i, f, g, o = chunk(step, gates, 4)
    i, f, o = (step.op("Sigmoid", gate) for gate in (i, f, o))
    kept = step.op("Mul", f, "c")
    c = step.op("Add", kept, step.op("Mul", i, step.op("Tanh", g)))
    h = step.op("Mul", o, step.op("Tanh", c))
    rows = step.op("SequenceInsert", "rows", h)
    again = step.op("Identity", "again")
    state = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("h", "c", h, c)]
    condition = [helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in ("again", again)]
    lists = [
        helper.make_tensor_sequence_value_info(n, TensorProto.FLOAT, None) for n in ("rows", rows)
    ]
    number = helper.make_tensor_value_info("t", TensorProto.INT64, [])
    inputs = [number, condition[0], *state[:2], lists[0]]
    return helper.make_graph(
        step.nodes, "cell", inputs, [condition[1], *state[2:], lists[1]], step.initializers
    )


def chunk(body: Body, value: str, count: int) -> list[str]:
    """`value.chunk(count, 1)` along an axis of unknown size."""
    axis = body.constant([1])
    size = body.op("Gather", body.op("Shape", value), axis, axis=0)
    step = body.op("Div", body.op("Add", size, body.constant([count - 1])), body.constant([count]))
    bounds = [body.constant([0])]
    bounds += [body.op("Mul", step, body.constant([k + 1])) for k in range(count)]
    return [body.op("Slice", value, a, b, axis) for a, b in pairwise(bounds)]


def recording(length: int, batch: int = 1, seed: int = 0) -> dict[str, Array]:
    """Random features of the type and shape that a caller passes."""
    random = np.random.default_rng(seed)
    return {"features": random.standard_normal((length, batch, FEATURES)).astype(np.float32)}


def main() -> None:
    """Writes the model to the given path."""
    parser = argparse.ArgumentParser(description="Write a detector with a scripted LSTM.")
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    onnx.save(scripted_detector(), path)
    print(f"{path}: {path.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main()
