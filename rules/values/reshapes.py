"""Changes of shape that lead back to the shape there was."""

from __future__ import annotations

from typing import Any

from ...rewrite.engine.edits import can_be_output
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.symbolic import Dim

_IN_ORDER = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")
"""Operators that give the same elements in the same order, in another shape."""
_LONGEST = 16
"""Changes of shape in a row that are looked at."""


class EliminateRedundantReshape(Rule):
    """A value in the shape that it, or what it was reshaped from, has already.

    A Slice that takes all in steps of 1 and a Transpose that moves no axis count as well.
    """

    root = (*_IN_ORDER, "Expand", "Slice", "Transpose")
    fires = """g (float[N,3] x) => (float[N,3] y) {
      a = Constant<value_ints=[1]>() u = Unsqueeze(x, a) s = Squeeze(u, a) y = Neg(s) }"""
    spares = {
        "has that shape": """g (float[N,3] x) => (float[M] y) {
      a = Constant<value_ints=[-1]>() u = Reshape(x, a) y = Neg(u) }""",
        "a node of its own": """g (float[N,3] x) => (float[N,3] y) {
      a = Constant<value_ints=[1]>() u = Unsqueeze(x, a) y = Squeeze(u, a) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        result = m.node.outputs[0]
        m.need(not m.index.is_unused(m.node), "nobody reads it")
        if m.node.op == "Slice":
            m.need(_in_steps_of_one(m), "its steps are not all 1")
        if m.node.op == "Transpose":
            perm = m.node.attrs.get("perm")
            m.need(perm is not None and perm == sorted(perm), "it moves an axis")
        shape = m.need(m.facts.shape(result), "the rank of `{}` is not known", result.name)
        sentence = "nothing that `{}` is made from has that shape"
        source: Tensor | None = _of_shape(m, shape)
        m.need(source is not None, sentence, result.name)
        assert source is not None
        if m.index.is_model_output(result):
            own = can_be_output(m.index, source)
            m.need(own, "`{}` is an output of the model and needs a node of its own", result.name)
        return {"node": m.node, "source": source}

    def apply(self, patch: Patch, node: Node, source: Tensor) -> None:
        patch.replace(node.outputs[0], source)
        patch.remove(node)


def _of_shape(m: Match, shape: tuple[Dim, ...]) -> Tensor | None:
    """The nearest value of a shape that the root has its elements from, in their order."""
    node: Node | None = m.node
    for _ in range(_LONGEST):
        if node is None:
            return None
        source: Tensor = node.inputs[0]
        found = m.facts.shape(source)
        if found == shape:
            return source
        if node.op not in _IN_ORDER and found != m.facts.shape(node.outputs[0]):
            return None
        node = m.producer(source, *_IN_ORDER, "Expand")
    return None


def _in_steps_of_one(m: Match) -> bool:
    """Whether a Slice leaves out nothing between the elements it takes, nor turns them round."""
    if len(m.node.inputs) < 5 or not m.node.inputs[4].name:
        return True
    steps = m.facts.constant(m.node.inputs[4])
    return steps is not None and bool((steps == 1).all())
