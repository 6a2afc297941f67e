"""Declared types: the ValueInfoProtos of a file, and onnx-graphsurgeon's summary of them."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, TypeGuard

import numpy as np
import onnx
from onnx import helper

from ..errors import ModelError
from . import ir

Shape = list[int | str | None]


@cache
def numpy_type(element: int) -> np.dtype[Any] | None:
    """The numpy type of an ONNX element type; None where it is undefined or unknown."""
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(element))
    except KeyError:
        return None


@cache
def element_type(dtype: np.dtype[Any]) -> int:
    """The ONNX element type (`TensorProto.DataType`) of a numpy type."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


MOST_AXES = 64
"""The most axes that numpy supports; a value with more of them cannot be computed."""


def shape_of(proto: onnx.TensorShapeProto) -> Shape:
    """For each axis the size, the name of a symbolic size, or None where neither is given.

    A negative size is not known: exporters write -1, and onnxruntime then accepts any size. Raises
    ModelError for more axes than numpy supports.
    """
    if len(proto.dim) > MOST_AXES:
        raise ModelError(
            f"A value is declared with {len(proto.dim)} axes, more than {MOST_AXES}",
            where="the declared shapes of the model",
            remedy="Export the model again",
        )
    if any(isinstance(dim.dim_param, bytes) for dim in proto.dim):
        raise ModelError(
            "The name of a dimension is not UTF-8",
            where="the declared shapes of the model",
            remedy="The file may be damaged: copy or export it again",
        )
    return [_size(dim) for dim in proto.dim]


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if not dim.HasField("dim_value"):
        return dim.dim_param or None
    return dim.dim_value if dim.dim_value >= 0 else None


Summary = tuple[np.dtype[Any] | None, tuple[int | str | None, ...] | None, str]


def summary(declared: onnx.TypeProto) -> Summary:
    """Element type, shape and kind as onnx-graphsurgeon's Variable keeps them.

    The kind is the name of the TypeProto's field (`tensor_type`, `sequence_type` …). A sequence or
    optional is summarised by its element type; the declaration keeps the whole type.
    """
    return _summary(declared.SerializeToString())


@lru_cache(maxsize=4096)
def _summary(serialised: bytes) -> Summary:
    # A large model declares thousands of values with few different types: a look-up of the bytes is
    # ten times faster than a walk over the dimensions.
    declared = onnx.TypeProto.FromString(serialised)
    kind = declared.WhichOneof("value") or "tensor_type"
    if kind in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(declared, kind)
        shape = tuple(shape_of(tensor.shape)) if tensor.HasField("shape") else None
        return numpy_type(tensor.elem_type), shape, kind
    if kind in ("sequence_type", "optional_type"):
        return summary(getattr(declared, kind).elem_type)[0], None, kind
    return None, None, kind


def declare(tensor: ir.Variable, info: onnx.ValueInfoProto | None) -> None:
    """Sets a tensor's declaration, type and shape from the file."""
    if info is None:
        return
    tensor.info = info
    if info.HasField("type"):
        tensor.dtype, shape, tensor.type = summary(info.type)
        tensor.shape = None if shape is None else list(shape)


def declaration(tensor: ir.Tensor, declared: onnx.ValueInfoProto | None) -> onnx.ValueInfoProto:
    """The ValueInfoProto to write for a tensor: `declared` under the tensor's current name.

    Where `declared` lacks a type, the tensor's own type and shape are added.
    """
    info = onnx.ValueInfoProto()
    if declared is not None:
        info.CopyFrom(declared)
    info.name = tensor.name
    if not info.HasField("type"):
        _write_type(info.type, tensor)
    return info


def _write_type(proto: onnx.TypeProto, tensor: ir.Tensor) -> None:
    kind = tensor.type if isinstance(tensor, ir.Variable) else "tensor_type"
    if tensor.dtype is None or kind not in ("tensor_type", "sparse_tensor_type"):
        return
    target = getattr(proto, kind)
    target.elem_type = element_type(tensor.dtype)
    if tensor.shape is None:
        return
    # An empty shape must also be written: it declares a scalar.
    target.shape.SetInParent()
    for size in tensor.shape:
        dim = target.shape.dim.add()
        if isinstance(size, str):
            dim.dim_param = size
        elif size is not None:
            dim.dim_value = int(size)


def declares_shape(info: onnx.ValueInfoProto | None) -> TypeGuard[onnx.ValueInfoProto]:
    """Whether a declaration gives the rank of a tensor."""
    return info is not None and info.type.tensor_type.HasField("shape")


def without_shape(info: onnx.ValueInfoProto | None) -> onnx.ValueInfoProto | None:
    """The declaration of a tensor, or of a sequence of tensors, with the element type only.

    The name of a dim in a body need not mean the same size outside, but onnxruntime takes equal
    names for equal sizes and shares memory between such values.
    """
    if info is None or not _tensor_type(info).HasField("shape"):
        return info
    plain = onnx.ValueInfoProto()
    plain.CopyFrom(info)
    _tensor_type(plain).ClearField("shape")
    return plain


def without_false_sizes(
    info: onnx.ValueInfoProto, proven: tuple[object, ...] | None, *, is_constant: bool = False
) -> onnx.ValueInfoProto:
    """The declaration without the sizes that contradict a proven shape.

    `proven` is the symbolic shape, or None where it is not known; only its numbers count. A 0
    counts only for a constant: onnxruntime concatenates an empty tensor with any other as long as
    it does not infer the 0, which it always does for a constant.
    """
    declared = _tensor_type(info)
    if proven is None or not declared.HasField("shape"):
        return info
    if len(declared.shape.dim) != len(proven):
        return without_shape(info) or info
    false = [
        axis
        for axis, (dim, size) in enumerate(zip(declared.shape.dim, proven))
        if dim.HasField("dim_value")
        and isinstance(size, int)
        and (size != 0 or is_constant)
        and size != dim.dim_value
    ]
    if not false:
        return info
    corrected = onnx.ValueInfoProto()
    corrected.CopyFrom(info)
    for axis in false:
        _tensor_type(corrected).shape.dim[axis].Clear()
    return corrected


def _tensor_type(info: onnx.ValueInfoProto) -> onnx.TypeProto.Tensor:
    """The type of a tensor, or of the elements of a sequence."""
    kind = info.type
    return (kind.sequence_type.elem_type if kind.HasField("sequence_type") else kind).tensor_type


def with_proven_sizes(
    info: onnx.ValueInfoProto, proven: tuple[object, ...] | None
) -> onnx.ValueInfoProto:
    """The declaration with the numbers of a proven shape where it leaves sizes open.

    `proven` is the symbolic shape, or None where it is not known; only its numbers count. A size of
    0 is not written: onnxruntime concatenates such a tensor with any other, which its shape
    inference would refuse.
    """
    declared = info.type.tensor_type
    if not declared.HasField("shape") or len(declared.shape.dim) != len(proven or ()):
        return info
    filled = onnx.ValueInfoProto()
    filled.CopyFrom(info)
    for dim, size in zip(filled.type.tensor_type.shape.dim, proven or ()):
        if isinstance(size, int) and size and not dim.HasField("dim_value"):
            dim.dim_value = size
    return filled
