"""Products, convolutions, pooling, normalisation and recurrent operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ... import symbolic
from ...symbolic import Dim
from ..facts import BOOL, FLOAT, INT64, Fact
from .broadcast import broadcast
from .registry import Site, shape_of


def _check_equal(site: Site, a: Dim, b: Dim, what: str) -> None:
    if symbolic.eq(a, b) is False:
        site.fail(f"{what} differ: {a} and {b}")


def _need_rank(site: Site, slot: int, rank: int, what: str) -> None:
    """Refuses an input that cannot have the only rank the operator accepts."""
    possible = site.fact(slot).possible_ranks()
    if possible is not None and rank not in possible:
        site.fail(f"{what} must have rank {rank}, not {'/'.join(map(str, sorted(possible)))}")


@shape_of("MatMul")
def matmul(site: Site) -> Sequence[Fact]:
    a, b = site.fact(0), site.fact(1)
    dtype = a.dtype or b.dtype
    if a.shape is None or b.shape is None:
        return [Fact(dtype)]
    if not a.shape or not b.shape:
        site.fail("an operand is a scalar")
    left = (1, *a.shape) if len(a.shape) == 1 else a.shape
    right = (*b.shape, 1) if len(b.shape) == 1 else b.shape
    _check_equal(site, left[-1], right[-2], "the contracted dims")
    outer = broadcast(site, left[:-2], right[:-2]) or ()
    rows = () if len(a.shape) == 1 else (left[-2],)
    columns = () if len(b.shape) == 1 else (right[-1],)
    return [Fact(dtype, outer + rows + columns)]


@shape_of("Gemm")
def gemm(site: Site) -> Sequence[Fact]:
    # onnxruntime takes a vector for a matrix of one row.
    possible = site.fact(0).possible_ranks()
    if possible is not None and not possible & {1, 2}:
        site.fail(f"A must have rank 2, not {'/'.join(map(str, sorted(possible)))}")
    dtype = site.fact(0).dtype or site.fact(1).dtype
    if site.fact(0).rank == 1 or site.fact(1).rank == 1:
        return [Fact(dtype, site.unknown_shape(2))]
    _need_rank(site, 1, 2, "B")
    a = site.shape(0) or site.unknown_shape(2)
    b = site.shape(1) or site.unknown_shape(2)
    a = a[::-1] if site.attr("transA", 0) else a
    b = b[::-1] if site.attr("transB", 0) else b
    _check_equal(site, a[1], b[0], "the contracted dims")
    rows = a[0] if site.shape(0) is not None else site.fresh(0)
    columns = b[1] if site.shape(1) is not None else site.fresh(1)
    return [Fact(dtype, (rows, columns))]


def _spatial(site: Site, kernel: Sequence[Dim]) -> list[tuple[int, int, int, int]] | None:
    """(stride, dilation, pad before, pad after) per spatial axis; None for automatic padding."""
    count = len(kernel)
    if site.attr("auto_pad", "NOTSET") not in ("NOTSET", "", "VALID"):
        return None
    strides = site.attr("strides") or [1] * count
    dilations = site.attr("dilations") or [1] * count
    pads = site.attr("pads") or [0] * (2 * count)
    if site.attr("auto_pad", "NOTSET") == "VALID":
        pads = [0] * (2 * count)
    return [(strides[i], dilations[i], pads[i], pads[i + count]) for i in range(count)]


def _windows(site: Site, dim: Dim, kernel: Dim, where: tuple[int, int, int, int]) -> Dim:
    """How many windows fit one axis, rounding down or (ceil_mode) up."""
    stride, dilation, before, after = where
    reach = symbolic.add(symbolic.mul(dilation, symbolic.sub(kernel, 1)), 1)
    free = symbolic.sub(symbolic.add(dim, before + after), reach)
    if not site.attr("ceil_mode", 0):
        return symbolic.add(symbolic.floordiv(free, stride), 1)
    whole = symbolic.add(symbolic.ceildiv(free, stride), 1)
    assert isinstance(whole, int), "rounding up needs known sizes"
    assert isinstance(dim, int)
    return whole - 1 if (whole - 1) * stride >= dim + before else whole


@shape_of("Conv", "ConvInteger")
def conv(site: Site) -> Sequence[Fact]:
    x, w = site.fact(0), site.fact(1)
    dtype = x.dtype if site.node.op == "Conv" else 6
    if w.shape is None:
        return [Fact(dtype, None, x.ranks)]
    _need_rank(site, 0, len(w.shape), "the input of a Conv with this weight")
    if x.shape is None:
        return [Fact(dtype, (site.fresh(0), w.shape[0], *_fresh_from(site, 2, len(w.shape))))]
    _check_equal(site, x.shape[1], symbolic.mul(w.shape[1], site.attr("group", 1)), "the channels")
    where = _spatial(site, w.shape[2:])
    if where is None:
        spatial = _same_padding(site, x.shape[2:])
    else:
        spatial = [_windows(site, d, k, p) for d, k, p in zip(x.shape[2:], w.shape[2:], where)]
    return [Fact(dtype, (x.shape[0], w.shape[0], *spatial))]


def _fresh_from(site: Site, first: int, rank: int) -> tuple[Dim, ...]:
    return tuple(site.fresh(axis) for axis in range(first, rank))


def _same_padding(site: Site, dims: Sequence[Dim]) -> list[Dim]:
    strides = site.attr("strides") or [1] * len(dims)
    return [symbolic.ceildiv(d, s) for d, s in zip(dims, strides)]


@shape_of("ConvTranspose")
def conv_transpose(site: Site) -> Sequence[Fact]:
    x, w = site.fact(0), site.fact(1)
    if w.shape is None:
        return [Fact(x.dtype, None, x.ranks)]
    rank = len(w.shape)
    _need_rank(site, 0, rank, "the input of a ConvTranspose with this weight")
    channels = symbolic.mul(w.shape[1], site.attr("group", 1))
    where = _spatial(site, w.shape[2:])
    if x.shape is None or where is None or site.attr("output_shape"):
        batch = site.fresh(0) if x.shape is None else x.shape[0]
        return [Fact(x.dtype, (batch, channels, *_fresh_from(site, 2, rank)))]
    extra = site.attr("output_padding") or [0] * len(where)
    spatial = []
    for axis, (stride, dilation, before, after) in enumerate(where):
        reach = symbolic.add(symbolic.mul(dilation, symbolic.sub(w.shape[2 + axis], 1)), 1)
        grown = symbolic.mul(symbolic.sub(x.shape[2 + axis], 1), stride)
        spatial.append(symbolic.add(symbolic.add(grown, reach), extra[axis] - before - after))
    return [Fact(x.dtype, (x.shape[0], channels, *spatial))]


@shape_of("MaxPool", "AveragePool", "LpPool")
def pool(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    kernel = site.attr("kernel_shape")
    _need_rank(site, 0, len(kernel) + 2, "the input of a pool with this kernel")
    if x.shape is None:
        return [Fact(x.dtype, site.unknown_shape(len(kernel) + 2))] * len(site.node.outputs)
    where = _spatial(site, kernel)
    if where is None:
        spatial = _same_padding(site, x.shape[2:])
    elif not all(isinstance(d, int) for d in x.shape[2:]) and (
        site.attr("ceil_mode", 0) or not _fits_once(x, kernel, where)
    ):
        # Where a window may be larger than the axis, onnxruntime rounds the other way.
        spatial = list(_fresh_from(site, 2, len(x.shape)))
    else:
        spatial = [_windows(site, d, k, p) for d, k, p in zip(x.shape[2:], kernel, where)]
    values = Fact(x.dtype, (*x.shape[:2], *spatial))
    return [values, Fact(INT64, values.shape)][: len(site.node.outputs)]


def _fits_once(x: Fact, kernel: Sequence[int], where: list[tuple[int, int, int, int]]) -> bool:
    """Whether every axis surely holds a window."""
    shape = x.shape or ()
    return all(
        symbolic.le(dilation * (k - 1) + 1, symbolic.add(d, before + after)) is True
        for d, k, (_, dilation, before, after) in zip(shape[2:], kernel, where)
    )


@shape_of("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    if x.shape is None:
        return [Fact(x.dtype, None, x.ranks)]
    return [Fact(x.dtype, (*x.shape[:2], *(1,) * (len(x.shape) - 2)))]


@shape_of("BatchNormalization")
def batch_normalization(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    running = site.fact(3)
    return [Fact(x.dtype, x.shape, x.ranks), running, running][: len(site.node.outputs)]


@shape_of("LayerNormalization", "GroupNormalization", "RMSNormalization")
def normalization(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    first = Fact(x.dtype, x.shape, x.ranks)
    if len(site.node.outputs) == 1 or x.shape is None:
        return [first]
    axis = site.axis(site.attr("axis", -1), len(x.shape))
    kept = x.shape[:axis] + (1,) * (len(x.shape) - axis)
    return [first, Fact(FLOAT, kept), Fact(FLOAT, kept)]


@shape_of("Dropout")
def dropout(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    mask = BOOL if site.opset >= 10 else x.dtype
    return [Fact(x.dtype, x.shape, x.ranks), Fact(mask, x.shape, x.ranks)]


@shape_of("LSTM", "GRU", "RNN")
def recurrent(site: Site) -> Sequence[Fact]:
    """Y [n, directions, batch, hidden], then the last states (ONNX: LSTM, GRU, RNN)."""
    _need_rank(site, 0, 3, "X")
    for slot, name in ((5, "initial_h"), (6, "initial_c")):
        if site.present(slot) and (slot == 5 or site.node.op == "LSTM"):
            _need_rank(site, slot, 3, name)
    x, r = site.fact(0), site.shape(2)
    directions = 2 if site.attr("direction", "forward") == "bidirectional" else 1
    hidden = site.attr("hidden_size") or (r[2] if r is not None else site.fresh(3))
    batch_first = bool(site.attr("layout", 0))
    steps, batch = site.fresh(0), site.fresh(1)
    if x.shape is not None:
        steps, batch = x.shape[1::-1] if batch_first else x.shape[:2]
    state: tuple[Dim, ...] = (directions, batch, hidden)
    y: tuple[Dim, ...] = (steps, directions, batch, hidden)
    if batch_first:
        state, y = (batch, directions, hidden), (batch, steps, directions, hidden)
    facts = [Fact(x.dtype, y), Fact(x.dtype, state), Fact(x.dtype, state)]
    return facts[: len(site.node.outputs)]


@shape_of("Resize", "Upsample")
def resize(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    if x.shape is None:
        return [Fact(x.dtype, None, x.ranks)]
    sizes = site.dims(3) if site.present(3) else None
    stretches = site.attr("keep_aspect_ratio_policy", "stretch") == "stretch"
    all_axes = "axes" not in site.node.attrs
    if sizes is not None and len(sizes) == len(x.shape) and all_axes and stretches:
        return [Fact(x.dtype, tuple(sizes))]
    scales = site.constant(2 if len(site.node.inputs) > 2 else 1)
    if scales is not None and scales.size == len(x.shape) and "axes" not in site.node.attrs:
        pairs = zip(x.shape, scales.reshape(-1).tolist())
        return [Fact(x.dtype, tuple(_scaled(site, i, d, s) for i, (d, s) in enumerate(pairs)))]
    return [Fact(x.dtype, site.unknown_shape(len(x.shape)))]


def _scaled(site: Site, axis: int, dim: Dim, scale: float) -> Dim:
    if float(scale).is_integer():
        return symbolic.mul(dim, int(scale))
    if not isinstance(dim, int):
        return site.fresh(axis)
    return int(np.float32(dim) * np.float32(scale))  # in single precision, as onnxruntime does
