"""Reshape, Expand and ConstantOfShape with a shape that is computed, or partly symbolic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from ...rewrite.errors import UnsupportedError
from ..constants import array
from ..values import Constant, as_int, as_tensor, fresh_dim
from .broadcasting import broadcast_dims, expand, known_dims
from .sizes import read_sizes
from .tvm_converter import convert_as_tvm, is_weight, known_content


def sizes_of(bb: Any, value: Any) -> list[Any]:
    """The items of a vector that serves as a shape. Those of a tensor become new symbols."""
    sizes = read_sizes(value)
    if sizes is not None:
        return sizes.items
    tensor = as_tensor(bb, value)
    dims = known_dims(tensor)
    length = None if dims is None else as_int(dims[0])
    if length is None:
        raise UnsupportedError("the number of dimensions of the result is not known")
    if str(tensor.ty.dtype) != "int64":
        tensor = relax.op.astype(tensor, "int64")
    symbols = [fresh_dim("size") for _ in range(length)]
    bb.match_cast(bb.normalize(relax.op.tensor_to_shape(tensor)), relax.ShapeType(symbols))
    return symbols


def size_of(bb: Any, value: Any, params: Any) -> Any:
    """A size given as a scalar or a vector of one element; one computed becomes a new symbol."""
    content = known_content(value, params)
    if content is not None:
        return tirx.IntImm("int64", int(content.item()))
    (size,) = sizes_of(bb, bb.normalize(relax.op.reshape(as_tensor(bb, value), [1])))
    return size


def convert_constant_of_shape(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """ConstantOfShape, see https://onnx.ai/onnx/operators/onnx__ConstantOfShape.html."""
    content = array(attrs["value"]) if "value" in attrs else np.zeros(1, "float32")
    fill = relax.const(content.reshape(()), content.dtype.name)
    sizes = read_sizes(inputs[0])
    if sizes is not None and not len(sizes.items):
        # TVM's converter expands a vector, which cannot become a scalar.
        return fill
    if sizes is not None or is_weight(inputs[0], params):
        return convert_as_tvm("ConstantOfShape", bb, inputs, attrs, params)
    return relax.op.full(relax.ShapeExpr(sizes_of(bb, inputs[0])), fill, content.dtype.name)


def convert_expand(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Expand, see https://onnx.ai/onnx/operators/onnx__Expand.html: both sides broadcast."""
    data = as_tensor(bb, inputs[0])
    dims = known_dims(data)
    if dims is None or _folds(inputs) or is_weight(inputs[1], params):
        return convert_as_tvm("Expand", bb, [data, inputs[1]], attrs, params)
    target = [_kept_if_minus_one(size) for size in sizes_of(bb, inputs[1])]
    return expand(bb, data, broadcast_dims([dims, target]))


def _folds(inputs: Any) -> bool:
    """Whether TVM's converter makes a constant of it; it refuses sizes of 0."""
    sizes = read_sizes(inputs[1])
    if not isinstance(inputs[0], Constant) or sizes is None:
        return False
    return all(as_int(size) != 0 for size in sizes.items)


def _kept_if_minus_one(size: Any) -> Any:
    """Exporters write -1 for a dimension that stays as it is."""
    return tirx.IntImm("int64", 1) if as_int(size) == -1 else size


def convert_reshape(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Reshape; a shape computed at run time may hold 0 (copied) and -1 (inferred) too."""
    data, shape = inputs[0], inputs[1]
    if read_sizes(shape) is not None or is_weight(shape, params):
        return convert_as_tvm("Reshape", bb, inputs, attrs, params)
    data = as_tensor(bb, data)
    dims = known_dims(data)
    if dims is None:
        raise UnsupportedError("neither the shape of the data nor the new shape is known")
    resolved = _resolve(bb, as_tensor(bb, shape), dims, bool(attrs.get("allowzero", 0)))
    return relax.op.reshape(data, relax.ShapeExpr(sizes_of(bb, resolved)))


def _resolve(bb: Any, shape: Any, dims: Sequence[Any], zero_is_size: bool) -> Any:
    """A shape tensor with its zeros and its -1 replaced by sizes."""
    length = as_int((known_dims(shape) or [None])[0])
    if length is None:
        raise UnsupportedError("the number of dimensions of the result is not known")
    one, zero, minus_one = (relax.const(number, "int64") for number in (1, 0, -1))
    if not zero_is_size:
        own = [*dims[:length], *[tirx.IntImm("int64", 0)] * (length - len(dims))]
        copied = as_tensor(bb, relax.ShapeExpr(own))
        shape = relax.op.where(relax.op.equal(shape, zero), copied, shape)
    shape = bb.normalize(shape)
    is_inferred = bb.normalize(relax.op.equal(shape, minus_one))
    total = as_tensor(bb, relax.prim_value(_product(dims)))
    rest = relax.op.prod(relax.op.where(is_inferred, one, shape))
    inferred = relax.op.floor_divide(total, relax.op.maximum(rest, one))
    return bb.normalize(relax.op.where(is_inferred, inferred, shape))


def _product(dims: Sequence[Any]) -> Any:
    product: Any = tirx.IntImm("int64", 1)
    for size in dims:
        product = product * size
    return product
