"""What holds of a loop's states is found again when the body says more."""

from __future__ import annotations

from looplift import rewrite

from ..equivalence import rewritten
from ..small_models import parse
from .fact_oracle import Feeds

LATE = """g (float[T,W] x, int64 n) => (float[P] y)
    <int64 minus = {-1}, int64 behind = {-2}, int64[1] far = {9223372036854775807},
     int64[1] at0 = {0}, int64[1] at1 = {1}, int64 one = {1}> {
    all = Shape(x) w = Gather(all, minus) t = Gather(all, at0) start = ConstantOfShape(t)
    k = Sub(minus, w) trips = Div(k, behind)
    y = Loop (trips, , start) <body = b (int64 i, bool ci, float[P] s) => (bool co, float[Q] so) {
        from = Unsqueeze(w, at0) cut = Slice(x, from, far, at1) column = Squeeze(cut, at1)
        so = Mul(s, column) j = Add(i, one) co = Less(j, n) }> }"""


def test_a_second_rewrite_knows_no_more() -> None:
    """The shape of the state is known only once the Slice is a Gather."""
    model = parse(LATE)
    result = rewritten(model, Feeds(values={"n": [0, 1, 2]}))
    assert not rewrite(result.model).report.commits
