"""Two nodes that compute the same: the later one goes.

a = Shape(x)   b = Shape(x)   ->   a = Shape(x)
"""

from __future__ import annotations

from typing import Any

from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import ANY, Match, Rule
from ...rewrite.facts.purity import is_pure
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Node


class EliminateCommonSubexpression(Rule):
    """A node that repeats an earlier one, here or in an enclosing graph, reads its results."""

    root = ANY
    fires = "g (float[2] x) => (float[2] y) { a = Exp(x) b = Exp(x) y = Add(a, b) }"
    spares = {
        "no other node": "g (float[2] x) => (float[2] y) { a = Exp(x) b = Log(x) y = Add(a, b) }",
    }

    def match(self, m: Match) -> dict[str, Any]:
        node = m.node
        m.need(node.inputs and not m.index.is_unused(node), "it has no operands or no readers")
        pairs = m.facts.value_numbering.equal_nodes(node)
        pairs = (
            [p for p in pairs if _gives_all(m.index, *p)]
            if pairs and is_pure(node, m.index)
            else []
        )
        m.need(bool(pairs), "no other node with the same operands and attributes is visible")
        for kept, gone in pairs:
            if not any(map(m.index.is_model_output, gone.outputs)):
                return {"kept": kept, "gone": gone}
        raise Miss("{} gives an output of the model", pairs[0][1], at=node)

    def apply(self, patch: Patch, kept: Node, gone: Node) -> None:
        patch.replace_node(gone, kept.outputs)


def _gives_all(index: Index, kept: Node, gone: Node) -> bool:
    """Whether the kept node has a name for every result of the other that is read."""
    pairs = zip(gone.outputs, kept.outputs)
    return all(b.name for a, b in pairs if index.use_count(a))
