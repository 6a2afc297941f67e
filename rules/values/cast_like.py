"""Casts that say what they cast to.

y = CastLike(x, like)   ->   y = Cast<to=float>(x)
"""

from __future__ import annotations

from typing import Any

from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Node


class CastLikeToCast(Rule):
    """A CastLike to a type that is known becomes a Cast."""

    root = "CastLike"
    fires = "g (int64[3] x, float[N] like) => (float[3] y) { y = CastLike(x, like) }"
    spares = {
        "is not known": """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
      g (int64[3] x, float[N] a) => (float[3] y) {
      like = com.microsoft.Gelu(a)  y = CastLike(x, like) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        like = m.node.inputs[1]
        dtype = m.need(
            m.facts.dtype(like) or None, "the type of `{}` is not known", like.name, at=like
        )
        return {"node": m.node, "dtype": dtype}

    def apply(self, patch: Patch, node: Node, dtype: int) -> None:
        attributes = {**node.attrs, "to": dtype}
        cast = patch.node("Cast", node.inputs[:1], node.outputs, attributes)
        patch.replace_node(node, cast)
        patch.toward_normal_form()
