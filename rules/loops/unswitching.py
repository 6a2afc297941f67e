"""Loop unswitching: an If in a loop whose condition is loop-invariant moves before the loop.

   y = Loop(n, , s) { u = If(c) { f(s) } else { g(s) }  return true, h(u) }
-> y = If(c) { Loop(n, , s) { return true, h(f(s)) } } else { Loop(n, , s) { return true, h(g(s)) } }

Each of the two loops is straight-line code then, which other rules can recognise and vectorise.
Teacher forcing is such an If: the flag that selects the target or the own output does not change.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...rewrite import symbolic
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.clone import clone_constants, clone_nodes, clone_without_nodes
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Graph, Node, Tensor, Variable, number_nodes

_MOST_NODES = 200
"""The most nodes of a loop that the rule duplicates."""
_MOST_BYTES = 1 << 16
"""Larger constants of the body move before the loop, so that they are not duplicated."""


class UnswitchLoop(Rule[Tensor]):
    """Moves an If with a loop-invariant condition before the loop, with a loop in each branch."""

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

    def match(self, m: Match) -> Tensor:
        body: Graph = m.node.attrs["body"]
        ifs = [n for n in m.index.nodes(body) if n.op == "If" and not n.domain]
        m.need(bool(ifs), "there is no If in the body")
        invariant = [n.inputs[0] for n in ifs if m.index.is_outside(n.inputs[0], body)]
        first = ifs[0]
        m.need(bool(invariant), "the condition of {} is computed in the loop", first, at=first)
        condition = invariant[0]
        m.need(m.facts.shape(condition) == (), "{} is not a scalar", condition, at=condition)
        for node in ifs:
            if node.inputs[0] is condition:
                _need_equal_types(m, node)
        count = sum(1 for _ in _all_nodes(m.index, body))
        m.need(
            count <= _MOST_NODES,
            "the loop has {} nodes, more than the {} that can be duplicated",
            count,
            _MOST_NODES,
        )
        return condition

    def apply(self, patch: Patch, found: Tensor) -> None:
        node, index = patch.root, patch.index
        home = index.graph_of(node)
        for constant in list(node.attrs["body"].initializers):
            if constant.values.nbytes > _MOST_BYTES:
                patch.hoist_constant(constant, home)
        outputs = [t for t in node.outputs if t.name]
        branches = {
            name: _branch(index, node, found, taken)
            for name, taken in (("then_branch", True), ("else_branch", False))
        }
        results = patch.node("If", [found], outputs, branches)
        for branch in branches.values():
            for inner in _all_nodes(index, branch):
                patch.touch(inner)
        for old, new in zip(outputs, results):
            patch.replace(old, new)
        for reader in index.consumers(found):
            if reader.op == "If":
                patch.touch(reader)  # MergeSiblingIfs may merge it with the new If.
        patch.remove(node)
        patch.split_loop()


def _need_equal_types(m: Match, node: Node) -> None:
    """Declines for an If whose branches may return values of different type or shape.

    onnxruntime accepts such an If, but may refuse a loop around one of the branches alone.
    """
    branches = (node.attrs["then_branch"], node.attrs["else_branch"])
    for left, right in zip(*(branch.outputs for branch in branches)):
        a, b = m.facts.of(left), m.facts.of(right)
        equal = a.kind == b.kind and a.dtype == b.dtype
        if a.kind == "tensor" and equal:
            equal = a.shape is not None and b.shape is not None and len(a.shape) == len(b.shape)
            equal = equal and all(
                symbolic.eq(x, y) is not False for x, y in zip(a.shape or (), b.shape or ())
            )
        m.need(equal, "the branches of {} differ in shape", node, at=node)


def _all_nodes(index: Index, body: Graph) -> Iterator[Node]:
    """The nodes of a body and of the bodies in it."""
    for graph in index.graphs(body):
        yield from index.nodes(graph)


def _branch(index: Index, loop: Node, condition: Tensor, taken: bool) -> Graph:
    """A graph with a copy of the loop in which the condition has this value."""
    outputs = [_copy_of(t) for t in loop.outputs]
    attrs = {**loop.attrs, "body": _specialised_body(index, loop.attrs["body"], condition, taken)}
    copy = Node(loop.op, loop.name, attrs, list(loop.inputs), outputs, loop.domain)
    copy.origin = loop.origin
    name = "then" if taken else "else"
    return Graph([copy], [], [t for t in outputs if t.name], name=name)


def _specialised_body(index: Index, body: Graph, condition: Tensor, taken: bool) -> Graph:
    """A copy of a body in which the branch that is taken replaces every If on the condition."""
    renamed: dict[Tensor, Tensor] = {}
    copy = clone_without_nodes(body, body.inputs, renamed, index)
    for node in index.nodes_in_order(body):
        if node.op == "If" and node.inputs[0] is condition:
            branch: Graph = node.attrs["then_branch" if taken else "else_branch"]
            clone_constants(branch, copy, renamed, index)
            chosen = index.nodes_in_order(branch)
            copy.nodes += clone_nodes(chosen, renamed, index)
            renamed.update((t, renamed.get(r, r)) for t, r in zip(node.outputs, branch.outputs))
        else:
            copy.nodes += clone_nodes([node], renamed, index)
    number_nodes(copy.nodes)
    copy.outputs = [renamed.get(t, t) for t in body.outputs]
    for old, new in zip(body.outputs, copy.outputs):
        if old in body.output_info:
            copy.output_info[new] = body.output_info[old]
    return copy


def _copy_of(tensor: Tensor) -> Variable:
    copy = Variable(tensor.name)
    copy.info = tensor.info
    return copy
