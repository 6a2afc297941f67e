"""Stored tensors that are decoded when they are first read.

onnx-graphsurgeon's class for this, LazyValues, is not used: it loses the types bfloat16 and float8,
fails on 2, 4 and 6 bit types, and does not find external data next to the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ..errors import ModelError
from ..graph.declarations import numpy_type
from ..graph.ir import LazyArray
from .external import is_external, read, stored_bytes


class StoredValues(LazyArray):
    """A TensorProto of the file; external data stays on disk until `load`.

    Raises ModelError if the model stores more or fewer bytes than the elements take.
    """

    def __init__(self, tensor: onnx.TensorProto, base_dir: str) -> None:
        super().__init__(_dims(tensor, tensor.name), _numpy_type(tensor))
        _check_bytes(tensor)
        self.tensor = tensor
        self.base_dir = base_dir

    def decode(self) -> np.ndarray[Any, Any]:
        return decode(self.tensor, self.base_dir)


class StoredSparseValues(LazyArray):
    """A SparseTensorProto of the file; `load` returns the dense array."""

    def __init__(self, tensor: onnx.SparseTensorProto, base_dir: str) -> None:
        super().__init__(_dims(tensor, tensor.values.name), _numpy_type(tensor.values))
        self.tensor = tensor
        self.base_dir = base_dir

    def decode(self) -> np.ndarray[Any, Any]:
        """The dense array; indices are linear, or have a row of coordinates each.

        Raises ModelError if they are not those of elements, or if no memory holds the array.
        """
        values = decode(self.tensor.values, self.base_dir)
        indices = decode(self.tensor.indices, self.base_dir)
        try:
            if indices.ndim != 2:
                indices = np.stack(np.unravel_index(indices, self.shape), axis=-1)
            if indices.shape != (values.size, len(self.shape)):
                raise ValueError(f"{len(indices)} indices for {values.size} values")
            if np.any(indices < 0):
                raise IndexError(f"an index is {indices.min()}")
            dense = np.zeros(self.shape, self.dtype)
            dense[tuple(indices.T)] = values.reshape(-1)
        except (ValueError, IndexError) as error:
            raise self._error(
                f"The stored values do not fit the shape: {error}",
                "The file is damaged: copy or export it again",
            ) from error
        except MemoryError as error:
            raise self._error(
                "There is no memory for the tensor", "Remove it, or use a machine with more memory"
            ) from error
        return dense

    def _error(self, what: str, remedy: str) -> ModelError:
        where = f"sparse tensor '{self.tensor.values.name}' of shape {list(self.shape)}"
        return ModelError(what, where=where, remedy=remedy)


def _dims(tensor: onnx.TensorProto | onnx.SparseTensorProto, name: str) -> Sequence[int]:
    if any(size < 0 for size in tensor.dims):
        raise ModelError(
            f"The shape {list(tensor.dims)} of a tensor has a negative size",
            where=f"initializer '{name}'",
            remedy="The file may be damaged: copy or export it again",
        )
    return list(tensor.dims)


def _numpy_type(tensor: onnx.TensorProto) -> np.dtype[Any]:
    found = numpy_type(tensor.data_type)
    if found is None:
        raise ModelError(
            f"The tensor has element type {tensor.data_type}, which onnx {onnx.__version__} "
            "does not know",
            where=f"initializer '{tensor.name}'",
            remedy="Export the model again, or upgrade onnx",
        )
    return found


def decode(tensor: onnx.TensorProto, base_dir: str) -> np.ndarray[Any, Any]:
    """The values of a tensor. Raises ModelError if they do not fit the shape and type."""
    if is_external(tensor):
        tensor = read(tensor, base_dir)
    _check_bytes(tensor)
    try:
        return np.asarray(numpy_helper.to_array(_canonical(tensor)))
    except (ValueError, TypeError) as error:
        raise _misfit(tensor, str(error)) from error


def _canonical(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """The tensor with 1 for every true value.

    onnxruntime reads any number but 0 as true, numpy_helper only the lowest 8 bits of it.
    """
    if tensor.data_type != onnx.TensorProto.BOOL or {*tensor.int32_data} <= {0, 1}:
        return tensor
    return onnx.TensorProto(
        name=tensor.name,
        dims=tensor.dims,
        data_type=tensor.data_type,
        int32_data=[int(number != 0) for number in tensor.int32_data],
    )


def _check_bytes(tensor: onnx.TensorProto) -> None:
    """Raises ModelError if there are more or fewer bytes than the elements take.

    Of elements that share bytes, onnx checks only that there are enough.
    """
    needed = stored_bytes(tensor)
    if tensor.HasField("raw_data") and len(tensor.raw_data) != needed:
        raise _misfit(
            tensor, f"{len(tensor.raw_data)} bytes are stored, the elements take {needed}"
        )


def _misfit(tensor: onnx.TensorProto, what: str) -> ModelError:
    return ModelError(
        f"The stored values do not fit the shape and type: {what}",
        where=f"tensor '{tensor.name}' of shape {list(tensor.dims)}",
        remedy="The file is damaged: copy or export it again",
    )
