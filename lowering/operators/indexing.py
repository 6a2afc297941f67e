"""Operators that select or place elements: Gather, GatherElements, GatherND, OneHot,
ReverseSequence, ScatterElements, ScatterND, TopK and Unique.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from tvm import relax, sym, te, tirx

from ...rewrite.errors import UnsupportedError
from ..kernel_call import call_kernel
from ..small_kernels import range_along
from ..values import Constant, Sizes, Value, as_int, match
from .accumulation import widen_bfloat16
from .broadcasting import ONE, ZERO, dims_of, known_dims, match_dims, require_size
from .registry import Accepts, ConverterContext, converts
from .sizes import read_sizes, rearranged_sizes, size_of
from .top_k import top_k_kernel


@converts("Gather", accepts=Accepts.SYMBOLIC)
def gather(ctx: ConverterContext) -> Value:
    """Gather, see https://onnx.ai/onnx/operators/onnx__Gather.html; sizes stay symbolic."""
    data, positions = ctx.inputs[0], ctx.inputs[1]
    if isinstance(data, relax.ShapeExpr | Sizes) and isinstance(positions, Constant):
        sizes = read_sizes(data)
        if sizes is not None:
            index = positions.value.numpy()
            return rearranged_sizes(sizes, lambda places: places.take(index, ctx.attr("axis", 0)))
    return ctx.by_tvm(ctx.tensors())


@converts("GatherElements")
def gather_elements(ctx: ConverterContext) -> Value:
    """GatherElements, see https://onnx.ai/onnx/operators/onnx__GatherElements.html.

    TVM's kernel reads any memory at an index outside of the data, and does not count negative ones
    from the end.
    """
    data, indices = ctx.inputs[0], ctx.inputs[1]
    places = dims_of(indices, "indices")
    if any(as_int(size) == 0 for size in places):
        return relax.op.zeros(relax.ShapeExpr(places), str(data.ty.dtype))
    axis = ctx.attr("axis", 0) % len(dims_of(data, "data"))
    data = _covering(ctx, data, places, axis)
    return ctx.call_te(_gather_elements, data, indices, axis, name="gather_elements")


def _gather_elements(data: Any, indices: Any, axis: int) -> Any:
    def element(*at: Any) -> Any:
        place = _place(indices(*at), data.shape[axis])
        return data(*at[:axis], place, *at[axis + 1 :])

    return te.compute(indices.shape, element, name="gather_elements", tag="injective")


def _place(index: Any, size: Any) -> Any:
    """Where an index points along an axis: negative ones count from the end, and those outside of
    the data, which ONNX does not allow, are taken for the first or the last.
    """
    index = tirx.Cast("int64", index)
    index = tirx.Select(index < 0, index + size, index)
    return tirx.max(tirx.min(index, size - 1), ZERO)


def _covering(ctx: ConverterContext, data: Value, places: Sequence[Any], axis: int) -> Value:
    """Data of at least the sizes `places` along all axes but one; a run with less fails."""
    dims = dims_of(data, "data")
    if len(dims) != len(places):
        raise UnsupportedError(f"the data has {len(dims)} axes, the indices have {len(places)}")
    analyzer = sym.Analyzer()
    for other, (size, own) in enumerate(zip(places, dims, strict=True)):
        if other != axis and not analyzer.can_prove_equal(size, own):
            data = require_size(ctx.bb, data, other, own + tirx.max(size - own, ZERO))
    return data


@converts("GatherND")
def gather_nd(ctx: ConverterContext) -> Value:
    """GatherND, see https://onnx.ai/onnx/operators/onnx__GatherND.html.

    TVM's kernel reads any memory at an index outside of the data.
    """
    data, indices = ctx.inputs[0], ctx.inputs[1]
    dims, places = dims_of(data, "data"), known_dims(indices)
    depth = as_int(places[-1]) if places else None
    if places is None or depth is None:
        raise UnsupportedError(
            "the last size of the indices, which decides the rank of the result, is not known"
        )
    batch = ctx.attr("batch_dims", 0)
    indices = match_dims(ctx.bb, indices, [*dims[:batch], *places[batch:]])
    return ctx.call_te(_gather_nd, data, indices, depth, batch, name="gather_nd")


