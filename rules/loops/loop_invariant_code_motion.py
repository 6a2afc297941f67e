"""Less work inside a loop: what is the same in every iteration is computed once, before it.

y = Loop(m, , x) { e = Exp(w); return s + e }    ->   e = Exp(w)   y = Loop(m, , x) { return s + e }
"""

from __future__ import annotations

from typing import Any

from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.purity import cannot_fail_in_iteration, is_pure
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Constant, Graph, Node, bodies


class HoistLoopInvariantCode(Rule):
    """A computation on values from outside moves in front of the loop.

    Only what cannot fail, or where the loop surely runs; what reads nothing but constants stays,
    because runtimes fold it where it is.
    """

    root = ("Loop", "Scan")
    fires = """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        e = Exp(x) co = Identity(ci) so = Add(s, e) }> }"""
    spares = {
        "nothing in the body": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        e = Exp(s) co = Identity(ci) so = Add(s, e) }> }""",
        "may fail": """g (float[N] x, int64[1] k, float[3] z, int64 m) => (float[3] y) {
      y = Loop (m, , z) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        e = Gather(x, k) co = Identity(ci) so = Add(s, e) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        body: Graph = m.node.attrs["body"]
        fixed = _invariant(m.index, body)
        m.need(bool(fixed), "nothing in the body is computed from outer values alone")
        # onnxruntime refuses a Scan over empty sequences.
        runs = m.node.op == "Scan" or m.loop().runs_at_least_once(m.facts)
        safe = [n for n in fixed if runs or cannot_fail_in_iteration(n, m.facts)]
        m.need(bool(safe), "{} may fail, and the loop may not run", fixed[0], at=fixed[0])
        return {"node": m.node, "fixed": safe}

    def apply(self, patch: Patch, node: Node, fixed: list[Node]) -> None:
        home = patch.index.graph_of(node)
        for moved in fixed:
            for tensor in moved.inputs:
                if isinstance(tensor, Constant) and tensor.name:
                    patch.hoist_constant(tensor, home)
        patch.hoist(fixed, before=node)


def _invariant(index: Index, body: Graph) -> list[Node]:
    """Pure nodes without bodies that read a value from outside, and otherwise only constants."""
    found = []
    for node in index.nodes(body):
        homes = [index.home(t) for t in node.inputs if t.name and not isinstance(t, Constant)]
        # A copy stays: a body must return values of its own.
        if node.op == "Identity" or bodies(node) or not is_pure(node, index):
            continue
        if homes and body not in homes:
            found.append(node)
    return found
