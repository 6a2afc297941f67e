"""When two nodes compute the same: equal operator, attributes, operands and bodies."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from .index import Index
from .ir import Constant, Graph, Node, Tensor

_SMALL = 1 << 16
"""Bytes up to which constants are compared by content."""


def fingerprint(node: Node, index: Index) -> Hashable:
    """Equal for two nodes exactly if they surely compute the same values."""
    return _node(node, index, {})


def constant_key(constant: Constant) -> Hashable:
    """Equal for constants of the same type, shape and content; identity for large ones."""
    stored = constant._values
    if getattr(stored, "nbytes", _SMALL + 1) > _SMALL or constant.overridable:
        return id(constant)
    values = constant.values
    if values.dtype == object:
        return id(constant)
    return (str(constant.dtype), tuple(values.shape), values.tobytes())


def _node(node: Node, index: Index, local: dict[Tensor, int]) -> Hashable:
    operands = tuple(_operand(t, local) for t in node.inputs)
    attributes = tuple(
        (name, _attribute(node.attrs[name], index, local)) for name in sorted(node.attrs)
    )
    hidden: Hashable = None
    if node.origin is not None and len(node.origin.attribute) != len(node.attrs):
        # An attribute graphsurgeon cannot hold: compare the file's text of it.
        hidden = tuple(
            a.SerializeToString() for a in node.origin.attribute if a.type not in (5, 10)
        )
    return (node.op, node.domain, operands, len(node.outputs), attributes, hidden)


def _operand(tensor: Tensor, local: dict[Tensor, int]) -> Hashable:
    if not tensor.name:
        return None
    if tensor in local:
        return ("local", local[tensor])
    return constant_key(tensor) if isinstance(tensor, Constant) else id(tensor)


def _attribute(value: Any, index: Index, local: dict[Tensor, int]) -> Hashable:
    if isinstance(value, Graph):
        return _graph(value, index, local)
    if isinstance(value, Constant):
        return constant_key(value)
    return tuple(value) if isinstance(value, list) else (type(value).__name__, value)


def _graph(graph: Graph, index: Index, outer: dict[Tensor, int]) -> Hashable:
    local = dict(outer)
    for tensor in graph.inputs:
        local[tensor] = len(local)
    rows = []
    for node in sorted((n for n in graph.nodes if n in index), key=lambda n: n.order):
        if index.graph_of(node) is not graph:
            continue
        rows.append(_node(node, index, local))
        for tensor in node.outputs:
            local[tensor] = len(local)
    return (tuple(rows), tuple(_operand(t, local) for t in graph.outputs))
