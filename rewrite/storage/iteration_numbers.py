"""Writes iteration numbers so that engines that give them the shape [1] read them as scalars."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import helper

from .protos import body_protos, containers, nodes

_FIRST_OPSET = 5
"""The first opset in which Reshape takes its shape as an input."""


def reshape_iteration_numbers(model: onnx.ModelProto) -> None:
    """Makes each Loop body read its iteration number through a Reshape to a scalar.

    The number is a scalar by the ONNX specification of Loop, so the Reshape changes nothing. Bodies
    that declare another shape or do not read the number stay as they are.
    """
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    if opsets.get("", 1) < _FIRST_OPSET:
        return
    loops = [n for n in nodes(model.graph) if n.op_type == "Loop" and not n.domain]
    taken = {name for node in nodes(model.graph) for name in (*node.input, *node.output)}
    for graph in containers(model.graph):
        taken.update(value.name for value in (*graph.input, *graph.initializer))
    for body in (next(body_protos(loop)) for loop in loops):
        _reshape(body, taken)


def _reshape(body: onnx.GraphProto, taken: set[str]) -> None:
    iteration = body.input[0]
    readers = list(_readers(body, iteration.name))
    if iteration.type.tensor_type.shape.dim or not readers:
        return
    scalar, shape = (_unused(f"{iteration.name}_{suffix}", taken) for suffix in ("scalar", "shape"))
    for node, place in readers:
        node.input[place] = scalar
    body.initializer.append(helper.make_tensor(shape, onnx.TensorProto.INT64, [0], []))
    body.node.insert(0, helper.make_node("Reshape", [iteration.name, shape], [scalar]))


def _readers(graph: onnx.GraphProto, name: str) -> Iterator[tuple[onnx.NodeProto, int]]:
    """The nodes that read a value, and where; not those that read another value of this name."""
    for node in graph.node:
        yield from ((node, place) for place, read in enumerate(node.input) if read == name)
        for body in body_protos(node):
            defined = {value.name for value in (*body.input, *body.initializer)}
            defined.update(output for inner in body.node for output in inner.output)
            if name not in defined:
                yield from _readers(body, name)


def _unused(name: str, taken: set[str]) -> str:
    """The name, with underscores until it is new."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name
