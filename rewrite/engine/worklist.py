"""The worklist of a phase: the nodes at which it still has to try its rules."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..graph.ir import Node, bodies


class Worklist:
    """Nodes to visit, first in first out, each at most once in the list.

    Nodes with bodies come after all others, because their facts depend on their bodies.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._plain: deque[Node] = deque()
        self._owners: deque[Node] = deque()
        self._waiting: set[Node] = set()
        for node in nodes:
            self.add(node)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, node: Node) -> None:
        """Appends a node unless it is in the list."""
        if node not in self._waiting:
            self._waiting.add(node)
            (self._owners if bodies(node) else self._plain).append(node)

    def pop(self) -> Node:
        """Removes and returns the next node."""
        node = (self._plain or self._owners).popleft()
        self._waiting.discard(node)
        return node
