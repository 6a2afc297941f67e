"""Short loops of a few nodes: the iterations, one after the other.

y = Loop(3, , s) { return s + s }    ->   a = s + s   b = a + a   y = b + b
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..rewrite.index import bodies
from ..rewrite.ir import Node, Tensor
from ..rewrite.patch import Patch
from ..rewrite.rule import Match, Rule
from ..rewrite.views import LoopView

_HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'
_MOST_NODES = 64
"""Nodes that the unrolled loop may have."""
_HEAVY = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "LSTM", "GRU", "RNN"})
"""Operators next to which the cost of an iteration does not count, and whose loops may be
recurrences that have an operator of their own."""


class UnrollShortLoop(Rule):
    """A loop of few iterations over few light nodes becomes straight code."""

    root = "Loop"
    fires = (
        _HEADER
        + """g (float[3] x) => (float[3] y, float[3,3] r) <int64 m = {3}> {
      y, r = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] row) {
        co = Identity(ci) f = Cast<to=1>(i) so = Add(s, f) row = Neg(so) }> }"""
    )
    spares = {
        "is not known": _HEADER
        + """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
        "would be": _HEADER
        + """g (float[3] x) => (float[3] y) <int64 m = {100}> {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
        "heavy": _HEADER
        + """g (float[3,3] x) => (float[3,3] y) <int64 m = {3}> {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3,3] s) => (bool co, float[3,3] so) {
        co = Identity(ci) so = MatMul(s, x) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = m.loop()
        m.need(view.never_stops_early(m.facts), "a condition may end it early")
        most = None if view.trip is None else m.facts.scalar(view.trip)
        m.need(isinstance(most, int), "the number of iterations is not known", at=view.trip)
        count = int(most)  # type: ignore[arg-type]
        nodes = m.index.nodes(view.body)
        heavy = next((n for n in nodes if n.op in _HEAVY or bodies(n)), None)
        m.need(
            heavy is None,
            "{} is heavy or has a body: unrolling saves nothing",
            heavy,
            at=heavy or m.node,
        )
        m.need(count > 0, "it never runs")
        for row in view.scan_outputs:
            shape = m.facts.shape(row)
            same = shape is not None and not any(m.facts.escapes(d, view.body) for d in shape)
            m.need(same, "rows `{}` may differ in shape", row.name, at=row)
        size = count * max(1, len(nodes) + len(view.scan_outputs))
        m.need(size <= _MOST_NODES, "unrolled it would be {} nodes, more than 64", size)
        return {"node": m.node, "count": count}

    def apply(self, patch: Patch, node: Node, count: int) -> None:
        view = LoopView(node)
        nodes = sorted(patch.index.nodes(view.body), key=lambda n: n.order)
        home = patch.index.graph_of(node)
        for constant in list(view.body.initializers):
            patch.hoist_constant(constant, home)
        current: list[Tensor] = [state.initial for state in view.states]
        rows: list[list[Tensor]] = [[] for _ in view.scan_outputs]
        for number in range(count):
            value = np.full(view.iteration_shape, number, np.int64)
            iteration = patch.constant(value, like=view.iteration)
            renamed: dict[Tensor, Tensor] = {view.iteration: iteration}
            renamed.update({s.input: value for s, value in zip(view.states, current)})
            if patch.index.use_count(view.condition_in):
                holds = np.full(view.condition_shape, True)
                true = patch.constant(holds, like=view.condition_in)
                renamed[view.condition_in] = true
            patch.clone_before(nodes, renamed, node)
            current = [renamed.get(s.output, s.output) for s in view.states]
            for collected, row in zip(rows, view.scan_outputs):
                collected.append(renamed.get(row, row))
        outputs = list(node.outputs)
        for output, value in zip(outputs, current):
            if output.name:
                patch.replace(output, value)
        for output, collected in zip(outputs[len(current) :], rows):
            if output.name:
                patch.replace(output, _stack(patch, collected, output))
        patch.remove(node)


def _stack(patch: Patch, rows: list[Tensor], like: Tensor) -> Tensor:
    """The rows along a new axis 0."""
    apart = [patch.unsqueeze(row, 0, like) for row in rows]
    return patch.node("Concat", apart, [like], {"axis": 0})[0]
