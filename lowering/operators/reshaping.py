"""Operators on shapes: Reshape, Expand, Squeeze, Unsqueeze, SpaceToDepth, Shape and Size."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import relax, sym, tirx

from ...rewrite.errors import UnsupportedError
from ..values import Constant, Sizes, Value, as_int, as_tensor, match
from .broadcasting import ONE, ZERO, broadcast_dims, broadcast_to, dims_of, known_dims, require_size
from .registry import Accepts, ConverterContext, converts
from .sizes import product_of_sizes, read_sizes, read_symbolic, sizes_of, write_sizes


@converts("Shape", accepts=Accepts.SIZES | Accepts.ANY_RANK)
def shape(ctx: ConverterContext) -> Value:
    """Shape: TVM's converter keeps the sizes symbolic."""
    return ctx.by_tvm()


@converts("Size", accepts=Accepts.SYMBOLIC)
def size(ctx: ConverterContext) -> Value:
    """Size, see https://onnx.ai/onnx/operators/onnx__Size.html."""
    kind = ctx.inputs[0].ty
    if isinstance(kind, relax.ShapeType) and kind.ndim >= 0:
        return relax.const(kind.ndim, "int64")
    if isinstance(kind, relax.TensorType) and isinstance(kind.shape, relax.ShapeExpr):
        return product_of_sizes(Sizes(list(kind.shape.values), 1), 0)
    return ctx.by_tvm(ctx.tensors())


@converts("Reshape", accepts=Accepts.SIZES)
def reshape(ctx: ConverterContext) -> Value:
    """Reshape, see https://onnx.ai/onnx/operators/onnx__Reshape.html.

    A shape computed at run time may also contain 0 (copied) and -1 (inferred). A run in which the
    result would have another number of elements fails.
    """
    if read_sizes(ctx.inputs[1]) is not None:
        result = ctx.bb.normalize(ctx.by_tvm())
        _check_count(ctx.bb, ctx.inputs[0], known_dims(result))
        return result
    data = ctx.tensor(0)
    dims = dims_of(data, "data")
    resolved = _resolve(ctx.bb, ctx.tensor(1), dims, bool(ctx.attr("allowzero", 0)))
    shape = sizes_of(ctx.bb, resolved)
    _check_count(ctx.bb, data, shape)
    return relax.op.reshape(data, relax.ShapeExpr(shape))


def _check_count(bb: Any, data: Value, shape: Sequence[Any] | None) -> None:
    """Emits a check that a tensor has as many elements as a shape, unless that is certain."""
    dims = known_dims(data) if isinstance(data.ty, relax.TensorType) else None
    if dims is None or shape is None:
        return
    own, wanted = (functools.reduce(operator.mul, sizes, ONE) for sizes in (dims, shape))
    if not sym.Analyzer().can_prove_equal(own, wanted):
        count = bb.emit(relax.ShapeExpr([wanted]))
        bb.match_cast(count, relax.ShapeType([own]))


def _resolve(bb: Any, shape: Value, dims: Sequence[Any], allow_zero: bool) -> Value:
    """A shape tensor with its zeros and its -1 replaced by sizes."""
    length = as_int((known_dims(shape) or [None])[0])
    if length is None:
        raise UnsupportedError("the length of `shape`, the rank of the result, is not known")
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


def _folds(ctx: ConverterContext) -> bool:
    """Whether TVM's converter folds the node to a constant; it refuses sizes of 0."""
    sizes = read_sizes(ctx.inputs[1])
    if not isinstance(ctx.inputs[0], Constant) or sizes is None:
        return False
    return all(as_int(size) != 0 for size in sizes.items)


@converts("Squeeze", accepts=Accepts.SIZES | Accepts.NARROW_SIZES)
def squeeze(ctx: ConverterContext) -> Value:
    """Squeeze, see https://onnx.ai/onnx/operators/onnx__Squeeze.html.

    A run in which a squeezed axis of symbolic size does not have size 1 fails.
    """
    sizes = read_symbolic(ctx.inputs[:1])
    if sizes and len(sizes[0].items) == 1:
        return write_sizes(replace(sizes[0], rank=0))
    data, axes = ctx.tensor(0), _squeezed_axes(ctx)
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


def _squeezed_axes(ctx: ConverterContext) -> list[int] | None:
    """The axes to squeeze; None where they are omitted or not constant."""
    if "axes" in ctx.attrs:
        return list(ctx.attrs["axes"])
    if isinstance(ctx.inputs[1], Constant):
        return [int(axis) for axis in ctx.inputs[1].value.numpy().reshape(-1)]
    return None


@converts("Unsqueeze", accepts=Accepts.SCALARS | Accepts.NARROW_SIZES)
def unsqueeze(ctx: ConverterContext) -> Value:
    """Unsqueeze, see https://onnx.ai/onnx/operators/onnx__Unsqueeze.html.

    Exporters write a single axis as a scalar, and onnxruntime accepts that.
    """
    sizes = read_symbolic(ctx.inputs[:1])
    if sizes and sizes[0].rank == 0:
        return write_sizes(replace(sizes[0], rank=1))
    inputs = [ctx.tensor(0), *ctx.inputs[1:]]
    axes = ctx.inputs[1]
    if isinstance(axes, Constant) and axes.value.numpy().ndim == 0:
        inputs = [inputs[0], relax.const(axes.value.numpy().reshape(1), "int64")]
    return ctx.by_tvm(inputs)


_SPACE_TO_DEPTH_ORDERS = {"DCR": (0, 3, 5, 1, 2, 4), "CRD": (0, 1, 3, 5, 2, 4)}
"""The transposition of [batch, channel, row, row in block, column, column in block], by mode."""


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
