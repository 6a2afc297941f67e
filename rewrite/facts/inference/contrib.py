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
    )
)
def like_first(ctx: NodeContext) -> Sequence[Fact]:
    """The result is like the first input."""
    first = ctx.fact(0)
    return [Fact(first.dtype, first.shape) if first.kind == "tensor" else Fact()]


@register(*_named("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"))
def skip_layer_normalization(ctx: NodeContext) -> Sequence[Fact]:
    """The normalised sum, statistics, and the sum itself, which the next layer reads."""
    (sum_,) = like_first(ctx)
    return [sum_, Fact(), Fact(), sum_][: len(ctx.node.outputs)]


@register(*_named("MatMulNBits"))
def matmul_n_bits(ctx: NodeContext) -> Sequence[Fact]:
    """The product of a tensor [..., K] with packed weights, [..., N]."""
    data, width = ctx.fact(0), ctx.attr("N")
    if data.kind != "tensor" or not data.shape or not isinstance(width, int):
        return [Fact(data.dtype)]
    return [Fact(data.dtype, (*data.shape[:-1], width))]
