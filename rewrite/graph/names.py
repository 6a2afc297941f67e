"""Names of values and nodes that no other value or node of a model has."""

from __future__ import annotations

from collections.abc import Iterator

from . import ir


class UniqueNames:
    """The names of all values and nodes of a model; makes new names."""

    def __init__(self, root: ir.Graph) -> None:
        self._taken = {tensor.name for graph in graphs(root) for tensor in defined(graph)}
        self._taken |= {node.name for graph in graphs(root) for node in graph.nodes}
        self._next: dict[str, int] = {}

    def fresh(self, name: str) -> str:
        """A new name: the given one with a number."""
        number = self._next.get(name, 1)
        while f"{name}_{number}" in self._taken:
            number += 1
        self._next[name] = number + 1
        self._taken.add(f"{name}_{number}")
        return f"{name}_{number}"

    def unique(self, name: str) -> str:
        """A new name: the given one if it is new, otherwise with a number."""
        if name in self._taken:
            return self.fresh(name)
        self._taken.add(name)
        return name

    def release(self, name: str) -> None:
        """Takes back the last name that was made."""
        self._taken.discard(name)
        stem, _, number = name.rpartition("_")
        if stem in self._next and number.isdigit():
            self._next[stem] = min(self._next[stem], int(number))


def scope(name: str) -> str:
    """The module that a name belongs to, as exporters write it: `/l/cell/` of `/l/cell/Mul_6`."""
    return name[: name.rfind("/") + 1]


def graphs(root: ir.Graph) -> Iterator[ir.Graph]:
    """A graph and all bodies in it, outer ones first."""
    pending = [root]
    while pending:
        graph = pending.pop()
        yield graph
        pending.extend(body for node in graph.nodes for body in ir.bodies(node))


def defined(graph: ir.Graph) -> Iterator[ir.Tensor]:
    """The values a graph defines itself: inputs, initializers, outputs of its nodes."""
    yield from graph.inputs
    yield from graph.initializers
    for node in graph.nodes:
        yield from node.outputs
