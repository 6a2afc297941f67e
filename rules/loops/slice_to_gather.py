"""Slices of one element, at a position that depends on the iteration, are Gathers.

x_t = Slice(x, i, i + 1)    ->    x_t = Unsqueeze(Gather(x, i))
"""

from __future__ import annotations

from typing import Any

from ...rewrite import symbolic
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Node
from .iteration_positions import loop_around, need_cut, need_inside, need_outer, need_progression


class SliceToGather(Rule):
    """A Slice of one element, at a position that depends on the iteration, is a Gather."""

    root = "Slice"
    fires = """g (float[T,3] x, float[1,3] s0) => (float[1,3] y) {
      zero = Constant<value_ints=[0]>() one = Constant<value_ints=[1]>()
      all = Shape(x) t = Gather(all, zero) n = Squeeze(t)
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[1,3] s) => (bool co, float[1,3] so) {
        k = Unsqueeze(i, zero) e = Add(k, one) xt = Slice(x, k, e, zero)
        co = Identity(ci) so = Max(s, xt) }> }"""
    spares = {
        "may be outside": """g (float[T,3] x, float[1,3] s0, int64 n) => (float[P,3] y) {
      zero = Constant<value_ints=[0]>() one = Constant<value_ints=[1]>()
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[P,3] s) => (bool co, float[P,3] so) {
        k = Unsqueeze(i, zero) e = Add(k, one) xt = Slice(x, k, e, zero)
        co = Identity(ci) so = Concat<axis=0>(s, xt) }> }""",
        "more than one": """g (float[9,3] x, float[2,3] s0) => (float[2,3] y) {
      zero = Constant<value_ints=[0]>() two = Constant<value_ints=[2]>() n = Constant<value_int=4>()
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[2,3] s) => (bool co, float[2,3] so) {
        k = Unsqueeze(i, zero) e = Add(k, two) xt = Slice(x, k, e, zero)
        co = Identity(ci) so = Max(s, xt) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = loop_around(m)
        m.need(len(m.node.inputs) > 2, "before opset 10 the bounds of a Slice are attributes")
        x = m.node.inputs[0]
        need_outer(m, view, x)
        shape = m.need(m.facts.shape(x), "the rank of `{}` is not known", x.name, at=x)
        cut = need_cut(m, shape)
        axis = cut.axis
        m.need(cut.extent == 1, "it takes more than one element: {}", cut.extent)
        assert cut.start is not None
        found = need_progression(m, view, cut.start, m.node.inputs[1])
        need_inside(m, view, found, 1, shape[axis])
        result = m.facts.shape(m.node.outputs[0])
        found_one = result is not None and symbolic.eq(result[axis], 1) is not False
        m.need(found_one, "there is nothing to read: axis {} of `{}` is empty", axis, x.name, at=x)
        return {"node": m.node, "axis": axis, "slot": cut.number}

    def apply(self, patch: Patch, node: Node, axis: int, slot: int) -> None:
        emit = patch.builder(node.outputs[0])
        position = emit("Gather", node.inputs[1], emit.scalar(slot), axis=0)
        read = emit("Gather", node.inputs[0], position, axis=axis)
        patch.replace(node.outputs[0], emit.unsqueeze(read, [axis]))
        patch.remove(node)
        patch.toward_normal_form()
