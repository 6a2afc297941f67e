"""Two nodes that compute the same: the later one goes.

a = Shape(x)   b = Shape(x)   ->   a = Shape(x)
"""

from __future__ import annotations

from typing import Any

from ..rewrite.fingerprint import fingerprint
from ..rewrite.index import Index
from ..rewrite.ir import Constant, Node, Tensor
from ..rewrite.patch import Patch
from ..rewrite.purity import is_pure
from ..rewrite.rule import ANY, Match, Rule

_LOOKED_AT = 32
"""Readers of the common operand that are compared: keeps the cost of one node constant."""


class MergeEqualNodes(Rule):
    """A node that repeats an earlier one, here or in an enclosing graph, reads its results."""

    root = ANY
    fires = "g (float[2] x) => (float[2] y) { a = Exp(x) b = Exp(x) y = Add(a, b) }"
    spares = {
        "no other node": "g (float[2] x) => (float[2] y) { a = Exp(x) b = Log(x) y = Add(a, b) }",
    }

    def match(self, m: Match) -> dict[str, Any]:
        node = m.node
        m.need(node.inputs and not m.index.is_unused(node), "it has no operands or no readers")
        pair = _twins(m)
        found = m.need(pair, "no other node with the same operands and attributes is visible")
        for mine in found[1].outputs:
            m.need(not m.index.is_model_output(mine), "`{}` is an output of the model", mine.name)
        return {"kept": found[0], "gone": found[1]}

    def apply(self, patch: Patch, kept: Node, gone: Node) -> None:
        patch.replace_node(gone, kept.outputs)


def _twins(m: Match) -> tuple[Node, Node] | None:
    """Two nodes that compute the same, the one that runs first and the other."""
    operand = _rarest(m)
    if operand is None:
        return None
    others = [n for n in m.index.consumers(operand) if n.op == m.node.op and n is not m.node]
    if not others or not is_pure(m.node):
        return None
    mine = fingerprint(m.node, m.index)
    for other in others:
        if fingerprint(other, m.index) != mine:
            continue
        for kept, gone in ((other, m.node), (m.node, other)):
            if _stands_before(m.index, kept, gone) and _gives_all(m.index, kept, gone):
                return kept, gone
    return None


def _rarest(m: Match) -> Tensor | None:
    """An operand with few readers that a twin reads too; it may have constants of its own."""
    operands = [t for t in m.node.inputs if t.name]
    computed = [t for t in operands if not isinstance(t, Constant)]
    for choice in (computed, operands):
        rarest = min(choice, key=m.index.use_count, default=None)
        if rarest is not None and m.index.use_count(rarest) <= _LOOKED_AT:
            return rarest
    return None


def _gives_all(index: Index, kept: Node, gone: Node) -> bool:
    """Whether the kept node has a name for every result of the other that is read."""
    pairs = zip(gone.outputs, kept.outputs)
    return all(b.name for a, b in pairs if index.use_count(a))


def _stands_before(index: Index, other: Node, node: Node) -> bool:
    """Whether `other` has run whenever `node` runs."""
    place = index.ancestor_in(node, index.graph_of(other))
    return place is not None and other.order < place.order
