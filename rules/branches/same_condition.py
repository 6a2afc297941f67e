"""Ifs on the same condition: negated, nested, or one after the other.

If(Not(c)) <A, B>                        ->   If(c) <B, A>
If(c) <then { … If(c) <A, B> … }, …>     ->   If(c) <then { … A … }, …>
p = If(c) <A, B>   q = If(c) <C, D>      ->   p, q = If(c) <A C, B D>
"""

from __future__ import annotations

from ...rewrite import symbolic
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.fact import INTEGERS
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Graph, Node, Tensor
from ...rewrite.graph.views import IfView
from .decided_if import inline_branch


class AbsorbNegatedCondition(Rule[Tensor]):
    """Removes the Not before an If by exchanging the branches."""

    root = "If"
    fires = """g (float[3] x, bool c) => (float[3] y) { n = Not(c)
      y = If (n) <then_branch = t () => (float[3] a) { a = Exp(x) },
                  else_branch = e () => (float[3] b) { b = Log(x) }> }"""
    spares = {
        "not the result of Not": """g (float[3] x, bool c) => (float[3] y) {
      y = If (c) <then_branch = t () => (float[3] a) { a = Exp(x) },
                  else_branch = e () => (float[3] b) { b = Log(x) }> }"""
    }

    def match(self, m: Match) -> Tensor:
        condition = m.branches().condition
        negation = m.need(
            m.producer(condition, "Not"),
            "the condition {} is not the result of Not",
            condition,
            at=condition,
        )
        negated: Tensor = negation.inputs[0]
        return negated

    def apply(self, patch: Patch, found: Tensor) -> None:
        patch.replace_input(patch.root, 0, found)
        patch.swap_branches(patch.root)


class CollapseNestedIf(Rule[Graph]):
    """Replaces an If in a branch of an If on the same condition by the branch it must take."""

    root = "If"
    fires = """g (float[3] x, bool c) => (float[3] y) {
      y = If (c) <then_branch = t () => (float[3] a) {
            u = If (c) <then_branch = ti () => (float[3] p) { p = Exp(x) },
                        else_branch = ei () => (float[3] q) { q = Log(x) }>
            a = Neg(u) },
          else_branch = e () => (float[3] b) { b = Abs(x) }> }"""
    spares = {
        "no enclosing If": """g (float[3] x, bool c, bool d) => (float[3] y) {
      y = If (c) <then_branch = t () => (float[3] a) {
            u = If (d) <then_branch = ti () => (float[3] p) { p = Exp(x) },
                        else_branch = ei () => (float[3] q) { q = Log(x) }>
            a = Neg(u) },
          else_branch = e () => (float[3] b) { b = Abs(x) }> }"""
    }

    def match(self, m: Match) -> Graph:
        view = m.branches()
        condition = view.condition
        return m.need(
            _implied_branch(m, view), "no enclosing If decides {}", condition, at=condition
        )

    def apply(self, patch: Patch, found: Graph) -> None:
        inline_branch(patch, found)


def _implied_branch(m: Match, view: IfView) -> Graph | None:
    """The branch that an If must take because of the branch in which it stands, if it is known."""
    wanted, negated = _decision(m, view.condition)
    graph = m.graph()
    while (owner := m.index.owner(graph)) is not None:
        if owner.op == "If":
            known, flipped = _decision(m, owner.inputs[0])
            if known is wanted or _compare_equal_numbers(m, known, wanted):
                return view.branch((owner.attrs["then_branch"] is graph) != (negated != flipped))
        graph = m.index.graph_of(owner)
    return None


_COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
_OF_ONE_ELEMENT = ("Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that keep the value of a one-element tensor; every condition is one."""


def _decision(m: Match, condition: Tensor) -> tuple[Tensor, bool]:
    """The value that decides an If, and whether the condition is its negation.

    The value may have another rank than the condition.
    """
    negated = False
    while (node := m.producer(condition, "Not", *_OF_ONE_ELEMENT)) is not None:
        condition, negated = node.inputs[0], negated != (node.op == "Not")
    return condition, negated


def _compare_equal_numbers(m: Match, first: Tensor, second: Tensor) -> bool:
    """Whether two conditions make the same comparison of numbers that are known to be equal.

    Exporters compare one size as `int64[]` and again as `int64[1]`.
    """
    a, b = (m.producer(condition, *_COMPARISONS) for condition in (first, second))
    if a is None or b is None or a.op != b.op:
        return False
    return all(_equal_numbers(m, x, y) for x, y in zip(a.inputs, b.inputs, strict=True))


def _equal_numbers(m: Match, a: Tensor, b: Tensor) -> bool:
    x, y = m.facts.scalar(a), m.facts.scalar(b)
    if x is None or y is None or isinstance(x, bool) or isinstance(y, bool):
        return False
    if m.facts.dtype(a) not in INTEGERS or m.facts.dtype(b) not in INTEGERS:
        return False
    return symbolic.eq(x, y) is True


class MergeSiblingIfs(Rule[Node]):
    """Merges two Ifs of one graph on the same condition."""

    root = "If"
    fires = """g (float[3] x, bool c) => (float[3] y) {
      u = If (c) <then_branch = t () => (float[3] a) { a = Exp(x) },
                  else_branch = e () => (float[3] b) { b = Log(x) }>
      v = If (c) <then_branch = t2 () => (float[3] p) { p = Neg(u) },
                  else_branch = e2 () => (float[3] q) { q = Abs(u) }>
      y = Add(u, v) }"""
    spares = {
        "no earlier If": """g (float[3] x, bool c, bool d) => (float[3] y) {
      u = If (c) <then_branch = t () => (float[3] a) { a = Exp(x) },
                  else_branch = e () => (float[3] b) { b = Log(x) }>
      v = If (d) <then_branch = t2 () => (float[3] p) { p = Neg(u) },
                  else_branch = e2 () => (float[3] q) { q = Abs(u) }>
      y = Add(u, v) }""",
        "read between": """g (float[3] x, bool c) => (float[3] y) {
      u = If (c) <then_branch = t () => (float[3] a) { a = Exp(x) },
                  else_branch = e () => (float[3] b) { b = Log(x) }>
      w = Sin(u)
      y = If (c) <then_branch = t2 () => (float[3] p) { p = Neg(w) },
                  else_branch = e2 () => (float[3] q) { q = Abs(u) }> }""",
    }

    def match(self, m: Match) -> Node:
        condition = m.branches().condition
        graph = m.graph()
        siblings = [
            other
            for other in m.index.consumers(condition)
            if other.op == "If" and other is not m.node and m.index.graph_of(other) is graph
            and other.inputs[0] is condition
        ]  # fmt: skip
        earlier = [other for other in siblings if other.order < m.node.order]
        m.need(bool(earlier), "no earlier If of this graph has the condition {}", condition)
        # The last one takes the one before it, and so on: each node moves once.
        later = [other for other in siblings if other.order > m.node.order]
        following = min(later, key=lambda other: other.order, default=None)
        if following is not None and _all_read_from(m.index, m.node, following):
            raise Miss("a later If takes this one", at=following)
        for other in reversed(earlier):
            if _all_read_from(m.index, other, m.node):
                return other
        raise Miss("the results of {} are read between the two Ifs", earlier[-1], at=m.node)

    def apply(self, patch: Patch, found: Node) -> None:
        node, results = patch.root, {}
        for name in ("then_branch", "else_branch"):
            earlier, later = found.attrs[name], node.attrs[name]
            results[later] = patch.prepend_body(earlier, later)
            for output, result in zip(found.outputs, results[later]):
                patch.replace_in_body(later, output, result)
        read = [slot for slot, t in enumerate(found.outputs) if patch.index.use_count(t)]
        added = patch.add_outputs(
            node,
            like=[found.outputs[slot] for slot in read],
            results={body: [values[slot] for slot in read] for body, values in results.items()},
        )
        values = dict(zip(read, added))
        patch.replace_node(found, [values.get(slot) for slot in range(len(found.outputs))])


def _all_read_from(index: Index, earlier: Node, later: Node) -> bool:
    """Whether every reader of the earlier If's results stands in the later If or after it."""
    home = index.graph_of(earlier)
    for output in earlier.outputs:
        for reader, _ in index.uses(output):
            if reader is home:
                continue
            node = reader if isinstance(reader, Node) else index.owner(reader)
            place = None if node is None else index.ancestor_in(node, home)
            if place is None or place.order < later.order:
                return False
    return True
