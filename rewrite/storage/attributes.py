"""Converts attributes between AttributeProtos and the Python values that rules see.

Rules see integers, floats, strings, lists of them, `ir.Constant` for a tensor and `ir.Graph` for a
body. Everything else (sparse tensors, types, lists of tensors, strings that are not UTF-8,
references to attributes of a function) stays in the node's NodeProto and is written from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, numpy_helper

from ..graph import ir
from ..graph.operators import operator
from .lazy_values import StoredValues


def decode(attribute: AttributeProto, base_dir: str) -> Any:
    """The Python value of an attribute other than a body; None if rules cannot see it."""
    if attribute.ref_attr_name:
        return None
    kind = attribute.type
    if kind == AttributeProto.INT:
        return attribute.i
    if kind == AttributeProto.INTS:
        return list(attribute.ints)
    if kind == AttributeProto.FLOAT:
        return attribute.f
    if kind == AttributeProto.FLOATS:
        return list(attribute.floats)
    if kind == AttributeProto.TENSOR:
        return ir.Constant(attribute.t.name, StoredValues(attribute.t, base_dir))
    return _decode_text(attribute)


def _decode_text(attribute: AttributeProto) -> Any:
    try:
        if attribute.type == AttributeProto.STRING:
            return attribute.s.decode()
        if attribute.type == AttributeProto.STRINGS:
            return [text.decode() for text in attribute.strings]
    except UnicodeDecodeError:
        return None
    return None


def is_body(attribute: AttributeProto) -> bool:
    """Whether the attribute holds one graph."""
    return attribute.type == AttributeProto.GRAPH and not attribute.ref_attr_name


def same(attribute: AttributeProto, value: Any) -> bool:
    """Whether the attribute has this value, so that it can be written as it is."""
    kind = attribute.type
    if kind == AttributeProto.INT:
        return bool(attribute.i == value)
    if kind == AttributeProto.FLOAT:
        return bool(attribute.f == value)
    if kind == AttributeProto.TENSOR:
        return _stores(value, attribute.t)
    if kind in (AttributeProto.INTS, AttributeProto.FLOATS, AttributeProto.STRINGS):
        return isinstance(value, list) and decode(attribute, "") == value
    return bool(decode(attribute, "") == value)


def _stores(value: Any, tensor: onnx.TensorProto) -> bool:
    stored = value._values if isinstance(value, ir.Constant) else None
    return isinstance(stored, StoredValues) and stored.tensor is tensor


def schema_type(op: str, domain: str, opset: int, name: str) -> int:
    """The AttributeProto type of an attribute by the operator's schema; UNDEFINED if unknown."""
    found = operator(op, domain, opset)
    undefined = int(AttributeProto.UNDEFINED)
    return found.attributes.get(name, undefined) if found is not None else undefined


def encode(target: AttributeProto, name: str, value: Any, kind: int) -> None:
    """Writes a value other than a body.

    `kind` is an AttributeProto type, or UNDEFINED to infer it. Raises TypeError for a type that
    cannot be written.
    """
    kind = kind or _infer(value)
    target.name = name
    target.type = kind  # type: ignore[assignment]
    if kind == AttributeProto.INT:
        target.i = int(value)
    elif kind == AttributeProto.FLOAT:
        target.f = float(value)
    elif kind == AttributeProto.STRING:
        target.s = _bytes(value)
    elif kind == AttributeProto.TENSOR:
        target.t.CopyFrom(tensor_proto(value))
    elif kind == AttributeProto.INTS:
        target.ints.extend(int(item) for item in value)
    elif kind == AttributeProto.FLOATS:
        target.floats.extend(float(item) for item in value)
    elif kind == AttributeProto.STRINGS:
        target.strings.extend(_bytes(item) for item in value)
    else:
        raise TypeError(f"attribute {name!r} of type {kind} cannot hold {value!r}")


def tensor_proto(constant: ir.Constant) -> onnx.TensorProto:
    """The TensorProto of a constant; that of the file if the constant is unchanged."""
    stored = constant._values
    if isinstance(stored, StoredValues):
        return stored.tensor
    return numpy_helper.from_array(np.asarray(constant.values), constant.name)


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _infer(value: Any) -> int:
    if isinstance(value, ir.Constant):
        return int(AttributeProto.TENSOR)
    if isinstance(value, (str, bytes)):
        return int(AttributeProto.STRING)
    if isinstance(value, Iterable):
        return _infer_list(list(value))
    return int(AttributeProto.INT if _is_integer(value) else AttributeProto.FLOAT)


def _infer_list(items: list[Any]) -> int:
    if items and all(isinstance(item, (str, bytes)) for item in items):
        return int(AttributeProto.STRINGS)
    return int(AttributeProto.INTS if all(map(_is_integer, items)) else AttributeProto.FLOATS)


def _is_integer(value: Any) -> bool:
    return isinstance(value, (bool, int, np.bool_, np.integer))
