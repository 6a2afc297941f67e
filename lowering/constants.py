"""Tensors stored in the model, as Relax constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import tvm
from tvm import relax

from ..rewrite.errors import UnsupportedError
from ..rewrite.graph.ir import Constant, LazyArray
from ..rewrite.storage.lazy_values import StoredSparseValues, StoredValues
from .small_types import stored_array


def array(tensor: Constant) -> npt.NDArray[Any]:
    """The content of a tensor, as Relax stores it.

    Raises UnsupportedError for strings, and ModelError for data that does not fit the shape.
    """
    values = tensor._values
    if values.dtype.kind in "OUS":
        raise UnsupportedError(
            f"tensor {tensor.name!r} holds strings, which TVM does not have",
            remedy="Remove the part of the model that handles text",
        )
    # What a lazy array decodes is not kept: a second copy of all weights may not fit.
    content = values.decode() if isinstance(values, LazyArray) else values
    return stored_array(np.asarray(content).reshape(values.shape))


def stored(tensor: onnx.TensorProto, base_dir: str = "") -> npt.NDArray[Any]:
    """Likewise for a tensor of a file; `base_dir` is where its external data lies."""
    return array(Constant(tensor.name, StoredValues(tensor, base_dir)))


def dense(sparse: onnx.SparseTensorProto, base_dir: str = "") -> npt.NDArray[Any]:
    """Likewise for a sparse tensor of a file, with its zeros."""
    return array(Constant(sparse.values.name, StoredSparseValues(sparse, base_dir)))


def constant(content: npt.NDArray[Any]) -> Any:
    """A Relax constant. Types that numpy does not know keep their own names."""
    return relax.const(tvm.runtime.tensor(content))
