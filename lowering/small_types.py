"""Types with fewer than eight bits, which Relax stores in the next wider type.

    int4, int2   -> int8        uint4, uint2 -> uint8
    float4_e2m1fn, float6_e2m3fn, float6_e3m2fn -> float8_e4m3fn

TVM 0.27 has names for some of these types but no kernels that read them. Every value of a small
type is a value of the wider one. A parameter or a result of `main` has the wider type, and Cast and
QuantizeLinear round and wrap as ONNX defines it for the small one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.shape_inference
from onnx import TensorProto, helper

from ..rewrite.errors import UnsupportedError
from ..rewrite.storage.protos import containers, nodes

STORED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("int4", "int2"), "int8"),
        **dict.fromkeys(("uint4", "uint2"), "uint8"),
        **dict.fromkeys(("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"), "float8_e4m3fn"),
    }
)
"""The type that holds a small type, by names of numpy."""


NOT_PACKED = 0
"""The bits of a GatherBlockQuantized whose elements have an entry each. onnxruntime refuses 0."""


def dtype_name(element_type: int) -> str:
    """The name of an ONNX element type in numpy."""
    return str(helper.tensor_dtype_to_np_dtype(element_type).name)


_SMALL = frozenset(
    code
    for code in TensorProto.DataType.values()
    if code not in (TensorProto.UNDEFINED, TensorProto.STRING) and dtype_name(code) in STORED
)
"""The element types of ONNX that are stored in a wider type."""


def stored_dtype(element_type: int) -> str:
    """The type that Relax stores an ONNX element type in."""
    name = dtype_name(element_type)
    return STORED.get(name, name)


def stored_array(content: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An array in the type that Relax stores it in."""
    stored = STORED.get(content.dtype.name)
    return content if stored is None else content.astype(np.dtype(stored))


def resolve_small_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with an explicit type in each node that takes a small type from an input.

    Relax only knows the wider type of that input. The given model is not changed. Raises
    UnsupportedError if ONNX's inference does not find the type.
    """
    readers = [node for node in nodes(model.graph) if node.op_type in _TYPE_SOURCES]
    if not readers or not _has_small_types(model):
        return model
    resolved = onnx.ModelProto()
    resolved.CopyFrom(model)
    types = element_types(with_inferred_types(resolved).graph)
    for node in nodes(resolved.graph):
        slot = _TYPE_SOURCES.get(node.op_type)
        if slot is None or slot >= len(node.input) or not node.input[slot]:
            continue
        kind = types.get(node.input[slot])
        if kind is None:
            raise UnsupportedError(
                f"the type of {node.input[slot]!r}, which {node.op_type} takes over, is not known",
                remedy="Declare the type of that value in the model",
            )
        if kind not in _SMALL:
            continue
        if node.op_type == "CastLike":
            node.op_type = "Cast"
            del node.input[1:]
            node.attribute.append(helper.make_attribute("to", kind))
        elif node.op_type == "GatherBlockQuantized":
            others = [attribute for attribute in node.attribute if attribute.name != "bits"]
            del node.attribute[:]
            node.attribute.extend([*others, helper.make_attribute("bits", NOT_PACKED)])
        elif all(attribute.name != "output_dtype" for attribute in node.attribute):
            node.attribute.append(helper.make_attribute("output_dtype", kind))
    return resolved


_TYPE_SOURCES: Mapping[str, int] = MappingProxyType(
    {"CastLike": 1, "QuantizeLinear": 2, "GatherBlockQuantized": 0}
)
"""The input whose type the result has, by operator. Elements of that of GatherBlockQuantized are
packed unless they are of a small type."""


def with_inferred_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with the types that ONNX's inference finds; as declared if it fails."""
    try:
        return onnx.shape_inference.infer_shapes(model)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError):
        return model


def element_types(graph: onnx.GraphProto) -> dict[str, int]:
    """The element types of the tensors of a graph and its bodies, as far as they are declared."""
    types = {}
    for body in containers(graph):
        for info in (*body.value_info, *body.input, *body.output):
            if info.type.tensor_type.elem_type:
                types[info.name] = info.type.tensor_type.elem_type
        for tensor in body.initializer:
            types[tensor.name] = tensor.data_type
    return types


def _has_small_types(model: onnx.ModelProto) -> bool:
    if not _SMALL.isdisjoint(element_types(model.graph).values()):
        return True
    for node in nodes(model.graph):
        for attribute in node.attribute:
            if attribute.i in _SMALL and attribute.name in ("to", "dtype", "output_dtype"):
                return True
            if attribute.t.data_type in _SMALL:
                return True
    return False
