"""Def-use chains, and the nesting of graphs: who defines and reads each value, who owns each body.

Readers are kept in dictionaries, so that each query and each edit takes constant time, however many
readers a value has. Only `Patch` edits; rules query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from .guard import Guard, GuardedList
from .ir import SPACING, Constant, Graph, Node, Tensor, bodies, number_nodes
from .names import UniqueNames

GAP_PARTS = 64
"""A new node takes at most this fraction of the gap before its anchor (see `Index.gap_parts`)."""


class Use(NamedTuple):
    """One place where a value is read: input `slot` of a node, or output `slot` of a graph."""

    reader: Node | Graph
    slot: int


class OrderExhausted(Exception):
    """There are no more positions between two nodes; `Index.renumber` makes room."""


@dataclass
class Removal:
    """What `remove_node` removed, for `restore`."""

    nodes: list[tuple[Node, Graph]] = field(default_factory=list)
    graphs: list[tuple[Graph, Node]] = field(default_factory=list)
    homes: list[tuple[Tensor, Graph]] = field(default_factory=list)


class Index:
    """Def-use chains and the nesting of graphs of one model."""

    def __init__(self, root: Graph) -> None:
        self.root = root
        self.guard = Guard()
        """Locked while a rule's own code runs; see `guard`."""
        self.added_bytes = 0
        """The bytes of all constants that patches added."""
        self.added_or_moved: dict[Node | Tensor, None] = {}
        """New and moved nodes and values, whose names may occur twice in their graph."""
        self.operand_names: set[Tensor] = set()
        """New constants that are named after the node that reads them: `/l/cell/LSTM.W`."""
        self._graph_of: dict[Node, Graph] = {}
        self._owner: dict[Graph, Node] = {}
        self._producer: dict[Tensor, Node] = {}
        self._home: dict[Tensor, Graph] = {}
        self._uses: dict[Tensor, dict[Use, None]] = {}
        self.gap_parts = GAP_PARTS
        """The number of parts that the gap before an anchor is divided into: a new node takes one.
        A large number suits many insertions before the same anchor, a small one nested ones."""
        self._lower_bounds: dict[Node, int] = {}
        """Positions at or after whatever precedes each node."""
        self._returned: dict[Tensor, int] = {}
        self._last: dict[Graph, int] = {}
        self.add_graph(root)

    @cached_property
    def names(self) -> UniqueNames:
        """The names of all values and nodes, for new ones."""
        return UniqueNames(self.root)

    # --- queries ---

    def __contains__(self, node: Node) -> bool:
        return node in self._graph_of

    def graph_of(self, node: Node) -> Graph:
        """The graph that a node is in."""
        return self._graph_of[node]

    def owner(self, graph: Graph) -> Node | None:
        """The control-flow node whose body this is; None for the main graph."""
        return self._owner.get(graph)

    def producer(self, tensor: Tensor) -> Node | None:
        """The node that computes the value; None for inputs and initializers."""
        return self._producer.get(tensor)

    def home(self, tensor: Tensor) -> Graph | None:
        """The graph that defines the value, as an input, an initializer or a result of a node."""
        node = self._producer.get(tensor)
        return self._graph_of[node] if node is not None else self._home.get(tensor)

    def uses(self, tensor: Tensor) -> list[Use]:
        """All readers in the order in which they were connected, graph outputs included."""
        return list(self._uses.get(tensor, ()))

    def first_use(self, tensor: Tensor) -> Use | None:
        """The reader that was connected first; None where there is none."""
        return next(iter(self._uses.get(tensor, ())), None)

    def use_count(self, tensor: Tensor) -> int:
        """The number of readers, graph outputs included."""
        return len(self._uses.get(tensor, ()))

    def consumers(self, tensor: Tensor) -> list[Node]:
        """The nodes that read the value, each once, in any graph."""
        seen = {use.reader: None for use in self._uses.get(tensor, ())}
        return [reader for reader in seen if isinstance(reader, Node)]

    def is_model_output(self, tensor: Tensor) -> bool:
        """Whether the main graph returns the value."""
        return self._returned.get(tensor, 0) > 0

    def is_unused(self, node: Node) -> bool:
        """Whether nothing reads a result of the node."""
        uses = self._uses
        for output in node.outputs:  # noqa: SIM110  twice as fast as `all`, and on the hot path
            if uses.get(output):
                return False
        return True

    def is_computed(self, node: Node) -> bool:
        """Whether the graph of the node returns something that depends on elements of its results.

        onnxruntime may know a shape before the run, and then removes the nodes whose results are
        read for their shapes only. Such a node does not fail.
        """
        home = self._graph_of[node]
        waiting, seen = [node], {node}
        while waiting:
            for output in waiting.pop().outputs:
                for use in self._uses.get(output, ()):
                    reader = use.reader
                    if reader is home:
                        return True
                    if not isinstance(reader, Node):
                        reader = self._owner[reader]
                    if reader not in seen and not _reads_shape(reader):
                        seen.add(reader)
                        waiting.append(reader)
        return False

    def ancestors(self, graph: Graph) -> Iterator[Graph]:
        """The graph itself, the graph that its owner is in, and so on up to the main graph."""
        current: Graph | None = graph
        while current is not None:
            yield current
            owner = self._owner.get(current)
            current = self._graph_of[owner] if owner is not None else None

    def encloses(self, outer: Graph, inner: Graph) -> bool:
        """Whether `inner` is `outer` or nested in it, however deep."""
        return any(graph is outer for graph in self.ancestors(inner))

    def is_outside(self, tensor: Tensor, body: Graph) -> bool:
        """Whether a value is defined outside a body: no iteration of the body changes it."""
        home = self.home(tensor)
        return home is not None and not self.encloses(body, home)

    def original(self, tensor: Tensor) -> Tensor:
        """The value that this one copies, through any number of Identity nodes."""
        while (node := self.producer(tensor)) is not None and _is_copy(node):
            tensor = node.inputs[0]
        return tensor

    def ancestor_in(self, node: Node, graph: Graph) -> Node | None:
        """The node of `graph` that is `node` or contains it in a body; None where there is none."""
        current: Node | None = node
        while current is not None:
            home = self._graph_of[current]
            if home is graph:
                return current
            current = self._owner.get(home)
        return None

    def position(self, node: Node) -> tuple[float, ...]:
        """A sort key: the order in which nodes run, with bodies before their owner."""
        place = [float("inf"), node.order]
        owner = self._owner.get(self._graph_of[node])
        while owner is not None:
            place.append(owner.order)
            owner = self._owner.get(self._graph_of[owner])
        return tuple(reversed(place))

    def depth(self, graph: Graph) -> int:
        """The number of graphs around a graph."""
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
        """The graph and every live body nested in it, outer ones first."""
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
        """The live nodes of a graph, without those in bodies, in no particular order."""
        return list({n: None for n in graph.nodes if self._graph_of.get(n) is graph})

    def nodes_in_order(self, graph: Graph) -> list[Node]:
        """The live nodes of a graph in the order in which they run, without those in bodies."""
        return sorted(self.nodes(graph), key=_order)

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
        """Registers a graph and everything in it."""
        graph.guard = guard = self.guard
        parts: list[Any] = [graph.inputs, graph.outputs, graph.nodes, graph.initializers]
        for part in (*parts, graph.output_info):
            part.guard = guard
        if owner is not None:
            self._owner[graph] = owner
        for tensor in (*graph.inputs, *graph.initializers):
            tensor.guard = guard
            self._home[tensor] = graph
        for node in graph.nodes:
            self.add_node(node, graph)
        for slot, tensor in enumerate(graph.outputs):
            self._add_use(Use(graph, slot), tensor)

    def _add_use(self, use: Use, tensor: Tensor) -> None:
        self._uses.setdefault(tensor, {})[use] = None
        if use.reader is self.root:
            self._returned[tensor] = self._returned.get(tensor, 0) + 1

    def _remove_use(self, use: Use, tensor: Tensor) -> None:
        self._uses.get(tensor, {}).pop(use, None)
        if use.reader is self.root:
            self._returned[tensor] -= 1

    def add_node(self, node: Node, graph: Graph) -> None:
        """Registers a node that is in `graph.nodes` already, with its bodies."""
        self._register(node, graph)
        for body in bodies(node):
            self.add_graph(body, node)

    def _register(self, node: Node, graph: Graph) -> None:
        guarded: Any = node
        guard = guarded.__dict__["guard"] = self.guard
        guarded.inputs.guard = guarded.outputs.guard = guarded.attrs.guard = guard
        for value in node.attrs.values() if node.attrs else ():
            if type(value) is GuardedList:
                value.guard = guard
        self._graph_of[node] = graph
        for slot, tensor in enumerate(node.inputs):
            if tensor.name:
                self._uses.setdefault(tensor, {})[Use(node, slot)] = None
        for tensor in node.outputs:
            tensor.__dict__["guard"] = guard
            self._producer[tensor] = node

    def remove_node(self, node: Node) -> Removal:
        """Unregisters a node with its bodies; `tidy` drops it from `graph.nodes` later."""
        self.guard.check("the index")
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
        """Undoes a removal."""
        for graph, owner in removal.graphs:
            self._owner[graph] = owner
            for slot, tensor in enumerate(graph.outputs):
                self._uses.setdefault(tensor, {})[Use(graph, slot)] = None
        for tensor, graph in removal.homes:
            self._home[tensor] = graph
        for node, graph in removal.nodes:
            self._register(node, graph)

    def move_node(self, node: Node, graph: Graph) -> None:
        """Registers that a node is in another graph now."""
        self.guard.check("the index")
        self._graph_of[node] = graph
        self.added_or_moved[node] = None

    def add_constant(self, constant: Constant, graph: Graph) -> None:
        self.guard.check("the index")
        constant.guard = self.guard
        self._home[constant] = graph
        self.added_or_moved[constant] = None

    def remove_constant(self, constant: Constant) -> None:
        self.guard.check("the index")
        self._home.pop(constant, None)

    def set_node_outputs(self, node: Node, outputs: list[Tensor]) -> None:
        """Replaces the outputs of a node."""
        for tensor in node.outputs:
            self._producer.pop(tensor, None)
        node.outputs[:] = outputs
        for tensor in outputs:
            tensor.guard = self.guard
            self._producer[tensor] = node

    def set_node_inputs(self, node: Node, inputs: list[Tensor]) -> None:
        """Replaces the inputs of a node."""
        for slot, tensor in enumerate(node.inputs):
            self._uses.get(tensor, {}).pop(Use(node, slot), None)
        node.inputs[:] = inputs
        for slot, tensor in enumerate(inputs):
            if tensor.name:
                self._uses.setdefault(tensor, {})[Use(node, slot)] = None

    def set_graph_inputs(self, graph: Graph, inputs: list[Tensor]) -> None:
        """Replaces the inputs of a body."""
        for tensor in graph.inputs:
            self._home.pop(tensor, None)
        graph.inputs[:] = inputs
        for tensor in inputs:
            tensor.guard = self.guard
            self._home[tensor] = graph

    def set_graph_outputs(self, graph: Graph, outputs: list[Tensor]) -> None:
        """Replaces the outputs of a graph."""
        for slot, tensor in enumerate(graph.outputs):
            self._remove_use(Use(graph, slot), tensor)
        graph.outputs[:] = outputs
        for slot, tensor in enumerate(outputs):
            self._add_use(Use(graph, slot), tensor)

    def lower_bound(self, node: Node) -> int:
        """A position at or after whatever precedes a node, and before the node."""
        return self._lower_bounds.get(node, node.order - SPACING)

    def place_before(self, anchor: Node, nodes: Sequence[Node]) -> None:
        """Positions nodes just before the anchor, after everything that precedes it.

        Raises OrderExhausted when there are no more positions; `renumber` makes room.
        """
        low, gap = self.lower_bound(anchor), anchor.order - self.lower_bound(anchor)
        step = gap // max(len(nodes) + 1, self.gap_parts)
        for node in nodes:
            self._lower_bounds[node] = low
            low += step
            node.order = low
            if not self._lower_bounds[node] < low < anchor.order:
                raise OrderExhausted
        self._lower_bounds[anchor] = low

    def place_first(self, graph: Graph, nodes: Sequence[Node]) -> None:
        """Positions nodes before everything else in a graph."""
        moved = set(nodes)
        first = min((n.order for n in self.nodes(graph) if n not in moved), default=0)
        for place, node in enumerate(nodes):
            node.order = first - (len(nodes) - place) * SPACING
            self._lower_bounds[node] = node.order - SPACING

    def place_last(self, graph: Graph, node: Node) -> None:
        """Positions a node after everything else in a graph."""
        last = self._last.get(graph)
        if last is None:
            last = max((n.order for n in self.nodes(graph)), default=0)
        node.order = self._last[graph] = last + SPACING
        self._lower_bounds[node] = last

    def restore_position(self, node: Node, order: int, lower_bound: int) -> None:
        """Restores a position."""
        node.order = order
        self._lower_bounds[node] = lower_bound

    def renumber(self, graph: Graph) -> None:
        """Assigns evenly spaced positions to the nodes of a graph; drops removed nodes."""
        self.tidy(graph)
        self._last.pop(graph, None)
        number_nodes(graph.nodes)
        for node in graph.nodes:
            self._lower_bounds.pop(node, None)

    def tidy(self, graph: Graph) -> None:
        """Sorts the nodes of a graph by position; drops nodes and constants that left the graph."""
        graph.nodes[:] = self.nodes_in_order(graph)
        graph.initializers[:] = [c for c in graph.initializers if self._home.get(c) is graph]

    def redirect(self, use: Use, old: Tensor, new: Tensor) -> None:
        """Makes one reader read another value."""
        self.guard.check("the index")
        self._remove_use(use, old)
        if new.name:
            self._add_use(use, new)


def _is_copy(node: Node) -> bool:
    return node.op == "Identity" and not node.domain


def _order(node: Node) -> int:
    return node.order


def _reads_shape(node: Node) -> bool:
    """Whether a node reads the shape of its operand only."""
    return node.op in ("Shape", "Size") and not node.domain
