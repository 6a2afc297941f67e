"""The RNN operators read a sequence backwards themselves.

Y = LSTM(x[::-1])  y = Y[::-1]   ->   y = LSTM<direction = reverse>(x)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...rewrite import symbolic
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.axes import named_axes
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.reads import axis_slices
from ...rewrite.graph.ir import Node, Tensor
from .shapes import only_number

_WEIGHTS = """<float[1,3,2] w = {0.1, 0.2, 0.3, -0.1, -0.2, -0.3},
       float[1,3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}, int64[1] m = {-1}, int64[1] l = {-9223372036854775807},
       int64[1] a = {0}> { """


@dataclass(frozen=True)
class Way:
    """How a value is a transposed reversal of another."""

    source: Tensor
    """What is reversed."""
    orders: list[list[int]]
    """The transpositions that follow, the last one first."""


class AbsorbReversal(Rule):
    """An operator between two reversals of the time runs the other way instead."""

    root = ("LSTM", "GRU", "RNN")
    fires = (
        "g (float[T,B,2] x) => (float[T,1,B,3] y) "
        + _WEIGHTS
        + """v = Slice(x, m, l, a, m) u = RNN<hidden_size=3>(v, w, r) y = Slice(u, m, l, a, m) }"""
    )
    spares = {
        "is no reversed": "g (float[T,B,2] x) => (float[T,1,B,3] y) "
        + _WEIGHTS
        + "y = RNN<hidden_size=3>(x, w, r) }",
        "not reversed": "g (float[T,B,2] x) => (float[T,1,B,3] y, float[T,1,B,3] z) "
        + _WEIGHTS
        + """v = Slice(x, m, l, a, m) u = RNN<hidden_size=3>(v, w, r) y = Slice(u, m, l, a, m)
          z = Neg(u) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        node = m.node
        way = direction(node)
        m.need(way != "bidirectional", "it runs both ways already")
        plain = len(node.inputs) < 5 or not node.inputs[4].name
        m.need(plain and not node.attrs.get("layout", 0), "it has sequence lengths or a layout")
        found = reversal(m.facts, node.inputs[0], 0)
        m.need(found is not None, "{} is no reversed sequence", node.inputs[0])
        ends = _reversals_of(m.facts, node.outputs[0], 0) if node.outputs[0].name else []
        m.need(ends is not None, "{} is also read when it is not reversed", node.outputs[0])
        return {"node": node, "found": found, "ends": ends, "way": way}

    def apply(self, patch: Patch, node: Node, found: Way, ends: list[Node], way: str) -> None:
        emit = patch.builder(node.inputs[0])
        x = found.source
        for order in reversed(found.orders):
            x = emit.transpose(x, order)
        patch.replace_input(node, 0, x)
        patch.set_attribute(node, "direction", "reverse" if way == "forward" else "forward")
        for end in ends:
            patch.replace(end.outputs[0], end.inputs[0])
            patch.remove(end)
        patch.toward_normal_form()


class AbsorbReversalOfWholeSequence(Rule):
    """A ReverseSequence that reverses every sequence from end to end is a Slice."""

    root = "ReverseSequence"
    fires = """g (float[T,B,2] x) => (float[T,B,2] y) {
      t = Shape<start=0, end=1>(x) b = Shape<start=1, end=2>(x) l = Expand(t, b)
      y = ReverseSequence<time_axis=0, batch_axis=1>(x, l) }"""
    spares = {
        "are not known to be": """g (float[T,B,2] x, int64[B] l) => (float[T,B,2] y) {
      y = ReverseSequence<time_axis=0, batch_axis=1>(x, l) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        node = m.node
        shape = m.facts.shape(node.inputs[0])
        m.need(shape is not None, "the rank of {} is not known", node.inputs[0])
        assert shape is not None
        axis = int(node.attrs.get("time_axis", 0)) % len(shape)
        length = only_number(m.facts, node.inputs[1])
        whole = length is not None and symbolic.eq(length, shape[axis]) is True
        m.need(whole, "the lengths {} are not known to be {}", node.inputs[1], shape[axis])
        return {"node": node, "axis": axis}

    def apply(self, patch: Patch, node: Node, axis: int) -> None:
        emit = patch.builder(node.outputs[0])
        patch.replace(node.outputs[0], emit.reverse(node.inputs[0], axis))
        patch.remove(node)
        patch.toward_normal_form()


def direction(node: Node) -> str:
    way = node.attrs.get("direction", "forward")
    return way.decode() if isinstance(way, bytes) else str(way)


def reversal(facts: Facts, tensor: Tensor, axis: int) -> Way | None:
    """The value that a value is the reversal of along an axis, seen through transpositions."""
    orders: list[list[int]] = []
    while (node := facts.index.producer(tensor)) is not None and not node.domain:
        if node.op == "Slice":
            return Way(node.inputs[0], orders) if reverses(facts, node, axis) else None
        order = node.attrs.get("perm")
        if node.op != "Transpose" or order is None:
            return None
        orders.append(list(order))
        tensor, axis = node.inputs[0], order[axis]
    return None


def reverses(facts: Facts, node: Node, axis: int) -> bool:
    """Whether a Slice takes all elements along one axis, the last one first."""
    shape, found = facts.shape(node.inputs[0]), axis_slices(facts, node)
    if shape is None or found is None or len(found) != 1:
        return False
    return found[0].axis == axis and found[0].is_reversal(shape[axis])


def _reversals_of(facts: Facts, tensor: Tensor, axis: int) -> list[Node] | None:
    """The Slices that reverse the value along an axis; None where it is read otherwise."""
    found: list[Node] = []
    waiting = [(tensor, axis)]
    while waiting:
        tensor, axis = waiting.pop()
        for reader, slot in facts.index.uses(tensor):
            if not isinstance(reader, Node) or reader.domain or slot != 0:
                return None
            if reader.op == "Slice" and reverses(facts, reader, axis):
                found.append(reader)
                continue
            moved = _moved_axis(facts, reader, axis)
            if moved is None:
                return None
            waiting.append((reader.outputs[0], moved))
    return found


def _moved_axis(facts: Facts, node: Node, axis: int) -> int | None:
    """Where an axis is after a node that keeps it whole."""
    order = node.attrs.get("perm")
    if node.op == "Transpose" and order is not None:
        return int(list(order).index(axis))
    gone = named_axes(facts, node) if node.op == "Squeeze" else None
    if gone is not None:
        return None if axis in gone else axis - sum(a < axis for a in gone)
    return None
