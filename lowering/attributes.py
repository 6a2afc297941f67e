"""Attributes of a node, as Python values."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import AttributeProto

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


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Values by name: int, float, bytes, protos, or tuples of these. Bodies are left out."""
    values: dict[str, Any] = {}
    for attribute in node.attribute:
        kind = attribute.type or _guess(attribute)
        if kind in _FIELDS:
            values[attribute.name] = getattr(attribute, _FIELDS[kind])
        elif kind in _REPEATED:
            values[attribute.name] = tuple(getattr(attribute, _REPEATED[kind]))
    return values


def _guess(attribute: AttributeProto) -> int:
    """The kind of an attribute whose type was left out, as models of IR version 1 may."""
    for kind, field in _FIELDS.items():
        if attribute.HasField(field):
            return kind
    for kind, field in _REPEATED.items():
        if getattr(attribute, field):
            return kind
    return AttributeProto.UNDEFINED
