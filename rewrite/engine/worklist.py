"""The nodes that a phase still has to look at."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..graph.ir import Node, bodies


class Queue:
    """Nodes to visit, each once at a time, first in first out.

    Nodes with bodies wait until no other node does: what is said of them depends on their bodies.
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
        if node not in self._waiting:
            self._waiting.add(node)
            (self._owners if bodies(node) else self._plain).append(node)

    def pop(self) -> Node:
        node = (self._plain or self._owners).popleft()
        self._waiting.discard(node)
        return node