def _gather_nd(data: Any, indices: Any, depth: int, batch: int) -> Any:
    outer, sizes = indices.shape[:-1], data.shape[batch : batch + depth]

    def element(*at: Any) -> Any:
        row, inner = at[: len(outer)], at[len(outer) :]
        found = [_place(indices(*row, number), size) for number, size in enumerate(sizes)]
        return data(*row[:batch], *found, *inner)

    shape = [*outer, *data.shape[batch + depth :]]
    return te.compute(shape, element, name="gather_nd", tag="injective")


@converts("OneHot")
def one_hot(ctx: ConverterContext) -> Value:
    """OneHot, see https://onnx.ai/onnx/operators/onnx__OneHot.html.

    Negative indices count from the end; an index out of range selects no element. TVM's converter
    needs a constant depth and returns elements of the wrong type.
    """
    indices, depth, values = ctx.inputs[0], ctx.inputs[1], ctx.inputs[2]
    axis = ctx.attr("axis", -1) % (len(dims_of(indices, "indices")) + 1)
    return ctx.call_te(_one_hot, indices, values, size_of(ctx, depth), axis, name="one_hot")


def _one_hot(indices: Any, values: Any, depth: Any, axis: int) -> Any:
    def element(*at: Any) -> Any:
        index = tirx.Cast("int64", indices(*at[:axis], *at[axis + 1 :]))
        is_selected = tirx.any(index == at[axis], index == at[axis] - depth)
        return tirx.Select(is_selected, values(1), values(0))

    shape = list(indices.shape)
    return te.compute([*shape[:axis], depth, *shape[axis:]], element, name="one_hot")


@converts("Compress")
def compress(ctx: ConverterContext) -> Value:
    """Compress, see https://onnx.ai/onnx/operators/onnx__Compress.html.

    What a condition says of elements after the last is left out.
    """
    data, condition = ctx.inputs[0], ctx.inputs[1]
    dims, lengths = known_dims(data), known_dims(condition)
    if dims is None or lengths is None:
        return ctx.by_tvm()
    axis = ctx.attr("axis")
    size = functools.reduce(operator.mul, dims, ONE) if axis is None else dims[axis]
    if not sym.Analyzer().can_prove(lengths[0] <= size):
        length = tirx.min(lengths[0], size)
        cut = ctx.call_te(range_along, condition, ZERO, length, 0, name="condition")
        condition = ctx.bb.emit(cut)
    return ctx.by_tvm([data, condition])


@converts("ReverseSequence")
def reverse_sequence(ctx: ConverterContext) -> Value:
    """ReverseSequence, see https://onnx.ai/onnx/operators/onnx__ReverseSequence.html.

    Reverses the first `sequence_lens[b]` time steps of each batch entry b and keeps the others. A
    length beyond the last step reverses all of them.
    """
    batch, time = ctx.attr("batch_axis", 1), ctx.attr("time_axis", 0)
    if {batch, time} != {0, 1}:
        raise UnsupportedError(
            f"batch_axis and time_axis must be 0 and 1 in some order, not {batch} and {time}"
        )
    data, lengths = ctx.inputs[0], ctx.inputs[1]
    dims = known_dims(data)
    if dims is not None:
        lengths = match_dims(ctx.bb, lengths, [dims[batch]])
    return ctx.call_te(_reverse, data, lengths, batch, time, name="reverse_sequence")


def _reverse(data: Any, lengths: Any, batch: int, time: int) -> Any:
    def element(*indices: Any) -> Any:
        length = tirx.min(tirx.Cast("int64", lengths(indices[batch])), data.shape[time])
        position = indices[time]
        source = tirx.Select(position < length, length - 1 - position, position)
        return data(*indices[:time], source, *indices[time + 1 :])

    return te.compute(list(data.shape), element, name="reverse")


_REDUCTIONS = ("none", "add", "mul", "max", "min")
"""What an element of ScatterElements may become."""


