"""Logic on constants, folded: conditions on sizes that are known decide what is computed next."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
from tvm import relax

from ..tvm_onnx import Converter
from ..values import Constant
from .tvm_converter import convert_as_tvm


def _folded(op_type: str, compute: Callable[..., Any]) -> Converter:
    def convert(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
        if not all(isinstance(value, Constant) for value in inputs):
            return convert_as_tvm(op_type, bb, inputs, attrs, params)
        return relax.const(np.asarray(compute(*(value.value.numpy() for value in inputs))), "bool")

    return convert


LOGIC = MappingProxyType[str, Converter](
    {
        "Not": _folded("Not", np.logical_not),
        "And": _folded("And", np.logical_and),
        "Or": _folded("Or", np.logical_or),
        "Xor": _folded("Xor", np.logical_xor),
    }
)
