"""The canonical form of the iteration number: the body of a Loop takes it as a scalar.

   body (int64[1] i, …) { xt = Gather(x, i) … }
-> body (int64 i, …) { v = Unsqueeze(i, [0])  xt = Gather(x, v) … }

onnxruntime passes a body the iteration number as a vector of one element where the body declares
one axis for it. Most rules read the slices of a loop at a scalar.
"""

from __future__ import annotations

from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.views import LoopView


class IterationNumberToScalar(Rule[LoopView]):
    """Lets a loop body take the iteration number as a scalar instead of a vector."""

    root = "Loop"
    fires = """g (float[T,3] x, float[1,3] s0) => (float[1,3] y) <int64 zero = {0}> {
      all = Shape(x) n = Gather(all, zero)
      y = Loop (n, , s0) <body = b (int64[1] i, bool ci, float[1,3] s) => (bool co, float[1,3] so) {
        xt = Gather(x, i) co = Identity(ci) so = Max(s, xt) }> }"""
    spares = {
        "as a scalar": """g (float[T,3] x, float[3] s0) => (float[3] y) <int64 zero = {0}> {
      all = Shape(x) n = Gather(all, zero)
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        xt = Gather(x, i) co = Identity(ci) so = Max(s, xt) }> }""",
    }

    def match(self, m: Match) -> LoopView:
        view = m.loop()
        m.need(view.iteration_shape != (), "the body takes {} as a scalar already", view.iteration)
        return view

    def apply(self, patch: Patch, found: LoopView) -> None:
        patch.loop(found.node).take_scalar_iteration()
        patch.toward_normal_form()
