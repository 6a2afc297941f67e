"""Minimum cuts: the cheapest of two labels for each node, where neighbours that differ cost."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Hashable

UNLIMITED = math.inf
_SOURCE, _SINK = object(), object()


class LabelCosts:
    """The costs of labelling nodes true or false, each cost a number of at least 0."""

    def __init__(self) -> None:
        self._rest: dict[Hashable, dict[Hashable, float]] = defaultdict(dict)
        """What may still flow along each edge."""

    def if_true(self, node: Hashable, cost: float) -> None:
        """Adds a cost for labelling a node true; `UNLIMITED` forbids it."""
        self._add(node, _SINK, cost)

    def if_false(self, node: Hashable, cost: float) -> None:
        """Adds a cost for labelling a node false."""
        self._add(_SOURCE, node, cost)

    def if_true_and_false(self, node: Hashable, other: Hashable, cost: float) -> None:
        """Adds a cost for labelling one node true and the other false."""
        self._add(node, other, cost)

    def _add(self, tail: Hashable, head: Hashable, cost: float) -> None:
        self._rest[tail][head] = self._rest[tail].get(head, 0) + cost
        self._rest[head].setdefault(tail, 0)

    def cheapest(self) -> set[Hashable]:
        """The nodes that are true in the cheapest labelling, the fewest if several are cheapest.

        By the algorithm of Edmonds and Karp: the cheapest labelling is a minimum cut, and its true
        nodes are those that more could flow to from the source.
        """
        while True:
            before = self._reached()
            if _SINK not in before:
                return set(before) - {_SOURCE}
            path = [_SINK]
            while path[-1] is not _SOURCE:
                path.append(before[path[-1]])
            edges = list(zip(path[1:], path, strict=False))
            flow = min(self._rest[tail][head] for tail, head in edges)
            for tail, head in edges:
                self._rest[tail][head] -= flow
                self._rest[head][tail] += flow

    def _reached(self) -> dict[Hashable, Hashable]:
        """The nodes that more can flow to from the source, each with the one before it on a
        shortest path.
        """
        before: dict[Hashable, Hashable] = {_SOURCE: _SOURCE}
        waiting = deque([_SOURCE])
        while waiting and _SINK not in before:
            tail = waiting.popleft()
            for head, rest in self._rest[tail].items():
                if rest > 0 and head not in before:
                    before[head] = tail
                    waiting.append(head)
        return before
