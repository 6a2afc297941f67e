"""A stable topological sort of nodes, which treats the captures of bodies as inputs."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from ..errors import ModelError
from . import ir
from .labels import node_label


class Dependencies:
    """The dependencies between the nodes of one graph, by index in the file."""

    def __init__(self, producers: dict[ir.Tensor, int]) -> None:
        self._producers = producers
        self.before: list[set[int]] = []
        """For each node the indices of the nodes that it reads."""
        self.sorted = True
        """Whether each node reads only values of nodes listed before it."""

    def add(self, inputs: Iterable[ir.Tensor], captured: Iterable[ir.Tensor]) -> None:
        """Adds the next node: its inputs, and what its bodies capture."""
        producers = self._producers
        needed = {producers[tensor] for tensor in inputs if tensor in producers}
        needed.update(producers[tensor] for tensor in captured if tensor in producers)
        if needed and max(needed) >= len(self.before):
            self.sorted = False
        self.before.append(needed)


def topological(nodes: list[ir.Node], dependencies: Dependencies, path: str) -> list[ir.Node]:
    """The nodes in topological order, as close to the order of the file as possible.

    Raises ModelError naming a cycle.
    """
    if dependencies.sorted:
        return nodes
    readers: list[list[int]] = [[] for _ in nodes]
    missing = [len(before) for before in dependencies.before]
    for index, before in enumerate(dependencies.before):
        for producer in before:
            readers[producer].append(index)
    ready = [index for index, count in enumerate(missing) if count == 0]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers[index]:
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        raise _cycle_error(nodes, dependencies, set(order), path)
    return [nodes[index] for index in order]


def _cycle_error(
    nodes: list[ir.Node], dependencies: Dependencies, done: set[int], path: str
) -> ModelError:
    """The error for a cycle, found by following unsorted nodes until one repeats."""
    index = next(i for i in range(len(nodes)) if i not in done)
    walked: dict[int, None] = {}
    while index not in walked:
        walked[index] = None
        index = min(dependencies.before[index] - done)
    path_to_cycle = list(walked)
    cycle = [node_label(nodes[i]) for i in reversed(path_to_cycle[path_to_cycle.index(index) :])]
    shown = cycle[:6] + (["…"] if len(cycle) > 6 else [])
    return ModelError(
        "The nodes " + " -> ".join([*shown, cycle[0]]) + " read each other's outputs in a cycle",
        where=path or "main graph",
        remedy="A value cannot depend on itself: carry it through a Loop or Scan, or export the "
        "model again",
    )
