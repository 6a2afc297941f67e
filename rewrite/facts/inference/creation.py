"""Operators that make tensors from a shape, from numbers, or from attributes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx

from ... import symbolic
from ...graph.declarations import element_type
from ...graph.ir import Constant
from ...symbolic import Dim
from ..facts import BOOL, FLOAT, INT64, INTEGERS, MOST_VALUES, Fact, Value, constant_value
from .registry import Site, shape_of


def array_fact(array: np.ndarray, dtype: int = 0) -> Fact:
    """The fact of a known array; small integers and bools keep their values."""
    dtype = dtype or onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    values: tuple[Value, ...] | None = None
    if (dtype in INTEGERS or dtype == BOOL) and array.size <= MOST_VALUES:
        kind = bool if dtype == BOOL else int
        values = tuple(kind(v) for v in array.reshape(-1))
    return Fact(dtype, tuple(int(d) for d in array.shape), None, values)


def constant_fact(constant: Constant) -> Fact:
    """The fact of an initializer; large ones are not decoded."""
    dtype = element_type(constant.dtype)
    shape = tuple(int(d) for d in constant.shape)
    if (dtype in INTEGERS or dtype == BOOL) and math.prod(shape) <= MOST_VALUES:
        return array_fact(np.asarray(constant.values), dtype)
    return Fact(dtype, shape)


@shape_of("Constant")
def constant(site: Site) -> Sequence[Fact]:
    stored = site.node.attrs.get("value")
    if isinstance(stored, Constant):
        return [constant_fact(stored)]
    array = constant_value(site.node)
    if array is None:
        return [Fact()]
    return [array_fact(array, onnx.TensorProto.STRING if array.dtype == object else 0)]


@shape_of("ConstantOfShape")
def constant_of_shape(site: Site) -> Sequence[Fact]:
    fill = site.attr("value")
    dtype = FLOAT if fill is None else onnx.helper.np_dtype_to_tensor_dtype(fill.dtype)
    dims = site.dims(0)
    if dims is None:
        count = site.shape(0)
        rank = count[0] if count and isinstance(count[0], int) else None
        return [Fact(dtype, None if rank is None else site.unknown_shape(rank))]
    total = symbolic.product(dims)
    values: tuple[Value, ...] | None = None
    small = isinstance(total, int) and total <= MOST_VALUES
    if small and fill is not None and (dtype in INTEGERS or dtype == BOOL):
        values = (fill.reshape(-1)[0].item(),) * int(total)  # type: ignore[arg-type]
    return [Fact(dtype, tuple(dims), None, values)]


@shape_of("Range")
def range_(site: Site) -> Sequence[Fact]:
    start, limit, delta = (site.fact(slot).scalar() for slot in range(3))
    dtype = site.fact(0).dtype
    if start is None or limit is None or delta is None or not isinstance(delta, int) or not delta:
        return [Fact(dtype, (_constant_range(site),))]
    extent = symbolic.sub(limit, start)
    count: Dim = symbolic.maximum(symbolic.ceildiv(extent, delta), 0)
    values: tuple[Value, ...] | None = None
    if isinstance(count, int) and count <= MOST_VALUES:
        values = tuple(symbolic.add(start, i * delta) for i in range(count))
    return [Fact(dtype, (count,), None, values)]


def _constant_range(site: Site) -> Dim:
    """The length of a Range over constant floats."""
    numbers = [site.constant(slot) for slot in range(3)]
    if any(n is None for n in numbers):
        return site.fresh(0)
    start, limit, delta = (float(n.reshape(-1)[0]) for n in numbers if n is not None)
    if not np.all(np.isfinite([start, limit, delta])):
        return site.fresh(0)
    return max(0, int(np.ceil((limit - start) / delta))) if delta else site.fresh(0)


@shape_of("EyeLike")
def eye_like(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    return [Fact(int(site.attr("dtype", 0)) or x.dtype, x.shape)]


@shape_of("RandomNormal", "RandomUniform")
def random(site: Site) -> Sequence[Fact]:
    return [Fact(int(site.attr("dtype", FLOAT)), tuple(site.attr("shape")))]


@shape_of("RandomNormalLike", "RandomUniformLike", "Bernoulli")
def random_like(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    return [Fact(int(site.attr("dtype", 0)) or x.dtype, x.shape, x.ranks)]


@shape_of("NonZero")
def non_zero(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    rank: Dim = site.fresh(0) if x.shape is None else max(1, len(x.shape))
    return [Fact(INT64, (rank, site.fresh(1)))]


@shape_of("OneHot")
def one_hot(site: Site) -> Sequence[Fact]:
    index, depth = site.shape(0), site.dims(1)
    dtype = site.fact(2).dtype
    if index is None:
        return [Fact(dtype)]
    axis = site.axis(site.attr("axis", -1), len(index) + 1)
    size = depth[0] if depth else site.fresh(axis)
    return [Fact(dtype, (*index[:axis], size, *index[axis:]))]
