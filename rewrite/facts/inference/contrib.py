"""Operators of com.microsoft, which onnx has no schemas of (onnxruntime's ContribOperators.md)."""

from __future__ import annotations

from collections.abc import Sequence

from ..fact import Fact
from .registry import NodeContext, register

DOMAIN = "com.microsoft"


def _named(*ops: str) -> tuple[str, ...]:
    return tuple(f"{DOMAIN}::{op}" for op in ops)


@register(
    *_named(
        "BiasGelu",
        "FastGelu",
        "Gelu",
        "QLinearLeakyRelu",
        "QLinearSigmoid",
        "QuickGelu",
        "RotaryEmbedding",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
    )
)
def like_first(ctx: NodeContext) -> Sequence[Fact]:
    """The first result is like the first input; about the others, nothing is said."""
    first = ctx.fact(0)
    if first.kind != "tensor":
        return [Fact() for _ in ctx.node.outputs]
    return [Fact(first.dtype, first.shape), *(Fact() for _ in ctx.node.outputs[1:])]


@register(*_named("MatMulNBits"))
def matmul_n_bits(ctx: NodeContext) -> Sequence[Fact]:
    """The product of a tensor [..., K] with packed weights, [..., N]."""
    data, width = ctx.fact(0), ctx.attr("N")
    if not data.shape or not isinstance(width, int):
        return [Fact(data.dtype)]
    return [Fact(data.dtype, (*data.shape[:-1], width))]
