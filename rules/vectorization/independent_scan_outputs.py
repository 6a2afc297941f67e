"""Scan outputs whose slices depend on no carried value are computed without the loop.

    ys = Loop(n, ) { y_t = Gather(y, i)  return true, y_t }   ->   ys = y[:n]

After VectorizeBeforeLoop, a loop without carried values is left with such scan outputs alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Tensor
from ...rewrite.graph.views import ScanOutput
from ..loops.counted_loop_checks import need_counted_loop, need_declared_sizes
from .independent_work import HoistedValues


@dataclass(frozen=True)
class IndependentScanOutputs:
    """Scan outputs that can be computed without the loop."""

    loop: CountedLoop
    outputs: list[tuple[ScanOutput, Tensor, Tensor]]
    """Each with its stacked tensor, and the slice read or outer value that it collects."""


class VectorizeScanOutputs(Rule[IndependentScanOutputs]):
    """Replaces scan outputs of slice reads or invariant values by these sequences or values."""

    root = ("Loop", "Scan")
    promise = Promise(
        rounds="products of all iterations are computed at once",
        accepts="those that read past the end of the sequence",
    )
    fires = """g (float[T,3] xs, float[3] s0) => (float[3] y, float[T,3] r) {
      y, r = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so, float[3] row) {
        p = Mul(s, xt) so = Sin(p) row = Identity(xt) }> (s0, xs) }"""
    spares = {
        "no scan output": """g (float[T,3] xs, float[3] s0) => (float[3] y, float[T,3] r) {
      y, r = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so, float[3] row) {
        p = Mul(s, xt) so = Sin(p) row = Neg(p) }> (s0, xs) }""",
    }

    def match(self, m: Match) -> IndependentScanOutputs:
        loop = need_counted_loop(m)
        outputs = [
            (output, stacked, source)
            for output, stacked in loop.read_scan_outputs(m.index)
            for source in [m.index.original(output.slice)]
            if _is_known_outside(m.facts, loop, source)
        ]
        m.need(bool(outputs), "no scan output collects slice reads or an invariant value")
        for output, _, _ in outputs:
            need_declared_sizes(m, loop, output)
        return IndependentScanOutputs(loop, outputs)

    def apply(self, patch: Patch, found: IndependentScanOutputs) -> None:
        loop, facts = found.loop, patch.facts
        hoisted = HoistedValues(patch, loop, {})
        for output, stacked, source in found.outputs:
            emit = hoisted.builder(stacked)
            slices = hoisted[source]
            if loop.is_outer_value(patch.index, source):
                slices = emit.repeat(slices, emit.trip_count(loop))
            patch.replace(stacked, emit.scan_output(slices, output, facts.rank(output.slice)))
        patch.loop(loop.node).remove_if_unused()
        patch.toward_normal_form()


def _is_known_outside(facts: Facts, loop: CountedLoop, source: Tensor) -> bool:
    """Whether a value is a slice read, the iteration number or an outer tensor, of known rank."""
    read = any(source is each.slice for each in loop.reads) or source is loop.iteration
    if not read and not loop.is_outer_value(facts.index, source):
        return False
    return facts.of(source).kind == "tensor" and facts.rank(source) is not None
