"""Tail duplication: copies what follows an If into both branches, where ranks are known.

    v = If(c) <then { a = Squeeze(x, 0) return a }, else { return x }>
    y = ReduceSum(Exp(v), 0)
        ->
    y = If(c) <then { a = Squeeze(x, 0)  y = ReduceSum(Exp(a), 0)  return y },
               else { y = ReduceSum(Exp(x), 0)  return y }>

A Relax operator needs to know the ranks of its operands. Where the branches of an If return values
of different ranks, the nodes that read them move into the branches, until the ranks agree again or
the graph ends. Only the import needs this; onnxruntime computes ranks at run time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..rewrite.engine.engine import Engine
from ..rewrite.engine.miss import Miss
from ..rewrite.engine.patch import Patch
from ..rewrite.engine.rule import Match, Phase, Rule
from ..rewrite.facts.facts import Facts
from ..rewrite.graph.index import Index
from ..rewrite.graph.ir import Graph, Node, Tensor, bodies
from ..rewrite.graph.views import IfView
from ..rules.branches.branch_outputs import EliminateDeadBranchOutputs
from ..rules.branches.decided_if import InlineDecidedIf
from ..rules.branches.same_condition import CollapseNestedIf
from ..rules.values.constants import FoldConstants
from ..rules.values.dead_nodes import EliminateDeadNode
from .operators import Accepts, find

_MOST_NODES = 4096
"""The most nodes that the copies of one tail may have together. Each If around it doubles them."""


@dataclass(frozen=True)
class Tail:
    """The nodes that depend on results of an If whose rank differs between its branches."""

    nodes: list[Node]
    """In the order of the graph."""
    operands: list[Node]
    """Nodes after the If that compute operands of these nodes, and do not depend on the If."""
    results: list[Tensor]
    """The values that they compute and something else reads."""


class DuplicateTail(Rule[Tail]):
    """Moves nodes that depend on results of several ranks into the branches of an If."""

    root = "If"
    fires = """g (float[N,M] x) => (float[1] y)
      <int64 z = {0}, int64 one = {1}, int64[1] ones = {0}> {
      s = Shape(x)  d = Gather(s, z)  c = Equal(d, one)
      v = If (c) <then_branch = t () => (float[M] a) <int64[1] ax = {0}> { a = Squeeze(x, ax) },
                  else_branch = e () => (float[N,M] b) { b = Neg(x) }>
      w = Exp(v)  f = ReduceSum<keepdims = 0>(w)  y = Unsqueeze(f, ones) }"""
    spares: ClassVar = {
        "the rank of no result": """g (float[N,M] x, bool c) => (float[N,M] y) {
      v = If (c) <then_branch = t () => (float[N,M] a) { a = Exp(x) },
                  else_branch = e () => (float[N,M] b) { b = Neg(x) }>
      y = Exp(v) }""",
        "takes any rank": """g (float[N,M] x, bool c) => (int64[K] y) <int64[1] ax = {0}> {
      v = If (c) <then_branch = t () => (float[1,N,M] a) { a = Unsqueeze(x, ax) },
                  else_branch = e () => (float[N,M] b) { b = Neg(x) }>
      y = Shape(v) }""",
    }

    def match(self, m: Match) -> Tail:
        values = _results_of_several_ranks(m.facts, m.node)
        m.need(bool(values), "the rank of no result depends on the branch")
        found = _TailFinder(m.index, m.facts, m.node, values)
        m.need(found.needs_rank, "every reader of {} takes any rank", values)
        size = sum(1 for node in found.nodes for _ in _inside(m.index, node))
        branches = 2 ** (1 + sum(owner.op == "If" for owner in _owners(m.index, m.node)))
        if size * branches > _MOST_NODES:
            sentence = "{} nodes depend on it, and copies in {} branches would exceed {} nodes"
            raise Miss(sentence, size, branches, _MOST_NODES, at=m.node)
        results = found.results()
        m.need(bool(results), "nothing reads what is computed from {}", values)
        return Tail(found.nodes, found.operands(), results)

    def apply(self, patch: Patch, found: Tail) -> None:
        node = patch.root
        patch.hoist(found.operands, node)
        view, results = IfView(node), {}
        for branch in (view.then, view.orelse):
            renamed = dict(zip(node.outputs, branch.outputs, strict=True))
            patch.clone_last(found.nodes, renamed, branch)
            results[branch] = [renamed[tensor] for tensor in found.results]
        added = patch.add_outputs(node, like=found.results, results=results)
        for old, new in zip(found.results, added, strict=True):
            patch.replace(old, new)
        for each in reversed(found.nodes):
            patch.remove(each)
        patch.decompose_operator()


PHASE = Phase(
    "ranks",
    (
        DuplicateTail,
        CollapseNestedIf,
        InlineDecidedIf,
        EliminateDeadBranchOutputs,
        EliminateDeadNode,
        FoldConstants,
    ),
    "gives each value one rank",
)
"""The rules that make ranks known. Others do not run, as they may move code out of branches."""


def duplicate_tails(engine: Engine) -> tuple[Engine, Mapping[Tensor, str]]:
    """Duplicates tails in the graph of a finished engine, so that the rank of each value is known.

    Returns the engine that did so, or the given one if there was nothing to do. Also returns, for
    each result of an If whose rank stays unknown, the reason.
    """
    if not any(_results_of_several_ranks(engine.facts, node) for node in _ifs(engine)):
        return engine, {}
    second = Engine(engine.model, (PHASE,), engine.assertions, engine.options)
    second.run()
    reasons: dict[Tensor, str] = {}
    for node in _ifs(second):
        try:
            second.match(DuplicateTail(), node)
        except Miss as miss:
            reasons.update(dict.fromkeys(node.outputs, str(miss)))
    return second, reasons


def _ifs(engine: Engine) -> Iterator[Node]:
    return (node for node in engine.index.walk() if node.op == "If" and not node.domain)


def _results_of_several_ranks(facts: Facts, node: Node) -> list[Tensor]:
    """The results of an If whose rank differs between the branches, and that something reads."""
    view = IfView(node)
    return [
        tensor
        for tensor, *returned in zip(node.outputs, view.then.outputs, view.orelse.outputs)
        if facts.index.use_count(tensor)
        and _has_several_ranks(facts, tensor)
        and all(facts.of(value).possible_ranks() is not None for value in returned)
    ]


def _has_several_ranks(facts: Facts, tensor: Tensor) -> bool:
    ranks = facts.of(tensor).possible_ranks()
    return ranks is None or len(ranks) > 1


class _TailFinder:
    """Finds the nodes that depend on values of several ranks, and the nodes between them."""

    def __init__(self, index: Index, facts: Facts, root: Node, values: Iterable[Tensor]) -> None:
        self._index, self._facts, self._root = index, facts, root
        self._home = index.graph_of(root)
        self.needs_rank = False
        """Whether a node needs the rank of an operand that has several ranks."""
        found = self._readers_of_several_ranks(values)
        last = max((node.order for node in found), default=root.order)
        ordered = index.nodes_in_order(self._home)
        self._after = [node for node in ordered if root.order < node.order <= last]
        self._moved = self._with_nodes_between(found)
        self.nodes = [node for node in self._after if node in self._moved]

    def _readers_of_several_ranks(self, values: Iterable[Tensor]) -> set[Node]:
        found: set[Node] = set()
        pending = list(values)
        while pending:
            tensor = pending.pop()
            for reader, _ in self._index.uses(tensor):
                inside = reader if isinstance(reader, Node) else self._index.owner(reader)
                node = None if inside is None else self._index.ancestor_in(inside, self._home)
                if node is None or reader is self._home:
                    continue
                if isinstance(reader, Node):
                    converter = find(reader.domain, reader.op)
                    takes_any = converter is not None and Accepts.ANY_RANK in converter.accepts
                    self.needs_rank = self.needs_rank or not takes_any
                if node not in found:
                    found.add(node)
                    more = [t for t in node.outputs if _has_several_ranks(self._facts, t)]
                    pending += [t for t in more if t.name]
        return found

    def _with_nodes_between(self, found: set[Node]) -> set[Node]:
        """The nodes and all nodes on a path from the If to one of them, which must move as well."""
        dependent = {self._root}
        for node in self._after:
            if not dependent.isdisjoint(self._producers(node)):
                dependent.add(node)
        needed = set(found)
        for node in reversed(self._after):
            if node in needed:
                needed.update(dependent.intersection(self._producers(node)))
        return needed - {self._root}

    def operands(self) -> list[Node]:
        """Nodes after the If that the tail reads, directly or not, and that are not in it."""
        needed = set(self._moved)
        for node in reversed(self._after):
            if node in needed:
                needed.update(self._producers(node))
        return [node for node in self._after if node in needed - self._moved]

    def results(self) -> list[Tensor]:
        """The values of the tail that something else reads."""
        return [
            tensor
            for node in self.nodes
            for tensor in node.outputs
            if any(not self._is_in_tail(use.reader) for use in self._index.uses(tensor))
        ]

    def _is_in_tail(self, reader: Node | Graph) -> bool:
        if reader is self._home:
            return False
        node = reader if isinstance(reader, Node) else self._index.owner(reader)
        ancestor = None if node is None else self._index.ancestor_in(node, self._home)
        return ancestor in self._moved

    def _producers(self, node: Node) -> Iterator[Node]:
        """The nodes that compute what a node reads, itself or in its bodies."""
        for tensor in (*node.inputs, *self._index.captures(node)):
            producer = self._index.producer(tensor)
            if producer is not None:
                yield producer


def _owners(index: Index, node: Node) -> Iterator[Node]:
    """The nodes in whose bodies a node is."""
    for graph in index.ancestors(index.graph_of(node)):
        owner = index.owner(graph)
        if owner is not None:
            yield owner


def _inside(index: Index, node: Node) -> Iterator[Node]:
    """A node and the nodes in its bodies."""
    yield node
    for body in bodies(node):
        for inner in index.nodes(body):
            yield from _inside(index, inner)
