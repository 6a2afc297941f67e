"""Operators on sizes whose results stay symbolic. On data they are TVM's converters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from tvm import relax, tirx

from ..tvm_onnx import Converter, InputList
from ..values import Constant, Sizes, as_int, as_tensor
from .broadcasting import agree
from .casts import convert_cast
from .elementwise import convert_elementwise, convert_modulo, lacks_shape
from .reductions import convert_reduction
from .sizes import divide, elementwise, read_sizes, read_symbolic, write_sizes
from .tvm_converter import convert_as_tvm

_INTEGERS = {onnx.TensorProto.INT64: "int64", onnx.TensorProto.INT32: "int32"}


def _on_tensors(op_type: str, bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    return convert_as_tvm(op_type, bb, _tensors(bb, inputs), attrs, params)


def _tensors(bb: Any, inputs: Any) -> list[Any]:
    return [None if value is None else as_tensor(bb, value) for value in inputs]


def _arithmetic(op_type: str, compute: Callable[[Any, Any], Any]) -> Converter:
    def convert(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
        operands = read_symbolic(inputs)
        if not operands:
            return convert_elementwise(op_type, bb, _tensors(bb, inputs), attrs, params)
        result = functools.reduce(functools.partial(elementwise, compute), operands)
        return write_sizes(result)

    return convert


def _comparison(op_type: str, compare: Callable[[Any, Any], Any]) -> Converter:
    """TVM's own Equal takes two sizes for different whenever they are written differently."""

    def convert(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
        operands = read_symbolic(inputs)
        if not operands:
            return convert_elementwise(op_type, bb, _tensors(bb, inputs), attrs, params)
        result = elementwise(compare, *operands)
        known = [as_int(item) for item in result.items]
        if None not in known:
            outcome = np.array(known, "bool").reshape((-1,) if result.rank else ())
            return relax.const(outcome, "bool")
        if result.rank:
            return convert_elementwise(op_type, bb, _tensors(bb, inputs), attrs, params)
        return result.items[0]

    return convert


def _gather(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    data, positions = inputs[0], inputs[1]
    if isinstance(data, relax.ShapeExpr | Sizes) and isinstance(positions, Constant):
        sizes, index = read_sizes(data), positions.value.numpy()
        if sizes is not None and index.ndim <= 1:
            items = [sizes.items[int(i)] for i in index.reshape(-1)]
            return write_sizes(Sizes(items, index.ndim, sizes.dtype))
    return _on_tensors("Gather", bb, inputs, attrs, params)


def _cast(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    dtype = _INTEGERS.get(attrs["to"])
    sizes = read_symbolic(inputs)
    if dtype is None or not sizes:
        return convert_cast(bb, _tensors(bb, inputs), attrs, params)
    return write_sizes(replace(sizes[0], dtype=dtype))


def _negative(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    sizes = read_symbolic(inputs)
    if not sizes:
        return _on_tensors("Neg", bb, inputs, attrs, params)
    zero = replace(_number(0), dtype=sizes[0].dtype)
    return write_sizes(elementwise(lambda a, b: a - b, zero, sizes[0]))


def _modulo(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    if attrs.get("fmod", 0) or not read_symbolic(inputs):
        return convert_modulo(bb, InputList(_tensors(bb, inputs)), attrs, params)
    return _arithmetic("Mod", tirx.floormod)(bb, inputs, attrs, params)


def _number(value: int) -> Sizes:
    return Sizes([tirx.IntImm("int64", value)], 0)


def _concat(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    operands = read_symbolic(inputs)
    if operands:
        items = [item for operand in operands for item in operand.items]
        return write_sizes(Sizes(items, 1, operands[0].dtype))
    result = bb.normalize(_on_tensors("Concat", bb, inputs, attrs, params))
    if not lacks_shape(result):
        return result
    agreeing = agree(bb, _tensors(bb, inputs), except_axis=attrs.get("axis", 1))
    return convert_as_tvm("Concat", bb, agreeing, attrs, params)


def _size(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    kind = inputs[0].ty
    if isinstance(kind, relax.ShapeType) and kind.ndim >= 0:
        return relax.const(kind.ndim, "int64")
    if isinstance(kind, relax.TensorType) and isinstance(kind.shape, relax.ShapeExpr):
        return _product(Sizes(list(kind.shape.values), 1), 0)
    return _on_tensors("Size", bb, inputs, attrs, params)


def _reduce_prod(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    sizes = read_sizes(inputs[0])
    all_of_vector = attrs.get("axes") in (None, (0,), (-1,)) and len(inputs) == 1
    if sizes is None or isinstance(inputs[0], Constant) or not all_of_vector:
        return convert_reduction("ReduceProd", bb, inputs, attrs, params)
    return _product(sizes, attrs.get("keepdims", 1))


def _product(sizes: Sizes, rank: int) -> Any:
    factors = [Sizes([item], 0) for item in sizes.items]
    multiply = functools.partial(elementwise, lambda a, b: a * b)
    product = functools.reduce(multiply, factors, _number(1))
    return write_sizes(Sizes(product.items, rank, sizes.dtype))


SIZE_OPERATORS = MappingProxyType[str, Converter](
    {
        "Add": _arithmetic("Add", lambda a, b: a + b),
        "Sub": _arithmetic("Sub", lambda a, b: a - b),
        "Mul": _arithmetic("Mul", lambda a, b: a * b),
        "Mod": _modulo,
        "Neg": _negative,
        "Div": _arithmetic("Div", divide),
        "Min": _arithmetic("Min", tirx.min),
        "Max": _arithmetic("Max", tirx.max),
        "Equal": _comparison("Equal", tirx.EQ),
        "Less": _comparison("Less", tirx.LT),
        "LessOrEqual": _comparison("LessOrEqual", tirx.LE),
        "Greater": _comparison("Greater", tirx.GT),
        "GreaterOrEqual": _comparison("GreaterOrEqual", tirx.GE),
        "Gather": _gather,
        "Cast": _cast,
        "Concat": _concat,
        "Size": _size,
        "ReduceProd": _reduce_prod,
    }
)
"""All of the standard domain."""
