"""Value numbering: finds nodes and constants that compute or store the same value.

Entries of a table may have changed or disappeared since; each is checked against the graph before
use.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from .fingerprint import constant_key, fingerprint
from .index import Index
from .ir import Constant, Graph, Node, Tensor

_MOST_COMPARED = 8
"""Up to this many readers of an operand are compared with each other; more are numbered."""


@dataclass
class _Equal:
    """Nodes with the same fingerprint."""

    first: dict[Graph, Node] = field(default_factory=dict)
    """For each graph the first of these nodes."""
    later: dict[Graph, dict[Node, None]] = field(default_factory=dict)
    """For each graph the others of these nodes."""
    inside: dict[Graph, dict[Node, None]] = field(default_factory=dict)
    """For each graph those of these nodes that are in bodies of its nodes."""


class ValueNumbering:
    """Equal nodes and constants of one model."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._constants: dict[tuple[Graph | None, Hashable], Constant] = {}
        """The first constant that was looked up, by graph and content."""
        self._numbered: dict[Hashable, _Equal] = {}
        self._numbered_operands: set[Tensor] = set()
        """Operands whose readers are all numbered."""

    def equal_constant(self, constant: Constant) -> Constant | None:
        """A constant with the same content in the same graph, if one was looked up before."""
        home = self._index.home(constant)
        key = (home, constant_key(constant))
        first = self._constants.setdefault(key, constant)
        if first is not constant and self._index.home(first) is not home:  # gone or moved since
            first = self._constants[key] = constant
        return None if first is constant else first

    def equal_nodes(self, node: Node) -> list[tuple[Node, Node]]:
        """Pairs of the node and another that computes the same values; the first dominates the
        second.

        The time does not grow with the number of readers of the operands. Together the calls find
        all pairs, if every node is looked up that is new or reads other values than before.
        """
        # An equal node may have constants of its own, but no other operands of its own.
        shared = [t for t in node.inputs if t.name and not isinstance(t, Constant)]
        shared = shared or [t for t in node.inputs if t.name]
        rarest = min(shared, key=self._index.use_count, default=None)
        if rarest is None:
            return []
        readers = self._index.use_count(rarest)
        if readers > _MOST_COMPARED and rarest not in self._numbered_operands:
            self._numbered_operands.add(rarest)
            for reader in sorted(self._index.consumers(rarest), key=lambda n: n.order):
                self._look_up(reader)
        others = [] if self._numbered_operands.isdisjoint(shared) else self._look_up(node)
        if readers < 2:
            return []
        if readers <= _MOST_COMPARED:
            others = self._equal_readers(node, rarest)
        pairs = (pair for other in others for pair in ((other, node), (node, other)))
        return [pair for pair in pairs if self._dominates(*pair)]

    def _equal_readers(self, node: Node, operand: Tensor) -> list[Node]:
        """The readers of the operand that compute the same values as the node."""
        readers = self._index.consumers(operand)
        candidates = [n for n in readers if n.op == node.op and n is not node]
        wanted = fingerprint(node, self._index) if candidates else None
        return [n for n in candidates if fingerprint(n, self._index) == wanted]

    def _look_up(self, node: Node) -> list[Node]:
        """Numbers the node and returns the numbered nodes that compute the same values.

        Returns the first one in each graph around the node, and the first one in its own graph, or
        all others there if the node itself is the first.
        """
        number = fingerprint(node, self._index)
        equal = self._numbered.setdefault(number, _Equal())
        graph, *around = self._index.ancestors(self._index.graph_of(node))
        first = self._if_current(equal.first.get(graph), number)
        later = equal.later.setdefault(graph, {})
        if first is not None and first.order < node.order:
            later[node] = None
            own = [first]
        else:
            if first is not None:
                later[first] = None
            own = [n for n in later if n is not node and self._if_current(n, number)]
            equal.first[graph], equal.later[graph] = node, dict.fromkeys(own)
        outer = [self._if_current(equal.first.get(g), number) for g in around]
        inner = [self._if_current(n, number) for n in equal.inside.pop(graph, ())]
        equal.inside[graph] = {n: None for n in inner if n is not None}
        for enclosing in around:
            equal.inside.setdefault(enclosing, {})[node] = None
        return [n for n in (*own, *outer, *inner) if n is not None and n is not node]

    def _if_current(self, node: Node | None, number: Hashable) -> Node | None:
        """The node, if it still exists and has the fingerprint."""
        if node is None or node not in self._index:
            return None
        return node if fingerprint(node, self._index) == number else None

    def _dominates(self, other: Node, node: Node) -> bool:
        """Whether `other` always runs before `node`."""
        ancestor = self._index.ancestor_in(node, self._index.graph_of(other))
        return ancestor is not None and other.order < ancestor.order
