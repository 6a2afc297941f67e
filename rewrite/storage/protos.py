"""Walking the protos of a file: the bodies of a node, all graphs, all nodes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

Owner = onnx.GraphProto | onnx.FunctionProto
"""What holds nodes."""


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def owners(root: Owner) -> Iterator[Owner]:
    """A graph or function and all bodies in it, each before its own bodies."""
    pending = [root]
    while pending:
        owner = pending.pop()
        yield owner
        pending += [body for node in owner.node if node.attribute for body in bodies(node)]


def nodes(root: Owner) -> Iterator[onnx.NodeProto]:
    """All nodes of a graph or function and of the bodies in it, graph by graph."""
    for owner in owners(root):
        yield from owner.node


def attributes(owner: Owner) -> Iterator[onnx.AttributeProto]:
    """The attributes of all nodes of a graph or function, bodies not entered."""
    for node in owner.node:
        yield from node.attribute
