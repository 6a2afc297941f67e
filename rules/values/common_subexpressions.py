"""Common-subexpression elimination.

a = Shape(x)   b = Shape(x)   ->   a = Shape(x)
"""

from __future__ import annotations

from dataclasses import dataclass

from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import ANY, Match, Rule
from ...rewrite.facts.purity import is_pure
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Node


@dataclass(frozen=True)
class EqualNodes:
    """Two nodes that compute the same values."""

    kept: Node
    """Runs whenever the other one runs, and before it."""
    repeated: Node


class EliminateCommonSubexpression(Rule[EqualNodes]):
    """Removes a node that repeats an earlier one of the same or an enclosing graph."""

    root = ANY
    fires = "g (float[2] x) => (float[2] y) { a = Exp(x) b = Exp(x) y = Add(a, b) }"
    spares = {
        "no other node": "g (float[2] x) => (float[2] y) { a = Exp(x) b = Log(x) y = Add(a, b) }",
    }

    def match(self, m: Match) -> EqualNodes:
        node = m.node
        m.need(node.inputs and not m.index.is_unused(node), "it has no operands or no readers")
        pairs = [p for p in m.facts.value_numbering.equal_nodes(node) if _can_replace(m.index, *p)]
        m.need(
            bool(pairs) and is_pure(node, m.index),
            "no other node with the same operands and attributes is visible",
        )
        for kept, repeated in pairs:
            if not any(map(m.index.is_model_output, repeated.outputs)):
                return EqualNodes(kept, repeated)
        raise Miss("{} computes an output of the model", pairs[0][1], at=node)

    def apply(self, patch: Patch, found: EqualNodes) -> None:
        patch.replace_node(found.repeated, found.kept.outputs)


def _can_replace(index: Index, kept: Node, repeated: Node) -> bool:
    """Whether the kept node returns every result of the other one that is read."""
    pairs = zip(repeated.outputs, kept.outputs)
    return all(new.name for old, new in pairs if index.use_count(old))
