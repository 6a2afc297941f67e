"""Operators of object detection: NonMaxSuppression and RoiAlign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ..kernel_call import call_kernel
from ..small_kernels import leading
from ..values import Value, as_tensor
from .accumulation import accumulate_in_float32
from .broadcasting import ONE, ZERO, dims_of, match_dims, require_size
from .registry import ConverterContext, converts
from .sizes import size_of, sizes_of

_HALF_PIXEL_ROI_ALIGN = 16
"""The opset since which RoiAlign moves the regions by half a pixel by default."""


@converts("RoiAlign")
@accumulate_in_float32
def roi_align(ctx: ConverterContext) -> Value:
    """RoiAlign, see https://onnx.ai/onnx/operators/onnx__RoiAlign.html.

    TVM's converter moves the regions by half a pixel before it scales them, not after. TVM's kernel
    does not write the bins of a region without samples.
    """
    default = "half_pixel" if ctx.opset >= _HALF_PIXEL_ROI_ALIGN else "output_half_pixel"
    scale = ctx.attr("spatial_scale", 1.0)
    data, entries = _within_batch(ctx, ctx.inputs[0], ctx.inputs[2])
    regions = match_dims(
        ctx.bb, ctx.inputs[1], [*dims_of(entries, "batch_indices"), tirx.IntImm("int64", 4)]
    )
    is_half_pixel = ctx.attr("coordinate_transformation_mode", default) == "half_pixel"
    if ctx.attr("mode", "avg") == "max":
        return _max_roi_align(ctx, data, regions, entries, is_half_pixel=is_half_pixel)
    if is_half_pixel and scale != 1:
        correction = relax.const(0.5 - 0.5 / scale, regions.ty.dtype)
        regions = ctx.bb.normalize(relax.op.add(regions, correction))
    means = ctx.bb.normalize(ctx.by_tvm([data, regions, entries]))
    if is_half_pixel and ctx.attr("sampling_ratio", 0) <= 0:
        zero = relax.const(0, means.ty.dtype)
        return relax.op.where(_has_positive_area(ctx, regions), means, zero)
    return means


def _within_batch(ctx: ConverterContext, data: Value, entries: Value) -> tuple[Value, Value]:
    """The data, and for each region its entry of the batch.

    An entry outside of the batch, which ONNX does not allow, is taken for the first or the last. A
    run with regions in an empty batch fails.
    """
    batch, *_ = dims_of(data, "data")
    (count,) = dims_of(entries, "batch_indices")

    def compute(entries: Any, batch: Any) -> Any:
        def entry(region: Any) -> Any:
            wanted = tirx.Cast("int64", entries(region))
            return tirx.max(tirx.min(wanted, batch - 1), ZERO)

        return te.compute(entries.shape, entry, name="entries")

    data = require_size(ctx.bb, data, 0, tirx.max(batch, tirx.min(count, ONE)))
    return data, ctx.bb.emit(ctx.call_te(compute, entries, batch, name="entries"))


def _has_positive_area(ctx: ConverterContext, regions: Any) -> Any:
    """Whether each of the regions [k, 4] has one: truth values [k, 1, 1, 1]."""
    columns = [relax.op.strided_slice(regions, [1], [at], [at + 1]) for at in range(4)]
    left, top, right, bottom = map(ctx.bb.normalize, columns)
    has_area = relax.op.logical_and(relax.op.less(left, right), relax.op.less(top, bottom))
    return relax.op.expand_dims(ctx.bb.normalize(has_area), [2, 3])


def _max_roi_align(
    ctx: ConverterContext, data: Value, regions: Value, entries: Value, *, is_half_pixel: bool
) -> Value:
    """RoiAlign by maxima: the largest weighted corner of all samples of a bin.

    A sample is between four elements, the corners. ONNX's reference implementation and onnxruntime
    take the maximum of the corners times their weights, not of their sums.
    """
    sizes = [ctx.attr("output_height", 1), ctx.attr("output_width", 1)]
    ratio, scale = ctx.attr("sampling_ratio", 0), ctx.attr("spatial_scale", 1.0)
    shift = 0.5 if is_half_pixel else 0.0

    def compute(data: Any, regions: Any, entries: Any) -> Any:
        def element(region: Any, channel: Any, *at: Any) -> Any:
            entry = tirx.Cast("int64", entries(region))
            starts, bins, counts, is_sampled = [], [], [], []
            for axis in range(2):  # rows, then columns; a region is (x, y, x, y)
                first, last = (
                    regions(region, corner + 1 - axis) * scale - shift for corner in (0, 2)
                )
                extent = last - first
                if not is_half_pixel:
                    extent = tirx.max(extent, tirx.const(1, extent.ty))
                bins.append(extent / sizes[axis])
                starts.append(first + at[axis] * bins[axis])
                adaptive = tirx.Cast("int64", tirx.ceil(bins[axis]))
                count = tirx.IntImm("int64", ratio) if ratio > 0 else adaptive
                is_sampled.append(count > 0)
                counts.append(tirx.max(count, ONE))
            steps = [te.reduce_axis((0, count), name="sample") for count in counts]
            corners = [te.reduce_axis((0, 2), name="corner") for _ in range(2)]
            places, weights, inside = [], [], []
            for axis in range(2):
                size = data.shape[2 + axis]
                sample = starts[axis] + (steps[axis] + 0.5) * bins[axis] / counts[axis]
                inside += [sample >= -1, sample <= size]
                sample = tirx.min(tirx.max(sample, 0), size - 1)
                low = tirx.Cast("int64", sample)
                part = sample - low
                is_high = corners[axis] == 1
                places.append(tirx.min(low + tirx.Select(is_high, ONE, ZERO), size - 1))
                weights.append(tirx.Select(is_high, part, 1 - part))
            value = data(entry, channel, *places) * weights[0] * weights[1]
            # A region without samples has the value 0, as one outside of the image.
            inside += is_sampled
            value = tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, data.dtype))
            return te.max(value, axis=[*steps, *corners])

        shape = [regions.shape[0], data.shape[1], *sizes]
        return te.compute(shape, element, name="roi_align_max")

    return ctx.call_te(compute, data, regions, entries, name="roi_align_max")


@converts("NonMaxSuppression")
def non_max_suppression(ctx: ConverterContext) -> Value:
    """NonMaxSuppression, see https://onnx.ai/onnx/operators/onnx__NonMaxSuppression.html.

    (boxes [b, n, 4], scores [b, c, n], ...) -> [k, 3]: batch entry, class and box of each selected
    box. Among equal scores the first box wins, and a box without area suppresses no other, as in
    onnxruntime. TVM's converter replaces thresholds that are not constant by defaults.
    """
    boxes, scores, limit, overlap, least = (ctx.inputs[slot] for slot in range(5))
    dims, (batches, classes, _) = dims_of(boxes, "boxes"), dims_of(scores, "scores")
    if limit is not None and ctx.known_elements(limit) is None:
        # TVM assumes that sizes are not negative, and would simplify `max(limit, 0)` to `limit`.
        limit = ctx.bb.normalize(relax.op.maximum(limit, relax.const(0, limit.ty.dtype)))
    most = ZERO if limit is None else tirx.max(size_of(ctx, limit), ZERO)
    capacity = batches * classes * tirx.min(most, dims[1])
    if overlap is None:
        overlap = relax.const(0, "float32")
    # A threshold is a scalar or a vector of one element.
    thresholds = [
        ctx.bb.normalize(relax.op.reshape(value, [1]))
        for value in (overlap, least)
        if value is not None
    ]
    limits = as_tensor(ctx.bb, relax.ShapeExpr([most]))
    kernel = _kernel(bool(ctx.attr("center_point_box", 0)), has_least=least is not None)
    arguments = [boxes, scores, *thresholds, limits]
    types = [relax.TensorType(shape, "int64") for shape in ([capacity, 3], [1], [dims[1]])]
    selected, count, _ = call_kernel(ctx.bb, "non_max_suppression", kernel, arguments, types)
    (number,) = sizes_of(ctx.bb, count)
    return ctx.call_te(leading, selected, [number, 3], name="leading")


@dataclass(frozen=True)
class _Buffers:
    """The buffers of the kernel."""

    boxes: Any
    """[batch, n, 4]."""
    scores: Any
    """[batch, classes, n]."""
    overlap: Any
    """The intersection over union above which a box suppresses another, [1]."""
    least: Any
    """The score that a box must exceed, [1]; or None."""
    selected: Any
    """The result, [capacity, 3]."""
    count: Any
    """The number of entries of `selected` that are filled, [1]."""
    waiting: Any
    """The boxes that have not been compared yet, as a heap, [n]."""
    left: Any
    """The number of waiting boxes, [1]."""


def _kernel(is_centred: bool, *, has_least: bool) -> tirx.PrimFunc:
    """(boxes, scores, overlap, [least score], limit) -> (selected, their number, scratch)."""
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        batches, classes, boxes, capacity = (ib.int64() for _ in range(4))

        def parameter(name: str, shape: Sequence[Any], dtype: str) -> Any:
            return ib.match_buffer(ib.arg(name, ib.handle()), shape, dtype)

        corners = parameter("boxes", [batches, boxes, 4], "float32")
        scores = parameter("scores", [batches, classes, boxes], "float32")
        overlap = parameter("overlap", [1], "float32")
        least = parameter("least", [1], "float32") if has_least else None
        limit = parameter("limit", [1], "int64")
        selected = parameter("selected", [capacity, 3], "int64")
        count = parameter("count", [1], "int64")
        waiting = parameter("waiting", [boxes], "int64")
        # Relax passes that inspect kernels expect a block around the whole body.
        with ib.sblock("root"):
            buffers = _Buffers(
                corners, scores, overlap, least, selected, count, waiting, _counter()
            )
            _set(buffers.count, 0)
            with ib.serial(batches) as batch, ib.serial(classes) as category:
                _select(buffers, batch, category, boxes, limit[0], is_centred)
    return builder.get()


def _counter() -> Any:
    return ib.alloc_buffer((1,), "int64", scope="local")


def _set(counter: Any, value: Any) -> None:
    ib.buffer_store(counter, value, [0])


def _append(items: Any, counter: Any, item: Any) -> None:
    ib.buffer_store(items, item, [counter[0]])
    _set(counter, counter[0] + 1)


def _select(
    buffers: _Buffers, batch: Any, category: Any, boxes: Any, limit: Any, is_centred: bool
) -> None:
    """Emits the selection among the boxes of one class in one batch entry.

    The waiting boxes form a heap whose root is the best of them. Each root is compared with the
    boxes that are already selected.
    """
    first, taken, best, stays = (_counter() for _ in range(4))
    _collect(buffers, batch, category, boxes)
    heap = _Heap(buffers, batch, category)
    with ib.serial(buffers.left[0] // 2) as number:
        start = buffers.left[0] // 2 - 1 - number
        heap.sift(buffers.waiting[start], start)
    _set(first, buffers.count[0])
    _set(taken, 0)
    with ib.While(tirx.all(buffers.left[0] > 0, taken[0] < limit)):
        _set(best, buffers.waiting[0])
        _set(buffers.left, buffers.left[0] - 1)
        heap.sift(buffers.waiting[buffers.left[0]], ZERO)
        _set(stays, 1)
        _compare(buffers, batch, (first[0], taken[0]), best[0], stays, is_centred)
        with ib.If(stays[0] > 0), ib.Then():
            for column, value in enumerate((batch, category, best[0])):
                ib.buffer_store(buffers.selected, value, [buffers.count[0], column])
            _set(buffers.count, buffers.count[0] + 1)
            _set(taken, taken[0] + 1)


def _collect(buffers: _Buffers, batch: Any, category: Any, boxes: Any) -> None:
    """Emits the loop that makes the boxes with a sufficient score wait."""
    _set(buffers.left, 0)
    with ib.serial(boxes) as box:
        if buffers.least is None:
            _append(buffers.waiting, buffers.left, box)
            return
        with ib.If(buffers.scores[batch, category, box] > buffers.least[0]), ib.Then():
            _append(buffers.waiting, buffers.left, box)


class _Heap:
    """The waiting boxes of one class: no box is worse than the two below it."""

    def __init__(self, buffers: _Buffers, batch: Any, category: Any) -> None:
        self._buffers = buffers
        self._class = (batch, category)
        self._node, self._child, self._box = (_counter() for _ in range(3))

    def _is_better(self, box: Any, other: Any) -> Any:
        places = [(*self._class, b) for b in (box, other)]
        score, other_score = (self._buffers.scores[place] for place in places)
        return tirx.any(score > other_score, tirx.all(score == other_score, box < other))

    def sift(self, box: Any, start: Any) -> None:
        """Emits that a box sinks from a node to where no box below it is better."""
        node, child, kept = self._node, self._child, self._box
        waiting, size = self._buffers.waiting, self._buffers.left
        _set(kept, box)
        _set(node, start)
        _set(child, start * 2 + 1)
        with ib.While(child[0] < size[0]):
            with ib.If(child[0] + 1 < size[0]), ib.Then():
                pair = [waiting[child[0] + 1], waiting[child[0]]]
                with ib.If(self._is_better(*pair)), ib.Then():
                    _set(child, child[0] + 1)
            with ib.If(self._is_better(waiting[child[0]], kept[0])):
                with ib.Then():
                    ib.buffer_store(waiting, waiting[child[0]], [node[0]])
                    _set(node, child[0])
                    _set(child, node[0] * 2 + 1)
                with ib.Else():
                    _set(child, size[0])
        ib.buffer_store(waiting, kept[0], [node[0]])


def _compare(
    buffers: _Buffers, batch: Any, selected: tuple[Any, Any], box: Any, stays: Any, is_centred: bool
) -> None:
    """Emits that a box does not stay if one of the selected boxes suppresses it.

    `selected` is the first of them in the result, and their number.
    """
    place = _counter()
    first, count = selected
    _set(place, 0)
    with ib.While(tirx.all(place[0] < count, stays[0] > 0)):
        boxes = (buffers.selected[first + place[0], 2], box)
        one, other = (_corners(buffers.boxes, batch, box, is_centred) for box in boxes)
        # Few boxes meet: the quotient is computed for those only.
        overlaps = _overlaps(one, other, buffers.overlap[0])
        with ib.If(_meet(one, other)), ib.Then(), ib.If(overlaps), ib.Then():
            _set(stays, 0)
        _set(place, place[0] + 1)


def _meet(first: list[tuple[Any, Any]], second: list[tuple[Any, Any]]) -> Any:
    """Whether two boxes have a part in common."""
    return tirx.all(
        *(
            tirx.min(high, other_high) > tirx.max(low, other_low)
            for (low, high), (other_low, other_high) in zip(first, second, strict=True)
        )
    )


def _corners(boxes: Any, batch: Any, box: Any, is_centred: bool) -> list[tuple[Any, Any]]:
    """The smallest and the largest coordinate of a box along both axes."""
    a, b, c, d = (boxes[batch, box, column] for column in range(4))
    if is_centred:
        return [(a - c / 2, a + c / 2), (b - d / 2, b + d / 2)]
    return [(tirx.min(a, c), tirx.max(a, c)), (tirx.min(b, d), tirx.max(b, d))]


def _overlaps(first: list[tuple[Any, Any]], second: list[tuple[Any, Any]], most: Any) -> Any:
    """Whether the intersection over union of two boxes exceeds `most`."""
    common: Any = tirx.const(1, "float32")
    for (low, high), (other_low, other_high) in zip(first, second, strict=True):
        width = tirx.min(high, other_high) - tirx.max(low, other_low)
        common = common * tirx.max(width, tirx.const(0, "float32"))
    areas = [(high - low) * (top - bottom) for (low, high), (bottom, top) in (first, second)]
    covered = areas[0] + areas[1] - common
    return tirx.all(common > 0, areas[0] > 0, areas[1] > 0, common / covered > most)
