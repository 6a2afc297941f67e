"""Parses and runs models in ONNX text."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import parser

from looplift.rewrite.graph import ir
from looplift.rewrite.running.runtime import Array

MASKED_RNN = """g (float[T,B,2] x, int64[B] lengths, float[B,3] h0) => (float[T,B,3] y, float[B,3] last)
    <float[2,3] w = {0.1, 0.2, 0.3, -0.1, -0.2, -0.3}, float[3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1},
     int64 zero = {0}, int64[1] one = {1}, float none = {0}> {
    sizes = Shape(x) n = Gather(sizes, zero)
    last, y = Loop (n, , h0) <body = b (int64 t, bool ci, float[B,3] s)
        => (bool co, float[B,3] so, float[B,3] row) {
        co = Identity(ci) xt = Gather(x, t) p = MatMul(xt, w) q = MatMul(s, r) a = Add(q, p)
        h = Tanh(a) l = Less(t, lengths) live = Unsqueeze(l, one)
        so = Where(live, h, s) row = Where(live, h, none) }> }"""
"""An RNN whose rows have lengths of their own."""


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
