"""Values that are computed, or stored, more than once: what a value numbering table is for.

A table may name what has changed or gone since, so what it says is checked against the graph.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from .fingerprint import constant_key, fingerprint
from .index import Index
from .ir import Constant, Graph, Node, Tensor

_COMPARED = 8
"""Readers of an operand that are compared one by one; where there are more, they are numbered."""


@dataclass
class _Equal:
    """Nodes with the same fingerprint."""

    first: dict[Graph, Node] = field(default_factory=dict)
    """The first of each graph."""
    inside: dict[Graph, dict[Node, None]] = field(default_factory=dict)
    """Those in bodies of nodes of each graph."""


class Twins:
    """Nodes and constants of one model that equal others."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._constants: dict[tuple[Graph | None, Hashable], Constant] = {}
        """The first constant of each content that was asked about."""
        self._numbered: dict[Hashable, _Equal] = {}
        self._popular: set[Tensor] = set()
        """Operands whose readers are numbered, all those that were asked about or there before."""

    def of_constant(self, constant: Constant) -> Constant | None:
        """A constant of the same graph with the same content, if one was asked about before."""
        home = self._index.home(constant)
        key = (home, constant_key(constant))
        first = self._constants.setdefault(key, constant)
        if first is not constant and self._index.home(first) is not home:  # gone or moved since
            first = self._constants[key] = constant
        return None if first is constant else first

    def of_node(self, node: Node) -> list[tuple[Node, Node]]:
        """Pairs of the node and another that computes the same; of each pair the first has run
        whenever the second runs.

        Takes time that does not grow with the readers of its operands. Finds all, if every node
        is asked about that is new or has come to read other values.
        """
        # A twin may have constants of its own, but not other operands.
        shared = [t for t in node.inputs if t.name and not isinstance(t, Constant)]
        shared = shared or [t for t in node.inputs if t.name]
        rarest = min(shared, key=self._index.use_count, default=None)
        if rarest is None:
            return []
        readers = self._index.use_count(rarest)
        if readers > _COMPARED and rarest not in self._popular:
            self._popular.add(rarest)
            for reader in self._index.consumers(rarest):
                self._look_up(reader)
        others = [] if self._popular.isdisjoint(shared) else self._look_up(node)
        if readers < 2:
            return []
        if readers <= _COMPARED:
            others = self._compared(node, rarest)
        pairs = (pair for other in others for pair in ((other, node), (node, other)))
        return [pair for pair in pairs if self._stands_before(*pair)]

    def _compared(self, node: Node, operand: Tensor) -> list[Node]:
        """The readers of the operand that compute the same as the node."""
        readers = self._index.consumers(operand)
        alike = [n for n in readers if n.op == node.op and n is not node]
        mine = fingerprint(node, self._index) if alike else None
        return [n for n in alike if fingerprint(n, self._index) == mine]

    def _look_up(self, node: Node) -> list[Node]:
        """The numbered nodes that compute the same, the first of each graph around the node and
        all in bodies beside it; numbers the node.
        """
        number = fingerprint(node, self._index)
        equal = self._numbered.setdefault(number, _Equal())
        graph, *around = self._index.ancestors(self._index.graph_of(node))
        first = self._if_still(equal.first.get(graph), number)
        if first is None or node.order < first.order:
            equal.first[graph] = node
        outer = [self._if_still(equal.first.get(g), number) for g in around]
        inner = [self._if_still(n, number) for n in equal.inside.pop(graph, ())]
        equal.inside[graph] = {n: None for n in inner if n is not None}
        for enclosing in around:
            equal.inside.setdefault(enclosing, {})[node] = None
        return [n for n in (first, *outer, *inner) if n is not None and n is not node]

    def _if_still(self, node: Node | None, number: Hashable) -> Node | None:
        """The node, if it is there and still computes what it was numbered for."""
        if node is None or node not in self._index:
            return None
        return node if fingerprint(node, self._index) == number else None

    def _stands_before(self, other: Node, node: Node) -> bool:
        """Whether `other` has run whenever `node` runs."""
        place = self._index.ancestor_in(node, self._index.graph_of(other))
        return place is not None and other.order < place.order
