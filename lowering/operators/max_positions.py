"""MaxPool with the positions of the maxima, and MaxUnpool, which writes elements back to them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from ..values import Value, as_int, match
from .broadcasting import ONE, ZERO, dims_of
from .extremes import better_position, lowest, no_position
from .padding import pad_with
from .registry import Accepts, ConverterContext, converts
from .sizes import name_sizes, sizes_of


def pool_with_positions(
    ctx: ConverterContext, before: Sequence[Any], after: Sequence[Any]
) -> Value:
    """The maxima of MaxPool, and their int64 positions in the flattened data.

    `before` and `after` are the padding of each axis of the data, batch and channels included.
    """
    data = ctx.inputs[0]
    dims = dims_of(data, "data")
    kernel = ctx.attrs["kernel_shape"]
    strides = ctx.attr("strides", [1] * len(kernel))
    dilations = ctx.attr("dilations", [1] * len(kernel))
    is_column_major = bool(ctx.attr("storage_order", 0))
    sizes = [
        tirx.floordiv(dims[axis] + before[axis] + after[axis] - (k - 1) * d - 1, s) + 1
        for axis, (k, d, s) in enumerate(zip(kernel, dilations, strides, strict=True), 2)
    ]

    fill = relax.const(lowest(str(data.ty.dtype)), data.ty.dtype)
    is_padded = any(as_int(amount) != 0 for amount in (*before, *after))
    padded = data
    if is_padded:
        padded = pad_with(ctx, data, fill, before, after)
        shape = name_sizes(ctx.bb, dims_of(padded, "data"))
        padded = match(ctx.bb, padded, relax.TensorType(shape, data.ty.dtype))

    def compute(
        padded: Any, dims: Sequence[Any], sizes: Sequence[Any], starts: Sequence[Any]
    ) -> Any:
        window = [te.reduce_axis((0, size), name="window") for size in kernel]
        search = te.comm_reducer(better_position(True, False), no_position, name="position")

        def element(*at: Any) -> Any:
            taps = [tirx.Cast("int64", axis.var) for axis in window]
            places = [
                at[axis] * stride + tap * dilation
                for axis, (stride, tap, dilation) in enumerate(
                    zip(strides, taps, dilations, strict=True), 2
                )
            ]
            position = _flat(taps, kernel, False)
            if is_padded:
                inside = [
                    tirx.all(place >= start, place < start + size)
                    for place, start, size in zip(places, starts, dims[2:], strict=True)
                ]
                position = tirx.Select(tirx.all(*inside), position, tirx.const(-1, "int64"))
            return search((position, padded(*at[:2], *places)), axis=window)

        shape = [*padded.shape[:2], *sizes]
        tap, value = te.compute(shape, element, name="found")

        def position(*at: Any) -> Any:
            rest = tap(*at)
            places: list[Any] = []
            for axis in reversed(range(len(kernel))):
                along = tirx.floormod(rest, kernel[axis]) * dilations[axis]
                places.insert(0, at[axis + 2] * strides[axis] + along - starts[axis])
                rest = tirx.floordiv(rest, kernel[axis])
            channel = (at[0] * dims[1] + at[1]) * _product(dims[2:])
            return channel + _flat(places, dims[2:], is_column_major)

        return [
            te.compute(shape, lambda *at: value(*at), name="maximum"),
            te.compute(shape, position, name="position"),
        ]

    # Symbols replace expressions, which would be repeated for each tap.
    named = name_sizes(ctx.bb, [*sizes, *before[2:]])
    sizes, starts = named[: len(kernel)], named[len(kernel) :]
    return ctx.call_te(compute, padded, dims, sizes, starts, name="max_pool_with_positions")


def _flat(places: Sequence[Any], sizes: Sequence[Any], is_column_major: bool) -> Any:
    """The position in a flattened array of some sizes."""
    pairs = list(zip(places, sizes, strict=True))
    flat: Any = ZERO
    for place, size in reversed(pairs) if is_column_major else pairs:
        flat = flat * size + place
    return flat


def _product(sizes: Sequence[Any]) -> Any:
    return functools.reduce(operator.mul, sizes, ONE)


@converts("MaxUnpool", accepts=Accepts.SIZES)
def max_unpool(ctx: ConverterContext) -> Value:
    """MaxUnpool, see https://onnx.ai/onnx/operators/onnx__MaxUnpool.html.

    Positions refer to the shape that the attributes give; `output_shape` adds zeros at the ends.
    An element whose position lies outside of it, which onnxruntime refuses, is left out.
    """
    bb, data, positions, shape = ctx.bb, ctx.tensor(0), ctx.tensor(1), ctx.inputs[2]
    dims, kernel = dims_of(data, "data"), ctx.attrs["kernel_shape"]
    count = len(kernel)
    pads = ctx.attr("pads", [0] * 2 * count)
    strides = ctx.attr("strides", [1] * count)
    own = [
        *dims[:2],
        *(
            (dims[axis + 2] - 1) * strides[axis] + kernel[axis] - pads[axis] - pads[count + axis]
            for axis in range(count)
        ),
    ]
    dtype = str(data.ty.dtype)
    size = _product(own)
    # One more, for all elements that are left out.
    zeros = relax.op.full(relax.ShapeExpr([size + 1]), relax.const(0, dtype), dtype)
    places, elements = (bb.normalize(relax.op.reshape(value, [-1])) for value in (positions, data))

    def within(places: te.Tensor, size: Any) -> te.Tensor:
        def place(index: Any) -> Any:
            is_inside = tirx.all(places[index] >= 0, places[index] < size)
            return tirx.Select(is_inside, places[index], size)

        return te.compute(places.shape, place, name="within")

    places = ctx.call_te(within, places, *name_sizes(bb, [size]), name="within")
    written = bb.emit(relax.op.scatter_elements(bb.emit(zeros), places, elements, axis=0))
    kept = bb.emit(relax.op.strided_slice(written, [0], [0], [size]))
    result = bb.emit(relax.op.reshape(kept, relax.ShapeExpr(own)))
    if shape is None:
        return result
    wanted = sizes_of(bb, shape)
    after = [size - given for size, given in zip(wanted, own, strict=True)]
    return pad_with(ctx, result, relax.const(0, dtype), [ZERO] * len(own), after)
