"""Iterates over the protos of a model: the bodies of a node, all graphs, all nodes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

NodeContainer = onnx.GraphProto | onnx.FunctionProto
"""A proto that contains nodes."""


def body_protos(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def containers(root: NodeContainer) -> Iterator[NodeContainer]:
    """A graph or function and all bodies in it, outer ones first."""
    pending = [root]
    while pending:
        owner = pending.pop()
        yield owner
        pending += [body for node in owner.node if node.attribute for body in body_protos(node)]


def nodes(root: NodeContainer) -> Iterator[onnx.NodeProto]:
    """All nodes of a graph or function and of the bodies in it, graph by graph."""
    for owner in containers(root):
        yield from owner.node


def attributes(owner: NodeContainer) -> Iterator[onnx.AttributeProto]:
    """The attributes of all nodes of a graph or function, without those in bodies."""
    for node in owner.node:
        yield from node.attribute
