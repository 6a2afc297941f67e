"""Decomposes products of quantised matrices of com.microsoft that return floats.

y = MatMulIntegerToFloat(a, b, s, t, u, v, c)
 -> y = Cast(MatMulInteger(a, b, u, v)) * (s * t) + c

y = DynamicQuantizeMatMul(a, b, t, v, c)
 -> q, s, u = DynamicQuantizeLinear(a), and the same
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx import TensorProto

from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Tensor, optional
from .checks import need_type, number


@dataclass(frozen=True)
class IntegerProduct:
    """The operands of a product, by role; None where one is omitted."""

    left: Tensor
    right: Tensor
    left_scale: Tensor | None
    """None for a left operand of floats, which is quantised at run time."""
    right_scale: Tensor
    left_zero: Tensor | None
    right_zero: Tensor | None
    bias: Tensor | None


_SLOTS = {
    "MatMulIntegerToFloat": (0, 1, 2, 3, 4, 5, 6),
    "DynamicQuantizeMatMul": (0, 1, None, 2, None, 3, 4),
}
"""The inputs in the order of the fields above; None for one that the operator lacks."""


class DecomposeIntegerProduct(Rule[IntegerProduct]):
    """Decomposes MatMulIntegerToFloat and DynamicQuantizeMatMul."""

    root = ("com.microsoft.MatMulIntegerToFloat", "com.microsoft.DynamicQuantizeMatMul")
    promise = Promise(
        rounds="products of scales may be rounded in another order",
        always_accepts="biases that broadcast to the product",
    )
    fires = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[B,N,3] x, uint8[3,4] w, float[4] c) => (float[B,N,4] y)
      <float t = {0.5}, uint8 v = {7}> {
      y = com.microsoft.DynamicQuantizeMatMul(x, w, t, v, c) }"""
    spares = {
        "not known to be of float32": """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[1,1] x, uint8[2,3] q, uint8[3,4] w) => (float[2,4] y) <float s = {1}> {
      h = com.microsoft.Inverse(x) t = Squeeze(h)
      y = com.microsoft.MatMulIntegerToFloat(q, w, s, t) }""",
    }

    def match(self, m: Match) -> IntegerProduct:
        return integer_product(m, _SLOTS[m.node.op])

    def apply(self, patch: Patch, found: IntegerProduct) -> None:
        emit = patch.builder(patch.root.outputs[0])
        patch.replace_node(patch.root, [emit_product(emit, found)])
        patch.decompose_operator()


def integer_product(m: Match, slots: Sequence[int | None]) -> IntegerProduct:
    """The product whose operands are inputs of the root, in the order of its fields.

    Raises Miss where the type or shape of one is not known.
    """
    given = [None if slot is None else optional(m.node.inputs, slot) for slot in slots]
    left, right, left_scale, right_scale, left_zero, right_zero, bias = given
    for scale in (left_scale, right_scale):
        is_float = scale is None or m.facts.dtype(scale) == TensorProto.FLOAT
        m.need(is_float, "{} is not known to be of float32", scale, at=scale)
    for one in (left_scale, left_zero):
        is_one = one is None or m.facts.shape(one) in ((), (1,))
        m.need(is_one, "{} is not known to be one number", one, at=one)
    left, right, right_scale = (
        m.need(operand, "an operand is missing") for operand in (left, right, right_scale)
    )
    need_type(m, left)
    return IntegerProduct(left, right, left_scale, right_scale, left_zero, right_zero, bias)


def emit_product(emit: Builder, found: IntegerProduct) -> Tensor:
    """The product of integers times the scales, and the bias."""
    left, left_scale, left_zero = found.left, found.left_scale, found.left_zero
    if left_scale is None:
        left, left_scale, left_zero = emit.outputs(
            "DynamicQuantizeLinear", [found.left], [found.left] * 3
        )
    zeros = []
    if found.right_zero is not None:
        dtype = emit.patch.facts.dtype(found.left)
        zeros = [left_zero or number(emit, 0, dtype), found.right_zero]
    elif left_zero is not None:
        zeros = [left_zero]
    product = emit("MatMulInteger", left, found.right, *zeros)
    factor = emit("Mul", left_scale, found.right_scale)
    y = emit("Mul", emit("Cast", product, to=TensorProto.FLOAT), factor)
    return y if found.bias is None else emit("Add", y, found.bias)
