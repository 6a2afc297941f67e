"""The Ifs, Loops and Scans of a graph by role, in words: conditions, trip counts, states."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx
from onnx import helper

from ..rewrite.engine.miss import describe
from ..rewrite.facts.fact import Element, Fact
from ..rewrite.facts.facts import Facts
from ..rewrite.graph.ir import Constant, Graph, Node, Tensor
from ..rewrite.graph.views import NO_LIMIT, IfView, LoopView, ScanView
from ..rewrite.symbolic import Expr, symbols
from .counts import CONTROL

LONGEST_EXPRESSION = 12
"""Atoms of an expression that is written out."""


@dataclass
class State:
    """A value that is carried from one iteration to the next."""

    name: str
    """Inside the body."""
    type: str
    initial: str


@dataclass
class Sliced:
    """A tensor of which each iteration reads or writes one slice."""

    name: str
    type: str
    axis: int = 0
    reverse: bool = False


@dataclass
class Body:
    """A branch, or the body of a loop."""

    nodes: int
    """Its own, without those of bodies in it."""
    control: list[ControlNode]


@dataclass
class ControlNode:
    """An If, Loop or Scan with everything in it. What does not apply to one is empty."""

    op: str
    name: str
    """Empty if it has none in the file."""
    label: str
    """How to point at it, also without a name."""
    position: int
    """Its place among the nodes of the graph it stands in, from 0."""
    condition: str = ""
    trip: str = ""
    states: list[State] = field(default_factory=list)
    scan_inputs: list[Sliced] = field(default_factory=list)
    scan_outputs: list[Sliced] = field(default_factory=list)
    captures: list[str] = field(default_factory=list)
    """Values from outside that the bodies read."""
    bodies: dict[str, Body] = field(default_factory=dict)
    removed_by: str = ""
    """What happens to it in a rewrite: the rule that removes it, if one does."""
    reasons: list[str] = field(default_factory=list)
    """Why each rule leaves it where it is."""

    def walk(self) -> Iterator[ControlNode]:
        """This node and all control flow in it."""
        yield self
        for body in self.bodies.values():
            for inner in body.control:
                yield from inner.walk()


class Reader:
    """Describes control flow; remembers which node each description is of."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._index = facts.index
        self.described: dict[Node, ControlNode] = {}

    def tree(self, graph: Graph) -> list[ControlNode]:
        """The control flow of a graph, outermost nodes first."""
        return [
            self._describe(node, position)
            for position, node in enumerate(graph.nodes)
            if node.op in CONTROL and not node.domain
        ]

    def _describe(self, node: Node, position: int) -> ControlNode:
        found = ControlNode(node.op, node.name, describe(node), position)
        found.captures = [tensor.name for tensor in self._index.captures(node)]
        found.bodies = {
            name: Body(len(body.nodes), self.tree(body))
            for name, body in node.attrs.items()
            if isinstance(body, Graph)
        }
        {"If": self._read_if, "Loop": self._read_loop, "Scan": self._read_scan}[node.op](
            node, found
        )
        self.described[node] = found
        return found

    def _read_if(self, node: Node, found: ControlNode) -> None:
        found.condition = self._expression(IfView(node).condition)

    def _read_loop(self, node: Node, found: ControlNode) -> None:
        loop = LoopView(node)
        found.trip = self._trip(loop.trip)
        if not loop.never_stops_early(self._facts):
            found.condition = self._expression(loop.condition_out)
        found.states = [
            State(s.input.name, self._type(s.input), self._expression(s.initial, 0))
            for s in loop.carried
        ]
        found.scan_outputs = [
            Sliced(stacked.name, self._type(row))
            for row, stacked in zip(loop.scan_outputs, node.outputs[len(loop.carried) :])
        ]

    def _read_scan(self, node: Node, found: ControlNode) -> None:
        if self._facts.opset < 9:
            # Scan had a batch axis and an input for lengths then.
            return
        scan = ScanView(node)
        found.trip = self._scan_length(scan)
        found.states = [
            State(s.input.name, self._type(s.input), self._expression(s.initial, 0))
            for s in scan.carried
        ]
        found.scan_inputs = [
            Sliced(s.sequence.name, self._type(s.sequence), s.axis, s.reverse)
            for s in scan.scan_inputs
        ]
        found.scan_outputs = [
            Sliced(s.stacked.name, self._type(s.slice), s.axis, s.reverse)
            for s in scan.scan_outputs
            if s.stacked is not None
        ]

    def _trip(self, trip: Tensor | None) -> str:
        if trip is None:
            return "no limit"
        count = self._facts.scalar(trip)
        if isinstance(count, int):
            return "no limit" if count >= NO_LIMIT else str(count)
        if count is None or any(symbol.serial >= 0 for symbol in symbols(count)):
            # Known by a number of looplift's own, which says less than how it is computed.
            return self._expression(trip)
        return str(count)

    def _scan_length(self, scan: ScanView) -> str:
        for given in scan.scan_inputs:
            shape = self._facts.shape(given.sequence)
            if shape is not None and -len(shape) <= given.axis < len(shape):
                return str(shape[given.axis])
        return "unknown"

    def _type(self, tensor: Tensor) -> str:
        return type_text(self._facts.of(tensor))

    def _expression(self, tensor: Tensor, depth: int = 2) -> str:
        """How a value is computed, some operators deep: ``Equal(`sr`, 16000)``."""
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


def _number_text(number: Element) -> str:
    """A number; an expression too long to say anything to a reader is left out."""
    return "…" if isinstance(number, Expr) and number.size > LONGEST_EXPRESSION else str(number)


def value_text(fact: Fact) -> str:
    """`int64[] = 3`: type, shape and, of a single element that is known, the value."""
    value = fact.scalar()
    if value is None or (isinstance(value, Expr) and any(s.serial >= 0 for s in symbols(value))):
        return type_text(fact)
    return f"{type_text(fact)} = {_number_text(value)}"


@functools.cache
def _dtype_text(dtype: int) -> str:
    known = dtype in onnx.TensorProto.DataType.values() and dtype != 0
    return str(helper.tensor_dtype_to_np_dtype(dtype)) if known else "?"


def type_text(fact: Fact) -> str:
    """`float32[2, B]`, with `?` for what is not known."""
    if fact.kind == "other":
        return "optional or map"
    dtype = _dtype_text(fact.dtype)
    shape = "[?]" if fact.shape is None else f"[{', '.join(map(_number_text, fact.shape))}]"
    text = "string" + shape if dtype == "object" else dtype + shape
    return f"sequence of {text}" if fact.kind == "sequence" else text
