"""What emission needs to know of a graph beforehand: its bodies, captures and last uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..rewrite.graph.ir import Graph, Node, Tensor, named_bodies


@dataclass(frozen=True)
class Step:
    """A node, with the bodies it holds."""

    node: Node
    bodies: dict[str, Body]
    """By attribute name: then_branch, else_branch, body."""


@dataclass(frozen=True)
class Body:
    """The main graph, a branch of an If, or the body of a loop."""

    graph: Graph
    path: str
    """Where it stands in the model, for people. Empty for the main graph."""
    steps: list[Step] = field(default_factory=list)
    captures: list[Tensor] = field(default_factory=list)
    """Values read here or in a nested body and defined further out, in order of first use."""
    last_use: dict[Tensor, int] = field(default_factory=dict)
    """The last step that reads a value, itself or in its bodies; len(steps) for an output."""

    def inside(self) -> Iterator[Body]:
        """This body and all nested ones, outermost first."""
        yield self
        for step in self.steps:
            for body in step.bodies.values():
                yield from body.inside()


def place(node: Node, path: str) -> str:
    """A node and where it stands, for messages."""
    if node.name:
        label = f"{node.op} {node.name!r}"
    else:
        label = f"{node.op} that gives {first_output(node)!r}"
    return f"{label} in {path}" if path else label


def first_output(node: Node) -> str:
    """The name of the first output that a node lists."""
    return next((tensor.name for tensor in node.outputs if tensor.name), "")


def read_body(graph: Graph, path: str = "") -> Body:
    """Analyses a graph and its bodies. Takes time linear in their size."""
    body = Body(graph, path)
    defined: set[Tensor] = {*graph.inputs, *graph.initializers}
    captured: dict[Tensor, None] = {}

    def use(tensor: Tensor, position: int) -> None:
        body.last_use[tensor] = position
        if tensor not in defined:
            captured[tensor] = None

    steps = [Step(node, _bodies(node, path)) for node in graph.nodes]
    for position, step in enumerate(_with_late_sizes(graph, steps)):
        node = step.node
        body.steps.append(step)
        for tensor in node.inputs:
            if tensor.name:
                use(tensor, position)
        for inner in step.bodies.values():
            for tensor in inner.captures:
                use(tensor, position)
        defined.update(node.outputs)
    for tensor in graph.outputs:
        use(tensor, len(graph.nodes))
    body.captures.extend(captured)
    return body


SIZE_OPERATORS = frozenset(
    {
        "Add", "Cast", "Concat", "Div", "Gather", "Identity", "Max", "Min", "Mod", "Mul", "Neg",
        "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Slice", "Squeeze", "Sub",
        "Transpose", "Unsqueeze",
    }
)  # fmt: skip
"""Operators that compute sizes from sizes."""


def _with_late_sizes(graph: Graph, steps: Sequence[Step]) -> Iterator[Step]:
    """The steps in order, with computations of sizes moved to before their first reader.

    By then tensors of these sizes exist, see `derived_sizes`; exporters compute sizes first.
    """
    waiting: dict[Tensor, Step] = {}
    constants: set[Tensor] = set(graph.initializers)
    of_sizes: set[Tensor] = set()

    def released(tensors: Iterable[Tensor]) -> Iterator[Step]:
        stack = [waiting[tensor] for tensor in tensors if tensor in waiting]
        while stack:
            before = [waiting[tensor] for tensor in stack[-1].node.inputs if tensor in waiting]
            if before:
                stack += before
                continue
            step = stack.pop()
            waited = [waiting.pop(tensor, None) for tensor in step.node.outputs]
            if any(waited):
                yield step

    for step in steps:
        node = step.node
        given = [tensor for tensor in node.inputs if tensor.name and tensor not in constants]
        computes_sizes = node.op in SIZE_OPERATORS and of_sizes.issuperset(given)
        if not node.domain and (computes_sizes or node.op in ("Shape", "Size")):
            of_sizes.update(node.outputs)
            waiting.update(dict.fromkeys(node.outputs, step))
            continue
        if node.op == "Constant":
            constants.update(node.outputs)
        captured = [tensor for body in step.bodies.values() for tensor in body.captures]
        yield from released([*node.inputs, *captured])
        yield step
    yield from released(list(waiting))


def _bodies(node: Node, path: str) -> dict[str, Body]:
    return {
        name: read_body(graph, f"{name} of {place(node, path)}")
        for name, graph in named_bodies(node)
    }
