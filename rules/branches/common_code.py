"""Code that both branches of an If contain moves before it.

    y = If(c) <then { a = Exp(x); r = Add(a, 1) }, else { b = Exp(x); r = Mul(b, 2) }>
 -> e = Exp(x)   y = If(c) <then { r = Add(e, 1) }, else { r = Mul(e, 2) }>

Exactly one branch runs, so the result computes nothing more than before and fails exactly when the
If failed. Branches that become equal leave an If that returns outer values, which
ForwardEqualBranchOutputs removes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.purity import is_pure
from ...rewrite.graph.fingerprint import constant_key, fingerprint
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Constant, Graph, Node, Tensor


@dataclass(frozen=True)
class CommonCode:
    """Nodes that compute the same in both branches of an If."""

    pairs: list[tuple[Node, Node]]
    """A node of the first branch and its equal of the second, in the order in which they run."""


class HoistCommonBranchCode(Rule[CommonCode]):
    """Moves a computation that both branches of an If contain before the If."""

    root = "If"
    fires = """g (float[3] x, bool c) => (float[3] y) {
      y = If (c) <then_branch = t () => (float[3] r) { a = Exp(x) r = Neg(a) },
                  else_branch = e () => (float[3] s) { b = Exp(x) s = Abs(b) }> }"""
    spares = {
        "no common node": """g (float[3] x, bool c) => (float[3] y) {
      y = If (c) <then_branch = t () => (float[3] r) { a = Exp(x) r = Neg(a) },
                  else_branch = e () => (float[3] s) { b = Log(x) s = Abs(b) }> }"""
    }

    def match(self, m: Match) -> CommonCode:
        view = m.branches()
        candidates = {
            fingerprint(n, m.index): n for n in m.index.nodes(view.then) if is_pure(n, m.index)
        }
        shared: dict[Tensor, Tensor] = {}
        pairs = []
        for node in m.index.nodes_in_order(view.orelse):
            if not _is_ready(m.index, node, view.orelse, shared):
                continue
            twin = candidates.pop(fingerprint(node, m.index, shared), None)
            if twin is not None:
                pairs.append((twin, node))
                shared.update(zip(node.outputs, twin.outputs))
        m.need(bool(pairs), "the branches have no common node that reads only outer values")
        return CommonCode(pairs)

    def apply(self, patch: Patch, found: CommonCode) -> None:
        home = patch.index.graph_of(patch.root)
        for kept, _ in found.pairs:
            for tensor in (*kept.inputs, *patch.index.captures(kept)):
                if isinstance(tensor, Constant) and tensor.name:
                    patch.hoist_constant(tensor, home)
        patch.hoist([kept for kept, _ in found.pairs], before=patch.root)
        for kept, repeated in found.pairs:
            patch.replace_node(repeated, kept.outputs)


def _is_ready(index: Index, node: Node, branch: Graph, shared: dict[Tensor, Tensor]) -> bool:
    """Whether a node is pure and reads only constants, outer values and shared results."""
    reads = (*node.inputs, *index.captures(node))
    return is_pure(node, index) and all(
        t in shared or _is_available_outside(index, t, branch) for t in reads
    )


def _is_available_outside(index: Index, tensor: Tensor, branch: Graph) -> bool:
    if not tensor.name or index.home(tensor) is not branch:
        return True
    # A constant of the branch can move along, if it is compared by content.
    return isinstance(tensor, Constant) and not isinstance(constant_key(tensor), int)
