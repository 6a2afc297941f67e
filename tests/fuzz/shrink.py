"""Searches for a smaller model with the same fault (delta debugging)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import onnx

Graph = onnx.GraphProto
Path = tuple[tuple[int, int], ...]
"""The path to a body: numbers of nodes and attributes."""
Edit = Callable[[Graph, int], None]
"""Changes one node of a graph, by its number."""


def shrink(
    model: onnx.ModelProto, fails: Callable[[onnx.ModelProto], bool], seconds: float = 20.0
) -> onnx.ModelProto:
    """Removes parts as long as the model still fails, for about this many seconds."""
    current, end = model, time.perf_counter() + seconds
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(current):
            if time.perf_counter() > end:
                return current
            if fails(smaller):
                current, progress = smaller, True
                break
    return current


def _smaller(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """Models with one part less, the largest parts first."""
    outputs = len(model.graph.output)
    if outputs > 1:
        for place in range(outputs - 1, -1, -1):
            yield _edited(model, (), _drop_output, place)
    for path, graph in _graphs(model.graph, ()):
        for place, node in enumerate(graph.node):
            for edit in _edits(node):
                yield _edited(model, path, edit, place)


def _edits(node: onnx.NodeProto) -> Iterator[Edit]:
    if node.op_type == "Loop":
        carried = len(node.input) - 2
        yield from (partial(_drop_carried, number=k) for k in range(carried - 1, -1, -1))
        yield from (
            partial(_drop_scan_output, number=k)
            for k in range(len(node.output) - 1, carried - 1, -1)
        )
    elif node.op_type == "Identity":
        yield _bypass
    elif node.op_type not in ("Constant", "Scan", "If") and len(node.output) == 1:
        yield from (partial(_forward, slot=k) for k in range(len(node.input)))


def _drop_output(graph: Graph, place: int) -> None:
    del graph.output[place]


def _forward(graph: Graph, place: int, slot: int) -> None:
    """Turns a node into a copy of one of its inputs."""
    node = graph.node[place]
    kept = node.input[slot]
    del node.input[:], node.attribute[:]
    node.op_type = "Identity"
    node.input.append(kept)


def _bypass(graph: Graph, place: int) -> None:
    node = graph.node[place]
    old, new = node.output[0], node.input[0]
    _rename_reads(graph, old, new)
    del graph.node[place]


def _rename_reads(graph: Graph, old: str, new: str) -> None:
    for node in graph.node:
        for slot, name in enumerate(node.input):
            if name == old:
                node.input[slot] = new
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename_reads(attribute.g, old, new)


def _drop_carried(graph: Graph, place: int, number: int) -> None:
    """Makes the body read the initial value instead of a carried value."""
    node = graph.node[place]
    body = _body(node)
    _rename_reads(body, body.input[2 + number].name, node.input[2 + number])
    lists: tuple[tuple[Any, int], ...] = ((body.input, 2), (body.output, 1), (node.input, 2))
    for items, first in (*lists, (node.output, 0)):
        del items[first + number]


def _drop_scan_output(graph: Graph, place: int, number: int) -> None:
    node = graph.node[place]
    del _body(node).output[1 + number], node.output[number]


def _body(node: onnx.NodeProto) -> Graph:
    found: Graph = next(a.g for a in node.attribute if a.name == "body")
    return found


def _edited(model: onnx.ModelProto, path: Path, edit: Edit, place: int) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    edit(_graph(copy.graph, path), place)
    _prune(copy.graph)
    return copy


def _prune(graph: Graph) -> None:
    """Removes nodes and initializers that nothing reads."""
    while True:
        read = {output.name for output in graph.output} | _reads(graph)
        unread = [n for n in graph.node if not read.intersection(n.output)]
        unused = [t for t in graph.initializer if t.name not in read]
        for node in unread:
            graph.node.remove(node)
        for tensor in unused:
            graph.initializer.remove(tensor)
        if not unread and not unused:
            break
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _prune(attribute.g)


def _reads(graph: Graph) -> set[str]:
    names = {name for node in graph.node for name in node.input}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                names |= _reads(attribute.g) | {o.name for o in attribute.g.output}
    return names


def _graphs(graph: Graph, path: Path) -> Iterator[tuple[Path, Graph]]:
    yield path, graph
    for place, node in enumerate(graph.node):
        for slot, attribute in enumerate(node.attribute):
            if attribute.HasField("g"):
                yield from _graphs(attribute.g, (*path, (place, slot)))


def _graph(graph: Graph, path: Path) -> Graph:
    for place, slot in path:
        graph = graph.node[place].attribute[slot].g
    return graph
