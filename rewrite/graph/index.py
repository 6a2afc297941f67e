"""Who defines and who reads each value, and which body stands in which node.

Readers are kept in dictionaries, so that every question and every edit here takes constant time,
however many readers a value has. Only `Patch` edits; rules ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .ir import Constant, Graph, Node, Tensor, bodies

SHARES = 64


class Use(NamedTuple):
    """One place where a value is read: input `slot` of a node, or output `slot` of a graph."""

    reader: Node | Graph
    slot: int


class NoRoom(Exception):
    """The positions between two nodes have run out."""


@dataclass
class Removal:
    """What `remove_node` took out, for `restore`."""

    nodes: list[tuple[Node, Graph]] = field(default_factory=list)
    graphs: list[tuple[Graph, Node]] = field(default_factory=list)
    homes: list[tuple[Tensor, Graph]] = field(default_factory=list)


class Index:
    """Def-use chains and the tree of regions of one model."""

    def __init__(self, root: Graph) -> None:
        self.root = root
        self.newcomers: dict[Node | Tensor, None] = {}
        """What is new in the graph it stands in: its names may repeat there."""
        self._graph_of: dict[Node, Graph] = {}
        self._owner: dict[Graph, Node] = {}
        self._producer: dict[Tensor, Node] = {}
        self._home: dict[Tensor, Graph] = {}
        self._uses: dict[Tensor, dict[Use, None]] = {}
        self.shares = SHARES
        """A new node takes this part of the room before its anchor: many fit in front of the same
        one, or few of each in front of the other."""
        self._floors: dict[Node, float] = {}
        self._returned: dict[Tensor, int] = {}
        self._last: dict[Graph, float] = {}
        self.add_graph(root)

    # --- questions ---

    def __contains__(self, node: Node) -> bool:
        return node in self._graph_of

    def graph_of(self, node: Node) -> Graph:
        """The graph a node stands in."""
        return self._graph_of[node]

    def owner(self, graph: Graph) -> Node | None:
        """The control-flow node whose body this is; None for the main graph."""
        return self._owner.get(graph)

    def producer(self, tensor: Tensor) -> Node | None:
        """The node that computes the value; None for inputs and initializers."""
        return self._producer.get(tensor)

    def home(self, tensor: Tensor) -> Graph | None:
        """The graph whose input, initializer or node output the value is."""
        node = self._producer.get(tensor)
        return self._graph_of[node] if node is not None else self._home.get(tensor)

    def uses(self, tensor: Tensor) -> list[Use]:
        """All readers, in the order in which they were connected; graph outputs included."""
        return list(self._uses.get(tensor, ()))

    def first_use(self, tensor: Tensor) -> Use | None:
        """The reader that was connected first, which one of many readers can be known by."""
        return next(iter(self._uses.get(tensor, ())), None)

    def use_count(self, tensor: Tensor) -> int:
        """The number of readers, graph outputs included."""
        return len(self._uses.get(tensor, ()))

    def consumers(self, tensor: Tensor) -> list[Node]:
        """The nodes that read the value, each once, in whatever body they stand."""
        seen = {use.reader: None for use in self._uses.get(tensor, ())}
        return [reader for reader in seen if isinstance(reader, Node)]

    def is_model_output(self, tensor: Tensor) -> bool:
        """Whether the main graph returns the value."""
        return self._returned.get(tensor, 0) > 0

    def is_unused(self, node: Node) -> bool:
        """Whether nothing reads a result of the node."""
        uses = self._uses
        for output in node.outputs:  # noqa: SIM110  half the time of `all`, and asked at every node
            if uses.get(output):
                return False
        return True

    def ancestors(self, graph: Graph) -> Iterator[Graph]:
        """The graph itself, the graph its owner stands in, and so on up to the main graph."""
        current: Graph | None = graph
        while current is not None:
            yield current
            owner = self._owner.get(current)
            current = self._graph_of[owner] if owner is not None else None

    def encloses(self, outer: Graph, inner: Graph) -> bool:
        """Whether a graph is the other one or stands, however deep, in a body of it."""
        return any(graph is outer for graph in self.ancestors(inner))

    def is_outside(self, tensor: Tensor, body: Graph) -> bool:
        """Whether a value stands in a graph around a body: it stays the same while that runs."""
        home = self.home(tensor)
        return home is not None and not self.encloses(body, home)

    def original(self, tensor: Tensor) -> Tensor:
        """The value of which this one is a copy, through any number of Identity nodes."""
        while (node := self.producer(tensor)) is not None and _is_copy(node):
            tensor = node.inputs[0]
        return tensor

    def ancestor_in(self, node: Node, graph: Graph) -> Node | None:
        """The node of `graph` in which `node` stands (or which it is); None if in neither."""
        current: Node | None = node
        while current is not None:
            home = self._graph_of[current]
            if home is graph:
                return current
            current = self._owner.get(home)
        return None

    def position(self, node: Node) -> tuple[float, ...]:
        """Sorts nodes in the order in which they run, bodies before their owner."""
        place = [float("inf"), node.order]
        owner = self._owner.get(self._graph_of[node])
        while owner is not None:
            place.append(owner.order)
            owner = self._owner.get(self._graph_of[owner])
        return tuple(reversed(place))

    def depth(self, graph: Graph) -> int:
        return sum(1 for _ in self.ancestors(graph)) - 1

    def captures(self, node: Node) -> list[Tensor]:
        """The outer values that the bodies of a control-flow node read, each once."""
        found: dict[Tensor, None] = {}
        for body in bodies(node):
            self._collect_captures(body, found)
        return list(found)

    def _collect_captures(self, body: Graph, found: dict[Tensor, None]) -> None:
        inside = dict.fromkeys(self.graphs(body))
        for graph in inside:
            read = [t for node in self.nodes(graph) for t in node.inputs if t.name]
            for tensor in (*read, *graph.outputs):
                if self.home(tensor) not in inside:
                    found[tensor] = None

    def graphs(self, graph: Graph) -> Iterator[Graph]:
        """The graph and every live body inside it, outer ones first."""
        yield graph
        inside = {
            body: None
            for node in graph.nodes
            if node.attrs and self._graph_of.get(node) is graph
            for body in bodies(node)
        }
        for body in inside:
            yield from self.graphs(body)

    def nodes(self, graph: Graph) -> list[Node]:
        """The live nodes of a graph, bodies not entered; in no particular order."""
        return list({n: None for n in graph.nodes if self._graph_of.get(n) is graph})

    def walk(self) -> Iterator[Node]:
        """Every live node, bodies before their owner."""
        yield from self._walk(self.root)

    def _walk(self, graph: Graph) -> Iterator[Node]:
        for node in graph.nodes:
            if self._graph_of.get(node) is not graph:
                continue
            for body in bodies(node):
                yield from self._walk(body)
            yield node

    # --- edits, for Patch only ---

    def add_graph(self, graph: Graph, owner: Node | None = None) -> None:
        """Registers a graph with everything in it."""
        if owner is not None:
            self._owner[graph] = owner
        for tensor in (*graph.inputs, *graph.initializers):
            self._home[tensor] = graph
        for node in graph.nodes:
            self.add_node(node, graph)
        for slot, tensor in enumerate(graph.outputs):
            self._read(Use(graph, slot), tensor)

    def _read(self, use: Use, tensor: Tensor) -> None:
        self._uses.setdefault(tensor, {})[use] = None
        if use.reader is self.root:
            self._returned[tensor] = self._returned.get(tensor, 0) + 1

    def _unread(self, use: Use, tensor: Tensor) -> None:
        self._uses.get(tensor, {}).pop(use, None)
        if use.reader is self.root:
            self._returned[tensor] -= 1

    def add_node(self, node: Node, graph: Graph) -> None:
        """Registers a node that already is in `graph.nodes`, its bodies included."""
        self._register(node, graph)
        for body in bodies(node):
            self.add_graph(body, node)

    def _register(self, node: Node, graph: Graph) -> None:
        self._graph_of[node] = graph
        for slot, tensor in enumerate(node.inputs):
            if tensor.name:
                self._uses.setdefault(tensor, {})[Use(node, slot)] = None
        for tensor in node.outputs:
            self._producer[tensor] = node

    def remove_node(self, node: Node) -> Removal:
        """Forgets a node with its bodies; it stays in `graph.nodes` until the graph is tidied."""
        removal = Removal()
        self._remove(node, removal)
        return removal

    def _remove(self, node: Node, removal: Removal) -> None:
        for body in bodies(node):
            self._remove_graph(body, node, removal)
        for slot, tensor in enumerate(node.inputs):
            self._uses.get(tensor, {}).pop(Use(node, slot), None)
        for tensor in node.outputs:
            self._producer.pop(tensor, None)
        removal.nodes.append((node, self._graph_of.pop(node)))

    def _remove_graph(self, graph: Graph, owner: Node, removal: Removal) -> None:
        for slot, tensor in enumerate(graph.outputs):
            self._uses.get(tensor, {}).pop(Use(graph, slot), None)
        for node in graph.nodes:
            if self._graph_of.get(node) is graph:
                self._remove(node, removal)
        for tensor in (*graph.inputs, *graph.initializers):
            if self._home.get(tensor) is graph:
                del self._home[tensor]
                removal.homes.append((tensor, graph))
        del self._owner[graph]
        removal.graphs.append((graph, owner))

    def restore(self, removal: Removal) -> None:
        """Takes a removal back."""
        for graph, owner in removal.graphs:
            self._owner[graph] = owner
            for slot, tensor in enumerate(graph.outputs):
                self._uses.setdefault(tensor, {})[Use(graph, slot)] = None
        for tensor, graph in removal.homes:
            self._home[tensor] = graph
        for node, graph in removal.nodes:
            self._register(node, graph)

    def move_node(self, node: Node, graph: Graph) -> None:
        """Registers that a node now stands in another graph."""
        self._graph_of[node] = graph
        self.newcomers[node] = None

    def add_constant(self, constant: Constant, graph: Graph) -> None:
        self._home[constant] = graph
        self.newcomers[constant] = None

    def remove_constant(self, constant: Constant) -> None:
        self._home.pop(constant, None)

    def set_results(self, node: Node, outputs: list[Tensor]) -> None:
        """Gives a node other output values."""
        for tensor in node.outputs:
            self._producer.pop(tensor, None)
        node.outputs[:] = outputs
        for tensor in outputs:
            self._producer[tensor] = node

    def set_operands(self, node: Node, inputs: list[Tensor]) -> None:
        """Gives a node other inputs."""
        for slot, tensor in enumerate(node.inputs):
            self._uses.get(tensor, {}).pop(Use(node, slot), None)
        node.inputs[:] = inputs
        for slot, tensor in enumerate(inputs):
            if tensor.name:
                self._uses.setdefault(tensor, {})[Use(node, slot)] = None

    def set_parameters(self, graph: Graph, inputs: list[Tensor]) -> None:
        """Gives a body other inputs."""
        for tensor in graph.inputs:
            self._home.pop(tensor, None)
        graph.inputs[:] = inputs
        for tensor in inputs:
            self._home[tensor] = graph

    def set_outputs(self, graph: Graph, outputs: list[Tensor]) -> None:
        """Gives a graph other outputs."""
        for slot, tensor in enumerate(graph.outputs):
            self._unread(Use(graph, slot), tensor)
        graph.outputs[:] = outputs
        for slot, tensor in enumerate(outputs):
            self._read(Use(graph, slot), tensor)

    def floor(self, node: Node) -> float:
        """The position of whatever stands before a node, or more."""
        return self._floors.get(node, node.order - 1.0)

    def place_before(self, anchor: Node, nodes: Sequence[Node]) -> None:
        """Gives nodes positions just before the anchor, after everything already there.

        Raises NoRoom when the positions between have run out; `renumber` makes new ones.
        """
        low, room = self.floor(anchor), anchor.order - self.floor(anchor)
        step = min(room / (len(nodes) + 1), room / self.shares)
        for node in nodes:
            self._floors[node] = low
            low += step
            node.order = low
            if not self._floors[node] < low < anchor.order:
                raise NoRoom
        self._floors[anchor] = low

    def place_last(self, graph: Graph, node: Node) -> None:
        """Gives a node a position after everything in a graph."""
        last = self._last.get(graph)
        if last is None:
            last = max((n.order for n in self.nodes(graph)), default=0.0)
        node.order = self._last[graph] = last + 1.0
        self._floors[node] = last

    def put_back(self, node: Node, order: float, floor: float) -> None:
        """Restores a position."""
        node.order = order
        self._floors[node] = floor

    def renumber(self, graph: Graph) -> None:
        """Spreads the positions out after many insertions at one place; drops removed nodes."""
        self.tidy(graph)
        self._last.pop(graph, None)
        for place, node in enumerate(graph.nodes):
            node.order = float(place)
            self._floors.pop(node, None)

    def tidy(self, graph: Graph) -> None:
        """Sorts the node list by position and drops the nodes that were removed or moved away."""
        graph.nodes[:] = sorted(self.nodes(graph), key=_order)
        graph.initializers[:] = [c for c in graph.initializers if self._home.get(c) is graph]

    def set_use(self, use: Use, old: Tensor, new: Tensor) -> None:
        """Moves one reader from one value to another."""
        self._unread(use, old)
        if new.name:
            self._read(use, new)


def _is_copy(node: Node) -> bool:
    return node.op == "Identity" and not node.domain


def _order(node: Node) -> float:
    return node.order
