"""RoiAlign with channels in vectors, on CPUs.

TVM's kernel computes where each sample lies, and its weights, for each channel again. Here the
planes are transposed, so that the channels of an element follow each other: a sample is four
elements times four weights, for all channels. The transposition costs as much as a sample for each
element of the planes, and a few regions have as many samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tvm import relax, tirx, topi
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ...processor import is_for_llvm
from ..functions.micro_kernels import native_tile
from ..kernels.affine import flat, int64
from ..kernels.emission import bound, compute_block, for_items

_COST_OF_SAMPLE = 8
"""The time for a channel of a sample, in multiply-adds."""
_USUAL_SAMPLES = 2
"""Samples along an axis of a bin, where the region decides."""
_ZERO = tirx.const(0.0, "float32")
_bound_float = partial(bound, dtype="float32")


def legalize_roi_align(legalize: Callable[..., Any], bb: relax.BlockBuilder, call: Any) -> Any:
    """The means of samples, by the kernel of this module; anything else by TVM's."""
    data, regions = call.args
    attrs = call.attrs
    shapes = [getattr(part.ty, "shape", None) for part in (data, regions, call)]
    if (
        not is_for_llvm()
        or str(attrs.mode) != "avg"
        or str(attrs.layout) != "NCHW"
        or {str(part.ty.dtype) for part in (data, regions)} != {"float32"}
        or not all(isinstance(shape, relax.ShapeExpr) for shape in shapes)
    ):
        return legalize(bb, call)
    count, channels, *sizes = call.ty.shape.values
    planes = bb.emit(bb.call_te(topi.transpose, data, [0, 2, 3, 1]))
    kernel = bb.add_func(
        _kernel(
            [int(size) for size in sizes], float(attrs.spatial_scale), int(attrs.sample_ratio),
            is_aligned=bool(attrs.aligned),
        ),
        "roi_align",
    )  # fmt: skip
    result = relax.TensorType([count, *sizes, channels], "float32")
    means = bb.emit(relax.op.call_tir(kernel, [planes, regions], result))
    return bb.call_te(topi.transpose, means, [0, 3, 1, 2])


def _kernel(sizes: Sequence[int], scale: float, ratio: int, *, is_aligned: bool) -> tirx.PrimFunc:
    """(planes [batch, height, width, channels], regions [k, 5]) -> means [k, *sizes, channels]."""
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        batch, height, width, channels, count = (ib.int64() for _ in range(5))
        shapes = [[batch, height, width, channels], [count, 5], [count, *sizes, channels]]
        planes, regions, means = (
            ib.match_buffer(ib.arg(name, ib.handle()), shape, "float32")
            for name, shape in zip(("planes", "regions", "means"), shapes, strict=True)
        )
        with ib.sblock("root"), compute_block("roi_align"):
            extents = (height, width)
            source, corners, output = (flat(buffer) for buffer in (planes, regions, means))

            def region(number: Any) -> None:
                columns = [corners[number * 5 + column] for column in range(5)]
                entry = bound(tirx.Cast("int64", columns[0]))
                axes = [
                    _Axis(columns[2 - k] * scale, columns[4 - k] * scale, sizes[k], ratio,
                          extents[k], is_aligned=is_aligned)
                    for k in range(2)
                ]  # fmt: skip
                samples = axes[0].samples * axes[1].samples
                share = _bound_float(1 / tirx.Cast("float32", tirx.max(samples, int64(1))))
                with ib.grid(*map(int64, sizes)) as bins:
                    place = (number * sizes[0] + bins[0]) * sizes[1] + bins[1]
                    target = bound(place * channels)
                    _for_channels(channels, lambda c: ib.buffer_store(output, _ZERO, [target + c]))
                    with ib.serial(axes[0].samples) as y, ib.serial(axes[1].samples) as x:
                        at = [axis.at(b, s) for axis, b, s in zip(axes, bins, (y, x), strict=True)]
                        inside = [axis.contains(p) for axis, p in zip(axes, at, strict=True)]
                        with ib.If(tirx.all(*inside)), ib.Then():
                            _add(source, output, axes, at, share, target, entry, channels)

            bins = sizes[0] * sizes[1] * (ratio or _USUAL_SAMPLES) ** 2
            for_items(count, count * channels * (bins * _COST_OF_SAMPLE), region)
    return builder.get()


class _Axis:
    """The bins of a region along one axis of the planes, and the samples of each."""

    def __init__(
        self, first: Any, last: Any, bins: int, ratio: int, size: Any, *, is_aligned: bool
    ) -> None:
        extent = last - first
        if not is_aligned:
            extent = tirx.max(extent, tirx.const(1.0, "float32"))
        self.size = size
        self._first = _bound_float(first)
        self._bin = _bound_float(extent / tirx.const(float(bins), "float32"))
        adaptive = tirx.Cast("int64", tirx.ceil(self._bin))
        self.samples = int64(ratio) if ratio > 0 else bound(tirx.max(adaptive, int64(0)))

    def at(self, number: Any, sample: Any) -> Any:
        """Where a sample of a bin lies."""
        start = self._first + tirx.Cast("float32", number) * self._bin
        half = tirx.Cast("float32", sample) + tirx.const(0.5, "float32")
        return _bound_float(start + half * self._bin / tirx.Cast("float32", self.samples))

    def contains(self, place: Any) -> Any:
        """Whether a sample counts: it lies at most one element beside the plane."""
        return tirx.all(place >= -1.0, place <= tirx.Cast("float32", self.size))

    def neighbours(self, place: Any) -> list[tuple[Any, Any]]:
        """The two elements around a sample, each with its weight."""
        last = tirx.Cast("float32", self.size - 1)
        place = _bound_float(tirx.min(tirx.max(place, _ZERO), last))
        low = bound(tirx.Cast("int64", place))
        part = _bound_float(place - tirx.Cast("float32", low))
        return [(low, 1.0 - part), (bound(tirx.min(low + 1, self.size - 1)), part)]


def _add(
    source: Any, output: Any, axes: Sequence[_Axis], at: Sequence[Any], share: Any, target: Any,
    entry: Any, channels: Any,
) -> None:  # fmt: skip
    """Adds a sample to the results of its bin."""
    rows, columns = (axis.neighbours(place) for axis, place in zip(axes, at, strict=True))
    height, width = (axis.size for axis in axes)
    corners = [
        (bound(((entry * height + row) * width + column) * channels), _bound_float(a * b * share))
        for row, a in rows
        for column, b in columns
    ]

    def add(c: Any) -> None:
        total = output[target + c]
        for place, weight in corners:
            total = total + source[place + c] * weight
        ib.buffer_store(output, total, [target + c])

    _for_channels(channels, add)


def _for_channels(channels: Any, body: Callable[[Any], None]) -> None:
    """Emits `body` for each channel, in vectors and one by one at the end."""
    lanes = int64(native_tile().lanes)
    whole = bound(tirx.floordiv(channels, lanes))
    with ib.serial(whole) as vector, ib.vectorized(lanes) as lane:
        body(vector * lanes + lane)
    with ib.serial(channels - whole * lanes) as rest:
        body(whole * lanes + rest)
