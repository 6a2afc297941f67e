"""Decomposes operators of com.microsoft that fuse a standard operator with its neighbours.

y = FusedMatMul<transB = 1, alpha = 0.5>(a, b)    ->   y = 0.5 * MatMul(a, Transpose(b))
y = FusedConv<activation = "Relu">(x, w, b, z)    ->   y = Relu(Conv(x, w, b) + z)
y = FusedGemm<activation = "Relu">(a, b, c)       ->   y = Relu(Gemm(a, b, c))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Tensor, optional
from .checks import need_type, number


@dataclass(frozen=True)
class TransposedProduct:
    """How a FusedMatMul permutes the axes of its operands."""

    first: list[int]
    second: list[int]
    dtype: int


class DecomposeFusedMatMul(Rule[TransposedProduct]):
    """Decomposes FusedMatMul into Transpose, MatMul and Mul."""

    root = "com.microsoft.FusedMatMul"
    promise = Promise(
        rounds="the factor is applied to the product",
    )
    fires = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[B,N,3] x, float[B,4,3] w) => (float[B,N,4] y) {
      y = com.microsoft.FusedMatMul<transB = 1, alpha = 0.5>(x, w) }"""
    spares = {
        "rank of `h` is not known": """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[B,N,3] x, float[4,3] w) => (float[B,N,4] y) { h = com.microsoft.Trilu(x)
      y = com.microsoft.FusedMatMul<transB = 1>(h, w) }""",
    }

    def match(self, m: Match) -> TransposedProduct:
        first, second = (
            _axes(
                m.need(m.facts.rank(x), "the rank of {} is not known", x, at=x),
                bool(m.node.attrs.get(f"transBatch{name}", 0)),
                bool(m.node.attrs.get(f"trans{name}", 0)),
            )
            for name, x in zip("AB", m.node.inputs)
        )
        return TransposedProduct(first, second, need_type(m, m.node.inputs[0]))

    def apply(self, patch: Patch, found: TransposedProduct) -> None:
        node = patch.root
        emit = patch.builder(node.outputs[0])
        a, b = (emit.transpose(x, p) for x, p in zip(node.inputs, (found.first, found.second)))
        y = emit("MatMul", a, b)
        alpha = node.attrs.get("alpha", 1.0)
        if alpha != 1.0:
            y = emit("Mul", y, number(emit, alpha, found.dtype))
        patch.replace_node(node, [y])
        patch.decompose_operator()


def _axes(rank: int, batch_last: bool, transposed: bool) -> list[int]:
    """The axes of an operand in the order in which MatMul needs them.

    With `batch_last` the batch axes follow the first axis. A vector is not transposed.
    """
    axes = list(range(rank))
    if rank < 2:
        return axes
    if batch_last:
        axes = [*axes[1:-1], 0, axes[-1]]
    return [*axes[:-2], axes[-1], axes[-2]] if transposed else axes


@dataclass(frozen=True)
class Activation:
    """An element-wise operator that a fused operator applies to its result."""

    op: str
    attributes: dict[str, float]
    dtype: int


_ATTRIBUTES = {
    "Clip": ("min", "max"),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
}
_WITHOUT_ATTRIBUTES = frozenset({"", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"})


def _need_activation(m: Match, parameters: list[float]) -> Activation:
    """The activation of the root. Raises Miss for one that is not known, or lacks a parameter."""
    op = m.node.attrs.get("activation", "")
    m.need(op in _WITHOUT_ATTRIBUTES or op in _ATTRIBUTES, "the activation {} is not known", op)
    names = _ATTRIBUTES.get(op, ())
    m.need(len(parameters) >= len(names), "the activation {} lacks a parameter", op)
    attributes = dict(zip(names, map(float, parameters)))
    return Activation(op, attributes, need_type(m, m.node.inputs[0]))


def _activated(emit: Builder, x: Tensor, found: Activation) -> Tensor:
    if not found.op:
        return x
    if found.op == "Clip":
        bounds = (number(emit, found.attributes[name], found.dtype) for name in ("min", "max"))
        return emit("Clip", x, *bounds)
    return emit(found.op, x, **found.attributes)


class DecomposeFusedConv(Rule[Activation]):
    """Decomposes FusedConv into Conv, Add and an activation."""

    root = "com.microsoft.FusedConv"
    promise = Promise(
        rounds="the operands are added after the convolution",
        always_accepts="an addend that broadcasts to the result",
    )
    fires = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[N,3,6,6] x, float[4,3,3,3] w, float[4] b, float[N,4,4,4] z) => (float[N,4,4,4] y) {
      y = com.microsoft.FusedConv<activation = "LeakyRelu", activation_params = [0.2]>(x, w, b, z) }"""
    spares = {
        "is not known": """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[N,3,6,6] x, float[4,3,3,3] w) => (float[N,4,4,4] y) { h = com.microsoft.Trilu(x)
      y = com.microsoft.FusedConv<activation = "Relu">(h, w) }""",
    }

    def match(self, m: Match) -> Activation:
        return _need_activation(m, list(m.node.attrs.get("activation_params", ())))

    def apply(self, patch: Patch, found: Activation) -> None:
        node = patch.root
        emit = patch.builder(node.outputs[0])
        bias, added = optional(node.inputs, 2), optional(node.inputs, 3)
        operands = [*node.inputs[:2], *([] if bias is None else [bias])]
        y = emit("Conv", *operands, **_standard_attributes(node.attrs))
        if added is not None:
            sizes, others = patch.facts.shape(y), patch.facts.shape(added)
            if sizes and others and any(symbolic.eq(*pair) is False for pair in zip(sizes, others)):
                raise Miss("{} has other sizes than the convolution", added)
            y = emit("Add", y, added)
        patch.replace_node(node, [_activated(emit, y, found)])
        patch.decompose_operator()


class DecomposeFusedGemm(Rule[Activation]):
    """Decomposes FusedGemm into Gemm and an activation."""

    root = "com.microsoft.FusedGemm"
    fires = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[N,3] x, float[4,3] w, float[4] b) => (float[N,4] y) {
      y = com.microsoft.FusedGemm<transB = 1, alpha = 0.5, activation = "Tanh">(x, w, b) }"""
    spares = {
        "is not known": """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[N,3] x, float[3,4] w) => (float[N,4] y) { h = com.microsoft.Trilu(x)
      y = com.microsoft.FusedGemm<activation = "Relu">(h, w) }""",
    }

    def match(self, m: Match) -> Activation:
        named = (m.node.attrs.get(f"activation_{name}") for name in ("alpha", "beta", "gamma"))
        return _need_activation(m, [value for value in named if value is not None])

    def apply(self, patch: Patch, found: Activation) -> None:
        node = patch.root
        emit = patch.builder(node.outputs[0])
        operands = [tensor for tensor in node.inputs if tensor.name]
        y = emit("Gemm", *operands, **_standard_attributes(node.attrs))
        patch.replace_node(node, [_activated(emit, y, found)])
        patch.decompose_operator()


def _standard_attributes(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a fused operator that its standard operator has."""
    return {name: value for name, value in attributes.items() if "activation" not in name}
