"""Products, convolutions, pooling, normalisation and recurrent operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ... import symbolic
from ...graph.einsum import einsum_letters
from ...symbolic import Dim
from ..fact import BOOL, FLOAT, INT64, Fact
from .broadcast import broadcast
from .fallback import infer_by_schema
from .registry import NodeContext, register


def _check_equal(ctx: NodeContext, a: Dim, b: Dim, what: str) -> None:
    if symbolic.eq(a, b) is False:
        ctx.fail(f"{what} differ: {a} and {b}")


def _need_rank(ctx: NodeContext, slot: int, rank: int, what: str) -> None:
    """Raises AlwaysFails for an input that cannot have the only rank that the operator accepts."""
    possible = ctx.fact(slot).possible_ranks()
    if possible is not None and rank not in possible:
        ctx.fail(f"{what} must have rank {rank}, not {'/'.join(map(str, sorted(possible)))}")


@register("MatMul")
def matmul(ctx: NodeContext) -> Sequence[Fact]:
    a, b = ctx.fact(0), ctx.fact(1)
    dtype = a.dtype or b.dtype
    if a.shape is None or b.shape is None:
        return [Fact(dtype)]
    if not a.shape or not b.shape:
        ctx.fail("an operand is a scalar")
    left = (1, *a.shape) if len(a.shape) == 1 else a.shape
    right = (*b.shape, 1) if len(b.shape) == 1 else b.shape
    _check_equal(ctx, left[-1], right[-2], "the contracted dims")
    outer = broadcast(ctx, left[:-2], right[:-2]) or ()
    rows = () if len(a.shape) == 1 else (left[-2],)
    columns = () if len(b.shape) == 1 else (right[-1],)
    return [Fact(dtype, outer + rows + columns)]


@register("Einsum")
def einsum(ctx: NodeContext) -> Sequence[Fact]:
    letters = einsum_letters(str(ctx.attr("equation")))
    if letters is not None and len(letters[0]) == len(ctx.inputs()):
        for slot, axes in enumerate(letters[0]):
            _need_rank(ctx, slot, len(axes), f"operand {slot} of {ctx.attr('equation')}")
    return infer_by_schema(ctx)


@register("Gemm")
def gemm(ctx: NodeContext) -> Sequence[Fact]:
    # onnxruntime accepts a vector as a matrix of one row.
    possible = ctx.fact(0).possible_ranks()
    if possible is not None and not possible & {1, 2}:
        ctx.fail(f"A must have rank 2, not {'/'.join(map(str, sorted(possible)))}")
    dtype = ctx.fact(0).dtype or ctx.fact(1).dtype
    if ctx.fact(0).rank == 1 or ctx.fact(1).rank == 1:
        return [Fact(dtype, ctx.unknown_shape(2))]
    _need_rank(ctx, 1, 2, "B")
    a = ctx.shape(0) or ctx.unknown_shape(2)
    b = ctx.shape(1) or ctx.unknown_shape(2)
    a = a[::-1] if ctx.attr("transA", 0) else a
    b = b[::-1] if ctx.attr("transB", 0) else b
    _check_equal(ctx, a[1], b[0], "the contracted dims")
    rows = a[0] if ctx.shape(0) is not None else ctx.fresh(0)
    columns = b[1] if ctx.shape(1) is not None else ctx.fresh(1)
    return [Fact(dtype, (rows, columns))]


def _spatial(ctx: NodeContext, kernel: Sequence[Dim]) -> list[tuple[int, int, int, int]] | None:
    """(stride, dilation, pad before, pad after) per spatial axis; None for automatic padding."""
    count = len(kernel)
    if ctx.attr("auto_pad", "NOTSET") not in ("NOTSET", "", "VALID"):
        return None
    strides = ctx.attr("strides") or [1] * count
    dilations = ctx.attr("dilations") or [1] * count
    pads = ctx.attr("pads") or [0] * (2 * count)
    if ctx.attr("auto_pad", "NOTSET") == "VALID":
        pads = [0] * (2 * count)
    return [(strides[i], dilations[i], pads[i], pads[i + count]) for i in range(count)]


def _windows(ctx: NodeContext, dim: Dim, kernel: Dim, where: tuple[int, int, int, int]) -> Dim:
    """The number of windows along one axis, rounded down or (ceil_mode) up."""
    stride, dilation, before, after = where
    reach = symbolic.add(symbolic.mul(dilation, symbolic.sub(kernel, 1)), 1)
    free = symbolic.sub(symbolic.add(dim, before + after), reach)
    if not ctx.attr("ceil_mode", 0):
        return symbolic.add(symbolic.floordiv(free, stride), 1)
    whole = symbolic.add(symbolic.ceildiv(free, stride), 1)
    assert isinstance(whole, int), "rounding up needs known sizes"
    assert isinstance(dim, int)
    return whole - 1 if (whole - 1) * stride >= dim + before else whole


@register("Conv", "ConvInteger")
def conv(ctx: NodeContext) -> Sequence[Fact]:
    x, w = ctx.fact(0), ctx.fact(1)
    dtype = x.dtype if ctx.node.op == "Conv" else 6
    if w.shape is None:
        return [Fact(dtype, None, x.ranks)]
    _need_rank(ctx, 0, len(w.shape), "the input of a Conv with this weight")
    if x.shape is None:
        return [Fact(dtype, (ctx.fresh(0), w.shape[0], *_fresh_from(ctx, 2, len(w.shape))))]
    _check_equal(ctx, x.shape[1], symbolic.mul(w.shape[1], ctx.attr("group", 1)), "the channels")
    where = _spatial(ctx, w.shape[2:])
    if where is None:
        spatial = _same_padding(ctx, x.shape[2:])
    else:
        spatial = [_windows(ctx, d, k, p) for d, k, p in zip(x.shape[2:], w.shape[2:], where)]
    return [Fact(dtype, (x.shape[0], w.shape[0], *spatial))]


def _fresh_from(ctx: NodeContext, first: int, rank: int) -> tuple[Dim, ...]:
    return tuple(ctx.fresh(axis) for axis in range(first, rank))


def _same_padding(ctx: NodeContext, dims: Sequence[Dim]) -> list[Dim]:
    strides = ctx.attr("strides") or [1] * len(dims)
    return [symbolic.ceildiv(d, s) for d, s in zip(dims, strides)]


@register("ConvTranspose")
def conv_transpose(ctx: NodeContext) -> Sequence[Fact]:
    x, w = ctx.fact(0), ctx.fact(1)
    if w.shape is None:
        return [Fact(x.dtype, None, x.ranks)]
    rank = len(w.shape)
    _need_rank(ctx, 0, rank, "the input of a ConvTranspose with this weight")
    channels = symbolic.mul(w.shape[1], ctx.attr("group", 1))
    where = _spatial(ctx, w.shape[2:])
    if x.shape is None or where is None or ctx.attr("output_shape"):
        batch = ctx.fresh(0) if x.shape is None else x.shape[0]
        return [Fact(x.dtype, (batch, channels, *_fresh_from(ctx, 2, rank)))]
    extra = ctx.attr("output_padding") or [0] * len(where)
    spatial = []
    for axis, (stride, dilation, before, after) in enumerate(where):
        reach = symbolic.add(symbolic.mul(dilation, symbolic.sub(w.shape[2 + axis], 1)), 1)
        grown = symbolic.mul(symbolic.sub(x.shape[2 + axis], 1), stride)
        spatial.append(symbolic.add(symbolic.add(grown, reach), extra[axis] - before - after))
    return [Fact(x.dtype, (x.shape[0], channels, *spatial))]


@register("MaxPool", "AveragePool", "LpPool")
def pool(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    kernel = ctx.attr("kernel_shape")
    _need_rank(ctx, 0, len(kernel) + 2, "the input of a pool with this kernel")
    if x.shape is None:
        return [Fact(x.dtype, ctx.unknown_shape(len(kernel) + 2))] * len(ctx.node.outputs)
    where = _spatial(ctx, kernel)
    if where is None:
        spatial = _same_padding(ctx, x.shape[2:])
    elif not all(isinstance(d, int) for d in x.shape[2:]) and (
        ctx.attr("ceil_mode", 0) or not _fits_once(x, kernel, where)
    ):
        # Where a window may be larger than the axis, onnxruntime rounds in the other direction.
        spatial = list(_fresh_from(ctx, 2, len(x.shape)))
    else:
        spatial = [_windows(ctx, d, k, p) for d, k, p in zip(x.shape[2:], kernel, where)]
    values = Fact(x.dtype, (*x.shape[:2], *spatial))
    return [values, Fact(INT64, values.shape)][: len(ctx.node.outputs)]


def _fits_once(x: Fact, kernel: Sequence[int], where: list[tuple[int, int, int, int]]) -> bool:
    """Whether a window is known to fit along every axis."""
    shape = x.shape or ()
    return all(
        symbolic.le(dilation * (k - 1) + 1, symbolic.add(d, before + after)) is True
        for d, k, (_, dilation, before, after) in zip(shape[2:], kernel, where)
    )


@register("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    if x.shape is None:
        return [Fact(x.dtype, None, x.ranks)]
    return [Fact(x.dtype, (*x.shape[:2], *(1,) * (len(x.shape) - 2)))]


@register("BatchNormalization")
def batch_normalization(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    running = ctx.fact(3)
    return [Fact(x.dtype, x.shape, x.ranks), running, running][: len(ctx.node.outputs)]


@register("LayerNormalization", "GroupNormalization", "RMSNormalization")
def normalization(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    first = Fact(x.dtype, x.shape, x.ranks)
    if len(ctx.node.outputs) == 1 or x.shape is None:
        return [first]
    axis = ctx.axis(ctx.attr("axis", -1), len(x.shape))
    kept = x.shape[:axis] + (1,) * (len(x.shape) - axis)
    return [first, Fact(FLOAT, kept), Fact(FLOAT, kept)]


@register("Dropout")
def dropout(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    mask = BOOL if ctx.opset >= 10 else x.dtype
    return [Fact(x.dtype, x.shape, x.ranks), Fact(mask, x.shape, x.ranks)]


@register("LSTM", "GRU", "RNN")
def recurrent(ctx: NodeContext) -> Sequence[Fact]:
    """Y [time, directions, batch, hidden], then the final states (ONNX: LSTM, GRU, RNN)."""
    _need_rank(ctx, 0, 3, "X")
    for slot, name in ((5, "initial_h"), (6, "initial_c")):
        if ctx.present(slot) and (slot == 5 or ctx.node.op == "LSTM"):
            _need_rank(ctx, slot, 3, name)
    x, r = ctx.fact(0), ctx.shape(2)
    directions = 2 if ctx.attr("direction", "forward") == "bidirectional" else 1
    given = ctx.attr("hidden_size")
    hidden = given if given and given > 0 else r[2] if r is not None else ctx.fresh(3)
    batch_first = bool(ctx.attr("layout", 0))
    time, batch = ctx.fresh(0), ctx.fresh(1)
    if x.shape is not None:
        time, batch = x.shape[1::-1] if batch_first else x.shape[:2]
    state: tuple[Dim, ...] = (directions, batch, hidden)
    y: tuple[Dim, ...] = (time, directions, batch, hidden)
    if batch_first:
        state, y = (batch, directions, hidden), (batch, time, directions, hidden)
    facts = [Fact(x.dtype, y), Fact(x.dtype, state), Fact(x.dtype, state)]
    return facts[: len(ctx.node.outputs)]


@register("Resize", "Upsample")
def resize(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    if x.shape is None:
        return [Fact(x.dtype, None, x.ranks)]
    sizes = ctx.dims(3) if ctx.present(3) else None
    stretches = ctx.attr("keep_aspect_ratio_policy", "stretch") == "stretch"
    all_axes = "axes" not in ctx.node.attrs
    if sizes is not None and len(sizes) == len(x.shape) and all_axes and stretches:
        return [Fact(x.dtype, tuple(sizes))]
    scales = ctx.constant(2 if len(ctx.node.inputs) > 2 else 1)
    if scales is not None and scales.size == len(x.shape) and "axes" not in ctx.node.attrs:
        pairs = zip(x.shape, scales.reshape(-1).tolist())
        return [Fact(x.dtype, tuple(_scaled(ctx, i, d, s) for i, (d, s) in enumerate(pairs)))]
    return [Fact(x.dtype, ctx.unknown_shape(len(x.shape)))]


def _scaled(ctx: NodeContext, axis: int, dim: Dim, scale: float) -> Dim:
    if float(scale).is_integer():
        return symbolic.mul(dim, int(scale))
    if not isinstance(dim, int):
        return ctx.fresh(axis)
    return int(np.float32(dim) * np.float32(scale))  # in single precision, like onnxruntime


@register("NonMaxSuppression")
def non_max_suppression(ctx: NodeContext) -> Sequence[Fact]:
    """One row of three indices for each selected box; at most one row for each score."""
    scores = ctx.shape(1)
    most = None if scores is None else symbolic.product(scores)
    high = symbolic.bounds(most)[1] if most is not None else None
    return [Fact(INT64, (ctx.fresh(0, high=high), 3))]
