"""Casts that name the type they cast to.

y = CastLike(x, like)   ->   y = Cast<to = float>(x)
"""

from __future__ import annotations

from collections.abc import Mapping

from ...rewrite.engine.pattern import Bindings, PatternRule
from ...rewrite.engine.rule import Match


class CastLikeToCast(PatternRule):
    """Turns a CastLike whose type is known into a Cast."""

    pattern = """(x, like) => (y) {
        y = CastLike<saturate = @saturate, round_mode = @round_mode>(x, like) }"""
    replacement = """(x) => (y) {
        y = Cast<to = @to, saturate = @saturate, round_mode = @round_mode>(x) }"""
    normal_form = True
    fires = "g (int64[3] x, float[N] like) => (float[3] y) { y = CastLike(x, like) }"
    spares = {
        "is not known": """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
      g (int64[3] x, float[N,N] a) => (float[3] y) {
      like = com.microsoft.Trilu(a)  y = CastLike(x, like) }""",
    }

    def guard(self, m: Match, found: Bindings) -> Mapping[str, int]:
        like = found.like
        to = m.need(m.facts.dtype(like) or None, "the type of {} is not known", like, at=like)
        return {"to": to}
