"""Operators of com.microsoft, which onnx has no schemas of (onnxruntime's ContribOperators.md)."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from ... import symbolic
from ..fact import Fact
from .registry import NodeContext, register

DOMAIN = "com.microsoft"


def _named(*ops: str) -> tuple[str, ...]:
    return tuple(f"{DOMAIN}::{op}" for op in ops)


@register(
    *_named(
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


@register(*_named("BiasGelu", "FastGelu"))
def bias_gelu(ctx: NodeContext) -> Sequence[Fact]:
    """The result is like the first input, which a bias fits."""
    _check_fit(ctx)
    return like_first(ctx)


@register(*_named("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"))
def skip_layer_normalization(ctx: NodeContext) -> Sequence[Fact]:
    """The normalised sum, statistics, and the sum itself, which the next layer reads."""
    _check_fit(ctx)
    (sum_,) = like_first(ctx)
    return [sum_, Fact(), Fact(), sum_][: len(ctx.node.outputs)]


def _check_fit(ctx: NodeContext) -> None:
    """Raises AlwaysFails where an operand cannot be broadcast to the shape of the first."""
    shape = ctx.shape(0)
    for other in ctx.inputs()[1:]:
        if shape is None or other.shape is None:
            continue
        if len(other.shape) > len(shape):
            ctx.fail(f"an operand has {len(other.shape)} axes, but the first has {len(shape)}")
        for size, wanted in zip(reversed(other.shape), reversed(shape)):
            if symbolic.eq(size, wanted) is False and symbolic.eq(size, 1) is False:
                ctx.fail(f"an axis of size {size} does not fit one of size {wanted}")


@register(*_named("MatMulNBits"))
def matmul_n_bits(ctx: NodeContext) -> Sequence[Fact]:
    """The product of a tensor [..., K] with packed weights, [..., N]."""
    data, width = ctx.fact(0), ctx.attr("N")
    if data.kind != "tensor" or not data.shape or not isinstance(width, int):
        return [Fact(data.dtype)]
    return [Fact(data.dtype, (*data.shape[:-1], width))]


@register(*_named("GatherBlockQuantized"))
def gather_block_quantized(ctx: NodeContext) -> Sequence[Fact]:
    """The rows of a table that indices pick, of the type of the scales.

    A byte holds several elements of a few bits, along the last axis.
    """
    data, index, scales = ctx.fact(0), ctx.fact(1), ctx.fact(2)
    bits = ctx.attr("bits", 4)
    if not data.dtype or not data.shape or index.shape is None or bits not in (2, 4, 8):
        return [Fact(scales.dtype)]
    axis = ctx.axis(ctx.attr("gather_axis", 0), len(data.shape))
    shape = list(data.shape)
    if data.dtype == TensorProto.UINT8:
        shape[-1] = symbolic.mul(shape[-1], 8 // bits)
    return [Fact(scales.dtype, (*shape[:axis], *index.shape, *shape[axis + 1 :]))]


@register(*_named("CDist"))
def cdist(ctx: NodeContext) -> Sequence[Fact]:
    """The distances between rows [m, k] and [n, k], [m, n]."""
    left, right = ctx.shape(0), ctx.shape(1)
    if left is None or right is None or len(left) != 2 or len(right) != 2:
        return [Fact(ctx.fact(0).dtype)]
    return [Fact(ctx.fact(0).dtype, (left[0], right[0]))]
