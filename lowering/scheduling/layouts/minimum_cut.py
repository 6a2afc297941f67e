"""Labels the nodes of a graph true or false at the least total cost, as a minimum cut."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict, deque
from collections.abc import Hashable

UNLIMITED = math.inf
_SOURCE, _SINK = object(), object()


class LabelCosts:
    """The costs of labelling nodes true or false, each cost a number of at least 0."""

    def __init__(self) -> None:
        self._residual: dict[Hashable, dict[Hashable, float]] = defaultdict(dict)
        """The residual capacity of each edge."""

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
        self._residual[tail][head] = self._residual[tail].get(head, 0) + cost
        self._residual[head].setdefault(tail, 0)

    def cheapest(self) -> set[Hashable]:
        """The nodes that are true in the cheapest labelling, the fewest if several are cheapest.

        The cheapest labelling is a minimum cut: its true nodes are those that more could flow to
        from the source. The flow is found by Dinic's algorithm ("Algorithm for solution of a
        problem of maximum flow in networks with power estimation", 1970).
        """
        while True:
            levels = self._levels()
            if _SINK not in levels:
                return set(levels) - {_SOURCE}
            self._block(levels)

    def _levels(self) -> dict[Hashable, int]:
        """The nodes that more can flow to from the source, with their distance from it."""
        levels: dict[Hashable, int] = {_SOURCE: 0}
        waiting = deque([_SOURCE])
        while waiting:
            tail = waiting.popleft()
            for head, rest in self._residual[tail].items():
                if rest > 0 and head not in levels:
                    levels[head] = levels[tail] + 1
                    waiting.append(head)
        return levels

    def _block(self, levels: dict[Hashable, int]) -> None:
        """Lets flow what can on paths that go up a level with each edge."""
        heads = {node: iter(list(self._residual[node])) for node in levels}
        path = [_SOURCE]
        while path:
            tail = path[-1]
            if tail is _SINK:
                edges = list(itertools.pairwise(path))
                flow = min(self._residual[tail][head] for tail, head in edges)
                for tail, head in edges:
                    self._residual[tail][head] -= flow
                    self._residual[head][tail] += flow
                full = next(k for k, (t, h) in enumerate(edges) if self._residual[t][h] <= 0)
                del path[full + 1 :]
                # The edge to the rest of the path is full: the next head is tried.
                continue
            for head in heads[tail]:
                if self._residual[tail][head] > 0 and levels.get(head) == levels[tail] + 1:
                    path.append(head)
                    break
            else:
                path.pop()
