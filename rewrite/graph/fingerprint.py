"""When two nodes compute the same: equal operator, attributes, operands and bodies."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Any

from onnx import AttributeProto

from .index import Index
from .ir import Constant, Graph, Node, Tensor

Names = dict[Tensor, Hashable]
"""What stands for a value in a fingerprint: a number inside bodies, or another value's identity."""
_BODIES = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
_SMALL = 1 << 16
"""Bytes up to which constants are compared by content."""


def fingerprint(
    node: Node, index: Index, aliases: Mapping[Tensor, Tensor] = MappingProxyType({})
) -> Hashable:
    """Equal for two nodes exactly if they surely compute the same values.

    A value that is a key of `aliases` counts as the one it is mapped to.
    """
    return _node(node, index, {alias: id(tensor) for alias, tensor in aliases.items()})


def constant_key(constant: Constant) -> Hashable:
    """Equal for constants of the same type, shape and content; identity for large ones."""
    stored = constant._values
    if getattr(stored, "nbytes", _SMALL + 1) > _SMALL or constant.overridable:
        return id(constant)
    values = constant.values
    if values.dtype == object:
        return id(constant)
    return (values.dtype, values.shape, values.tobytes())


def _node(node: Node, index: Index, local: Names) -> Hashable:
    operands = tuple(_operand(t, local) for t in node.inputs)
    attributes = tuple(
        (name, _attribute(node.attrs[name], index, local)) for name in sorted(node.attrs)
    )
    hidden: Hashable = None
    if node.origin is not None and len(node.origin.attribute) != len(node.attrs):
        # An attribute graphsurgeon cannot hold: compare the file's text of it.
        hidden = tuple(
            a.SerializeToString() for a in node.origin.attribute if a.type not in _BODIES
        )
    return (node.op, node.domain, operands, len(node.outputs), attributes, hidden)


def _operand(tensor: Tensor, local: Names) -> Hashable:
    if not tensor.name:
        return None
    if tensor in local:
        return local[tensor]
    return constant_key(tensor) if isinstance(tensor, Constant) else id(tensor)


def _attribute(value: Any, index: Index, local: Names) -> Hashable:
    if isinstance(value, Graph):
        return _graph(value, index, local)
    if isinstance(value, Constant):
        return constant_key(value)
    # As text, which tells 0.0 from -0.0 and 1 from 1.0.
    return tuple(map(repr, value)) if isinstance(value, list) else repr(value)


def _graph(graph: Graph, index: Index, outer: Names) -> Hashable:
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
