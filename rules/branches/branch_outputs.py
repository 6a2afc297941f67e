"""Outputs that an If need not return: unread ones, and values from outside.

y, z = If(c) <then { return u, Exp(x) }, else { return u, Log(x) }>
    ->   y = u   z = If(c) <then { return Exp(x) }, else { return Log(x) }>
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from ...rewrite.engine.edits import can_be_output
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.fingerprint import constant_key
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Constant, Graph, Tensor


@dataclass(frozen=True)
class LiveOutputs:
    """The outputs of an If that something reads, by number."""

    numbers: list[int]


class EliminateDeadBranchOutputs(Rule[LiveOutputs]):
    """Drops the outputs of an If that nothing reads."""

    root = "If"
    fires = """g (float[2] x, bool c) => (float[2] y) {
      y, z = If (c) <then_branch = t () => (float[2] a, float[2] b) { a = Exp(x) b = Neg(x) },
                     else_branch = e () => (float[2] p, float[2] q) { p = Abs(x) q = Log(x) }> }"""
    spares = {
        "every result is read": """g (float[2] x, bool c) => (float[2] y) {
      y = If (c) <then_branch = t () => (float[2] a) { a = Exp(x) },
                  else_branch = e () => (float[2] p) { p = Abs(x) }> }"""
    }

    def match(self, m: Match) -> LiveOutputs:
        outputs = m.node.outputs
        live = [number for number, t in enumerate(outputs) if m.index.use_count(t)]
        m.need(len(live) < len(outputs), "every result is read")
        m.need(bool(live), "no result is read")
        return LiveOutputs(live)

    def apply(self, patch: Patch, found: LiveOutputs) -> None:
        patch.drop_outputs(patch.root, found.numbers)


@dataclass(frozen=True)
class EqualOutputs:
    """The outputs of an If that are the same outer value in both branches."""

    values: list[tuple[int, Tensor]]
    """The number of each output, and the outer value."""


class ForwardEqualBranchOutputs(Rule[EqualOutputs]):
    """Replaces outputs of an If that are the same outer value in both branches."""

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

    def match(self, m: Match) -> EqualOutputs:
        view = m.branches()
        equal = [
            (number, a)
            for number, (a, b) in enumerate(zip(view.then.outputs, view.orelse.outputs))
            if m.index.use_count(m.node.outputs[number])
            and _key(m.index, a, view.then) == _key(m.index, b, view.orelse)
        ]
        if len(equal) < len(m.node.outputs):
            equal = _without_copies(m, equal)
        m.need(bool(equal), "the results of the branches differ, or are computed inside")
        return EqualOutputs(equal)

    def apply(self, patch: Patch, found: EqualOutputs) -> None:
        node, outputs = patch.root, list(patch.root.outputs)
        for number, value in found.values:
            if isinstance(value, Constant):
                patch.hoist_constant(value, patch.index.graph_of(node))
            patch.replace(outputs[number], value)
        gone = {number for number, _ in found.values}
        kept = [number for number in range(len(outputs)) if number not in gone]
        if kept:
            patch.drop_outputs(node, kept)
        else:
            patch.remove(node)


def _without_copies(m: Match, equal: list[tuple[int, Tensor]]) -> list[tuple[int, Tensor]]:
    """The outputs whose replacement needs no new node.

    A value cannot become an output of the model if no node of the main graph computes it, or if it
    already is an output. A copy would gain nothing there.
    """
    kept: list[tuple[int, Tensor]] = []
    outputs: set[Tensor] = set()
    for number, value in equal:
        if m.index.is_model_output(m.node.outputs[number]):
            if value in outputs or not can_be_output(m.index, value):
                continue
            outputs.add(value)
        kept.append((number, value))
    return kept


def _key(index: Index, tensor: Tensor, branch: Graph) -> Hashable:
    """A key that is equal for equal outer values and constants, and unique for inner values."""
    if isinstance(tensor, Constant):
        return constant_key(tensor)
    return ("inside", id(branch)) if index.home(tensor) is branch else id(tensor)
