"""Writes iteration numbers so that engines that give them the shape [1] read them as scalars."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import AttributeProto, helper

_FIRST_OPSET = 5
"""The first opset in which Reshape takes its shape as an input."""


def reshape_iteration_numbers(model: onnx.ModelProto) -> None:
    """Makes each Loop body read its iteration number through a Reshape to a scalar.

    The number is a scalar by the ONNX specification of Loop, so the Reshape changes nothing. Bodies
    that declare another shape or do not read the number stay as they are.
    """
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    if opsets.get("", 1) >= _FIRST_OPSET:
        taken = _names(model.graph)
        for graph in _graphs(model.graph):
            for node in graph.node:
                if node.op_type == "Loop" and not node.domain:
                    _reshape(next(_bodies(node)), taken)


def _reshape(body: onnx.GraphProto, taken: set[str]) -> None:
    iteration = body.input[0]
    if iteration.type.tensor_type.shape.dim:
        return
    scalar, shape = (_fresh(f"{iteration.name}_{suffix}", taken) for suffix in ("scalar", "shape"))
    readers = [
        (node, place)
        for graph in _graphs(body)
        for node in graph.node
        for place, name in enumerate(node.input)
        if name == iteration.name
    ]
    if not readers:
        return
    for node, place in readers:
        node.input[place] = scalar
    body.initializer.append(helper.make_tensor(shape, onnx.TensorProto.INT64, [0], []))
    body.node.insert(0, helper.make_node("Reshape", [iteration.name, shape], [scalar]))


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    return (each.g for each in node.attribute if each.type == AttributeProto.GRAPH)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and all bodies in it."""
    yield graph
    for node in graph.node:
        for body in _bodies(node):
            yield from _graphs(body)


def _names(graph: onnx.GraphProto) -> set[str]:
    """The names of all values."""
    found: set[str] = set()
    for each in _graphs(graph):
        found.update(value.name for value in (*each.input, *each.initializer))
        found.update(name for node in each.node for name in (*node.input, *node.output))
    return found


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
