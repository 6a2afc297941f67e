"""Rows that no state reaches need no loop to be collected.

    ys = Loop(n, ) { y_t = Gather(y, i)  return true, y_t }   ->   ys = y[:n]

With what is computed from slices moved in front of the loop, this makes a map one batched
computation.
"""

from __future__ import annotations

from typing import Any

from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Tensor
from ...rewrite.graph.views import ScanOutput
from .independent_work import Outside, counted, is_outer


class VectorizeScanOutputs(Rule):
    """Rows that are slices of an outer value, or the same in every iteration, are not collected."""

    root = ("Loop", "Scan")
    fires = """g (float[T,3] xs, float[3] s0) => (float[3] y, float[T,3] r) {
      y, r = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so, float[3] row) {
        p = Mul(s, xt) so = Sin(p) row = Identity(xt) }> (s0, xs) }"""
    spares = {
        "all rows depend on states": """g (float[T,3] xs, float[3] s0) => (float[3] y, float[T,3] r) {
      y, r = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so, float[3] row) {
        p = Mul(s, xt) so = Sin(p) row = Neg(p) }> (s0, xs) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        steps = counted(m)
        free = [
            (row, source)
            for row in steps.scan_outputs
            if row.stacked is not None and m.index.use_count(row.stacked)
            for source in [m.index.original(row.slice)]
            if _is_known_outside(m.facts, steps, source)
        ]
        if not free:
            raise Miss("all rows depend on states, or there are none", at=m.node)
        return {"steps": steps, "facts": m.facts, "free": free}

    def apply(
        self, patch: Patch, steps: CountedLoop, facts: Facts, free: list[tuple[ScanOutput, Tensor]]
    ) -> None:
        outside = Outside(patch, steps, facts)
        for row, source in free:
            assert row.stacked is not None
            emit = outside.emit(row.stacked)
            rows = outside[source]
            if is_outer(facts, steps.body, source):
                rows = emit.repeat(rows, emit.trip_count(steps))
            rank = facts.rank(row.slice)
            patch.replace(row.stacked, emit.scan_output(rows, row, rank))
        patch.loop(steps.node).remove_if_unused()
        patch.toward_normal_form()


def _is_known_outside(facts: Facts, steps: CountedLoop, source: Tensor) -> bool:
    known = any(source is read.slice for read in steps.reads) or source is steps.iteration
    if not known and not is_outer(facts, steps.body, source):
        return False
    return facts.of(source).kind == "tensor" and facts.rank(source) is not None
