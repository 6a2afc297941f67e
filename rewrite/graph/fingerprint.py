"""Structural equality of nodes: equal operator, attributes, operands and bodies."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Any

from onnx import AttributeProto

from .index import Index
from .ir import Constant, Graph, Node, Tensor

_Substitutes = dict[Tensor, Hashable]
"""What stands for a value in a fingerprint: its number in a body, or another value's identity."""
_BODIES = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
_MOST_COMPARED_BYTES = 1 << 16
"""Constants up to this size are compared by content, larger ones by identity."""


def fingerprint(
    node: Node, index: Index, aliases: Mapping[Tensor, Tensor] = MappingProxyType({})
) -> Hashable:
    """A key that two nodes share only if they compute the same values.

    `aliases` maps values to those that count as the same.
    """
    return _node(node, index, {alias: id(tensor) for alias, tensor in aliases.items()})


def constant_key(constant: Constant) -> Hashable:
    """A key that small constants of the same type, shape and content share."""
    stored = constant._values
    nbytes = getattr(stored, "nbytes", _MOST_COMPARED_BYTES + 1)
    if nbytes > _MOST_COMPARED_BYTES or constant.overridable:
        return id(constant)
    values = constant.values
    if values.dtype == object:
        return id(constant)
    return (values.dtype, values.shape, values.tobytes())


def _node(node: Node, index: Index, local: _Substitutes) -> Hashable:
    operands = tuple(_operand(t, local) for t in node.inputs)
    attributes = tuple(
        (name, _attribute(node.attrs[name], index, local)) for name in sorted(node.attrs)
    )
    hidden: Hashable = None
    if node.origin is not None and len(node.origin.attribute) != len(node.attrs):
        # graphsurgeon cannot represent some attribute: compare the protos of the file.
        hidden = tuple(
            a.SerializeToString() for a in node.origin.attribute if a.type not in _BODIES
        )
    return (node.op, node.domain, operands, len(node.outputs), attributes, hidden)


def _operand(tensor: Tensor, local: _Substitutes) -> Hashable:
    if not tensor.name:
        return None
    if tensor in local:
        return local[tensor]
    return constant_key(tensor) if isinstance(tensor, Constant) else id(tensor)


def _attribute(value: Any, index: Index, local: _Substitutes) -> Hashable:
    if isinstance(value, Graph):
        return _graph(value, index, local)
    if isinstance(value, Constant):
        return constant_key(value)
    # As text, in which 0.0 differs from -0.0 and 1 from 1.0.
    return tuple(map(repr, value)) if isinstance(value, list) else repr(value)


def _graph(graph: Graph, index: Index, outer: _Substitutes) -> Hashable:
    local = dict(outer)
    number = itertools.count(sum(isinstance(name, tuple) for name in outer.values()))
    for tensor in graph.inputs:
        local[tensor] = ("local", next(number))
    rows = []
    for node in sorted((n for n in graph.nodes if n in index), key=lambda n: n.order):
        if index.graph_of(node) is not graph:
            continue
        rows.append(_node(node, index, local))
        for tensor in node.outputs:
            local[tensor] = ("local", next(number))
    return (tuple(rows), tuple(_operand(t, local) for t in graph.outputs))
