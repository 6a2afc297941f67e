"""Operators on shapes: Reshape, Expand, Tile, Squeeze, Unsqueeze, DepthToSpace,
SpaceToDepth, Shape and Size.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm_ffi
from tvm import relax, sym, te, tirx

from ...rewrite.errors import UnsupportedError
from ..tvm_onnx import InputList
from ..values import Constant, Sizes, Value, as_int, as_tensor, match
from .broadcasting import ONE, ZERO, broadcast_dims, broadcast_to, dims_of, known_dims, require_size
from .registry import Accepts, ConverterContext, converts
from .sizes import (
    combine_sizes,
    need_few,
    read_sizes,
    read_symbolic,
    rearranged_sizes,
    sizes_of,
    with_length,
    without_zero,
    write_sizes,
)


@converts("Shape", accepts=Accepts.SIZES | Accepts.ANY_RANK)
def shape(ctx: ConverterContext) -> Value:
    """Shape: TVM's converter keeps the sizes symbolic."""
    return ctx.by_tvm()


@converts("Size", accepts=Accepts.SYMBOLIC)
def size(ctx: ConverterContext) -> Value:
    """Size, see https://onnx.ai/onnx/operators/onnx__Size.html."""
    sizes = read_symbolic(ctx.inputs)
    if sizes:
        return relax.const(len(sizes[0].items), "int64")
    data = ctx.tensor(0)
    dims = known_dims(data)
    if dims is None:
        return ctx.by_tvm([data])
    count = combine_sizes(operator.mul, Sizes.vector(dims), keepdims=False, empty=1)
    return write_sizes(count)


@converts("Reshape", accepts=Accepts.SYMBOLIC)
def reshape(ctx: ConverterContext) -> Value:
    """Reshape, see https://onnx.ai/onnx/operators/onnx__Reshape.html.

    A shape computed at run time may also contain 0 (copied) and -1 (inferred). A run in which the
    result would have another number of elements fails. Before opset 5 the shape is an attribute.
    """
    if "shape" in ctx.attrs:
        shape = relax.const(list(ctx.attrs["shape"]), "int64")
        ctx = ctx.derive(inputs=[ctx.inputs[0], shape])
    sizes, target = read_symbolic(ctx.inputs[:1]), ctx.known_elements(ctx.inputs[1])
    if sizes and target is not None:
        return _reshape_sizes(sizes[0], target.tolist(), bool(ctx.attr("allowzero", 0)))
    data, wanted = ctx.tensor(0), read_sizes(ctx.inputs[1])
    if wanted is not None:
        shape = _with_inferred_size(wanted, known_dims(data), bool(ctx.attr("allowzero", 0)))
        result = ctx.bb.normalize(ctx.by_tvm([data, shape]))
        _check_count(ctx.bb, data, known_dims(result))
        return result
    dims = dims_of(data, "data")
    resolved = _resolve(ctx.bb, ctx.tensor(1), dims, bool(ctx.attr("allowzero", 0)))
    shape = sizes_of(ctx.bb, resolved)
    _check_count(ctx.bb, data, shape)
    return relax.op.reshape(data, relax.ShapeExpr(shape))


def _reshape_sizes(sizes: Sizes, target: list[int], allow_zero: bool) -> Value:
    if not allow_zero:
        own = [*sizes.shape, *[0] * len(target)]
        target = [size or kept for size, kept in zip(target, own, strict=False)]
    return rearranged_sizes(sizes, lambda places: places.reshape(target))


