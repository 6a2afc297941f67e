"""Attributes of a node, as TVM's converters take them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
from onnx import AttributeProto

from ..rewrite.graph.ir import Constant, Graph, Node
from ..rewrite.storage.attributes import decode, is_body, tensor_proto

_FIELDS: dict[int, str] = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
}
_REPEATED: dict[int, str] = {
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.TYPE_PROTOS: "type_protos",
}


_ROUNDED_DEFAULTS: dict[str, dict[str, float]] = {
    op: {
        name: attribute.default_value.f
        for name, attribute in onnx.defs.get_schema(op).attributes.items()
        if attribute.default_value.type == AttributeProto.FLOAT
    }
    for op in ("HardSigmoid", "LRN", "LeakyRelu")
}
"""Defaults that differ from the numbers in TVM's converters, because attributes are float32."""


def attributes(node: Node) -> dict[str, Any]:
    """Values by name: int, float, bytes, protos, or tuples of these. Bodies are left out."""
    values = dict(_hidden(node))
    if not node.domain:
        values.update(_ROUNDED_DEFAULTS.get(node.op, {}))
    for name, value in node.attrs.items():
        if isinstance(value, Constant):
            values[name] = tensor_proto(value)
        elif isinstance(value, list | tuple):
            values[name] = tuple(map(_encoded, value))
        elif not isinstance(value, Graph):
            values[name] = _encoded(value)
    return values


def _encoded(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def _hidden(node: Node) -> Iterator[tuple[str, Any]]:
    """The attributes that only the file has, because rules cannot see them."""
    for attribute in node.origin.attribute if node.origin is not None else ():
        if attribute.name in node.attrs or is_body(attribute) or decode(attribute, "") is not None:
            continue
        kind = attribute.type or _guess(attribute)
        if kind in _FIELDS:
            yield attribute.name, getattr(attribute, _FIELDS[kind])
        elif kind in _REPEATED:
            yield attribute.name, tuple(getattr(attribute, _REPEATED[kind]))


def _guess(attribute: AttributeProto) -> int:
    """The kind of an attribute whose type was left out, as models of IR version 1 may."""
    for kind, field in _FIELDS.items():
        if attribute.HasField(field):
            return kind
    for kind, field in _REPEATED.items():
        if getattr(attribute, field):
            return kind
    return AttributeProto.UNDEFINED
