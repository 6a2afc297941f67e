"""Operators that create tensors from a shape, from numbers, or from attributes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx

from ... import symbolic
from ...graph.declarations import element_type
from ...graph.ir import Constant, constant_value
from ...symbolic import Dim
from ..fact import BOOL, FLOAT, INT64, INTEGERS, MOST_VALUES, Element, Fact
from .registry import NodeContext, register


def array_fact(array: np.ndarray, dtype: int = 0) -> Fact:
    """The fact of a known array, with its elements if it is small and of integers or bools."""
    dtype = dtype or onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    values: tuple[Element, ...] | None = None
    if (dtype in INTEGERS or dtype == BOOL) and array.size <= MOST_VALUES:
        kind = bool if dtype == BOOL else int
        values = tuple(kind(v) for v in array.reshape(-1))
    return Fact(dtype, tuple(int(d) for d in array.shape), None, values)


def constant_fact(constant: Constant) -> Fact:
    """The fact of an initializer; does not decode large ones."""
    dtype = element_type(constant.dtype)
    shape = tuple(int(d) for d in constant.shape)
    if (dtype in INTEGERS or dtype == BOOL) and math.prod(shape) <= MOST_VALUES:
        return array_fact(np.asarray(constant.values), dtype)
    return Fact(dtype, shape)


@register("Constant")
def constant(ctx: NodeContext) -> Sequence[Fact]:
    stored = ctx.node.attrs.get("value")
    if isinstance(stored, Constant):
        return [constant_fact(stored)]
    array = constant_value(ctx.node)
    if array is None:
        return [Fact()]
    return [array_fact(array, onnx.TensorProto.STRING if array.dtype == object else 0)]


@register("ConstantOfShape")
def constant_of_shape(ctx: NodeContext) -> Sequence[Fact]:
    fill = ctx.attr("value")
    dtype = FLOAT if fill is None else onnx.helper.np_dtype_to_tensor_dtype(fill.dtype)
    dims = ctx.dims(0)
    if dims is None:
        count = ctx.shape(0)
        return [Fact(dtype, ctx.shape_of_length(count[0] if count else None))]
    ctx.check_sizes(dims)
    total = symbolic.product(dims)
    values: tuple[Element, ...] | None = None
    small = isinstance(total, int) and total <= MOST_VALUES
    if small and fill is not None and (dtype in INTEGERS or dtype == BOOL):
        values = (fill.reshape(-1)[0].item(),) * int(total)  # type: ignore[arg-type]
    return [Fact(dtype, tuple(dims), None, values)]


@register("Range")
def range_(ctx: NodeContext) -> Sequence[Fact]:
    start, limit, delta = (ctx.fact(slot).scalar() for slot in range(3))
    dtype = ctx.fact(0).dtype
    if start is None or limit is None or delta is None or not isinstance(delta, int) or not delta:
        return [Fact(dtype, (_constant_range(ctx),))]
    extent = symbolic.sub(limit, start)
    count: Dim = symbolic.maximum(symbolic.ceildiv(extent, delta), 0)
    values: tuple[Element, ...] | None = None
    if isinstance(count, int) and count <= MOST_VALUES:
        values = tuple(symbolic.add(start, i * delta) for i in range(count))
    return [Fact(dtype, (count,), None, values)]


def _constant_range(ctx: NodeContext) -> Dim:
    """The length of a Range whose operands are constant floats."""
    numbers = [ctx.constant(slot) for slot in range(3)]
    if any(n is None for n in numbers):
        return ctx.fresh(0)
    start, limit, delta = (float(n.reshape(-1)[0]) for n in numbers if n is not None)
    if not np.all(np.isfinite([start, limit, delta])):
        return ctx.fresh(0)
    return max(0, int(np.ceil((limit - start) / delta))) if delta else ctx.fresh(0)


@register("EyeLike")
def eye_like(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    return [Fact(int(ctx.attr("dtype", 0)) or x.dtype, x.shape)]


@register("RandomNormal", "RandomUniform")
def random(ctx: NodeContext) -> Sequence[Fact]:
    return [Fact(int(ctx.attr("dtype", FLOAT)), tuple(ctx.attr("shape")))]


@register("RandomNormalLike", "RandomUniformLike", "Bernoulli")
def random_like(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    return [Fact(int(ctx.attr("dtype", 0)) or x.dtype, x.shape, x.ranks)]


@register("NonZero")
def non_zero(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    elements = x.array()
    if elements is not None and all(isinstance(number, int) for number in elements.flat):
        positions = np.nonzero(np.atleast_1d(elements).astype(bool))
        return [array_fact(np.array(positions, np.int64))]
    rank: Dim = ctx.fresh(0) if x.shape is None else max(1, len(x.shape))
    return [Fact(INT64, (rank, ctx.fresh(1)))]


@register("OneHot")
def one_hot(ctx: NodeContext) -> Sequence[Fact]:
    index, depth = ctx.shape(0), ctx.dims(1)
    dtype = ctx.fact(2).dtype
    if index is None:
        return [Fact(dtype)]
    axis = ctx.axis(ctx.attr("axis", -1), len(index) + 1)
    size = depth[0] if depth else ctx.fresh(axis)
    return [Fact(dtype, (*index[:axis], size, *index[axis:]))]
