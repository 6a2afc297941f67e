"""A model in ONNX text, in which large tensors are shortened."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import onnx
import onnx.printer
from onnx import numpy_helper

LONGEST = 32
"""Tensors with more elements are shortened."""
_SHOWN = 4


def shortened_text(model: onnx.ModelProto) -> str:
    """The model in ONNX text. A large tensor shows only its first elements, then `…`; zeros if they
    are in another file. Text without such a tensor can be parsed again.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    declared: dict[str, str] = {}
    for number, tensor in enumerate(list(_tensors(copy.graph))):
        sizes, name = list(tensor.dims), tensor.name
        if np.prod(sizes, dtype=object) <= LONGEST or tensor.data_type == onnx.TensorProto.STRING:
            continue
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        first = np.zeros(_SHOWN)
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            first = numpy_helper.to_array(tensor).reshape(-1)[:_SHOWN]
        tensor.CopyFrom(numpy_helper.from_array(first.astype(dtype), f"shortened_{number}_"))
        declared[tensor.name] = f"[{','.join(map(str, sizes))}] {name}"
    text: str = onnx.printer.to_text(copy)
    for marker, shown in declared.items():
        pattern = rf"\[{_SHOWN}\] {marker}(\s*=?\s*\{{[^}}]*)\}}"
        text = re.sub(pattern, shown.replace("\\", "\\\\") + r"\1,…}", text)
    return text


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The initializers and the values of Constant nodes, also in bodies."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == onnx.AttributeProto.GRAPH:
                yield from _tensors(attribute.g)
