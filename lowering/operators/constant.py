"""Constant, in all the forms of https://onnx.ai/onnx/operators/onnx__Constant.html."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...rewrite.errors import UnsupportedError
from ..constants import array, constant, dense


def convert_constant(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """The value of a Constant node. Raises UnsupportedError for strings."""
    return constant(_content(attrs))


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
    raise UnsupportedError("the constant holds strings, which TVM does not have")
