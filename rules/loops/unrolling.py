"""Short loops of a few nodes: the iterations, one after the other.

y = Loop(3, , s) { return s + s }    ->   a = s + s   b = a + a   y = b + b
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Node, Tensor, bodies
from ...rewrite.graph.views import LoopView

_MOST_NODES = 64
"""Nodes that the unrolled loop may have."""


class UnrollShortLoop(Rule):
    """A loop of few iterations over few nodes becomes straight code.

    Loops around a cell have become LSTM, GRU or RNN before.
    """

    root = "Loop"
    fires = """g (float[3] x) => (float[3] y, float[3,3] r) <int64 m = {3}> {
      y, r = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] row) {
        co = Identity(ci) f = Cast<to=1>(i) so = Add(s, f) row = Neg(so) }> }"""
    spares = {
        "is not known": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
        "would be": """g (float[3] x) => (float[3] y) <int64 m = {100}> {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
        "has a body": """g (float[3] x, bool c) => (float[3] y) <int64 m = {3}> {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci)
        so = If (c) <then_branch = t () => (float[3] p) { p = Exp(s) e = ReduceSum(p) },
                     else_branch = o () => (float[3] q) { q = Neg(s) }> }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = m.loop()
        m.need(view.never_stops_early(m.facts), "a condition may end it early")
        most = view.trips(m.facts)
        m.need(isinstance(most, int), "the number of iterations is not known", at=view.trip)
        count = int(most)  # type: ignore[arg-type]
        nodes = m.index.nodes(view.body)
        inner = next((n for n in nodes if bodies(n)), None)
        m.need(inner is None, "{} has a body: unrolling would copy it", inner, at=inner or m.node)
        m.need(count > 0, "it never runs")
        for row in view.scan_outputs:
            shape = m.facts.shape(row)
            same = shape is not None and not any(m.facts.varies_in(d, view.body) for d in shape)
            m.need(same, "rows `{}` may differ in shape", row.name, at=row)
        size = count * max(1, len(nodes) + len(view.scan_outputs))
        m.need(
            size <= _MOST_NODES, "unrolled it would be {} nodes, more than {}", size, _MOST_NODES
        )
        return {"node": m.node, "count": count}

    def apply(self, patch: Patch, node: Node, count: int) -> None:
        view = LoopView(node)
        nodes = sorted(patch.index.nodes(view.body), key=lambda n: n.order)
        home = patch.index.graph_of(node)
        for constant in list(view.body.initializers):
            patch.hoist_constant(constant, home)
        current: list[Tensor] = [state.initial for state in view.carried]
        rows: list[list[Tensor]] = [[] for _ in view.scan_outputs]
        for number in range(count):
            value = np.full(view.iteration_shape, number, np.int64)
            iteration = patch.constant(value, like=view.iteration)
            renamed: dict[Tensor, Tensor] = {view.iteration: iteration}
            renamed.update({s.input: value for s, value in zip(view.carried, current)})
            if patch.index.use_count(view.condition_in):
                holds = np.full(view.condition_shape, True)
                true = patch.constant(holds, like=view.condition_in)
                renamed[view.condition_in] = true
            patch.clone_before(nodes, renamed, node)
            current = [renamed.get(s.output, s.output) for s in view.carried]
            for collected, row in zip(rows, view.scan_outputs):
                collected.append(renamed.get(row, row))
        stacked = [
            _stack(patch, collected, output) if output.name else None
            for output, collected in zip(node.outputs[len(current) :], rows)
        ]
        patch.replace_node(node, [*current, *stacked])


def _stack(patch: Patch, rows: list[Tensor], like: Tensor) -> Tensor:
    """The rows along a new axis 0."""
    emit = patch.builder(like)
    return emit("Concat", *(emit.unsqueeze(row, [0]) for row in rows), axis=0)