def _with_inferred_size(shape: Sizes, dims: Sequence[Any] | None, allow_zero: bool) -> Value:
    """A shape with a size in place of its -1: a product of some sizes of the data, if it is one.

    TVM divides the number of elements by that of the other axes, which may be 0, and proves little
    about quotients of products.
    """
    items = list(shape.items)
    if dims is None:
        return write_sizes(shape)
    if not allow_zero:
        pairs = zip(items, dims, strict=False)
        items[: len(dims)] = [own if as_int(item) == 0 else item for item, own in pairs]
    inferred = [place for place, item in enumerate(items) if as_int(item) == -1]
    if len(inferred) != 1:
        return write_sizes(shape)
    number, rest = _factors(dims)
    divisor, taken = _factors([item for item in items if as_int(item) != -1])
    rest, missing = _without_common(rest, taken)
    if divisor == 0:
        return write_sizes(shape)
    size = functools.reduce(operator.mul, rest, ONE)
    if missing or number % divisor:
        others = functools.reduce(operator.mul, missing, ONE) * divisor
        size = tirx.floordiv(size * number, without_zero(others))
    else:
        size = size * (number // divisor)
    items[inferred[0]] = sym.Analyzer().simplify(size)
    return write_sizes(replace(shape, items=items))


def _factors(sizes: Sequence[Any]) -> tuple[int, list[Any]]:
    """The number and the other factors whose product is that of sizes."""
    number, others = 1, []
    waiting = list(sizes)
    while waiting:
        size = waiting.pop(0)
        if as_int(size) is not None:
            number *= int(size)
        elif isinstance(size, tirx.Mul):
            waiting[:0] = [size.a, size.b]
        else:
            others.append(size)
    return number, others


def _without_common(left: Sequence[Any], right: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Two lists of factors without those that both have."""
    rest, missing = list(left), []
    for factor in right:
        places = [k for k, own in enumerate(rest) if tvm_ffi.structural_equal(own, factor)]
        if places:
            del rest[places[0]]
        else:
            missing.append(factor)
    return rest, missing


def _counts_are_equal(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two shapes are known to have the same number of elements."""
    (number, factors), (other, others) = _factors(left), _factors(right)
    rest = _without_common(factors, others)
    counts = (
        functools.reduce(operator.mul, each, ONE) * count
        for each, count in zip(rest, (number, other), strict=True)
    )
    return bool(sym.Analyzer().can_prove_equal(*counts))


def _check_count(bb: Any, data: Value, shape: Sequence[Any] | None) -> None:
    """Emits a check that a tensor has as many elements as a shape, unless that is certain."""
    dims = known_dims(data) if isinstance(data.ty, relax.TensorType) else None
    if dims is None or shape is None:
        return
    if not _counts_are_equal(dims, shape):
        own, wanted = (functools.reduce(operator.mul, sizes, ONE) for sizes in (dims, shape))
        count = bb.emit(relax.ShapeExpr([wanted]))
        bb.match_cast(count, relax.ShapeType([own]))


def _resolve(bb: Any, shape: Value, dims: Sequence[Any], allow_zero: bool) -> Value:
    """A shape tensor with its zeros and its -1 replaced by sizes."""
    length = as_int((known_dims(shape) or [None])[0])
    if length is None:
        raise UnsupportedError("the length of `shape`, the rank of the result, is not known")
    need_few(length)
    one, zero, minus_one = (relax.const(number, "int64") for number in (1, 0, -1))
    if not allow_zero:
        own = [*dims[:length], *[ZERO] * (length - len(dims))]
        copied = as_tensor(bb, relax.ShapeExpr(own))
        shape = relax.op.where(relax.op.equal(shape, zero), copied, shape)
    shape = bb.normalize(shape)
    is_inferred = bb.normalize(relax.op.equal(shape, minus_one))
    total = as_tensor(bb, relax.prim_value(functools.reduce(operator.mul, dims, ONE)))
    rest = relax.op.prod(relax.op.where(is_inferred, one, shape))
    inferred = relax.op.floor_divide(total, relax.op.maximum(rest, one))
    return bb.normalize(relax.op.where(is_inferred, inferred, shape))


@converts("Expand", accepts=Accepts.SIZES)
def expand(ctx: ConverterContext) -> Value:
    """Expand, see https://onnx.ai/onnx/operators/onnx__Expand.html: both sides broadcast."""
    data, given = ctx.tensor(0), ctx.inputs[1]
    dims = known_dims(data)
    if dims is None or _folds(ctx):
        return ctx.by_tvm([data, given])
    # Exporters write -1 for an axis that keeps its size.
    target = [ONE if as_int(size) == -1 else size for size in sizes_of(ctx.bb, given)]
    return broadcast_to(ctx.bb, data, broadcast_dims([dims, target]))


@converts("Tile", accepts=Accepts.SIZES)
def tile(ctx: ConverterContext) -> Value:
    """Tile, see https://onnx.ai/onnx/operators/onnx__Tile.html.

    TVM's own for repeats of a run forgets how the sizes of the result are related to those of the
    data.
    """
    data = ctx.tensor(0)
    dims = known_dims(data)
    if dims is None or ctx.opset < 6 or all(isinstance(each, Constant) for each in ctx.inputs):
        return ctx.by_tvm([data, *ctx.inputs[1:]])
    repeats = sizes_of(ctx.bb, with_length(ctx.bb, ctx.inputs[1], len(dims)))
    if len(repeats) != len(dims):
        raise UnsupportedError(f"there are {len(repeats)} repeats for {len(dims)} axes")
    shape = [sym.Analyzer().simplify(a * b) for a, b in zip(dims, repeats, strict=True)]
    if any(as_int(size) == 0 for size in shape):
        return relax.op.zeros(relax.ShapeExpr(shape), str(data.ty.dtype))
    return ctx.call_te(_tiled, data, repeats, name="tile")


def _tiled(data: Any, repeats: Sequence[Any]) -> Any:
    def source(position: Any, size: Any, count: Any) -> Any:
        return position if as_int(count) == 1 else tirx.floormod(position, size)

    def element(*positions: Any) -> Any:
        return data(*map(source, positions, data.shape, repeats))

    shape = [size * count for size, count in zip(data.shape, repeats, strict=True)]
    return te.compute(shape, element, name="tile")


def _folds(ctx: ConverterContext) -> bool:
    """Whether TVM's converter folds the node to a constant; it refuses sizes of 0."""
    sizes = read_sizes(ctx.inputs[1])
    if not isinstance(ctx.inputs[0], Constant) or sizes is None:
        return False
    return all(as_int(size) != 0 for size in sizes.items)


@converts("Squeeze", accepts=Accepts.SIZES | Accepts.NARROW_SIZES)
def squeeze(ctx: ConverterContext) -> Value:
    """Squeeze, see https://onnx.ai/onnx/operators/onnx__Squeeze.html.

    A run in which a squeezed axis of symbolic size does not have size 1 fails. An empty list of
    axes counts as an omitted one, as in onnxruntime.
    """
    sizes, axes = read_symbolic(ctx.inputs[:1]), _given_axes(ctx)
    if axes is not None and not axes:
        others = {name: value for name, value in ctx.attrs.items() if name != "axes"}
        ctx, axes = replace(ctx, inputs=InputList(ctx.inputs[:1]), attrs=others), None
    if sizes and (axes is not None or ctx.inputs[1] is None):
        removed = None if axes is None else tuple(axes)
        return rearranged_sizes(sizes[0], lambda places: places.squeeze(removed))
    data = ctx.tensor(0)
    dims = known_dims(data)
    given = list(ctx.inputs[1:])
    is_open = dims is not None and any(as_int(size) is None for size in dims)
    if axes is None and all(each is None for each in given) and is_open:
        axes = _unit_axes(dims or [])
        if not axes:
            return data
        given = [relax.const(axes, "int64")]
    if axes is None or dims is None or isinstance(data, Constant):
        return ctx.by_tvm([data, *given])
    for axis in axes:
        if not -len(dims) <= axis < len(dims):
            raise UnsupportedError(f"axis {axis} is out of range for rank {len(dims)}")
    unknown = [axis for axis in axes if as_int(dims[axis]) is None]
    if unknown:
        for axis in unknown:
            dims[axis] = 1
        data = match(ctx.bb, data, relax.TensorType(dims, data.ty.dtype))
    return ctx.by_tvm([data, *given])


def _unit_axes(dims: list[Any]) -> list[int]:
    """The axes that a Squeeze without axes removes: all of size 1."""
    for axis, size in enumerate(dims):
        if as_int(size) is None and not sym.Analyzer().can_prove(size != 1):
            raise UnsupportedError(
                f"the rank of the result depends on whether axis {axis}, of size {size}, has size 1"
            )
    return [axis for axis, size in enumerate(dims) if as_int(size) == 1]


def _given_axes(ctx: ConverterContext) -> list[int] | None:
    """The axes of a Squeeze or an Unsqueeze; None where they are omitted or not constant."""
    if "axes" in ctx.attrs:
        return list(ctx.attrs["axes"])
    if isinstance(ctx.inputs[1], Constant):
        return [int(axis) for axis in ctx.inputs[1].value.numpy().reshape(-1)]
    return None


@converts("Unsqueeze", accepts=Accepts.SYMBOLIC)
def unsqueeze(ctx: ConverterContext) -> Value:
    """Unsqueeze, see https://onnx.ai/onnx/operators/onnx__Unsqueeze.html.

    Exporters write a single axis as a scalar, and onnxruntime accepts that.
    """
    sizes, axes = read_symbolic(ctx.inputs[:1]), _given_axes(ctx)
    if sizes and axes is not None:
        added = tuple(axes)
        return rearranged_sizes(sizes[0], lambda places: np.expand_dims(places, added))
    inputs = [ctx.tensor(0), *ctx.inputs[1:]]
    axes = ctx.inputs[1]
    if isinstance(axes, Constant) and axes.value.numpy().ndim == 0:
        inputs = [inputs[0], relax.const(axes.value.numpy().reshape(1), "int64")]
    return ctx.by_tvm(inputs)


@converts("Transpose", accepts=Accepts.SYMBOLIC)
def transpose(ctx: ConverterContext) -> Value:
    """Transpose, see https://onnx.ai/onnx/operators/onnx__Transpose.html; sizes stay symbolic."""
    sizes = read_symbolic(ctx.inputs)
    if sizes:
        return rearranged_sizes(sizes[0], lambda places: places.transpose(ctx.attrs.get("perm")))
    return ctx.by_tvm(ctx.tensors())


_SPACE_TO_DEPTH_ORDERS = {"DCR": (0, 3, 5, 1, 2, 4), "CRD": (0, 1, 3, 5, 2, 4)}
"""The transposition of [batch, channel, row, row in block, column, column in block], by mode."""


@converts("DepthToSpace")
def depth_to_space(ctx: ConverterContext) -> Value:
    """DepthToSpace, see https://onnx.ai/onnx/operators/onnx__DepthToSpace.html.

    A run fails if the channels are not a whole number of blocks.
    """
    data, block = ctx.inputs[0], ctx.attrs["blocksize"]
    channels = dims_of(data, "data")[1]
    blocks = tirx.floordiv(channels, block * block)
    return ctx.by_tvm([require_size(ctx.bb, data, 1, blocks * (block * block))])


@converts("SpaceToDepth")
def space_to_depth(ctx: ConverterContext) -> Value:
    """SpaceToDepth, see https://onnx.ai/onnx/operators/onnx__SpaceToDepth.html.

    TVM's converter ignores the mode. A run fails if the data is not a whole number of blocks.
    """
    data, block = ctx.inputs[0], ctx.attrs["blocksize"]
    batch, channels, *sides = dims_of(data, "data")
    rows, columns = (tirx.floordiv(side, block) for side in sides)
    for axis, count in ((2, rows), (3, columns)):
        data = require_size(ctx.bb, data, axis, count * block)
    split = relax.op.reshape(data, (batch, channels, rows, block, columns, block))
    moved = relax.op.permute_dims(split, _SPACE_TO_DEPTH_ORDERS[ctx.attr("mode", "DCR")])
    return relax.op.reshape(moved, (batch, channels * block * block, rows, columns))
