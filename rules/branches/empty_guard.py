"""Ifs that special-case an empty value, although the branch for other values handles it as well.

    c = Equal(Size(boxes), 0)
    keep = If(c) <then { [] }, else { … NonMaxSuppression(boxes, …) … }>
 -> keep = … NonMaxSuppression(boxes, …) …

Exported detection models contain such Ifs. For no boxes, NonMaxSuppression selects none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...rewrite import symbolic
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.axes import named_axes
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE, Fact
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.purity import cannot_fail
from ...rewrite.graph.ir import Graph, Node, Tensor, bodies, optional
from ...rewrite.graph.views import IfView
from ...rewrite.symbolic import Dim
from .decided_if import inline_branch

_MOST_NODES = 100
"""The most nodes of a branch that is examined, which bounds the time of one match."""


class InlineBranchRightForEmpty(Rule[Graph]):
    """Replaces an If that tests for an empty value by a branch that is right in both cases."""

    root = "If"
    fires = """g (float[N,4] boxes, float[N] scores) => (int64[K] y) <int64 zero = {0}, float[1] most = {0.5}, int64[1] many = {100}> {
      count = Size(boxes) c = Equal(count, zero)
      y = If (c) <then_branch = t () => (int64[0] a) <int64[0] a = {}> { },
        else_branch = e () => (int64[M] b) <int64[1] first = {0}, int64[2] both = {0, 1}, int64[1] last = {1}, int64[1] two = {2}> {
          x = Unsqueeze(boxes, first) s = Unsqueeze(scores, both)
          chosen = NonMaxSuppression(x, s, many, most) k = Gather<axis = 1>(chosen, two) b = Squeeze(k, last) }> }"""
    spares = {
        "not a comparison of a size with 0": """g (float[N] x, int64 n) => (float[M] y) <int64 one = {1}> {
      count = Size(x) c = Equal(count, one)
      y = If (c) <then_branch = t () => (float[0] a) <float[0] a = {}> { },
                  else_branch = e () => (float[K] b) { b = Exp(x) }> }""",
        "the branches differ": """g (float[N] x) => (float[M] y) <int64 zero = {0}> {
      count = Size(x) c = Equal(count, zero)
      y = If (c) <then_branch = t () => (float[1] a) <float[1] a = {3}> { },
                  else_branch = e () => (float[K] b) { b = Exp(x) }> }""",
        "may fail for no elements": """g (float[N] x) => (float[M] y) <int64 zero = {0}> {
      count = Size(x) c = Equal(count, zero)
      y = If (c) <then_branch = t () => (float[0] a) <float[0] a = {}> { },
                  else_branch = e () => (float[K] b) <int64[1] first = {0}, int64 ax = {0}> {
                    f = Gather(x, first) b = Mul(x, f) }> }""",
    }

    def match(self, m: Match) -> Graph:
        view = m.branches()
        number, when_empty, other = _need_guard(m, view)
        nodes = m.index.nodes_in_order(other)
        few = len(nodes) <= _MOST_NODES
        m.need(few, "the branch has {} nodes, more than {}", len(nodes), _MOST_NODES)
        supposed = {
            tensor: replace(fact, shape=shape, values=None)
            for tensor in _outer_values(m, nodes, other)
            if (fact := m.facts.of(tensor)).shape is not None
            and (shape := _at_zero(fact.shape, number)) != fact.shape
        }
        facts = m.facts.assuming(supposed, {t for node in nodes for t in node.outputs})
        for empty, result in zip(when_empty.outputs, other.outputs):
            same = _are_equally_empty(m.facts.of(empty), facts.of(result))
            m.need(same, "the branches differ for no elements: {} and {}", empty, result)
        for node in nodes:
            safe = not bodies(node) and _cannot_fail(node, facts)
            m.need(safe, "{} may fail for no elements", node, at=node)
        return other

    def apply(self, patch: Patch, found: Graph) -> None:
        inline_branch(patch, found)


def _need_guard(m: Match, view: IfView) -> tuple[Dim, Graph, Graph]:
    """The number that the condition compares with 0, and the branches for 0 and for others."""
    node = m.producer(view.condition, "Equal", "Greater", "Less")
    sentence = "its condition is not a comparison of a size with 0"
    node = m.need(node, sentence, at=view.condition)
    count, zero = node.inputs[::-1] if node.op == "Less" else node.inputs
    if node.op == "Equal" and m.facts.scalar(count) == 0:
        count, zero = zero, count
    number = m.facts.scalar(count)
    compares = m.facts.scalar(zero) == 0 and isinstance(number, symbolic.Expr)
    m.need(compares and symbolic.nonnegative(number or 0), sentence, at=view.condition)
    assert isinstance(number, symbolic.Expr)
    empty_first = node.op == "Equal"
    return number, view.branch(empty_first), view.branch(not empty_first)


def _outer_values(m: Match, nodes: list[Node], branch: Graph) -> Iterator[Tensor]:
    """The values from outside that the nodes or the outputs of a branch read."""
    read = [t for node in nodes for t in node.inputs if t.name]
    for tensor in dict.fromkeys([*read, *branch.outputs]):
        if m.index.is_outside(tensor, branch):
            yield tensor


def _at_zero(shape: tuple[Dim, ...], number: Dim) -> tuple[Dim, ...]:
    """A shape where a number is 0: each size that the number is a multiple of is then 0, too."""
    factor = symbolic.largest_factor(number)
    return tuple(
        0 if isinstance(size, symbolic.Expr) and symbolic.mul(size, factor) == number else size
        for size in shape
    )


def _are_equally_empty(a: Fact, b: Fact) -> bool:
    """Whether two values are known to have the same type and shape, and no elements."""
    if a.kind != "tensor" or a.dtype != b.dtype or not a.dtype or a.shape is None:
        return False
    return symbolic.equal_shapes(a.shape, b.shape) and 0 in a.shape


def _cannot_fail(node: Node, facts: Facts) -> bool:
    """Whether a node never fails, on operands that may be empty."""
    if cannot_fail(node, facts):
        return True
    if node.domain or any(facts.shape(t) is None for t in (*node.inputs, *node.outputs) if t.name):
        return False
    if node.op == "Identity":
        return True
    if node.op == "Squeeze":
        axes = named_axes(facts, node)
        shape = facts.known_shape(node.inputs[0])
        return axes is not None and all(shape[axis] == 1 for axis in axes)
    if node.op in ("ReduceMax", "ReduceMin"):
        return facts.dtype(node.inputs[0]) in FLOAT_OR_DOUBLE and len(node.inputs) == 1
    return node.op == "NonMaxSuppression" and _is_valid_suppression(node, facts)


def _is_valid_suppression(node: Node, facts: Facts) -> bool:
    """Whether the operands of a NonMaxSuppression fit (ONNX operator specification)."""
    boxes, scores, *limits = node.inputs
    first, second = facts.known_shape(boxes), facts.known_shape(scores)
    if len(first) != 3 or len(second) != 3 or first[2] != 4:
        return False
    fits = (first[0], first[1]) == (second[0], second[2])
    constants = [facts.constant(limit) for limit in limits if limit.name]
    known = all(value is not None and value.size == 1 for value in constants)
    limit = optional(limits, 1)
    overlap = None if limit is None else facts.constant(limit)
    return fits and known and (overlap is None or 0 <= float(overlap.item()) <= 1)
