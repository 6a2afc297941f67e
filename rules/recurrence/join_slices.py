"""Slices of a sequence put together again are the sequence.

y = Concat(Unsqueeze(x[0]), Unsqueeze(x[1]), Unsqueeze(x[2]))   ->   y = x
"""

from __future__ import annotations

from typing import Any

from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.axes import named_axes
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.reads import AxisRange, axis_element
from ...rewrite.graph.ir import Node, Tensor


class ConcatOfSlices(Rule):
    """Slices of a sequence in their order, or the opposite, joined are a stretch of the sequence."""

    root = "Concat"
    fires = """g (float[2,N] x) => (float[2,N] y) <int64 p = {0}, int64 q = {1}, int64[1] a = {0}> {
      u = Gather<axis=0>(x, p) v = Gather<axis=0>(x, q) s = Unsqueeze(u, a) t = Unsqueeze(v, a)
      w = Concat<axis=0>(s, t) y = Neg(w) }"""
    spares = {
        "in their order": """g (float[3,N] x) => (float[2,N] y) <int64 p = {2}, int64 q = {0}, int64[1] a = {0}> {
      u = Gather<axis=0>(x, p) v = Gather<axis=0>(x, q) s = Unsqueeze(u, a) t = Unsqueeze(v, a)
      w = Concat<axis=0>(s, t) y = Neg(w) }""",
        "no slice": """g (float[1,N] x) => (float[2,N] y) {
      u = Neg(x) w = Concat<axis=0>(u, x) y = Neg(w) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        node = m.node
        m.need(len(node.inputs) > 1, "it joins one value")
        rank = m.facts.rank(node.outputs[0])
        m.need(rank is not None, "the rank of {} is not known", node.outputs[0])
        assert rank is not None
        axis = int(node.attrs["axis"]) % rank
        first, second = (_joined(m.facts, tensor, axis) for tensor in node.inputs[:2])
        m.need(first is not None, "{} is no slice", node.inputs[0])
        assert first is not None
        there, lacks_axis = first
        step = -1 if second is not None and second[0].start < there.start else 1
        for number, tensor in enumerate(node.inputs):
            expected = there.element(there.start + number * step), lacks_axis
            m.need(_joined(m.facts, tensor, axis) == expected,
                   "{} is not the next of the slices in their order", tensor)  # fmt: skip
        return {"node": node, "facts": m.facts, "first": there, "step": step, "axis": axis,
                "apart": lacks_axis}  # fmt: skip

    def apply(
        self,
        patch: Patch,
        node: Node,
        facts: Facts,
        first: AxisRange,
        step: int,
        axis: int,
        apart: bool,
    ) -> None:
        shape = facts.shape(first.source)
        assert shape is not None, "slices are of values of known rank"
        emit = patch.builder(node.outputs[0])
        value = first.source
        last = first.start + len(node.inputs) * step
        if len(node.inputs) != shape[first.axis] or step != 1:
            order = slice(first.start, last if last >= 0 else None, step)
            value = emit.slice(value, first.axis, order)
        source, rank = first.axis, len(shape)
        if not apart:  # the slices have an axis of size 1 where they are joined
            unit = axis if axis < source else axis + 1
            value, rank = emit.squeeze(value, [unit]), rank - 1
            source -= unit < source
        patch.replace(node.outputs[0], emit.move_axis(value, source, axis, rank))
        patch.toward_normal_form()
        patch.remove(node)


def _joined(facts: Facts, tensor: Tensor, axis: int) -> tuple[AxisRange, bool] | None:
    """The slice that a joined value is, and whether it got the axis only to be joined."""
    node = facts.index.producer(tensor)
    if node is not None and node.op == "Unsqueeze" and not node.domain:
        inner = axis_element(facts, node.inputs[0])
        if inner is not None and not inner.keeps_axis and named_axes(facts, node) == [axis]:
            return inner, True
    own, shape = axis_element(facts, tensor), facts.shape(tensor)
    if own is None or own.keeps_axis or shape is None or axis >= len(shape) or shape[axis] != 1:
        return None
    return own, False
