"""What both branches of an If compute anyway, they compute once, before it.

    y = If(c) <then { a = Exp(x); r = Add(a, 1) }, else { b = Exp(x); r = Mul(b, 2) }>
 -> e = Exp(x)   y = If(c) <then { r = Add(e, 1) }, else { r = Mul(e, 2) }>

Exactly one branch runs, so this computes nothing more than before and fails exactly when the If
failed. Branches that become equal leave an If that returns outer values, which then goes too.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from ...rewrite.engine.edits import can_be_output
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.purity import is_pure
from ...rewrite.graph.fingerprint import constant_key, fingerprint
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Constant, Graph, Node, Tensor


class HoistCommonBranchCode(Rule):
    """A computation that stands in both branches of an If moves in front of it."""

    root = "If"
    fires = """g (float[3] x, bool c) => (float[3] y) {
      y = If (c) <then_branch = t () => (float[3] r) { a = Exp(x) r = Neg(a) },
                  else_branch = e () => (float[3] s) { b = Exp(x) s = Abs(b) }> }"""
    spares = {
        "no common work": """g (float[3] x, bool c) => (float[3] y) {
      y = If (c) <then_branch = t () => (float[3] r) { a = Exp(x) r = Neg(a) },
                  else_branch = e () => (float[3] s) { b = Log(x) s = Abs(b) }> }"""
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = m.branches()
        there = {
            fingerprint(n, m.index): n for n in m.index.nodes(view.then) if is_pure(n, m.index)
        }
        shared: dict[Tensor, Tensor] = {}
        pairs = []
        for node in sorted(m.index.nodes(view.orelse), key=lambda n: n.order):
            if not _is_ready(m.index, node, view.orelse, shared):
                continue
            twin = there.pop(fingerprint(node, m.index, shared), None)
            if twin is not None:
                pairs.append((twin, node))
                shared.update(zip(node.outputs, twin.outputs))
        m.need(bool(pairs), "the branches have no common work on values from outside")
        return {"node": m.node, "pairs": pairs}

    def apply(self, patch: Patch, node: Node, pairs: list[tuple[Node, Node]]) -> None:
        home = patch.index.graph_of(node)
        for kept, _ in pairs:
            for tensor in kept.inputs:
                if isinstance(tensor, Constant) and tensor.name:
                    patch.hoist_constant(tensor, home)
        patch.hoist([kept for kept, _ in pairs], before=node)
        for kept, repeated in pairs:
            patch.replace_node(repeated, kept.outputs)


def _is_ready(index: Index, node: Node, branch: Graph, shared: dict[Tensor, Tensor]) -> bool:
    """Whether a node is pure and reads only constants, values from outside and shared results."""
    reads = (*node.inputs, *index.captures(node))
    return is_pure(node, index) and all(
        t in shared or _from_outside(index, t, branch) for t in reads
    )


def _from_outside(index: Index, tensor: Tensor, branch: Graph) -> bool:
    if not tensor.name or index.home(tensor) is not branch:
        return True
    # A constant can move along, if it is one that compares by content.
    return isinstance(tensor, Constant) and not isinstance(constant_key(tensor), int)


class ForwardEqualBranchOutputs(Rule):
    """A result that both branches of an If take from outside needs no If."""

    root = "If"
    fires = """g (float[3] x, bool c) => (float[3] y, float[3] z) {
      u = Neg(x)
      v, z = If (c) <then_branch = t () => (float[3] a, float[3] p) { a = Identity(u) p = Exp(u) },
                     else_branch = e () => (float[3] b, float[3] q) { b = Identity(u) q = Log(u) }>
      y = Abs(v) }"""
    spares = {
        "differ": """g (float[3] x, bool c) => (float[3] y) {
      y = If (c) <then_branch = t () => (float[3] a) { a = Neg(x) },
                  else_branch = e () => (float[3] b) { b = Identity(x) }> }"""
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = m.branches()
        equal = [
            (slot, a)
            for slot, (a, b) in enumerate(zip(view.then.outputs, view.orelse.outputs))
            if m.index.use_count(m.node.outputs[slot])
            and _key(m.index, a, view.then) == _key(m.index, b, view.orelse)
        ]
        if len(equal) < len(m.node.outputs):
            equal = _without_copies(m, equal)
        m.need(bool(equal), "the results of the branches differ, or are computed inside")
        return {"node": m.node, "equal": equal}

    def apply(self, patch: Patch, node: Node, equal: list[tuple[int, Tensor]]) -> None:
        outputs = list(node.outputs)
        for slot, value in equal:
            if isinstance(value, Constant):
                patch.hoist_constant(value, patch.index.graph_of(node))
            patch.replace(outputs[slot], value)
        gone = {slot for slot, _ in equal}
        keep = [slot for slot in range(len(outputs)) if slot not in gone]
        if keep:
            patch.drop_outputs(node, keep)
        else:
            patch.remove(node)


def _without_copies(m: Match, equal: list[tuple[int, Tensor]]) -> list[tuple[int, Tensor]]:
    """Those for which no node is needed: where a value cannot itself become an output of the model,
    because it is none of a node or is one already, nothing is gained.
    """
    kept: list[tuple[int, Tensor]] = []
    outputs: set[Tensor] = set()
    for slot, value in equal:
        if m.index.is_model_output(m.node.outputs[slot]):
            if value in outputs or not can_be_output(m.index, value):
                continue
            outputs.add(value)
        kept.append((slot, value))
    return kept


def _key(index: Index, tensor: Tensor, branch: Graph) -> Hashable:
    """Equal for values from outside that are the same; unique for what a branch computes."""
    if isinstance(tensor, Constant):
        return constant_key(tensor)
    return ("inside", id(branch)) if index.home(tensor) is branch else id(tensor)
