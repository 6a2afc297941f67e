"""Operators without a converter that their own specification composes of simpler ones."""

from __future__ import annotations

from typing import Any

import onnx
import onnx.inliner

from ..rewrite.storage.protos import nodes
from .operators import find

Operator = tuple[str, str]
"""Domain and name."""

_ROUNDS = 8
"""Compositions may use such operators again; none is nested deeper than this."""

_LARGEST = 2**31 - 1
"""The inliner works on serialized models, which cannot be larger."""


def decompose(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model with model-local functions inlined, and operators composed where that is needed.

    Compositions are the function bodies that ONNX's operator schemas carry. An operator for which
    there is none, because it would depend on types that are not known, stays.
    """
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    kept: set[Operator] = set()
    for _ in range(_ROUNDS):
        found = {_operator(node) for node in nodes(model.graph)} - kept
        wanted = sorted(key for key in found if _is_composed(*key, opset))
        if not wanted or model.ByteSize() > _LARGEST:
            break
        model = _with_defaults(model, wanted, opset)
        for key in wanted:
            try:
                model = onnx.inliner.inline_selected_functions(
                    model, [key], inline_schema_functions=True
                )
            except RuntimeError:
                kept.add(key)
    return model


def _with_defaults(
    model: onnx.ModelProto, operators: list[Operator], opset: int
) -> onnx.ModelProto:
    """A copy in which some operators have all attributes: function bodies read them as given."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in nodes(copy.graph):
        if _operator(node) in operators:
            given = {attribute.name for attribute in node.attribute}
            schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
            for name, attribute in schema.attributes.items():
                if name not in given and attribute.default_value.type:
                    node.attribute.append(attribute.default_value)
    return copy


def _operator(node: onnx.NodeProto) -> Operator:
    return node.domain, node.op_type


def _is_composed(domain: str, op_type: str, opset: int) -> bool:
    if find(domain, op_type) is not None:
        return False
    try:
        # The type stubs of onnx leave out the flags.
        schema: Any = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)
