"""Ifs that ask the same question: nested, one after the other, or negated.

If(c) <then { … If(c) <A, B> … }, …>     ->   If(c) <then { … A … }, …>
p = If(c) <A, B>   q = If(c) <C, D>      ->   p, q = If(c) <A C, B D>
If(Not(c)) <A, B>                        ->   If(c) <B, A>
"""

from __future__ import annotations

from typing import Any

from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Graph, Node, Tensor
from .decided_if import take_branch


class AbsorbNegatedCondition(Rule):
    """An If on a negated condition asks the condition itself, with its branches exchanged."""

    root = "If"
    fires = """g (float[3] x, bool c) => (float[3] y) { n = Not(c)
      y = If (n) <then_branch = t () => (float[3] a) { a = Exp(x) },
                  else_branch = e () => (float[3] b) { b = Log(x) }> }"""
    spares = {
        "not the result of Not": """g (float[3] x, bool c) => (float[3] y) {
      y = If (c) <then_branch = t () => (float[3] a) { a = Exp(x) },
                  else_branch = e () => (float[3] b) { b = Log(x) }> }"""
    }

    def match(self, m: Match) -> dict[str, Any]:
        condition = m.branches().condition
        negation = m.need(
            m.producer(condition, "Not"),
            "the condition `{}` is not the result of Not",
            condition.name,
            at=condition,
        )
        return {"node": m.node, "condition": negation.inputs[0]}

    def apply(self, patch: Patch, node: Node, condition: Tensor) -> None:
        patch.replace_input(node, 0, condition)
        patch.swap_branches(node)


class CollapseNestedIf(Rule):
    """An If inside a branch of an If on the same condition becomes the branch it must take."""

    root = "If"
    fires = """g (float[3] x, bool c) => (float[3] y) {
      y = If (c) <then_branch = t () => (float[3] a) {
            u = If (c) <then_branch = ti () => (float[3] p) { p = Exp(x) },
                        else_branch = ei () => (float[3] q) { q = Log(x) }>
            a = Neg(u) },
          else_branch = e () => (float[3] b) { b = Abs(x) }> }"""
    spares = {
        "no If around it": """g (float[3] x, bool c, bool d) => (float[3] y) {
      y = If (c) <then_branch = t () => (float[3] a) {
            u = If (d) <then_branch = ti () => (float[3] p) { p = Exp(x) },
                        else_branch = ei () => (float[3] q) { q = Log(x) }>
            a = Neg(u) },
          else_branch = e () => (float[3] b) { b = Abs(x) }> }"""
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = m.branches()
        taken = _answered_around(m, view.condition)
        found = m.need(
            taken if taken is None else (taken,),
            "no If around it asks for `{}`",
            view.condition.name,
            at=view.condition,
        )
        return {"node": m.node, "branch": view.branch(found[0])}

    def apply(self, patch: Patch, node: Node, branch: Graph) -> None:
        take_branch(patch, node, branch)


def _answered_around(m: Match, condition: Tensor) -> bool | None:
    """What an enclosing branch implies for a condition."""
    asked, negated = _base(m, condition)
    graph = m.graph()
    while (owner := m.index.owner(graph)) is not None:
        if owner.op == "If":
            known, flipped = _base(m, owner.inputs[0])
            if known is asked:
                return (owner.attrs["then_branch"] is graph) != (negated != flipped)
        graph = m.index.graph_of(owner)
    return None


def _base(m: Match, condition: Tensor) -> tuple[Tensor, bool]:
    """The condition without negations, and whether their number is odd."""
    negated = False
    while (node := m.producer(condition, "Not")) is not None:
        condition, negated = node.inputs[0], not negated
    return condition, negated


class MergeSiblingIfs(Rule):
    """Two Ifs of one graph on the same condition become one."""

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
        "needed in between": """g (float[3] x, bool c) => (float[3] y) {
      u = If (c) <then_branch = t () => (float[3] a) { a = Exp(x) },
                  else_branch = e () => (float[3] b) { b = Log(x) }>
      w = Sin(u)
      y = If (c) <then_branch = t2 () => (float[3] p) { p = Neg(w) },
                  else_branch = e2 () => (float[3] q) { q = Abs(u) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        condition = m.branches().condition
        graph = m.graph()
        earlier = [
            other
            for other in m.index.consumers(condition)
            if other.op == "If" and other is not m.node and m.index.graph_of(other) is graph
            and other.inputs[0] is condition and other.order < m.node.order
        ]  # fmt: skip
        m.need(bool(earlier), "no earlier If of this graph asks for `{}`", condition.name)
        for other in reversed(earlier):
            if _all_read_from(m.index, other, m.node):
                return {"node": m.node, "other": other}
        raise Miss("the results of {} are needed in between", earlier[-1], at=m.node)

    def apply(self, patch: Patch, node: Node, other: Node) -> None:
        results = {}
        for name in ("then_branch", "else_branch"):
            earlier, later = other.attrs[name], node.attrs[name]
            results[later] = patch.prepend_body(earlier, later)
            for output, result in zip(other.outputs, results[later]):
                patch.replace_in_body(later, output, result)
        added = patch.add_outputs(node, like=list(other.outputs), results=results)
        patch.replace_node(other, added)


def _all_read_from(index: Index, earlier: Node, later: Node) -> bool:
    """Whether everything that reads the earlier If's results stands in or after the later If."""
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
