"""What later operators demand of a value: facts under which every run that succeeds must fail."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice

from ...rewrite.engine.miss import describe
from ...rewrite.engine.rule import Match
from ...rewrite.facts.fact import Fact
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Node, Tensor, bodies

_REACH = 100
"""How many later nodes are judged: keeps the cost per question constant."""


def later_failure(m: Match, supposed: Mapping[Tensor, Fact]) -> str | None:
    """The later node that must fail if these facts hold of results of the root, and why; None when
    no such node is found.
    """
    nodes = list(islice(_downstream(m.index, m.node), _REACH))
    affected = {t for node in nodes for t in node.outputs}
    view = m.facts.assuming(supposed, affected)
    for node in nodes:
        if _runs_whenever(m.index, node, m.node) and not m.index.is_unused(node):
            reason = view.failure(node)
            if reason is not None:
                return f"{describe(node)} ({reason})"
    return None


def _downstream(index: Index, start: Node) -> Iterator[Node]:
    """Nodes whose facts may depend on the results of `start`, near ones first."""
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
                    pending.extend(body.inputs)
                graph = index.graph_of(reader)
                reader = None if graph is index.home(tensor) else index.owner(graph)


def _runs_whenever(index: Index, node: Node, start: Node) -> bool:
    """Whether a node runs in every run in which `start` runs: it stands in the same graph, or in
    one around it that is entered no more than once per run of `start`.
    """
    home = index.graph_of(node)
    graph = index.graph_of(start)
    while graph is not home:
        owner = index.owner(graph)
        if owner is None or owner.op != "If":
            return False
        graph = index.graph_of(owner)
    return True
