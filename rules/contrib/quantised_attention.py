"""Decomposes QAttention of com.microsoft: an Attention whose operand and weights are bytes.

y, present = QAttention(x, weights, bias, s, t, mask, u, v, past)
 -> q, k, v = Split(Cast(MatMulInteger(x, weights, u, v)) * (s * t) + bias)
    y = the attention of these, as Attention computes it

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
#com.microsoft.QAttention.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from .attention import AttentionSlots, Heads, heads_of_product, replace_by_attention
from .integer_products import IntegerProduct, emit_product, integer_product

_PRODUCT = (0, 1, 3, 4, 6, 7, 2)
"""The inputs in the order of the fields of an integer product."""
_OTHERS = AttentionSlots(past=8, mask=5, bias=None)


@dataclass(frozen=True)
class QuantisedAttention:
    """The product of bytes, and how it is divided into heads."""

    product: IntegerProduct
    heads: Heads


class DecomposeQAttention(Rule[QuantisedAttention]):
    """Decomposes QAttention into a MatMulInteger, and MatMul, Softmax and changes of shape."""

    root = "com.microsoft.QAttention"
    promise = Promise(
        rounds="sums in another order",
        nonfinite="scores that are infinite or NaN",
    )
    fires = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (uint8[2,3,6] x, uint8[6,24] w, float[24] b, float s, float t, uint8 u, uint8 v)
        => (float[2,3,8] y) {
      y = com.microsoft.QAttention<num_heads = 2>(x, w, b, s, t, , u, v) }"""
    spares = {
        "not known to be of float32": """<ir_version: 8,
      opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[1,1] r, uint8[2,3,6] x, uint8[6,24] w, float[24] b, float s) => (float[2,3,8] y) {
      h = com.microsoft.Inverse(r) t = Squeeze(h)
      y = com.microsoft.QAttention<num_heads = 2>(x, w, b, s, t) }""",
    }

    def match(self, m: Match) -> QuantisedAttention:
        product = integer_product(m, _PRODUCT)
        heads = heads_of_product(m, product.right, TensorProto.FLOAT, _OTHERS)
        return QuantisedAttention(product, heads)

    def apply(self, patch: Patch, found: QuantisedAttention) -> None:
        product = emit_product(patch.builder(patch.root.outputs[0]), found.product)
        replace_by_attention(patch, product, found.heads, _OTHERS)
