"""Decomposes QEmbedLayerNormalization of com.microsoft, whose tables and factors are bytes.

y = QEmbedLayerNormalization(ids, segments, words, places, table, gamma, beta, mask, …)
 -> sum = DequantizeLinear(Gather(words, ids)) + DequantizeLinear(Gather(places, 0, 1 …)) + …
    y = LayerNormalization(sum, DequantizeLinear(gamma), DequantizeLinear(beta))

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
#com.microsoft.QEmbedLayerNormalization.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Tensor, optional
from .checks import need_type
from .normalization import (
    Normalization,
    first_positions,
    layer_normalization,
    of_nonempty,
    read_mask_index,
)

_WORDS, _PLACES, _SEGMENTS, _GAMMA, _BETA = 2, 3, 4, 5, 6
_TO_SCALE, _TO_ZERO = 6, 11
"""How many inputs the scale and the zero point are after their operand."""


class DecomposeQEmbedLayerNormalization(Rule[Normalization]):
    """Decomposes QEmbedLayerNormalization into Gathers, Adds and a LayerNormalization."""

    root = "com.microsoft.QEmbedLayerNormalization"
    promise = Promise(
        rounds="sums in another order",
        nonfinite="the mean of a large number may overflow",
        always_accepts="indices that count from the end, and operands that broadcast",
    )
    fires = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (int32[2,3] mask, uint8[9,8] words, uint8[7,8] places, uint8[8] gamma, uint8[8] beta,
         uint8 z) => (float[2,3,8] y, int32[2] count) <int32 zero = {0}, float s = {0.1}> {
      ids = Mul(mask, zero)
      y, count = com.microsoft.QEmbedLayerNormalization
        (ids, , words, places, , gamma, beta, mask, s, s, , s, s, z, z, , z, z) }"""
    spares = {
        "not known to be one number": """<ir_version: 8,
      opset_import: ["" : 17, "com.microsoft" : 1]>
      g (int32[2,3] mask, uint8[9,8] words, uint8[7,8] places, uint8[8] gamma, uint8[8] beta,
         float[1,1] r, uint8 z) => (float[2,3,8] y, int32[2] count) <int32 zero = {0}> {
      ids = Mul(mask, zero)
      h = com.microsoft.Inverse(r) s = Squeeze(h)
      y, count = com.microsoft.QEmbedLayerNormalization
        (ids, , words, places, , gamma, beta, mask, s, s, , s, s, z, z, , z, z) }""",
    }

    def match(self, m: Match) -> Normalization:
        node = m.node
        segments = [_SEGMENTS] if node.inputs[1].name else []
        for slot in (_WORDS, _PLACES, *segments, _GAMMA, _BETA):
            table = m.need(optional(node.inputs, slot), "a table is missing")
            scale, zero = (
                m.need(optional(node.inputs, slot + distance), "a scale or zero point is missing")
                for distance in (_TO_SCALE, _TO_ZERO)
            )
            for value in (scale, zero):
                is_one = m.facts.shape(value) in ((), (1,))
                m.need(is_one, "{} is not known to be one number", value, at=value)
            same = need_type(m, zero) == need_type(m, table)
            m.need(same, "{} and its zero point have different types", table, at=table)
        return Normalization(TensorProto.FLOAT, float(node.attrs.get("epsilon", 1e-12)))

    def apply(self, patch: Patch, found: Normalization) -> None:
        node = patch.root
        emit = patch.builder(node.outputs[0])
        ids, segments = node.inputs[:2]
        words = emit("Gather", node.inputs[_WORDS], ids, axis=0)
        positions = of_nonempty(emit, ids, first_positions(emit, ids))
        places = emit("Gather", node.inputs[_PLACES], positions, axis=0)
        total = emit("Add", _dequantised(emit, words, _WORDS), _dequantised(emit, places, _PLACES))
        if segments.name:  # onnxruntime reads no table of segments without their numbers.
            rows = emit("Gather", node.inputs[_SEGMENTS], segments, axis=0)
            total = emit("Add", total, _dequantised(emit, rows, _SEGMENTS))
        gamma, beta = (_dequantised(emit, node.inputs[slot], slot) for slot in (_GAMMA, _BETA))
        y = layer_normalization(emit, total, gamma, beta, found)
        patch.replace_node(node, [y, read_mask_index(patch, emit)])
        patch.decompose_operator()


def _dequantised(emit: Builder, x: Tensor, slot: int) -> Tensor:
    """Elements of an input as floats."""
    shape = emit.constant(np.zeros(0, np.int64))
    scale, zero = (
        emit("Reshape", emit.patch.root.inputs[slot + distance], shape)
        for distance in (_TO_SCALE, _TO_ZERO)
    )
    return emit("DequantizeLinear", x, scale, zero)
