"""Unrolls short loops of few nodes.

y = Loop(3, , s) { return s + s }    ->   a = s + s   b = a + a   y = b + b
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Tensor, bodies
from ...rewrite.graph.views import LoopView

_MOST_NODES = 64
"""The most nodes of an unrolled loop."""
_MOST_NODES_WITHOUT_LOOP = 2048
"""The same for an engine that has no Loop."""


@dataclass(frozen=True)
class ShortLoop:
    """A loop that is worth unrolling."""

    iterations: int


class UnrollShortLoop(Rule[ShortLoop]):
    """Replaces a loop of few iterations over few nodes by copies of its body.

    Earlier phases have turned loops around a cell into LSTM, GRU or RNN.
    """

    root = "Loop"
    fires = """g (float[3] x) => (float[3] y, float[3,3] r) <int64 m = {3}> {
      y, r = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] row) {
        co = Identity(ci) f = Cast<to=1>(i) so = Add(s, f) row = Neg(so) }> }"""
    spares = {
        "is not known": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
        "would have": """g (float[3] x) => (float[3] y) <int64 m = {100}> {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
        "has a body": """g (float[3] x, bool c) => (float[3] y) <int64 m = {3}> {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci)
        so = If (c) <then_branch = t () => (float[3] p) { p = Exp(s) e = ReduceSum(p) },
                     else_branch = o () => (float[3] q) { q = Neg(s) }> }> }""",
    }

    def match(self, m: Match) -> ShortLoop:
        view = m.loop()
        m.need(view.never_stops_early(m.facts), "a condition may end it early")
        count = view.trips(m.facts)
        if not isinstance(count, int):
            raise Miss("the trip count is not known", at=view.trip)
        nodes = m.index.nodes(view.body)
        inner = next((n for n in nodes if bodies(n)), None)
        m.need(inner is None, "{} has a body, which unrolling would copy", inner, at=inner)
        m.need(count > 0, "it never runs")
        for value in view.scan_outputs:
            shape = m.facts.shape(value)
            same = shape is not None and not any(m.facts.varies_in(d, view.body) for d in shape)
            m.need(same, "{} may differ in shape between iterations", value, at=value)
        size = count * max(1, len(nodes) + len(view.scan_outputs))
        has_loop = "Loop" not in m.options.engine.lacks
        most = _MOST_NODES if has_loop else _MOST_NODES_WITHOUT_LOOP
        m.need(size <= most, "the unrolled loop would have {} nodes, more than {}", size, most)
        return ShortLoop(count)

    def apply(self, patch: Patch, found: ShortLoop) -> None:
        view = LoopView(patch.root)
        nodes = patch.index.nodes_in_order(view.body)
        home = patch.index.graph_of(patch.root)
        for constant in list(view.body.initializers):
            patch.hoist_constant(constant, home)
        current: list[Tensor] = [carried.initial for carried in view.carried]
        collected: list[list[Tensor]] = [[] for _ in view.scan_outputs]
        for number in range(found.iterations):
            value = np.full(view.iteration_shape, number, np.int64)
            iteration = patch.constant(value, like=view.iteration)
            renamed: dict[Tensor, Tensor] = {view.iteration: iteration}
            renamed.update(zip((carried.input for carried in view.carried), current))
            if patch.index.use_count(view.condition_in):
                true = np.full(view.condition_shape, True)
                renamed[view.condition_in] = patch.constant(true, like=view.condition_in)
            patch.clone_before(nodes, renamed, patch.root)
            current = [renamed.get(c.output, c.output) for c in view.carried]
            for values, inner in zip(collected, view.scan_outputs):
                values.append(renamed.get(inner, inner))
        stacked = [
            _stack(patch, values, output) if output.name else None
            for output, values in zip(patch.root.outputs[len(current) :], collected)
        ]
        patch.replace_node(patch.root, [*current, *stacked])


def _stack(patch: Patch, values: list[Tensor], like: Tensor) -> Tensor:
    """The values along a new axis 0."""
    emit = patch.builder(like)
    return emit("Concat", *(emit.unsqueeze(value, [0]) for value in values), axis=0)
