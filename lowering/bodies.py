"""What emission needs to know of a graph beforehand: its bodies, captures and last uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx
from onnx import AttributeProto


@dataclass(frozen=True)
class Step:
    """A node, with the bodies it holds."""

    node: onnx.NodeProto
    bodies: dict[str, Body]
    """By attribute name: then_branch, else_branch, body."""


@dataclass(frozen=True)
class Body:
    """The main graph, a branch of an If, or the body of a loop."""

    graph: onnx.GraphProto
    path: str
    """Where it stands in the model, for people. Empty for the main graph."""
    steps: list[Step] = field(default_factory=list)
    captures: list[str] = field(default_factory=list)
    """Names used here or in a nested body and defined further out, in order of first use."""
    last_use: dict[str, int] = field(default_factory=dict)
    """The last step that reads a name, itself or in its bodies; len(steps) for an output."""

    def inside(self) -> Iterator[Body]:
        """This body and all nested ones, outermost first."""
        yield self
        for step in self.steps:
            for body in step.bodies.values():
                yield from body.inside()


def place(node: onnx.NodeProto, path: str) -> str:
    """A node and where it stands, for messages."""
    if node.name:
        label = f"{node.op_type} {node.name!r}"
    else:
        label = f"{node.op_type} that gives {next(filter(None, node.output), '')!r}"
    return f"{label} in {path}" if path else label


def read_body(graph: onnx.GraphProto, path: str = "") -> Body:
    """Analyse a graph and its bodies. Takes time linear in their size."""
    body = Body(graph, path)
    defined = {value.name for value in graph.input}
    defined.update(tensor.name for tensor in graph.initializer)
    defined.update(tensor.values.name for tensor in graph.sparse_initializer)
    captured: dict[str, None] = {}

    def use(name: str, position: int) -> None:
        body.last_use[name] = position
        if name and name not in defined:
            captured[name] = None

    for position, node in enumerate(graph.node):
        step = Step(node, _bodies(node, path))
        body.steps.append(step)
        for name in node.input:
            use(name, position)
        for inner in step.bodies.values():
            for name in inner.captures:
                use(name, position)
        defined.update(node.output)
    for value in graph.output:
        use(value.name, len(graph.node))
    body.captures.extend(captured)
    return body


def _bodies(node: onnx.NodeProto, path: str) -> dict[str, Body]:
    return {
        attribute.name: read_body(attribute.g, f"{attribute.name} of {place(node, path)}")
        for attribute in node.attribute
        if attribute.type == AttributeProto.GRAPH
    }
