"""Operators that create tensors: Constant, ConstantOfShape and Range."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, sym, tirx

from ...rewrite.errors import UnsupportedError
from ..constants import array, constant, dense
from ..values import Value, as_int, as_tensor
from .broadcasting import ZERO
from .registry import Accepts, ConverterContext, converts
from .sizes import is_nonnegative, read_sizes, read_symbolic, sizes_of


@converts("Constant")
def create_constant(ctx: ConverterContext) -> Value:
    """Constant, see https://onnx.ai/onnx/operators/onnx__Constant.html."""
    return constant(_content(ctx.attrs))


def _content(attrs: dict[str, Any]) -> npt.NDArray[Any]:
    if "value" in attrs:
        return array(attrs["value"])
    if "sparse_value" in attrs:
        return dense(attrs["sparse_value"])
    for name, dtype in (("value_float", np.float32), ("value_int", np.int64)):
        if name in attrs:
            return np.array(attrs[name], dtype)
        if name + "s" in attrs:
            return np.array(attrs[name + "s"], dtype)
    raise UnsupportedError("the constant holds strings, and TVM has no tensors of strings")


@converts("ConstantOfShape", accepts=Accepts.SIZES)
def constant_of_shape(ctx: ConverterContext) -> Value:
    """ConstantOfShape, see https://onnx.ai/onnx/operators/onnx__ConstantOfShape.html."""
    shape = ctx.inputs[0]
    content = array(ctx.attrs["value"]) if "value" in ctx.attrs else np.zeros(1, "float32")
    fill = relax.const(content.reshape(()), content.dtype.name)
    sizes = read_sizes(shape)
    if sizes is not None and not len(sizes.items):
        # TVM's converter expands a vector, which cannot become a scalar.
        return fill
    if sizes is not None or ctx.is_weight(shape):
        return ctx.by_tvm()
    return relax.op.full(relax.ShapeExpr(sizes_of(ctx.bb, shape)), fill, content.dtype.name)


@converts("Range", accepts=Accepts.SCALARS | Accepts.NARROW_SIZES)
def create_range(ctx: ConverterContext) -> Value:
    """Range, see https://onnx.ai/onnx/operators/onnx__Range.html.

    The length of a range between sizes is an expression over them, not a new symbol.
    """
    operands = read_symbolic(ctx.inputs)
    if not operands or operands[0].dtype != "int64":
        return ctx.by_tvm(ctx.tensors())
    start, limit, step = (operand.items[0] for operand in operands)
    stride = as_int(step)
    if not stride:
        return ctx.by_tvm()
    distance = limit - start if stride > 0 else start - limit
    length = sym.Analyzer().simplify(tirx.floordiv(distance + (abs(stride) - 1), abs(stride)))
    if not is_nonnegative(length):
        length = tirx.max(length, ZERO)
    positions = ctx.bb.normalize(relax.op.arange(0, length, 1, "int64"))
    if stride != 1:
        positions = relax.op.multiply(positions, relax.const(stride, "int64"))
    if as_int(start) == 0:
        return positions
    return relax.op.add(positions, as_tensor(ctx.bb, start))
