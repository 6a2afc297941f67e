"""Branches in a loop that are the same in every iteration: the question is asked before the loop.

   y = Loop(n, , s) { u = If(c) { f(s) } else { g(s) }  return true, h(u) }
-> y = If(c) { Loop(n, , s) { return true, h(f(s)) } } else { Loop(n, , s) { return true, h(g(s)) } }

What stands in each of the two loops is plain then, so that it can be recognised and batched. Teacher
forcing is such a branch: the flag that chooses between target and own output does not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...rewrite import symbolic
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.clone import clone_constants, clone_nodes
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Graph, Node, Tensor, Variable

_MOST_NODES = 200
"""Nodes in a loop that is doubled."""
_MOST_BYTES = 1 << 16
"""Constants of the body larger than this move in front of the loop rather than be doubled."""


class UnswitchLoop(Rule):
    """An If in a loop whose condition does not change is asked once, with a loop in each branch."""

    root = ("Loop", "Scan")
    fires = """g (float[3] x, bool c, int64 n) => (float[3] y, float[R,3] ys) {
      y, ys = Loop (n, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] r) {
        co = Identity(ci)
        u = If (c) <then_branch = t () => (float[3] p) { e = Exp(s) p = Neg(e) },
                    else_branch = e () => (float[3] q) { q = Sin(s) }>
        so = Mul(u, x) r = Tanh(u) }> }"""
    spares = {
        "no If": """g (float[3] x, int64 n) => (float[3] y) {
      y = Loop (n, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Sin(s) }> }""",
        "differ in shape": """g (float[3] x, bool c, int64 n) => (float[3] y) <int64[1] zero = {0}> {
      y = Loop (n, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci)
        u = If (c) <then_branch = t () => (float[1,3] p) { e = Exp(s) p = Unsqueeze(e, zero) },
                    else_branch = e () => (float[3] q) { q = Sin(s) }>
        m = Mul(u, x) k = Shape(x) so = Reshape(m, k) }> }""",
        "computed in the loop": """g (float[3] x, int64 n) => (float[3] y) <int64 three = {3}> {
      y = Loop (n, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) c = Less(i, three)
        so = If (c) <then_branch = t () => (float[3] p) { e = Exp(s) p = Neg(e) },
                     else_branch = e () => (float[3] q) { q = Sin(s) }> }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        body: Graph = m.node.attrs["body"]
        asked = [n for n in m.index.nodes(body) if n.op == "If" and not n.domain]
        m.need(bool(asked), "there is no If in the body")
        fixed = [n.inputs[0] for n in asked if m.index.is_outside(n.inputs[0], body)]
        m.need(bool(fixed), "the condition of {} is computed in the loop", asked[0], at=asked[0])
        condition = fixed[0]
        m.need(m.facts.shape(condition) == (), "{} is no scalar", condition, at=condition)
        for node in asked:
            if node.inputs[0] is condition:
                _need_alike(m, node)
        count = sum(1 for _ in _all_nodes(m.index, body))
        m.need(count <= _MOST_NODES, "the loop has {} nodes, which are too many to double", count)
        return {"node": m.node, "condition": condition}

    def apply(self, patch: Patch, node: Node, condition: Tensor) -> None:
        index, body = patch.index, node.attrs["body"]
        home = index.graph_of(node)
        for constant in list(body.initializers):
            if constant.values.nbytes > _MOST_BYTES:
                patch.hoist_constant(constant, home)
        outputs = [t for t in node.outputs if t.name]
        branches = {
            name: _branch(index, node, condition, taken)
            for name, taken in (("then_branch", True), ("else_branch", False))
        }
        results = patch.node("If", [condition], outputs, branches)
        for branch in branches.values():
            for inner in _all_nodes(index, branch):
                patch.touch(inner)
        for old, new in zip(outputs, results):
            patch.replace(old, new)
        patch.remove(node)
        patch.split_loop()


def _need_alike(m: Match, node: Node) -> None:
    """Declines where a loop of one branch alone may be refused: what the runtime cannot tell of an
    If whose branches differ in shape, it can of each branch.
    """
    branches = (node.attrs["then_branch"], node.attrs["else_branch"])
    for left, right in zip(*(branch.outputs for branch in branches)):
        a, b = m.facts.of(left), m.facts.of(right)
        alike = a.kind == b.kind and a.dtype == b.dtype
        if a.kind == "tensor" and alike:
            alike = a.shape is not None and b.shape is not None and len(a.shape) == len(b.shape)
            alike = alike and all(
                symbolic.eq(x, y) is not False for x, y in zip(a.shape or (), b.shape or ())
            )
        m.need(alike, "the branches of {} differ in shape", node, at=node)


def _all_nodes(index: Index, body: Graph) -> Iterator[Node]:
    for graph in index.graphs(body):
        yield from index.nodes(graph)


def _branch(index: Index, loop: Node, condition: Tensor, taken: bool) -> Graph:
    """A graph with a copy of the loop in which the condition has its value."""
    outputs = [_copy(t) for t in loop.outputs]
    attrs = {**loop.attrs, "body": _specialised(index, loop.attrs["body"], condition, taken)}
    copy = Node(loop.op, loop.name, attrs, list(loop.inputs), outputs, loop.domain)
    copy.origin = loop.origin
    name = "then" if taken else "else"
    return Graph([copy], [], [t for t in outputs if t.name], name=name)


def _specialised(index: Index, body: Graph, condition: Tensor, taken: bool) -> Graph:
    """A copy of a body in which every If on the condition is the branch that is taken."""
    renamed: dict[Tensor, Tensor] = {}
    copy = Graph(name=body.name, doc_string=body.doc_string)
    copy.origin = body.origin
    copy.inputs = [_renamed(t, renamed) for t in body.inputs]
    clone_constants(body, copy, renamed, index)
    for node in sorted(index.nodes(body), key=lambda n: n.order):
        if node.op == "If" and node.inputs[0] is condition:
            branch: Graph = node.attrs["then_branch" if taken else "else_branch"]
            clone_constants(branch, copy, renamed, index)
            chosen = sorted(index.nodes(branch), key=lambda n: n.order)
            copy.nodes += clone_nodes(chosen, renamed, index)
            renamed.update((t, renamed.get(r, r)) for t, r in zip(node.outputs, branch.outputs))
        else:
            copy.nodes += clone_nodes([node], renamed, index)
    for place, node in enumerate(copy.nodes):
        node.order = float(place)
    copy.outputs = [renamed.get(t, t) for t in body.outputs]
    for old, new in zip(body.outputs, copy.outputs):
        if old in body.output_info:
            copy.output_info[new] = body.output_info[old]
    return copy


def _renamed(tensor: Tensor, renamed: dict[Tensor, Tensor]) -> Tensor:
    renamed[tensor] = _copy(tensor)
    return renamed[tensor]


def _copy(tensor: Tensor) -> Variable:
    copy = Variable(tensor.name)
    copy.info = tensor.info
    return copy
