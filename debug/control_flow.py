"""Describes the Ifs, Loops and Scans of a graph by role: condition, trip count, carried values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ..rewrite.engine.miss import describe
from ..rewrite.facts.facts import Facts
from ..rewrite.graph.ir import Constant, Graph, Node, Tensor, named_bodies
from ..rewrite.graph.views import NO_LIMIT, CarriedValue, IfView, LoopView, ScanView
from ..rewrite.storage.summary import CONTROL_FLOW
from .fact_text import is_named, type_text

NO_TRIP_LIMIT = "no trip limit"
"""The trip count of a Loop that only its condition ends."""


@dataclass
class CarriedText:
    """A loop-carried value."""

    name: str
    """The name inside the body."""
    type: str
    initial: str
    """How the value before the first iteration is computed."""


@dataclass
class SlicedText:
    """A scan input or scan output: each iteration reads or writes one slice of it."""

    name: str
    type: str
    axis: int = 0
    reverse: bool = False


@dataclass
class BodyText:
    """A branch, or the body of a loop."""

    nodes: int
    """The number of its own nodes, without those of bodies inside it."""
    control: list[ControlNode]


@dataclass
class ControlNode:
    """An If, Loop or Scan with everything in it. A field that does not apply is empty."""

    op: str
    name: str
    """The name in the file; empty if it has none."""
    label: str
    """A description that identifies the node even if it has no name."""
    position: int
    """The index among the nodes of its graph."""
    condition: str = ""
    trip_count: str = ""
    carried: list[CarriedText] = field(default_factory=list)
    scan_inputs: list[SlicedText] = field(default_factory=list)
    scan_outputs: list[SlicedText] = field(default_factory=list)
    captures: list[str] = field(default_factory=list)
    """The outer values that the bodies read."""
    bodies: dict[str, BodyText] = field(default_factory=dict)
    removed_by: str = ""
    """The rule that removes the node in a rewrite, if one does."""
    reasons: list[str] = field(default_factory=list)
    """Why each rule declines at the node, if it remains."""

    def walk(self) -> Iterator[ControlNode]:
        """This node and all control flow inside it."""
        yield self
        for body in self.bodies.values():
            for inner in body.control:
                yield from inner.walk()


class ControlFlowReader:
    """Describes control flow and remembers the description of each node."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._index = facts.index
        self.described: dict[Node, ControlNode] = {}
        self._bodies: dict[Graph, BodyText] = {}

    def tree(self, graph: Graph) -> list[ControlNode]:
        """The control flow of a graph, outermost nodes first."""
        return [
            self._describe(node, position)
            for position, node in enumerate(graph.nodes)
            if node.op in CONTROL_FLOW and not node.domain
        ]

    def _describe(self, node: Node, position: int) -> ControlNode:
        text = ControlNode(node.op, node.name, describe(node), position)
        self._read(node, text)
        for name, body in named_bodies(node):
            text.bodies[name] = self._bodies[body] = BodyText(len(body.nodes), self.tree(body))
        self.described[node] = text
        return text

    def update(self, node: Node) -> None:
        """Describes again a node that rules changed."""
        text = self.described[node]
        text.condition = text.trip_count = ""
        text.scan_inputs = []
        self._read(node, text)
        # Rules may have exchanged the branches.
        text.bodies = {
            name: replace(self._bodies[body], nodes=len(body.nodes))
            for name, body in named_bodies(node)
            if body in self._bodies
        }

    def _read(self, node: Node, text: ControlNode) -> None:
        """Fills in everything but the bodies."""
        text.captures = [tensor.name for tensor in self._index.captures(node)]
        if node.op == "If":
            text.condition = self._expression(IfView(node).condition)
        elif node.op == "Loop":
            self._read_loop(LoopView(node), text)
        elif self._facts.opset >= 9:  # before, Scan had a batch axis and an input for lengths
            self._read_scan(ScanView(node), text)

    def _read_loop(self, loop: LoopView, text: ControlNode) -> None:
        text.trip_count = self._trip_count(loop.trip)
        if not loop.never_stops_early(self._facts):
            text.condition = self._expression(loop.condition_out)
        text.carried = self._carried(loop.carried)
        text.scan_outputs = [
            SlicedText(stacked.name, self._type(row))
            for row, stacked in zip(loop.scan_outputs, loop.node.outputs[len(loop.carried) :])
        ]

    def _read_scan(self, scan: ScanView, text: ControlNode) -> None:
        text.trip_count = self._scan_length(scan)
        text.carried = self._carried(scan.carried)
        text.scan_inputs = [
            SlicedText(s.sequence.name, self._type(s.sequence), s.axis, s.reverse)
            for s in scan.scan_inputs
        ]
        text.scan_outputs = [
            SlicedText(s.stacked.name, self._type(s.slice), s.axis, s.reverse)
            for s in scan.scan_outputs
            if s.stacked is not None
        ]

    def _carried(self, values: list[CarriedValue]) -> list[CarriedText]:
        return [
            CarriedText(c.input.name, self._type(c.input), self._expression(c.initial, 0))
            for c in values
        ]

    def _trip_count(self, trip: Tensor | None) -> str:
        if trip is None:
            return NO_TRIP_LIMIT
        count = self._facts.scalar(trip)
        if isinstance(count, int):
            return NO_TRIP_LIMIT if count >= NO_LIMIT else str(count)
        if count is None or not is_named(count):
            # The expression tells a reader more than looplift's symbol for it.
            return self._expression(trip)
        return str(count)

    def _scan_length(self, scan: ScanView) -> str:
        for scan_input in scan.scan_inputs:
            shape = self._facts.shape(scan_input.sequence)
            if shape is not None and -len(shape) <= scan_input.axis < len(shape):
                return str(shape[scan_input.axis])
        return "unknown"

    def _type(self, tensor: Tensor) -> str:
        return type_text(self._facts.of(tensor))

    def _expression(self, tensor: Tensor, depth: int = 2) -> str:
        """How a value is computed, down to a depth of operators: ``Equal(`sr`, 16000)``."""
        constant = self._facts.constant(tensor)
        if constant is not None and constant.size == 1:
            return str(constant.reshape(-1)[0])
        node = self._index.producer(tensor)
        if node is None or depth == 0 or isinstance(tensor, Constant):
            return f"`{tensor.name}`"
        if node.op == "Identity":
            return self._expression(node.inputs[0], depth)
        arguments = (self._expression(t, depth - 1) for t in node.inputs if t.name)
        return f"{node.op}({', '.join(arguments)})"
