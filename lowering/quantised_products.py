"""Products of dequantised tensors, as products of their bytes.

    y = Conv(DequantizeLinear(x, s, a), DequantizeLinear(w, t, b), c)
        ->
    y = Cast(ConvInteger(x, w, a, b)) · t · s + c

The operands are bytes, whose products are exact and take a quarter of the time of those of float32
on a CPU. Only the import does this: onnxruntime recognises such products, and the QuantizeLinear
after them, itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnx import TensorProto

from ..rewrite.engine.engine import Engine
from ..rewrite.engine.patch import Patch
from ..rewrite.engine.promise import Promise
from ..rewrite.engine.rule import Match, Phase, Rule
from ..rewrite.graph.ir import Node, Tensor, optional
from ..rules.contrib.checks import number
from ..rules.values.dead_nodes import EliminateDeadNode

_BYTE_TYPES = (TensorProto.UINT8, TensorProto.INT8)
_MOST_FACTORS = (2**31 - 1) // 255**2
"""The most products of bytes, less their zero points, whose sum int32 holds in any case."""
_MOST_AXES = 4
"""The axes of a convolution of images; for those of volumes there is no kernel of bytes."""
_INTEGER_OPERATORS = {"Conv": "ConvInteger", "MatMul": "MatMulInteger", "Gemm": "MatMulInteger"}


@dataclass(frozen=True)
class QuantisedTensor:
    """What a DequantizeLinear reads."""

    data: Tensor
    scale: Tensor
    zero: Tensor | None
    """The zero point; None for 0."""
    has_scales: bool
    """Whether there is a scale for each output channel or column, rather than one."""


@dataclass(frozen=True)
class QuantisedProduct:
    """A product of two quantised tensors."""

    left: QuantisedTensor
    right: QuantisedTensor
    is_transposed: bool
    """Whether the right matrix is transposed."""
    bias: Tensor | None
    rank: int
    """That of the result."""


class MultiplyIntegers(Rule[QuantisedProduct]):
    """Multiplies the bytes of dequantised tensors, and scales the products."""

    root = tuple(_INTEGER_OPERATORS)
    promise = Promise(rounds="multiplies with the scales after the sum")
    fires = """<ir_version: 10, opset_import: ["" : 21]>
      g (uint8[N,4] x) => (float[N,3] y)
      <int8[4,3] w = {1,2,3,4,5,6,7,8,9,0,-1,-2}, float s = {0.5}, uint8 z = {3}> {
      a = DequantizeLinear(x, s, z) b = DequantizeLinear(w, s) y = MatMul(a, b) }"""
    spares: ClassVar = {
        "is not dequantised": """g (uint8[N,2] x) => (float[N,1] y)
      <float[2,1] b = {1,2}, float s = {0.5}> { a = DequantizeLinear(x, s) y = MatMul(a, b) }""",
        "neither one scale": """g (uint8[N,2] x) => (float[N,1] y)
      <int8[2,1] w = {1,2}, float s = {0.5}, float[2] t = {0.5,0.25}> {
      a = DequantizeLinear(x, s) b = DequantizeLinear<axis = 0>(w, t) y = MatMul(a, b) }""",
        "one scale nor": """g (uint8[N,2] x) => (float[N,1] y)
      <int8[2,1] w = {1,2}, float s = {0.5}, float[2] t = {0.5,0.25}> {
      a = DequantizeLinear(x, t) b = DequantizeLinear(w, s) y = MatMul(a, b) }""",
        "is not constant": """g (uint8[N,2] x, int8[2,1] w) => (float[N,1] y) <float s = {0.5}> {
      a = DequantizeLinear(x, s) b = DequantizeLinear(w, s) y = MatMul(a, b) }""",
        "neither uint8 nor int8": """g (int32[N,2] x) => (float[N,1] y)
      <int8[2,1] w = {1,2}, float s = {0.5}> {
      a = DequantizeLinear(x, s) b = DequantizeLinear(w, s) y = MatMul(a, b) }""",
        "is not float32": """<ir_version: 10, opset_import: ["" : 21]>
      g (uint8[N,2] x) => (float16[N,1] y) <int8[2,1] w = {1,2}, float s = {0.5}> {
      h = Cast<to = 10>(s) a = DequantizeLinear(x, h) b = DequantizeLinear(w, h)
      y = MatMul(a, b) }""",
        "is a vector": """g (uint8[2] x) => (float[1] y) <int8[2,1] w = {1,2}, float s = {0.5}> {
      a = DequantizeLinear(x, s) b = DequantizeLinear(w, s) y = MatMul(a, b) }""",
        "is not a matrix": """g (uint8[N,2] x) => (float[N] y)
      <int8[2] w = {1,2}, float s = {0.5}> {
      a = DequantizeLinear(x, s) b = DequantizeLinear(w, s) y = MatMul(a, b) }""",
        "a convolution of volumes": """g (uint8[1,1,N,N,N] x) => (float[1,1,N,N,N] y)
      <int8[1,1,1,1,1] w = {1}, float s = {0.5}> {
      a = DequantizeLinear(x, s) b = DequantizeLinear(w, s) y = Conv(a, b) }""",
        "scales or transposes": """g (uint8[N,2] x) => (float[N,1] y)
      <int8[2,1] w = {1,2}, float s = {0.5}> {
      a = DequantizeLinear(x, s) b = DequantizeLinear(w, s) y = Gemm<alpha = 2.0>(a, b) }""",
    }

    def match(self, m: Match) -> QuantisedProduct:
        node = m.node
        first, second = node.inputs[:2]
        is_conv, attrs = node.op == "Conv", node.attrs
        is_plain = attrs.get("alpha", 1) == attrs.get("beta", 1) == 1 and not attrs.get("transA", 0)
        m.need(node.op != "Gemm" or is_plain, "it scales or transposes its first operand")
        rank = m.need(m.facts.rank(first) or None, "the rank of {} is not known", first, at=first)
        m.need(rank > 1, "{} is a vector", first, at=first)
        m.need(not is_conv or rank <= _MOST_AXES, "it is a convolution of volumes")
        m.need(is_conv or m.facts.rank(second) == 2, "{} is not a matrix", second, at=second)
        is_transposed = not is_conv and bool(attrs.get("transB", 0))
        transposition = None if is_conv else m.producer(second, "Transpose")
        if transposition is not None:
            second, is_transposed = transposition.inputs[0], not is_transposed
        left = _quantised(m, first, None)
        right = _quantised(m, second, 0 if is_conv or is_transposed else 1)
        weight = m.need(
            m.facts.constant(right.data), "{} is not constant", right.data, at=right.data
        )
        outputs = weight.shape[0 if is_conv or is_transposed else 1]
        m.need(
            weight.size <= _MOST_FACTORS * outputs, "int32 may not hold a sum of so many products"
        )
        return QuantisedProduct(left, right, is_transposed, optional(node.inputs, 2), rank)

    def apply(self, patch: Patch, found: QuantisedProduct) -> None:
        node, (left, right) = patch.root, (found.left, found.right)
        emit = patch.builder(node.outputs[0])
        zeros = [
            number(emit, 0, patch.facts.dtype(each.data)) if each.zero is None else each.zero
            for each in (left, right)
        ]
        is_conv = node.op == "Conv"
        weight = emit.transpose(right.data, [1, 0]) if found.is_transposed else right.data
        attrs = node.attrs if is_conv else {}
        total = emit(_INTEGER_OPERATORS[node.op], left.data, weight, *zeros, **attrs)
        y = emit("Cast", total, to=TensorProto.FLOAT)
        scale, bias = right.scale, found.bias
        if is_conv:
            channels = list(range(1, found.rank - 1))
            scale = emit.unsqueeze(scale, channels) if right.has_scales else scale
            bias = None if bias is None else emit.unsqueeze(bias, channels)
        # One by one: the product of two scales may overflow.
        y = emit("Mul", emit("Mul", y, scale), left.scale)
        patch.replace_node(node, [y if bias is None else emit("Add", y, bias)])
        patch.decompose_operator()


def _quantised(m: Match, tensor: Tensor, axis: int | None) -> QuantisedTensor:
    """What a DequantizeLinear of bytes reads. Raises Miss where there is none.

    There may be a scale for each entry of `axis`.
    """
    node = m.need(
        m.producer(tensor, "DequantizeLinear"), "{} is not dequantised", tensor, at=tensor
    )
    data, scale, zero = node.inputs[0], node.inputs[1], optional(node.inputs, 2)
    m.need(m.facts.dtype(data) in _BYTE_TYPES, "{} is neither uint8 nor int8", data, at=data)
    for value in (scale, tensor):
        m.need(m.facts.dtype(value) == TensorProto.FLOAT, "{} is not float32", value, at=value)
    shape, rank = m.facts.shape(scale), m.facts.rank(data)
    is_one = shape in ((), (1,))
    has_scales = (
        axis is not None
        and bool(rank)
        and shape is not None
        and len(shape) == 1
        and not node.attrs.get("block_size", 0)
        and node.attrs.get("axis", 1) % rank == axis
    )
    m.need(is_one or has_scales, "{} is neither one scale nor one for each output", scale, at=scale)
    return QuantisedTensor(data, scale, zero, not is_one)


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
