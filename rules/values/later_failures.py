"""Later nodes that must fail if certain facts hold, whatever the inputs are.

A choice that makes a later node fail is a choice that no successful run makes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice

from ...rewrite.engine.miss import describe
from ...rewrite.engine.rule import Match
from ...rewrite.facts.fact import Fact
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Node, Tensor, bodies

_MOST_NODES = 100
"""The most later nodes that are examined, which bounds the time of one match."""


def later_failure(m: Match, supposed: Mapping[Tensor, Fact]) -> str | None:
    """Names a later node that must fail if results of the root have these facts, and says why.

    Returns None when no such node is found.
    """
    nodes = list(islice(downstream(m.index, m.node), _MOST_NODES))
    affected = {t for node in nodes for t in node.outputs}
    view = m.facts.assuming(supposed, affected)
    for node in nodes:
        if _runs_whenever(m.index, node, m.node):
            reason = view.failure(node)
            if reason is not None and m.index.is_computed(node):
                return f"{describe(node)} ({reason})"
    return None


def downstream(index: Index, start: Node) -> Iterator[Node]:
    """Nodes whose facts may depend on the results of `start`, in breadth-first order."""
    pending = deque(start.outputs)
    seen: set[Node] = {start}
    while pending:
        tensor = pending.popleft()
        for use in index.uses(tensor):
            reader = use.reader if isinstance(use.reader, Node) else index.owner(use.reader)
            while reader is not None and reader not in seen:
                seen.add(reader)
                yield reader
                pending.extend(reader.outputs)
                for body in bodies(reader):
                    # Within a body that runs, the condition is true; the iteration number is a counter.
                    pending.extend(body.inputs[2 if reader.op == "Loop" else 0 :])
                graph = index.graph_of(reader)
                reader = None if graph is index.home(tensor) else index.owner(graph)


def _runs_whenever(index: Index, node: Node, start: Node) -> bool:
    """Whether a node runs in every run in which `start` runs.

    It does if it stands in the same graph, or in an enclosing one that `start` is separated from
    by Ifs only.
    """
    home = index.graph_of(node)
    graph = index.graph_of(start)
    while graph is not home:
        owner = index.owner(graph)
        if owner is None or owner.op != "If":
            return False
        graph = index.graph_of(owner)
    return True
