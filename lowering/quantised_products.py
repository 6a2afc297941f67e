"""Products of dequantised tensors, as products of their bytes.

    y = Conv(DequantizeLinear(x, s, a), DequantizeLinear(w, t, b), c)
        ->
    y = Cast(ConvInteger(x, w, a, b)) · s · t + c

The operands are bytes, whose products are exact and take a quarter of the time of those of float32.
Only the import does this: onnxruntime finds such products itself, and the QuantizeLinear after
them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from onnx import TensorProto, helper

from ..rewrite.engine.builder import Builder
from ..rewrite.engine.engine import Engine
from ..rewrite.engine.patch import Patch
from ..rewrite.engine.promise import Promise
from ..rewrite.engine.rule import Match, Phase, Rule
from ..rewrite.graph.ir import Node, Tensor, optional
from ..rules.values.dead_nodes import EliminateDeadNode

_BYTES = (TensorProto.UINT8, TensorProto.INT8)
_MOST_FACTORS = (2**31 - 1) // 255**2
"""The most products of bytes, less their zero points, whose sum int32 holds in any case."""
_COMBINED = {"Conv": "ConvInteger", "MatMul": "MatMulInteger"}


@dataclass(frozen=True)
class Quantised:
    """A quantised tensor."""

    data: Tensor
    scale: Tensor
    zero: Tensor | None
    """The zero point; None for 0."""
    is_along_axis: bool
    """Whether there is a scale for each output channel or column, rather than one."""


@dataclass(frozen=True)
class QuantisedProduct:
    """A product of two quantised tensors."""

    left: Quantised
    right: Quantised
    bias: Tensor | None
    rank: int
    """That of the result."""


class MultiplyIntegers(Rule[QuantisedProduct]):
    """Multiplies the bytes of dequantised tensors, and scales the products."""

    root = tuple(_COMBINED)
    promise = Promise(rounds="multiplies with the scales after the sum")
    fires = """g (uint8[N,4] x, int8[4,3] w) => (float[N,3] y) <float s = {0.5}, uint8 z = {3}> {
      a = DequantizeLinear(x, s, z) b = DequantizeLinear(w, s) y = MatMul(a, b) }"""
    spares: ClassVar = {
        "is not dequantised": """g (uint8[N,4] x, float[4,3] b) => (float[N,3] y)
      <float s = {0.5}> { a = DequantizeLinear(x, s) y = MatMul(a, b) }""",
        "neither one scale": """g (uint8[N,4] x, int8[4,3] w, float[4] t) => (float[N,3] y)
      <float s = {0.5}> {
      a = DequantizeLinear(x, s) b = DequantizeLinear<axis = 0>(w, t) y = MatMul(a, b) }""",
    }

    def match(self, m: Match) -> QuantisedProduct:
        node = m.node
        is_conv = node.op == "Conv"
        right_rank = m.need(
            m.facts.rank(node.inputs[1]) or None, "the rank of {} is not known", node.inputs[1]
        )
        m.need(is_conv or right_rank == 2, "{} is not a matrix", node.inputs[1])
        rank = m.need(m.facts.rank(node.inputs[0]) or None, "the rank is not known")
        m.need(rank > 1, "{} is a vector", node.inputs[0])
        left = _quantised(m, node.inputs[0], None)
        right = _quantised(m, node.inputs[1], 0 if is_conv else 1)
        sizes = m.facts.shape(right.data) or ()
        summed = sizes[1:] if is_conv else sizes[:1]
        known = [size for size in summed if isinstance(size, int)]
        m.need(
            len(known) == len(summed) and math.prod(known) <= _MOST_FACTORS,
            "int32 may not hold the sum of the products",
        )
        return QuantisedProduct(left, right, optional(node.inputs, 2), rank)

    def apply(self, patch: Patch, found: QuantisedProduct) -> None:
        node, (left, right) = patch.root, (found.left, found.right)
        emit = patch.builder(node.outputs[0])
        zeros = [_zero_point(emit, each) for each in (left, right)]
        total = emit(_COMBINED[node.op], left.data, right.data, *zeros, **node.attrs)
        y = emit("Cast", total, to=TensorProto.FLOAT)
        scale = right.scale
        if right.is_along_axis and node.op == "Conv":
            scale = _of_channels(emit, scale, found.rank)
        y = emit("Mul", y, emit("Mul", scale, left.scale))
        if found.bias is not None:
            y = emit("Add", y, _of_channels(emit, found.bias, found.rank))
        patch.replace_node(node, [y])
        patch.decompose_operator()


def _quantised(m: Match, tensor: Tensor, axis: int | None) -> Quantised:
    """What a DequantizeLinear of bytes reads. Raises Miss where there is none.

    There may be a scale for each entry of `axis`.
    """
    node = m.need(
        m.producer(tensor, "DequantizeLinear"), "{} is not dequantised", tensor, at=tensor
    )
    data, scale, zero = node.inputs[0], node.inputs[1], optional(node.inputs, 2)
    m.need(m.facts.dtype(data) in _BYTES, "{} are no bytes", data, at=data)
    m.need(m.facts.dtype(scale) == TensorProto.FLOAT, "{} is not float32", scale, at=scale)
    shape = m.facts.shape(scale)
    is_one = shape in ((), (1,))
    rank = m.facts.rank(data) or 0
    is_along = shape is not None and len(shape) == 1 and not node.attrs.get("block_size", 0)
    is_along = is_along and axis is not None and node.attrs.get("axis", 1) % max(rank, 1) == axis
    m.need(is_one or is_along, "{} is neither one scale nor one for each output", scale, at=scale)
    return Quantised(data, scale, zero, not is_one)


def _of_channels(emit: Builder, vector: Tensor, rank: int) -> Tensor:
    """A vector that broadcasts along the channels of a tensor."""
    return emit.unsqueeze(vector, list(range(1, rank - 1)))


def _zero_point(emit: Builder, tensor: Quantised) -> Tensor:
    if tensor.zero is not None:
        return tensor.zero
    dtype = helper.tensor_dtype_to_np_dtype(emit.patch.facts.dtype(tensor.data))
    return emit.constant(np.zeros((), dtype))


PHASE = Phase(
    "quantised products", (MultiplyIntegers, EliminateDeadNode), "multiplies bytes as integers"
)


def multiply_integers(engine: Engine) -> Engine:
    """Multiplies integers in the graph of a finished engine; the engine that did so, or this."""
    if not any(_may_multiply(node) for node in engine.index.walk()):
        return engine
    second = Engine(engine.model, (PHASE,), engine.assertions, engine.options)
    second.run()
    return second


def _may_multiply(node: Node) -> bool:
    return node.op == "DequantizeLinear" and not node.domain
