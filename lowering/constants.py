"""Tensors stored in the model, as Relax constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import tvm
from tvm import relax

from ..rewrite.errors import UnsupportedError
from ..rewrite.storage.lazy_values import decode
from .small_types import stored_array


def array(tensor: onnx.TensorProto, base_dir: str = "") -> npt.NDArray[Any]:
    """The content of a tensor, as Relax stores it; `base_dir` is where its external data lies.

    Raises UnsupportedError for strings, and ModelError for data that does not fit the shape.
    """
    if tensor.data_type == onnx.TensorProto.STRING:
        raise UnsupportedError(
            f"tensor {tensor.name!r} holds strings, which TVM does not have",
            remedy="Remove the part of the model that handles text",
        )
    return stored_array(decode(tensor, base_dir).reshape(tuple(tensor.dims)))


def constant(content: npt.NDArray[Any]) -> Any:
    """A Relax constant. Types that numpy does not know keep their own names."""
    return relax.const(tvm.runtime.tensor(content))


def dense(sparse: onnx.SparseTensorProto, base_dir: str = "") -> npt.NDArray[Any]:
    """A sparse tensor with its zeros. Indices are linear, or one row of coordinates per value."""
    values = array(sparse.values, base_dir)
    indices = array(sparse.indices, base_dir)
    content = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        content.reshape(-1)[indices] = values
    else:
        content[tuple(indices.T)] = values
    return content
