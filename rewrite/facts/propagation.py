"""Follows a change of the graph through the facts, as far as they change.

What holds of a loop's states in every iteration is kept as long as it still does: an edit in a body
costs no more than what is downstream of it. More may be true of the states then; `settle` looks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping

from ..graph.ir import Graph, Node, Tensor, bodies
from .facts import Fact, Facts
from .inference.control import invariant_holds


def refresh(facts: Facts, nodes: Iterable[Node]) -> list[Node]:
    """Recomputes what edited nodes produce and follows the changes downstream.

    Returns the nodes that read a value whose fact changed, and the loops in whose bodies the facts
    of inputs did.
    """
    index = facts.index
    near: dict[Node, None] = {}
    waiting = {node for node in nodes if node in index}
    pending = [(index.position(node), id(node), node) for node in waiting]
    heapq.heapify(pending)
    while pending:  # in graph order, so that each node is recomputed once
        _, _, node = heapq.heappop(pending)
        waiting.discard(node)
        old = facts.drop(node.outputs)
        if any(_invariant_changes(facts, node, body) for body in bodies(node)):
            near[node] = None
        if not _differ(facts, old):
            continue
        for tensor in node.outputs:
            for reader in _dependents(facts, tensor):
                near[reader] = None
                if reader not in waiting:
                    waiting.add(reader)
                    heapq.heappush(pending, (index.position(reader), id(reader), reader))
    return list(near)


def settle(facts: Facts, loop: Node) -> list[Node]:
    """Finds out anew what holds of a loop's states in every iteration; returns what `refresh` does.

    What is known at the start of an iteration rests on what is known at the end of the one before,
    so that no step by step recomputation finds that both are more.
    """
    body: Graph = loop.attrs["body"]
    known = facts.drop(body.inputs)
    facts.forget(body)
    near = refresh(facts, [loop])
    return [*near, loop] if _differ(facts, known) else near


def is_vague(facts: Facts, loop: Node) -> bool:
    """Whether the shape of a state is not known from outside: an edit in the body may tell."""
    body: Graph = loop.attrs["body"]
    shapes = (facts.known(tensor).shape for tensor in body.inputs)
    return any(s is None or any(facts.escapes(d, body) for d in s) for s in shapes)


def _differ(facts: Facts, known: Mapping[Tensor, Fact]) -> bool:
    """Whether other facts hold now than those known."""
    return any(facts.of(tensor) != fact for tensor, fact in known.items())


def _invariant_changes(facts: Facts, node: Node, body: Graph) -> bool:
    """Whether other facts hold of the inputs of a body now than before; derives them if so."""
    known = facts.derived(body.inputs)
    if not known or invariant_holds(facts, node, body):
        return False
    facts.drop(body.inputs)
    facts.forget(body)
    return _differ(facts, known)


def _dependents(facts: Facts, tensor: Tensor) -> Iterator[Node]:
    index = facts.index
    for reader, _ in index.uses(tensor):
        owner = reader if isinstance(reader, Node) else index.owner(reader)
        if owner is not None:
            yield owner
            yield from _enclosing_loops(facts, owner, tensor)


def _enclosing_loops(facts: Facts, node: Node, tensor: Tensor) -> Iterator[Node]:
    """Nodes around `node` whose body captures the value, out to where it is defined."""
    index = facts.index
    home = index.home(tensor)
    graph: Graph | None = index.graph_of(node)
    while graph is not None and graph is not home:
        owner = index.owner(graph)
        if owner is None:
            return
        yield owner
        graph = index.graph_of(owner)
