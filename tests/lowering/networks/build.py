"""Networks from ONNX text: weights are names that the text uses and does not define."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'

Array = np.ndarray[Any, Any]


def build(
    text: str, weights: Mapping[str, tuple[int, ...]], constants: Mapping[str, Any]
) -> onnx.ModelProto:
    """The model of a text, with random weights of some shapes and constants of some values."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(HEADER + text)
    for name, shape in weights.items():
        fan_in = max(1, int(np.prod(shape[1:])))
        content = rng.standard_normal(shape) / np.sqrt(fan_in)
        model.graph.initializer.append(numpy_helper.from_array(content.astype(np.float32), name))
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    onnx.checker.check_model(model)
    return model
