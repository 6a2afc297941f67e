"""Checks an index against the graphs themselves."""

from __future__ import annotations

from collections import Counter

from looplift.rewrite.graph.index import Index
from looplift.rewrite.graph.ir import Graph, Node, Tensor, bodies


def assert_consistent(index: Index) -> None:
    """Owners, homes, producers, readers and positions are as the live graphs have them."""
    readers: Counter[tuple[Tensor, Node | Graph, int]] = Counter()
    defined: list[Tensor] = []
    for graph in _graphs(index, index.root):
        nodes = _nodes(index, graph)
        homed = [c for c in graph.initializers if index.home(c) is graph]
        for tensor in (*graph.inputs, *homed):
            assert index.home(tensor) is graph
            assert index.producer(tensor) is None
            defined.append(tensor)
        for node in nodes:
            assert index.graph_of(node) is graph
            for slot, tensor in enumerate(node.inputs):
                if tensor.name:
                    readers[tensor, node, slot] += 1
            for tensor in node.outputs:
                assert index.producer(tensor) is node
                assert index.home(tensor) is graph
                defined.append(tensor)
            for body in bodies(node):
                assert index.owner(body) is node
        for slot, tensor in enumerate(graph.outputs):
            readers[tensor, graph, slot] += 1
        assert len({node.order for node in nodes}) == len(nodes), "two nodes at one position"
    indexed = Counter(
        (tensor, use.reader, use.slot)
        for tensor in {*defined, *(t for t, _, _ in readers)}
        for use in index.uses(tensor)
    )
    assert indexed == readers
    _assert_sorted(index)


def _assert_sorted(index: Index) -> None:
    """Every value is defined before its readers, in the same graph or one around it."""
    for node in index.walk():
        for tensor in node.inputs:
            if not tensor.name:
                continue
            home = index.home(tensor)
            assert home is not None, f"{node.op} reads `{tensor.name}`, which nothing defines"
            reader = index.ancestor_in(node, home)
            assert reader is not None, f"{node.op} cannot see `{tensor.name}`"
            producer = index.producer(tensor)
            assert producer is None or producer.order < reader.order


def _graphs(index: Index, graph: Graph) -> list[Graph]:
    inner = [g for node in _nodes(index, graph) for b in bodies(node) for g in _graphs(index, b)]
    return [graph, *inner]


def _nodes(index: Index, graph: Graph) -> list[Node]:
    """The nodes a graph lists that were not removed and did not move on, each once."""
    listed = dict.fromkeys(graph.nodes)
    return [node for node in listed if node in index and index.graph_of(node) is graph]