@converts("Scatter", "ScatterElements")
def scatter_elements(ctx: ConverterContext) -> Value:
    """ScatterElements, see https://onnx.ai/onnx/operators/onnx__ScatterElements.html.

    TVM's kernel takes all axes before and after the one that is written to as one each, so that it
    writes to wrong places where such an axis of the data is longer than that of the indices. A run
    in which one is shorter fails.
    """
    data, indices, updates = ctx.inputs[0], ctx.inputs[1], ctx.inputs[2]
    dims, places = dims_of(data, "data"), dims_of(indices, "indices")
    axis, reduction = ctx.attr("axis", 0) % len(dims), ctx.attr("reduction", "none")
    if reduction not in _REDUCTIONS:
        raise UnsupportedError(f"the reduction is {reduction!r}, not {' or '.join(_REDUCTIONS)}")
    data, analyzer = _covering(ctx, data, places, axis), sym.Analyzer()
    inner = [other for other in range(1, len(dims)) if other not in (axis, axis + 1)]
    if all(analyzer.can_prove_equal(dims[other], places[other]) for other in inner):
        kind = "update" if reduction == "none" else reduction
        return relax.op.scatter_elements(data, indices, updates, axis=axis, reduction=kind)

    def coordinates(indices: Any) -> Any:
        def element(*at: Any) -> Any:
            *place, of = at
            found = tirx.Cast("int64", indices(*place))
            for other, position in enumerate(place):
                found = found if other == axis else tirx.Select(of == other, position, found)
            return found

        return te.compute([*indices.shape, len(dims)], element, name="coordinates")

    whole = ctx.bb.emit(ctx.call_te(coordinates, indices, name="coordinates"))
    return ctx.apply("ScatterND", data, whole, updates, reduction=reduction)


@converts("ScatterND")
def scatter_nd(ctx: ConverterContext) -> Value:
    """ScatterND, see https://onnx.ai/onnx/operators/onnx__ScatterND.html.

    The updates are matched with the shape they must have; a run with another shape fails.
    """
    data, indices, updates = ctx.inputs[0], ctx.inputs[1], ctx.inputs[2]
    dims, places, own = (known_dims(value) for value in (data, indices, updates))
    if dims is None or not places or own is None:
        return ctx.by_tvm()
    depth = as_int(places[-1])
    if depth is None:
        depth = len(dims) + len(places) - 1 - len(own)
        if depth not in range(len(dims) + 1):
            raise UnsupportedError(f"updates with {len(own)} axes do not fit data and indices")
        places[-1] = tirx.IntImm("int64", depth)
        indices = match(ctx.bb, indices, relax.TensorType(places, indices.ty.dtype))
    wanted = [*places[:-1], *dims[depth:]]
    is_static = all(as_int(size) is not None for size in (*wanted, *own))
    if not is_static and len(own) == len(wanted):
        updates = match(ctx.bb, updates, relax.TensorType(wanted, updates.ty.dtype))
    if any(as_int(size) == 0 for size in wanted):
        return data
    if depth > 0:
        return ctx.by_tvm([data, indices, updates])
    # Each update is for all data. TVM's kernel takes rows.
    row = ctx.bb.normalize(relax.op.expand_dims(data, 0))
    indices = ctx.bb.normalize(relax.op.zeros([*places[:-1], 1], indices.ty.dtype))
    rows = ctx.bb.normalize(ctx.by_tvm([row, indices, updates]))
    return relax.op.squeeze(rows, [0])


_SELECTED = ("float32", "float64", "int32", "int64")
"""The element types that the kernel `top_k` takes."""


