"""Decomposes the Gelu operators of com.microsoft.

y = BiasGelu(x, b)    ->   y = Gelu(Add(x, b))                              since opset 20
                      ->   s = Add(x, b)  y = 0.5 * s * (1 + Erf(s / √2))   before
y = FastGelu(x, b)    ->   the same with approximate = "tanh"
y = QuickGelu(x)      ->   y = x * Sigmoid(1.702 * x)
"""

from __future__ import annotations

import math

from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Tensor, optional
from .checks import need_type, number

_STANDARD_GELU = 20
"""The first opset that has Gelu."""


class DecomposeGelu(Rule[int]):
    """Decomposes Gelu, BiasGelu, FastGelu and QuickGelu of com.microsoft."""

    root = (
        "com.microsoft.Gelu",
        "com.microsoft.BiasGelu",
        "com.microsoft.FastGelu",
        "com.microsoft.QuickGelu",
    )
    promise = Promise(
        always_accepts="biases that broadcast to the operand",
    )
    fires = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[N,3] x, float[3] b) => (float[N,3] y) { y = com.microsoft.BiasGelu(x, b) }"""
    spares = {
        "is not known": """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
      g (float[3,3] x) => (float[3,3] y) {
      h = com.microsoft.Inverse(x) y = com.microsoft.Gelu(h) }""",
    }

    def match(self, m: Match) -> int:
        count = len(m.node.inputs)
        m.need(1 <= count <= 2, "it has {} inputs, but takes one operand and at most a bias", count)
        return need_type(m, m.node.inputs[0])

    def apply(self, patch: Patch, found: int) -> None:
        node = patch.root
        emit = patch.builder(node.outputs[0])
        x, bias = node.inputs[0], optional(node.inputs, 1)
        if bias is not None:
            x = emit("Add", x, bias)
        if node.op == "QuickGelu":
            alpha = number(emit, node.attrs.get("alpha", 1.702), found)
            y = emit("Mul", x, emit("Sigmoid", emit("Mul", x, alpha)))
        elif patch.opset >= _STANDARD_GELU:
            y = emit("Gelu", x, **({"approximate": "tanh"} if node.op == "FastGelu" else {}))
        else:
            y = _gelu(emit, x, found, node.op == "FastGelu")
        patch.replace_node(node, [y])
        patch.decompose_operator()


def _gelu(emit: Builder, x: Tensor, dtype: int, approximate: bool) -> Tensor:
    """Gelu by its definition (ONNX operator specification, Gelu)."""
    if approximate:
        cube = emit("Mul", emit("Mul", x, x), x)
        inner = emit("Add", x, emit("Mul", cube, number(emit, 0.044715, dtype)))
        inner = emit("Tanh", emit("Mul", inner, number(emit, math.sqrt(2 / math.pi), dtype)))
    else:
        inner = emit("Erf", emit("Mul", x, number(emit, math.sqrt(0.5), dtype)))
    half = emit("Mul", x, number(emit, 0.5, dtype))
    return emit("Mul", half, emit("Add", inner, number(emit, 1.0, dtype)))
