"""Changes of shape that lead back to an earlier shape.

u = Unsqueeze(x, [1])   y = Squeeze(u, [1])   ->   y = x
"""

from __future__ import annotations

from ...rewrite.engine.edits import can_be_output
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.reads import axis_slices
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.symbolic import Dim

_SAME_ELEMENTS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")
"""Operators that return the elements of their operand, in their order, in another shape."""
_LONGEST_CHAIN = 16
"""The most changes of shape in a row that the rule follows."""


class EliminateRedundantReshape(Rule[Tensor]):
    """Removes changes of shape that lead back to an earlier shape, and Slices of everything."""

    root = (*_SAME_ELEMENTS, "Expand", "Slice", "Transpose")
    fires = """g (float[N,3] x) => (float[N,3] y) {
      a = Constant<value_ints=[1]>() u = Unsqueeze(x, a) s = Squeeze(u, a) y = Neg(s) }"""
    spares = {
        "has that shape": """g (float[N,3] x) => (float[M] y) {
      a = Constant<value_ints=[-1]>() u = Reshape(x, a) y = Neg(u) }""",
        "a node of its own": """g (float[N,3] x) => (float[N,3] y) {
      a = Constant<value_ints=[1]>() u = Unsqueeze(x, a) y = Squeeze(u, a) }""",
    }

    def match(self, m: Match) -> Tensor:
        result = m.node.outputs[0]
        m.need(not m.index.is_unused(m.node), "nothing reads it")
        if m.node.op == "Slice":
            slices = m.need(axis_slices(m.facts, m.node), "its axes or steps are not known")
            m.need(all(each.step == 1 for each in slices), "its steps are not all 1")
        if m.node.op == "Transpose":
            perm = m.node.attrs.get("perm")
            m.need(perm is not None and perm == sorted(perm), "it moves an axis")
        shape = m.need(m.facts.shape(result), "the rank of {} is not known", result)
        source = m.need(
            _source_of_shape(m, shape), "no value that {} is reshaped from has that shape", result
        )
        if m.index.is_model_output(result):
            own = can_be_output(m.index, source)
            m.need(own, "{} is an output of the model and needs a node of its own", result)
        return source

    def apply(self, patch: Patch, found: Tensor) -> None:
        patch.replace_node(patch.root, [found])


def _source_of_shape(m: Match, shape: tuple[Dim, ...]) -> Tensor | None:
    """The nearest value of this shape with the same elements in the same order; None if none."""
    node: Node | None = m.node
    for _ in range(_LONGEST_CHAIN):
        if node is None:
            return None
        source: Tensor = node.inputs[0]
        found = m.facts.shape(source)
        if found == shape:
            return source
        if node.op not in _SAME_ELEMENTS and found != m.facts.shape(node.outputs[0]):
            return None
        node = m.producer(source, *_SAME_ELEMENTS, "Expand")
    return None