@converts("TopK", accepts=Accepts.SIZES)
@widen_bfloat16
def top_k(ctx: ConverterContext) -> Value:
    """TopK, see https://onnx.ai/onnx/operators/onnx__TopK.html.

    The results are sorted even if `sorted` is 0. A run in which k is negative or larger than the
    axis fails, as in onnxruntime.
    """
    bb, data, k = ctx.bb, ctx.tensor(0), ctx.inputs[1]
    dims = dims_of(data, "data")
    axis = ctx.attr("axis", -1) % len(dims)
    count = tirx.IntImm("int64", ctx.attrs["k"]) if k is None else size_of(ctx, k)
    excess = tirx.max(count - dims[axis], ZERO) + tirx.max(-count, ZERO)
    data = require_size(bb, data, axis, dims[axis] + excess)
    largest = bool(ctx.attr("largest", 1))
    if axis != len(dims) - 1 or str(data.ty.dtype) not in _SELECTED:
        return _by_sorting(ctx, data, count, axis, largest)
    shape = [*dims[:-1], count]
    types = [relax.TensorType(shape, dtype) for dtype in (str(data.ty.dtype), "int64")]
    kernel = top_k_kernel(str(data.ty.dtype), len(dims), largest)
    return relax.Tuple(call_kernel(bb, "top_k", kernel, [data], types))


def _by_sorting(ctx: ConverterContext, data: Value, count: Any, axis: int, largest: bool) -> Value:
    """The first elements of the whole axis in order."""
    bb = ctx.bb
    known = as_int(count)
    kept = -1 if known is None else known
    ordered = _as_signed(ctx, data)
    found = relax.op.topk(ordered, kept, axis, ret_type="both", largest=largest, dtype="int64")
    if known and ordered is data:
        return found
    pair = bb.emit(found)
    fields = [bb.emit(relax.TupleGetItem(pair, field)) for field in range(2)]
    if ordered is not data:
        fields[0] = ctx.apply("GatherElements", data, fields[1], axis=axis)
    if known:
        return relax.Tuple(fields)
    parts = [ctx.call_te(range_along, field, ZERO, count, axis, name="part") for field in fields]
    return relax.Tuple([bb.emit(part) for part in parts])


def _as_signed(ctx: ConverterContext, data: Value) -> Value:
    """Data in the same order, of a type that TVM sorts: no int16, uint16, uint32 and uint64."""
    wider = {"int16": "int32", "uint16": "int32", "uint32": "int64"}.get(str(data.ty.dtype))
    if wider is not None:
        return ctx.cast(data, wider)
    if str(data.ty.dtype) != "uint64":
        return data

    def compute(data: Any) -> Any:
        sign = tirx.const(1 << 63, "uint64")

        def element(*at: Any) -> Any:
            return tirx.reinterpret("int64", tirx.bitwise_xor(data(*at), sign))

        return te.compute(data.shape, element, name="as_signed")

    return ctx.call_te(compute, data, name="as_signed")


@converts("TensorScatter")
def tensor_scatter(ctx: ConverterContext) -> Value:
    """TensorScatter, see https://onnx.ai/onnx/operators/onnx__TensorScatter.html.

    Each element of the result is read from the update, or else from the cache.
    """
    cache, update, starts = (ctx.inputs[slot] for slot in range(3))
    rank = len(dims_of(cache, "cache"))
    dims_of(update, "update")
    axis = ctx.attr("axis", -2) % rank
    is_circular = ctx.attr("mode", "linear") == "circular"

    def compute(cache: Any, update: Any, *starts: Any) -> Any:
        def element(*at: Any) -> Any:
            place = at[axis] - tirx.Cast("int64", starts[0](at[0])) if starts else at[axis]
            if is_circular:
                place = tirx.floormod(place, cache.shape[axis])
            is_new = tirx.all(place >= 0, place < update.shape[axis])
            source = update(*at[:axis], place, *at[axis + 1 :])
            return tirx.if_then_else(is_new, source, cache(*at))

        return te.compute(cache.shape, element, name="tensor_scatter")

    given = [] if starts is None else [starts]
    return ctx.call_te(compute, cache, update, *given, name="tensor_scatter")


@converts("Unique")
def unique(ctx: ConverterContext) -> Value:
    """Unique, see https://onnx.ai/onnx/operators/onnx__Unique.html.

    Without an axis, the inverse indices are those of the elements in order. TVM's have the shape of
    the data.
    """
    data = ctx.inputs[0]
    if ctx.attr("axis", None) is None and data.ty.ndim != 1:
        data = ctx.bb.normalize(relax.op.reshape(data, [-1]))
    return ctx.by_tvm([data])
