"""Operators without a converter that their own specification composes of simpler ones."""

from __future__ import annotations

from typing import Any

import onnx
import onnx.inliner

from ..rewrite.storage.functions import inline_functions
from ..rewrite.storage.protos import containers, nodes
from .operators import find
from .small_types import with_inferred_types

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
    model = inline_functions(model)
    kept: set[Operator] = set()
    for _ in range(_ROUNDS):
        found = {_operator(node) for node in nodes(model.graph)} - kept
        wanted = sorted(key for key in found if _is_composed(*key, opset))
        if not wanted or model.ByteSize() > _LARGEST:
            break
        model = _compose_by_types(_with_defaults(model, wanted, opset), wanted, opset)
        for key in wanted:
            try:
                model = onnx.inliner.inline_selected_functions(
                    model, [key], inline_schema_functions=True
                )
            except RuntimeError:
                kept.add(key)
    return model


_LOCAL_DOMAIN = "looplift.composed"
"""The domain of the model-local functions that `_compose_by_types` adds and inlines."""


def _compose_by_types(
    model: onnx.ModelProto, operators: list[Operator], opset: int
) -> onnx.ModelProto:
    """The model with each node inlined whose composition depends on the types of its inputs.

    ONNX's inliner fails on such a node if it omits an input.
    """
    nodes_by_types = [node for node in nodes(model.graph) if _operator(node) in operators]
    nodes_by_types = [node for node in nodes_by_types if "" in node.input]
    if not nodes_by_types:
        return model
    types = _types(with_inferred_types(model).graph)
    for node in nodes_by_types:
        schema: Any = onnx.defs.get_schema(node.op_type, opset, node.domain)
        given = [types.get(name) if name else onnx.TypeProto() for name in node.input]
        if not schema.has_context_dependent_function or None in given:
            continue
        body = onnx.FunctionProto()
        body.ParseFromString(
            schema.get_context_dependent_function(
                node.SerializeToString(),
                [kind.SerializeToString() for kind in given if kind is not None],
            )
        )
        body.domain, body.name = _LOCAL_DOMAIN, f"{node.op_type}_{len(model.functions)}"
        del body.opset_import[:]
        body.opset_import.add(domain="", version=opset)
        model.functions.append(body)
        node.domain, node.op_type = body.domain, body.name
    if not model.functions:
        return model
    model.opset_import.add(domain=_LOCAL_DOMAIN, version=1)
    return onnx.inliner.inline_local_functions(model)


def _types(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    """The types of the values of a graph and its bodies, as far as they are declared."""
    types = {}
    for body in containers(graph):
        for info in (*body.value_info, *body.input, *body.output):
            types[info.name] = info.type
        for tensor in body.initializer:
            kind = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
            types[tensor.name] = kind
    return types


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
