"""The nodes a step touches, as text: before, after, and what is different."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ..rewrite.graph.index import Index
from ..rewrite.graph.ir import Constant, Graph, Node, Tensor
from .replay import Replay
from .trace_file import CommitLine

_FEW = 4
"""Elements of a constant, or numbers of a list, that are written out."""


@dataclass(frozen=True)
class Line:
    """One node."""

    mark: str
    """`-` for how it was, `+` for how it is, a space for one that stayed as it was."""
    number: int
    """The number of the node in the trace."""
    place: str
    """The body it stands in; empty for the main graph."""
    text: str

    def __str__(self) -> str:
        place = f"  ({self.place})" if self.place else ""
        return f"{self.mark} {self.text}{place}"


@dataclass(frozen=True)
class Step:
    """One step with the region it touches."""

    commit: CommitLine
    steps: int
    """The number of steps of the whole rewrite."""
    lines: list[Line]


def advance(replay: Replay) -> Step:
    """Makes the next commit of a replay and tells what it changed."""
    commit = replay.commits[replay.step]
    numbers = sorted({*commit.touched, *commit.removed, *commit.added, commit.number})
    before = _lines(replay, numbers, "-")
    replay.advance()
    after = _lines(replay, numbers, "+")
    return Step(commit, len(replay.commits), list(_merged(before, after)))


def _lines(replay: Replay, numbers: Iterable[int], mark: str) -> list[Line]:
    index = replay.engine.index
    there = [
        (index.position(node), number, node)
        for number in numbers
        if (node := replay.numbers.node(number)) is not None and node in index
    ]
    there.sort(key=lambda each: each[0])
    return [
        Line(mark, number, _place(replay, node), node_text(node, index))
        for _, number, node in there
    ]


def _place(replay: Replay, node: Node) -> str:
    owner = replay.engine.index.owner(replay.engine.index.graph_of(node))
    return "" if owner is None else f"in {owner.op} `{owner.name or owner.outputs[0].name}`"


def _merged(before: list[Line], after: list[Line]) -> Iterable[Line]:
    """What is gone, then the others in the order of the graph afterwards."""
    old = {line.number: line for line in before}
    left = {line.number for line in after}
    yield from (line for line in before if line.number not in left)
    for line in after:
        was = old.get(line.number)
        if was is not None and (was.text, was.place) == (line.text, line.place):
            yield replace(line, mark=" ")
            continue
        if was is not None:
            yield was
        yield line


def node_text(node: Node, index: Index) -> str:
    """`y = Conv<group=1>(x, w)`; bodies by their size."""
    attributes = [f"{name}={_attribute(value, index)}" for name, value in node.attrs.items()]
    shown = f"<{', '.join(attributes)}>" if attributes else ""
    results = ", ".join(t.name or "_" for t in node.outputs)
    domain = f"{node.domain}." if node.domain else ""
    return f"{results} = {domain}{node.op}{shown}({', '.join(map(_operand, node.inputs))})"


def _operand(tensor: Tensor) -> str:
    if not tensor.name:
        return "_"
    if isinstance(tensor, Constant) and int(np.prod(tensor.shape)) <= _FEW:
        return f"{tensor.name}={_values(tensor)}"
    return str(tensor.name)


def _attribute(value: object, index: Index) -> str:
    if isinstance(value, Graph):
        inside = sum(len(index.nodes(graph)) for graph in index.graphs(value))
        results = ", ".join(t.name for t in value.outputs)
        return f"{{{inside} nodes → {results}}}"
    if isinstance(value, Constant):
        small = int(np.prod(value.shape)) <= _FEW
        return _values(value) if small else f"{value.dtype}{list(value.shape)}"
    if isinstance(value, list) and len(value) > _FEW:
        return f"[{', '.join(map(str, value[:_FEW]))}, …]"
    return str(value)


def _values(constant: Constant) -> str:
    return str(np.asarray(constant.values).tolist())
