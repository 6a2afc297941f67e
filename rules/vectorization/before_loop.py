"""Work on what the iterations read is done for all of them at once, in front of the loop.

    y = Loop(n, , s) { x_t = Gather(x, i)  p = MatMul(x_t, W)  return true, s + p }
 -> P = MatMul(x[:n], W)
    y = Loop(n, , s) { p = Gather(P, i)  return true, s + p }

This is `vmap` over the part of the body that no state reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Node, Tensor
from .independent_work import Outside, Parallel, counted, parallel_work
from .operator_table import worth


class VectorizeBeforeLoop(Rule):
    """What is computed from slices alone is computed for all iterations before the loop.

    Only what cannot fail, or where the loop surely runs; and only where fewer nodes are left.
    """

    root = ("Loop", "Scan")
    fires = """g (float[T,2] xs, float[3] s0) => (float[3] y) <float[2,3] w = {1,2,3,4,5,6}> {
      y = Scan <num_scan_inputs=1, body = b (float[3] s, float[2] xt) => (float[3] so) {
        p = MatMul(xt, w) e = Exp(p) a = Sin(s) so = Add(a, e) }> (s0, xs) }"""
    spares = {
        "nothing is computed from slices alone": """g (float[T,3] xs, float[3] s0) => (float[3] y) {
      y = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so) {
        p = Mul(s, xt) so = Sin(p) }> (s0, xs) }""",
        "the loop may not run": """g (float[T,K] xs, float[K,3] w, float[2,3] v, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        xt = Gather(xs, i) p = MatMul(xt, v) a = Sin(s) co = Identity(ci) so = Add(a, p) }> }""",
        "no fewer nodes": """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        xt = Gather(xs, i) e = Exp(xt) p = Mul(s, xt) co = Identity(ci) so = Add(p, e) }> }""",
        "may end early": """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y) <float big = {100}> {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        xt = Gather(xs, i) e = Exp(xt) so = Add(s, e) q = ReduceMax<keepdims=0>(so) co = Less(q, big) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        steps = counted(m)
        parallel = parallel_work(m.facts, steps)
        if not parallel.plans:
            if parallel.miss is not None:
                raise parallel.miss
            raise Miss("nothing is computed from slices alone", at=m.node)
        choice = _Choice(m, steps, parallel)
        moved = choice.worth_moving()
        m.need(
            bool(moved),
            "moving {} would leave no fewer nodes in the body",
            next(iter(parallel.plans)),
        )
        return {
            "steps": steps, "facts": m.facts, "parallel": parallel, "moved": moved,
            "read": choice.read_inside(moved),
        }  # fmt: skip

    def apply(
        self,
        patch: Patch,
        steps: CountedLoop,
        facts: Facts,
        parallel: Parallel,
        moved: list[Node],
        read: list[Tensor],
    ) -> None:
        patch.loop(steps.node).declare_scan_outputs(facts, steps)
        outside = Outside(patch, steps, facts, parallel.plans)
        for node in moved:
            outside.compute(node)
        slices = []
        for inner in read:
            if inner in parallel.uniform:
                patch.replace(inner, outside[inner])
            else:
                slices.append((inner, outside[inner]))
        patch.loop(steps.node).read_slices(steps.iteration, slices)
        for node in reversed(moved):
            patch.remove(node)
        patch.loop(steps.node).drop_unread_scan_inputs()
        patch.toward_normal_form()


class _Choice:
    """Which of the nodes that can move should: a read costs a node in a Loop, nothing in a Scan."""

    def __init__(self, m: Match, steps: CountedLoop, parallel: Parallel) -> None:
        self._index = m.index
        self._steps = steps
        self._plans = parallel.plans
        self._batched: Mapping[Tensor, None] = parallel.batched
        self._positions: Mapping[Tensor, None] = parallel.positions

    def worth_moving(self) -> list[Node]:
        moved = dict.fromkeys(self._plans)
        if self._steps.iteration is None:
            return list(moved)
        inside = dict.fromkeys(self.read_inside(list(moved)))
        inside.update((t, None) for t in self._sources() if self._is_read(t, moved))
        for node in reversed(list(moved)):
            if self._is_better_inside(node, moved, inside):
                del moved[node]
                for result in node.outputs:
                    inside.pop(result, None)
                inside.update((t, None) for t in node.inputs if t in self._batched)
        return list(moved) if self._gain(moved) > 0 else []

    def read_inside(self, moved: list[Node]) -> list[Tensor]:
        """Results of moved nodes that what stays in the body reads."""
        gone = dict.fromkeys(moved)
        return [t for node in moved for t in node.outputs if self._is_read(t, gone)]

    def _sources(self) -> Iterator[Tensor]:
        for read in self._steps.reads:
            yield read.slice

    def _is_read(self, tensor: Tensor, moved: Mapping[Node, None]) -> bool:
        return any(use.reader not in moved for use in self._index.uses(tensor))

    def _cost(self, tensor: Tensor) -> int:
        """Nodes that reading a value takes: none for rows, which are there already."""
        if tensor not in self._batched or tensor is self._steps.iteration:
            return 0
        first_row = len(self._steps.carried) + 1
        rows_only = all(
            use.reader is self._steps.body and use.slot >= first_row
            for use in self._index.uses(tensor)
        )
        return 0 if rows_only else 1

    def _is_better_inside(
        self, node: Node, moved: Mapping[Node, None], inside: Mapping[Tensor, None]
    ) -> bool:
        if any(use.reader in moved for t in node.outputs for use in self._index.uses(t)):
            return False
        saved = sum(self._cost(t) for t in node.outputs if t in inside)
        more = {t for t in node.inputs if t in self._batched and t not in inside}
        return saved - sum(map(self._cost, more)) > self._worth(node)

    def _worth(self, node: Node) -> int:
        """Counting on is no work: what the body needs of it is better computed there."""
        return 0 if node.outputs[0] in self._positions else worth(node)

    def _gain(self, moved: Mapping[Node, None]) -> int:
        gone = sum(1 for t in self._sources() if self._cost(t) and not self._is_read(t, moved))
        new = sum(map(self._cost, self.read_inside(list(moved))))
        return sum(map(self._worth, moved)) + gone - new
