"""Copies nodes together with their bodies, for unrolling."""

from __future__ import annotations

from collections.abc import Sequence

from .index import Index
from .ir import Constant, Graph, Node, Tensor, Variable


def clone_nodes(nodes: Sequence[Node], renamed: dict[Tensor, Tensor], index: Index) -> list[Node]:
    """Copies of nodes, in the given order, that are not in any graph yet.

    `renamed` maps values to those that the copies read instead; the results of the copies are added
    to it. Of bodies, only live nodes and constants are copied.
    """
    return [_clone(node, renamed, index) for node in nodes]


def _clone(node: Node, renamed: dict[Tensor, Tensor], index: Index) -> Node:
    inputs = [renamed.get(t, t) for t in node.inputs]
    outputs = [_fresh(t, renamed) for t in node.outputs]
    attrs = {
        name: _clone_graph(value, renamed, index) if isinstance(value, Graph) else value
        for name, value in node.attrs.items()
    }
    copy = Node(node.op, node.name, attrs, inputs, outputs, node.domain)
    copy.origin = node.origin
    return copy


def _fresh(tensor: Tensor, renamed: dict[Tensor, Tensor]) -> Tensor:
    copy: Tensor
    if isinstance(tensor, Constant):
        copy = Constant(tensor.name, tensor._values)
    else:
        copy = Variable(tensor.name)
    copy.info = tensor.info
    if tensor.name:
        renamed[tensor] = copy
    return copy


def clone_without_nodes(
    graph: Graph, inputs: Sequence[Tensor], renamed: dict[Tensor, Tensor], index: Index
) -> Graph:
    """A copy of a graph that has these of its inputs, and its live initializers, but no nodes.

    The copies are added to `renamed`, for `clone_nodes`.
    """
    copy = Graph(name=graph.name, doc_string=graph.doc_string)
    copy.origin = graph.origin
    copy.inputs = [_fresh(tensor, renamed) for tensor in inputs]
    clone_constants(graph, copy, renamed, index)
    return copy


def clone_constants(
    source: Graph, copy: Graph, renamed: dict[Tensor, Tensor], index: Index
) -> None:
    """Adds copies of the live initializers of `source` to `copy`."""
    live = [c for c in source.initializers if index.home(c) is source]
    copy.initializers += [_fresh(constant, renamed) for constant in live]


def _clone_graph(graph: Graph, outer: dict[Tensor, Tensor], index: Index) -> Graph:
    renamed = dict(outer)
    copy = clone_without_nodes(graph, graph.inputs, renamed, index)
    ordered = index.nodes_in_order(graph)
    copy.nodes = clone_nodes(ordered, renamed, index)
    for old, new in zip(ordered, copy.nodes):
        new.order = old.order
    copy.outputs = [renamed.get(t, t) for t in graph.outputs]
    return copy
