"""States that hold what the iteration before read: delay lines, and the last value.

   y, ys = Loop(n, , s0) { x_t = Gather(x, i)  return true, x_t, s }
-> all = Concat(s0, x[:n])    ys = all[:-1]    y = all[-1]
"""

from __future__ import annotations

from ...rewrite.engine.rule import Match
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Tensor
from ...rewrite.graph.views import CarriedValue
from ..vectorization.independent_work import Parallel
from .closed_form import Chain, StateRule, Term, Values


class DelayLineToShift(StateRule):
    """A state that only holds what the iteration before read is a shifted sequence."""

    nothing = "no state holds what the iteration before read"
    fires = """g (float[T,3] xs, float[3] s0, float[3] u0, int64 n) => (float[3] y, float[3] z) {
      y, z = Loop (n, , s0, u0) <body = b (int64 i, bool ci, float[3] s, float[3] u) => (bool co, float[3] so, float[3] uo) {
        co = Identity(ci) xt = Gather(xs, i) so = Neg(xt) d = Mul(u, s) uo = Sin(d) }> }"""
    spares = {
        "no state holds": """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) xt = Gather(xs, i) so = Mul(s, xt) }> }""",
        "may change": """g (float[T,3] xs, float[1] s0, int64 n) => (float[P] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[P] s) => (bool co, float[P] so) {
        co = Identity(ci) xt = Gather(xs, i) so = Neg(xt) }> }""",
    }

    def chain(self, m: Match, parallel: Parallel, state: CarriedValue) -> Chain | None:
        known = state.output in parallel.batched
        return Chain((Term(state.output),), frozenset()) if known else None

    def has_type(self, dtype: int) -> bool:
        return dtype != 0

    def wanted(self, index: Index, state: CarriedValue, chain: Chain) -> tuple[bool, bool]:
        return index.use_count(state.input) > 0, False

    def running(self, values: Values, inclusive: bool) -> Tensor:
        emit = values.emit
        return emit("Slice", self._all(values), emit.vector(0), emit.vector(-1), emit.vector(0))

    def last(self, values: Values) -> Tensor:
        return values.emit("Gather", self._all(values), values.emit.scalar(-1), axis=0)

    @staticmethod
    def _all(values: Values) -> Tensor:
        first = values.emit.unsqueeze(values.initial, [0])
        return values.emit("Concat", first, *values.terms, axis=0)
