"""Operators without a converter that their own specification composes of simpler ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import onnx
import onnx.inliner

from ..rewrite.storage.functions import inline_functions
from ..rewrite.storage.importer import need_text
from ..rewrite.storage.protos import body_protos, nodes
from .operators import find
from .small_types import with_inferred_types

Operator = tuple[str, str]
"""Domain and name."""

_Types = Mapping[str, onnx.TypeProto]
"""By the names of values."""

_ROUNDS = 8
"""Compositions may use such operators again; none is nested deeper than this."""

_LARGEST = 2**31 - 1
"""The inliner works on serialized models, which cannot be larger."""


def decompose(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model with model-local functions inlined, and operators composed where that is needed.

    Compositions are the function bodies that ONNX's operator schemas carry. An operator for which
    there is none, because it would depend on types that are not known, stays.

    Raises ModelError for an operator whose name is not UTF-8.
    """
    model = inline_functions(model)
    for node in nodes(model.graph):
        need_text(node.op_type)
    kept: set[Operator] = set()
    for _ in range(_ROUNDS):
        found = {_operator(node) for node in nodes(model.graph)} - kept
        wanted = sorted(key for key in found if _is_composed(*key, opset))
        if not wanted or model.ByteSize() > _LARGEST:
            break
        model = _with_defaults(model, wanted, opset)
        composed = _compose_by_types(model, wanted, opset)
        if composed is not None:
            model = composed
            continue
        for key in wanted:
            try:
                model = onnx.inliner.inline_selected_functions(
                    model, [key], inline_schema_functions=True
                )
            except (RuntimeError, ValueError):
                kept.add(key)
    return model


_LOCAL_DOMAIN = "looplift.composed"
"""The domain of the model-local functions that `_compose_by_types` adds and inlines."""


def _compose_by_types(
    model: onnx.ModelProto, operators: list[Operator], opset: int
) -> onnx.ModelProto | None:
    """The model with each node inlined whose composition depends on the types of its inputs.

    None if there is no such node, or none with known types; otherwise the given model is changed.
    ONNX's inliner fails on such a node if it omits an input, or if an input is an initializer or a
    value of a body: it does not know their types.
    """
    composed: list[onnx.FunctionProto] = []
    for node, types in _with_types(model.graph, with_inferred_types(model).graph):
        body = _composition(node, types, opset) if _operator(node) in operators else None
        if body is not None:
            body.domain, body.name = _LOCAL_DOMAIN, f"{node.op_type}_{len(composed)}"
            node.domain, node.op_type = body.domain, body.name
            composed.append(body)
    if not composed:
        return None
    model.functions.extend(composed)
    if _LOCAL_DOMAIN not in {entry.domain for entry in model.opset_import}:
        model.opset_import.add(domain=_LOCAL_DOMAIN, version=1)
    return onnx.inliner.inline_local_functions(model)


def _composition(node: onnx.NodeProto, types: _Types, opset: int) -> onnx.FunctionProto | None:
    """The composition of a node by the types of its inputs; None if there is none for them."""
    schema: Any = onnx.defs.get_schema(node.op_type, opset, node.domain)
    given = [types.get(name) if name else onnx.TypeProto() for name in node.input]
    if not schema.has_context_dependent_function or None in given:
        return None
    kinds = [kind.SerializeToString() for kind in given if kind is not None]
    try:
        composed = schema.get_context_dependent_function(node.SerializeToString(), kinds)
    except ValueError:
        return None  # an invalid node, whose operands are of other types
    body = onnx.FunctionProto()
    body.ParseFromString(composed)
    if not body.node:  # such as that of a RotaryEmbedding of unknown rank
        return None
    if len(node.input) > len(body.input) or len(node.output) > len(body.output):
        return None  # an invalid node, whose other operands the composition does not know
    del body.opset_import[:]
    body.opset_import.add(domain="", version=opset)
    return body


def _with_types(
    graph: onnx.GraphProto, inferred: onnx.GraphProto, outer: _Types = MappingProxyType({})
) -> Iterator[tuple[onnx.NodeProto, _Types]]:
    """The nodes of a graph and its bodies, each with the types of the values that it sees.

    `inferred` is the same graph with the types.
    """
    types = {**outer, **_declared_types(inferred)}
    for node, same in zip(graph.node, inferred.node, strict=True):
        yield node, types
        for body, inferred_body in zip(body_protos(node), body_protos(same), strict=True):
            yield from _with_types(body, inferred_body, types)


def _declared_types(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    """The types of the values of a graph, as far as they are declared."""
    infos = (*graph.value_info, *graph.input, *graph.output)
    types = {info.name: info.type for info in infos if info.type.WhichOneof("value")}
    tensors = [(each.name, each.data_type, each.dims) for each in graph.initializer]
    tensors += [
        (each.values.name, each.values.data_type, each.dims) for each in graph.sparse_initializer
    ]
    for name, element_type, dims in tensors:
        types[name] = onnx.helper.make_tensor_type_proto(element_type, list(dims))
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
