"""Parses and runs models in ONNX text."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import parser

from looplift.rewrite.graph import ir
from looplift.rewrite.running.runtime import Array


def parse(source: str, opset: int = 17, ir_version: int = 8) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["": {opset}]> {source}')


def model(text: str, opset: int = 20, ir_version: int = 10, **weights: Array) -> onnx.ModelProto:
    """Parses a model and adds initializers that are too long for text."""
    proto = parse(text, opset, ir_version)
    for name, values in weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return proto


def node(graph: ir.Graph, op: str) -> ir.Node:
    found: ir.Node = next(node for node in graph.nodes if node.op == op)
    return found


def run(model: onnx.ModelProto, **feeds: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


def assert_runs_equal(before: onnx.ModelProto, after: onnx.ModelProto, **feeds: Any) -> None:
    for expected, actual in zip(run(before, **feeds), run(after, **feeds), strict=True):
        np.testing.assert_array_equal(expected, actual)


ADD = model("g (float[T, B] x, float[B] y) => (float[T, B] z) { z = Add(x, y) }")

IF = """g (bool c, float[2] x) => (float[2] y) {
    a = Neg(x)
    y = If (c) <
        then_branch = t () => (float[2] r) { b = Add(a, x) r = Neg(b) },
        else_branch = e () => (float[2] r) { b = Abs(a) r = Identity(b) }>
}"""

X = np.array([3.0, -4.0], np.float32)
TRUE, FALSE = np.array(True), np.array(False)
