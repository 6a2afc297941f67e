"""The nodes that a commit touches as text: removed, added, unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..rewrite.graph.index import Index
from ..rewrite.graph.ir import Constant, Graph, Node, Tensor
from .replay import Replay
from .trace_reader import CommitLine

_FEW = 4
"""The elements of a constant, or numbers of a list, that are written out."""


@dataclass(frozen=True)
class NodeLine:
    """One node before or after a commit."""

    mark: str
    """`-` for a node before the commit, `+` for one after it, a space for an unchanged one."""
    node: int
    """The number of the node in the trace."""
    place: str
    """The body that contains it; empty for the main graph."""
    text: str

    def __str__(self) -> str:
        place = f"  ({self.place})" if self.place else ""
        return f"{self.mark} {self.text}{place}"


@dataclass(frozen=True)
class CommitDiff:
    """A commit and what it changes."""

    commit: CommitLine
    commits: int
    """The number of commits of the whole rewrite."""
    bindings: dict[str, Any]
    """What the match found, in words."""
    lines: list[NodeLine]


def advance(replay: Replay) -> CommitDiff:
    """Makes the next commit of a replay and returns what it changed."""
    commit = replay.commits[replay.position]
    numbers = sorted({*commit.touched, *commit.removed, *commit.added, commit.root})
    before = _lines(replay, numbers, "-")
    replay.advance()
    after = _lines(replay, numbers, "+")
    lines = list(_merged(before, after))
    return CommitDiff(commit, len(replay.commits), replay.bindings, lines)


def _lines(replay: Replay, numbers: Iterable[int], mark: str) -> list[NodeLine]:
    index = replay.engine.index
    there = [
        (index.position(node), number, node)
        for number in numbers
        if (node := replay.numbers.node(number)) is not None and node in index
    ]
    there.sort(key=lambda each: each[0])
    return [
        NodeLine(mark, number, _place(index, node), node_text(node, index))
        for _, number, node in there
    ]


def _place(index: Index, node: Node) -> str:
    owner = index.owner(index.graph_of(node))
    return "" if owner is None else f"in {owner.op} `{owner.name or owner.outputs[0].name}`"


def _merged(before: list[NodeLine], after: list[NodeLine]) -> Iterator[NodeLine]:
    """Removed nodes first, then the others in the order of the graph after the commit."""
    old = {line.node: line for line in before}
    remaining = {line.node for line in after}
    yield from (line for line in before if line.node not in remaining)
    for line in after:
        was = old.get(line.node)
        if was is not None and (was.text, was.place) == (line.text, line.place):
            yield replace(line, mark=" ")
            continue
        if was is not None:
            yield was
        yield line


def node_text(node: Node, index: Index) -> str:
    """A node as ONNX text, `y = Conv<group=1>(x, w)`, with the number of nodes for a body."""
    attributes = [f"{name}={_attribute(value, index)}" for name, value in node.attrs.items()]
    shown = f"<{', '.join(attributes)}>" if attributes else ""
    results = ", ".join(t.name or "_" for t in node.outputs)
    domain = f"{node.domain}." if node.domain else ""
    return f"{results} = {domain}{node.op}{shown}({', '.join(map(_operand, node.inputs))})"


def _operand(tensor: Tensor) -> str:
    if not tensor.name:
        return "_"
    if isinstance(tensor, Constant) and int(np.prod(tensor.shape)) <= _FEW:
        return f"{tensor.name}={_elements(tensor)}"
    return str(tensor.name)


def _attribute(value: object, index: Index) -> str:
    if isinstance(value, Graph):
        inside = sum(len(index.nodes(graph)) for graph in index.graphs(value))
        results = ", ".join(t.name for t in value.outputs)
        return f"{{{inside} nodes → {results}}}"
    if isinstance(value, Constant):
        small = int(np.prod(value.shape)) <= _FEW
        return _elements(value) if small else f"{value.dtype}{list(value.shape)}"
    if isinstance(value, list) and len(value) > _FEW:
        return f"[{', '.join(map(str, value[:_FEW]))}, …]"
    return str(value)


def _elements(constant: Constant) -> str:
    return str(np.asarray(constant.values).tolist())
