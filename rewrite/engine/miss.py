"""Why a rule declines, and how messages name nodes, tensors and places."""

from __future__ import annotations

from ..graph.index import Index
from ..graph.ir import Node, Tensor

_MOST_RESULTS = 2
"""The results by which a node without a name is identified."""


class Miss(Exception):
    """Why a rule does not fire: a sentence, the values in it, and the place it is about.

    The `{}` of the sentence are filled in only when the text is read. The place is the root node
    if none is given.
    """

    def __init__(self, sentence: str, *values: object, at: Node | Tensor | None = None) -> None:
        self.sentence = sentence
        self.values = values
        self.at = at
        super().__init__(sentence)

    def __str__(self) -> str:
        sentence = self.sentence if isinstance(self.sentence, str) else describe(self.sentence)
        try:
            return sentence.format(*(describe(v) for v in self.values))
        except (LookupError, ValueError, AttributeError):  # braces that are not placeholders
            return sentence


class Refusal(Miss):
    """The inference engine does not support what the rule would make, or the original is faster."""


def describe(thing: object) -> str:
    """Names a node, tensor or other value in a message: `Add `node` `, `` `tensor` ``, `3`."""
    if isinstance(thing, Node):
        if thing.name:
            return f"{thing.op} `{thing.name}`"
        names = [t.name for t in thing.outputs if t.name]
        # A loop that rules gave more results keeps the name by which its author knows it.
        original = [] if thing.origin is None else [n for n in thing.origin.output if n in names]
        named = [f"`{name}`" for name in filter(None, original or names)]
        more = f" and {len(named) - _MOST_RESULTS} more" if len(named) > _MOST_RESULTS else ""
        return f"{thing.op} of {', '.join(named[:_MOST_RESULTS])}{more}"
    if isinstance(thing, Tensor):
        return f"`{thing.name}`"
    if isinstance(thing, (tuple, list, frozenset, set)):
        return ", ".join(describe(t) for t in thing)
    return str(thing)


def body_path(index: Index, node: Node) -> str:
    """The bodies around a node, innermost first; empty in the main graph."""
    parts = []
    graph = index.graph_of(node)
    while (owner := index.owner(graph)) is not None:
        name = next((k for k, v in owner.attrs.items() if v is graph), "body")
        parts.append(f"{name} of {describe(owner)}")
        graph = index.graph_of(owner)
    return ", in ".join(parts)
