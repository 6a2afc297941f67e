"""AffineGrid, Col2Im and DeformConv: operators that compute positions in images."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from ...rewrite.errors import UnsupportedError
from ..values import Value
from .accumulation import accumulate_in_float32
from .broadcasting import ONE, ZERO, dims_of
from .registry import Accepts, ConverterContext, converts
from .sizes import sizes_of


@converts("AffineGrid", accepts=Accepts.SIZES)
def affine_grid(ctx: ConverterContext) -> Value:
    """AffineGrid, see https://onnx.ai/onnx/operators/onnx__AffineGrid.html.

    (theta [n, d, d + 1], size) -> [n, *spatial, d]: the products of theta and the coordinates of
    each element, which are from -1 to 1.
    """
    bb, theta = ctx.bb, ctx.tensor(0)
    spatial = sizes_of(bb, ctx.inputs[1])[2:]
    dtype, rank = str(theta.ty.dtype), len(spatial)
    aligns = bool(ctx.attr("align_corners", 0))

    def compute(sizes: Sequence[Any]) -> Any:
        def element(place: Any, column: Any) -> Any:
            value: Any = tirx.const(1, "float32")
            for axis in reversed(range(rank)):
                size = sizes[axis]
                along = _float(tirx.floormod(place, size))
                place = tirx.floordiv(place, size)
                if aligns:
                    coordinate = along * 2 / _float(tirx.max(size - 1, 1)) - 1
                else:
                    coordinate = (along * 2 + 1) / _float(size) - 1
                # The last axis has the first coordinate.
                value = tirx.Select(column == rank - 1 - axis, coordinate, value)
            return tirx.Cast(dtype, value)

        return te.compute([_product(sizes), rank + 1], element, name="grid")

    grid = bb.emit(ctx.call_te(compute, spatial, name="grid"))
    turned = bb.normalize(relax.op.permute_dims(theta, [0, 2, 1]))
    points = ctx.apply("MatMul", grid, turned)
    batch = dims_of(theta, "theta")[0]
    return relax.op.reshape(points, relax.ShapeExpr([batch, *spatial, rank]))


@converts("Col2Im", accepts=Accepts.SIZES)
@accumulate_in_float32
def col2im(ctx: ConverterContext) -> Value:
    """Col2Im, see https://onnx.ai/onnx/operators/onnx__Col2Im.html.

    ([n, c * block, columns], image shape, block shape) -> [n, c, *image]: each element is the sum
    of the elements of all blocks that cover it.
    """
    data = ctx.tensor(0)
    dims_of(data, "data")
    image, block = (sizes_of(ctx.bb, ctx.inputs[slot]) for slot in (1, 2))
    count = len(image)
    dilations = ctx.attr("dilations", [1] * count)
    strides = ctx.attr("strides", [1] * count)
    pads = ctx.attr("pads", [0] * 2 * count)

    def compute(data: Any, image: Sequence[Any], block: Sequence[Any]) -> Any:
        offsets = [te.reduce_axis((0, size), name="offset") for size in block]
        columns = [
            tirx.floordiv(
                image[i] + pads[i] + pads[count + i] - dilations[i] * (block[i] - 1) - 1,
                strides[i],
            )
            + 1
            for i in range(count)
        ]

        def element(entry: Any, channel: Any, *at: Any) -> Any:
            column, row, hits = ZERO, ZERO, []
            for i in range(count):
                offset = tirx.Cast("int64", offsets[i].var)
                distance = at[i] + pads[i] - offset * dilations[i]
                place = tirx.floordiv(distance, strides[i])
                hits += [tirx.floormod(distance, strides[i]) == 0, place >= 0, place < columns[i]]
                column = column * columns[i] + place
                row = row * block[i] + offset
            value = tirx.if_then_else(
                tirx.all(*hits),
                data(entry, channel * _product(block) + row, column),
                tirx.const(0, data.dtype),
            )
            return te.sum(value, axis=offsets)

        channels = tirx.floordiv(data.shape[1], _product(block))
        return te.compute([data.shape[0], channels, *image], element, name="col2im")

    return ctx.call_te(compute, data, image, block, name="col2im")


@converts("DeformConv")
@accumulate_in_float32
def deform_conv(ctx: ConverterContext) -> Value:
    """DeformConv in two dimensions, see https://onnx.ai/onnx/operators/onnx__DeformConv.html.

    The samples of each window become a column, and the kernel is a matrix that multiplies them.
    """
    data, kernel, offset, bias, mask = (ctx.inputs[slot] for slot in range(5))
    dims, own = dims_of(data, "data"), dims_of(kernel, "kernel")
    if len(dims) != 4:
        raise UnsupportedError(f"the data has {len(dims) - 2} spatial axes, and must have 2")
    group = ctx.attr("group", 1)
    columns = _deformed_columns(ctx, data, offset, mask, own[2:])
    rows, width = dims_of(offset, "offset")[2:]
    batch, outputs = dims[0], own[0]
    inner = own[1] * own[2] * own[3]
    shapes = [
        [batch, group, inner, rows * width],
        [ONE, group, tirx.floordiv(outputs, group), inner],
    ]
    columns, matrix = (
        ctx.bb.emit(relax.op.reshape(value, relax.ShapeExpr(shape)))
        for value, shape in zip((columns, kernel), shapes, strict=True)
    )
    product = ctx.apply("MatMul", matrix, columns)
    result = ctx.bb.emit(relax.op.reshape(product, relax.ShapeExpr([batch, outputs, rows, width])))
    if bias is None:
        return result
    per_channel = ctx.bb.emit(relax.op.reshape(bias, [1, -1, 1, 1]))
    return relax.op.add(result, per_channel)


def _deformed_columns(
    ctx: ConverterContext, data: Value, offset: Value, mask: Value, kernel: Sequence[Any]
) -> Value:
    """The samples [batch, channels, kernel rows, kernel columns, rows, columns] of all windows."""
    strides, dilations = ctx.attr("strides", [1, 1]), ctx.attr("dilations", [1, 1])
    pads, offset_group = ctx.attr("pads", [0] * 4), ctx.attr("offset_group", 1)

    def compute(data: Any, offset: Any, kernel: Sequence[Any], *mask: Any) -> Any:
        per_group = tirx.floordiv(data.shape[1], offset_group)

        def element(entry: Any, channel: Any, *at: Any) -> Any:
            within, window = at[:2], at[2:]
            taps = tirx.floordiv(channel, per_group) * (kernel[0] * kernel[1])
            tap = taps + within[0] * kernel[1] + within[1]
            places = [
                _as(data, window[i] * strides[i] + within[i] * dilations[i] - pads[i])
                + offset(entry, tap * 2 + i, *window)
                for i in range(2)
            ]
            sample = _bilinear(data, [entry, channel], places)
            return sample * mask[0](entry, tap, *window) if mask else sample

        shape = [*data.shape[:2], *kernel, *offset.shape[2:]]
        return te.compute(shape, element, name="deformed")

    given = [] if mask is None else [mask]
    columns = ctx.call_te(compute, data, offset, list(kernel), *given, name="deformed")
    return ctx.bb.emit(columns)


def _bilinear(data: Any, outer: Sequence[Any], places: Sequence[Any]) -> Any:
    """The value of an image at a place between elements; elements outside of the image are 0."""
    lows = [tirx.floor(place) for place in places]
    parts = [place - low for place, low in zip(places, lows, strict=True)]
    firsts = [tirx.Cast("int64", low) for low in lows]
    terms = []
    for corner in itertools.product((0, 1), repeat=len(places)):
        at = [first + bit for first, bit in zip(firsts, corner, strict=True)]
        factors = [part if bit else 1 - part for part, bit in zip(parts, corner, strict=True)]
        sizes = data.shape[len(outer) :]
        inside = [tirx.all(i >= 0, i < size) for i, size in zip(at, sizes, strict=True)]
        value = tirx.if_then_else(tirx.all(*inside), data(*outer, *at), tirx.const(0, data.dtype))
        terms.append(functools.reduce(operator.mul, factors, value))
    return functools.reduce(operator.add, terms)


def _as(data: Any, value: Any) -> Any:
    return tirx.Cast(str(data.dtype), value)


def _float(value: Any) -> Any:
    return tirx.Cast("float32", value)


def _product(sizes: Sequence[Any]) -> Any:
    return functools.reduce(operator.mul, sizes, ONE)
