"""Incremental dataflow: updates facts downstream of an edit, as far as they change.

The facts of a loop's carried values are a fixpoint. An edit keeps the fixpoint while it is still
valid, so the cost of the edit is proportional to what is downstream. A better fixpoint may exist
then; `reinfer_carried` finds it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping

from ..graph.ir import Graph, Node, Tensor, bodies
from .fact import Fact
from .facts import Facts
from .inference.control import is_still_fixpoint


def refresh(facts: Facts, nodes: Iterable[Node]) -> list[Node]:
    """Infers edited nodes again, and all nodes downstream whose operands have new facts.

    Returns the nodes that read a value with a new fact, and the loops whose body inputs have new
    facts.
    """
    index = facts.index
    affected: dict[Node, None] = {}
    waiting = {node for node in nodes if node in index}
    pending = [(index.position(node), id(node), node) for node in waiting]
    heapq.heapify(pending)
    while pending:  # in graph order, so that each node is inferred once
        _, _, node = heapq.heappop(pending)
        waiting.discard(node)
        old = facts.drop(node.outputs)
        if any(_fixpoint_changes(facts, node, body) for body in bodies(node)):
            affected[node] = None
        if not _differ(facts, old):
            continue
        for tensor in node.outputs:
            for reader in _dependents(facts, tensor):
                affected[reader] = None
                if reader not in waiting:
                    waiting.add(reader)
                    heapq.heappush(pending, (index.position(reader), id(reader), reader))
    return list(affected)


def reinfer_carried(facts: Facts, loop: Node) -> list[Node]:
    """Infers the facts of a loop's carried values from scratch; returns the same as `refresh`.

    The facts at the start of an iteration depend on those at the end of the previous one, so
    incremental inference cannot improve them.
    """
    body: Graph = loop.attrs["body"]
    known = facts.drop(body.inputs)
    facts.drop_body(body)
    affected = refresh(facts, [loop])
    return [*affected, loop] if _differ(facts, known) else affected


def has_unknown_carried_shape(facts: Facts, loop: Node) -> bool:
    """Whether an edit of the body may improve the shape of a carried value: it has none, or dims
    that vary between iterations.
    """
    body: Graph = loop.attrs["body"]
    shapes = (facts.cached(tensor).shape for tensor in body.inputs)
    return any(s is None or any(facts.varies_in(d, body) for d in s) for s in shapes)


def _differ(facts: Facts, known: Mapping[Tensor, Fact]) -> bool:
    """Whether the facts of these values have changed."""
    return any(facts.of(tensor) != fact for tensor, fact in known.items())


def _fixpoint_changes(facts: Facts, node: Node, body: Graph) -> bool:
    """Whether the fixpoint of a body is no longer valid and inferring it again changes it."""
    known = facts.cached_facts(body.inputs)
    if not known or is_still_fixpoint(facts, node, body):
        return False
    facts.drop(body.inputs)
    facts.drop_body(body)
    return _differ(facts, known)


def _dependents(facts: Facts, tensor: Tensor) -> Iterator[Node]:
    """The nodes to infer again when the fact of a value changes."""
    index = facts.index
    for reader, _ in index.uses(tensor):
        owner = reader if isinstance(reader, Node) else index.owner(reader)
        if owner is not None:
            yield owner
            yield from _capturing_nodes(facts, owner, tensor)


def _capturing_nodes(facts: Facts, node: Node, tensor: Tensor) -> Iterator[Node]:
    """The nodes around `node` whose bodies capture the value."""
    index = facts.index
    home = index.home(tensor)
    graph: Graph | None = index.graph_of(node)
    while graph is not None and graph is not home:
        owner = index.owner(graph)
        if owner is None:
            return
        yield owner
        graph = index.graph_of(owner)
