"""NonMaxSuppression, see https://onnx.ai/onnx/operators/onnx__NonMaxSuppression.html.

TVM's converter takes thresholds that are not constant for defaults. Among equal scores the first
box wins, and boxes without an area suppress none, as in onnxruntime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ...rewrite.errors import UnsupportedError
from ..kernel_call import call_kernel
from ..small_kernels import leading
from ..tvm_onnx import InputList
from ..values import as_tensor
from .broadcasting import known_dims
from .runtime_shapes import size_of, sizes_of

_ZERO = tirx.IntImm("int64", 0)


def convert_non_max_suppression(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """(boxes [b, n, 4], scores [b, c, n], …) -> [k, 3]: batch entry, class and box of each."""
    boxes, scores, limit, overlap, least = (as_tensor(bb, InputList(inputs)[i]) for i in range(5))
    dims, of_scores = known_dims(boxes), known_dims(scores)
    if dims is None or of_scores is None:
        raise UnsupportedError("the shapes of the boxes and scores are not known")
    most = _ZERO if limit is None else tirx.max(size_of(bb, limit, params), _ZERO)
    room = of_scores[0] * of_scores[1] * tirx.min(most, dims[1])
    if overlap is None:
        overlap = relax.const(0, "float32")
    thresholds = [_vector(bb, value) for value in (overlap, least) if value is not None]
    limits = as_tensor(bb, relax.ShapeExpr([most]))
    kernel = _kernel(bool(attrs.get("center_point_box", 0)), has_least=least is not None)
    arguments = [boxes, scores, *thresholds, limits]
    types = [relax.TensorType(shape, "int64") for shape in ([room, 3], [1], [dims[1]])]
    selected, count, _ = call_kernel(bb, "non_max_suppression", kernel, arguments, types)
    (rows,) = sizes_of(bb, count)
    return bb.normalize(bb.call_te(leading, selected, [rows, 3], primfunc_name_hint="leading"))


def _vector(bb: Any, value: Any) -> Any:
    """One element as a vector, which both versions of the operator mean."""
    return bb.normalize(relax.op.reshape(value, [1]))


@dataclass(frozen=True)
class _Rows:
    """The parameters of the kernel, and what it remembers."""

    boxes: Any
    scores: Any
    overlap: Any
    least: Any
    selected: Any
    count: Any
    """How many rows of `selected` are filled."""
    waiting: Any
    """The boxes that are neither selected nor suppressed, in their order."""
    left: Any
    """How many boxes are waiting."""


def _kernel(is_centred: bool, *, has_least: bool) -> tirx.PrimFunc:
    """(boxes, scores, overlap, [least score], limit) -> (selected rows, their number, scratch)."""
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        batches, classes, boxes, room = (ib.int64() for _ in range(4))

        def parameter(name: str, shape: Sequence[Any], dtype: str) -> Any:
            return ib.match_buffer(ib.arg(name, ib.handle()), shape, dtype)

        corners = parameter("boxes", [batches, boxes, 4], "float32")
        scores = parameter("scores", [batches, classes, boxes], "float32")
        overlap = parameter("overlap", [1], "float32")
        least = parameter("least", [1], "float32") if has_least else None
        limit = parameter("limit", [1], "int64")
        selected = parameter("selected", [room, 3], "int64")
        count = parameter("count", [1], "int64")
        waiting = parameter("waiting", [boxes], "int64")
        # Passes of Relax that look into kernels expect a block around everything.
        with ib.sblock("root"):
            rows = _Rows(corners, scores, overlap, least, selected, count, waiting, _counter())
            _set(rows.count, 0)
            with ib.serial(batches) as batch, ib.serial(classes) as category:
                _select(rows, batch, category, boxes, limit[0], is_centred)
    return builder.get()


def _counter() -> Any:
    return ib.alloc_buffer((1,), "int64", scope="local")


def _set(counter: Any, value: Any) -> None:
    ib.buffer_store(counter, value, [0])


def _append(items: Any, counter: Any, item: Any) -> None:
    ib.buffer_store(items, item, [counter[0]])
    _set(counter, counter[0] + 1)


def _select(
    rows: _Rows, batch: Any, category: Any, boxes: Any, limit: Any, is_centred: bool
) -> None:
    """Emit the selection among the boxes of one class."""
    taken, best = _counter(), _counter()

    def score(place: Any) -> Any:
        return rows.scores[batch, category, rows.waiting[place]]

    _collect(rows, batch, category, boxes)
    _set(taken, 0)
    with ib.While(tirx.all(rows.left[0] > 0, taken[0] < limit)):
        _set(best, 0)
        with ib.serial(rows.left[0]) as place, ib.If(score(place) > score(best[0])), ib.Then():
            _set(best, place)
        _set(best, rows.waiting[best[0]])
        for column, value in enumerate((batch, category, best[0])):
            ib.buffer_store(rows.selected, value, [rows.count[0], column])
        _set(rows.count, rows.count[0] + 1)
        _set(taken, taken[0] + 1)
        _suppress(rows, batch, best[0], is_centred)


def _collect(rows: _Rows, batch: Any, category: Any, boxes: Any) -> None:
    """Emit the boxes whose score is high enough."""
    _set(rows.left, 0)
    with ib.serial(boxes) as box:
        if rows.least is None:
            _append(rows.waiting, rows.left, box)
            return
        with ib.If(rows.scores[batch, category, box] > rows.least[0]), ib.Then():
            _append(rows.waiting, rows.left, box)


def _suppress(rows: _Rows, batch: Any, best: Any, is_centred: bool) -> None:
    """Emit what leaves only those boxes waiting that overlap little with the best."""
    before = _counter()
    _set(before, rows.left[0])
    _set(rows.left, 0)
    with ib.serial(before[0]) as place:
        other = rows.waiting[place]
        first, second = (_corners(rows.boxes, batch, box, is_centred) for box in (best, other))
        fits = tirx.Not(_overlaps(first, second, rows.overlap[0]))
        with ib.If(tirx.all(other != best, fits)), ib.Then():
            _append(rows.waiting, rows.left, other)


def _corners(boxes: Any, batch: Any, box: Any, is_centred: bool) -> list[tuple[Any, Any]]:
    """The least and the greatest coordinate along both axes."""
    a, b, c, d = (boxes[batch, box, column] for column in range(4))
    if is_centred:
        return [(a - c / 2, a + c / 2), (b - d / 2, b + d / 2)]
    return [(tirx.min(a, c), tirx.max(a, c)), (tirx.min(b, d), tirx.max(b, d))]


def _overlaps(first: list[tuple[Any, Any]], second: list[tuple[Any, Any]], most: Any) -> Any:
    """Whether the common area is more than the part `most` of what both cover."""
    common: Any = tirx.const(1, "float32")
    for (low, high), (other_low, other_high) in zip(first, second, strict=True):
        width = tirx.min(high, other_high) - tirx.max(low, other_low)
        common = common * tirx.max(width, tirx.const(0, "float32"))
    areas = [(high - low) * (top - bottom) for (low, high), (bottom, top) in (first, second)]
    covered = areas[0] + areas[1] - common
    return tirx.all(common > 0, areas[0] > 0, areas[1] > 0, common / covered > most)
