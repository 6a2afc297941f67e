"""MatMul and Gemm of tensors whose symbolic sizes may be 0, or are not known to agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from ...rewrite.errors import UnsupportedError
from ..values import Value, as_int
from .accumulation import accumulate_in_float32
from .broadcasting import (
    broadcast_dims,
    broadcast_to,
    convert_broadcast,
    known_dims,
    lacks_shape,
    match_dims,
)
from .reductions import fill_if_empty
from .registry import ConverterContext, converts
from .sizes import may_be_zero

BYTE_TYPES = ("uint8", "int8")
"""The types whose products are added up in int32."""


@converts("MatMul")
@accumulate_in_float32
def matmul(ctx: ConverterContext) -> Value:
    """MatMul, see https://onnx.ai/onnx/operators/onnx__MatMul.html; a sum of no products is 0.

    Products of bytes, which ONNX does not have, are added up in int32.
    """
    ctx = _check_inner_sizes(ctx, -1, -2)
    product = ctx.bb.normalize(_broadcast_matmul(ctx))
    dims = known_dims(ctx.inputs[0])
    return fill_if_empty(ctx, product, dims[-1:] if dims else [], 0)


def _check_inner_sizes(ctx: ConverterContext, left_axis: int, right_axis: int) -> ConverterContext:
    """The context with one factor cast, so that a run in which the inner sizes differ fails.

    The axes are those of matrices. A vector has only one.
    """
    left, right, *others = ctx.inputs
    left_dims, right_dims = known_dims(left), known_dims(right)
    if not left_dims or not right_dims:
        return ctx
    left_axis, right_axis = (
        axis % len(dims) if len(dims) > 1 else 0
        for axis, dims in ((left_axis, left_dims), (right_axis, right_dims))
    )
    left_size, right_size = left_dims[left_axis], right_dims[right_axis]
    if as_int(right_size) is not None:
        left = match_dims(ctx.bb, left, _replaced(left_dims, left_axis, right_size))
    else:
        right = match_dims(ctx.bb, right, _replaced(right_dims, right_axis, left_size))
    return ctx.derive(inputs=[left, right, *others])


def _replaced(dims: Sequence[Any], axis: int, size: Any) -> list[Any]:
    """The dimensions with another size along an axis."""
    return [*dims[:axis], size, *dims[axis + 1 :]]


def _broadcast_matmul(ctx: ConverterContext) -> Value:
    """The product of stacks of matrices, which are broadcast first if their sizes may differ."""
    out_dtype = "int32" if str(ctx.inputs[0].ty.dtype) in BYTE_TYPES else None
    result = ctx.bb.normalize(relax.op.matmul(ctx.inputs[0], ctx.inputs[1], out_dtype))
    if not lacks_shape(result):
        return result
    left, right = (known_dims(value) for value in ctx.inputs)
    if left is None or right is None or min(len(left), len(right)) < 2:
        return result
    stack = broadcast_dims([left[:-2], right[:-2]])
    aligned = [
        broadcast_to(ctx.bb, value, [*stack, *dims[-2:]])
        for value, dims in zip(ctx.inputs, (left, right), strict=True)
    ]
    return relax.op.matmul(*aligned, out_dtype)


@converts("Gemm")
@accumulate_in_float32
def gemm(ctx: ConverterContext) -> Value:
    """Gemm, see https://onnx.ai/onnx/operators/onnx__Gemm.html.

    The addend is broadcast first if its sizes may differ; a sum of no products is 0.

    UnsupportedError: a factor is not a matrix.
    """
    for factor in ctx.inputs[:2]:
        shape = known_dims(factor)
        if shape is not None and len(shape) != 2:
            raise UnsupportedError(f"a factor has rank {len(shape)}, but Gemm multiplies matrices")
    axis, of_second = (0 if ctx.attr("transA", 0) else 1), (1 if ctx.attr("transB", 0) else 0)
    ctx = _check_inner_sizes(ctx, axis, of_second)
    result = ctx.bb.normalize(ctx.by_tvm())
    dims, addend = known_dims(ctx.inputs[0]), ctx.inputs[2]
    inner = [dims[axis]] if dims else []
    if addend is None:
        return fill_if_empty(ctx, result, inner, 0)
    if not lacks_shape(result) and not any(may_be_zero(size) for size in inner):
        return result
    product = fill_if_empty(ctx, ctx.bb.normalize(ctx.by_tvm(ctx.inputs[:2])), inner, 0)
    beta = ctx.attr("beta", 1.0)
    if beta != 1.0:
        addend = ctx.bb.normalize(relax.op.multiply(addend, relax.const(beta, addend.ty.dtype)))
    return convert_broadcast(ctx.derive("Add", [product, addend]))
