"""Short light loops are unrolled."""

from __future__ import annotations

import pytest

from looplift.rules.loops.unrolling import UnrollShortLoop

from ...equivalence import ops, rewritten
from ...small_models import parse
from ..reasons import reason_of


def _text(trips: int, body: str) -> str:
    return f"""g (float[3] x, float[3] w) => (float[3] y, float[K,3] r) <int64 m = {{{trips}}}> {{
        y, r = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s)
            => (bool co, float[3] so, float[3] row) {{ co = Identity(ci) {body} }}> }}"""


@pytest.mark.parametrize("trips", [2, 3, 5])
def test_a_short_loop_is_unrolled(trips: int) -> None:
    result = rewritten(
        parse(_text(trips, "f = Cast<to=1>(i) a = Add(s, f) so = Sin(a) row = Neg(so)"))
    )
    assert "Loop" not in ops(result.model)
    assert ops(result.model)["Sin"] == trips


def test_scan_outputs_of_carried_and_outer_values() -> None:
    for row in ("row = Identity(s)", "row = Identity(w)"):
        result = rewritten(parse(_text(3, f"so = Sin(s) {row}")))
        assert "Loop" not in ops(result.model)


def test_a_loop_with_an_if_stays() -> None:
    body = """q = ReduceSum<keepdims=0>(s) p = IsNaN(q) row = Neg(s)
        so = If (p) <then_branch = t () => (float[3] a) { a = Exp(s) },
                     else_branch = e () => (float[3] d) { d = Sin(s) }>"""
    model = parse(_text(3, body))
    assert "has a body" in reason_of(UnrollShortLoop, model)


def test_a_loop_of_a_million_iterations_stays() -> None:
    text = """g (float[3] x, float[3] w) => (float[3] y, float[3] z) <int64 m = {1000000}> {
        y, z = Loop (m, , x, w) <body = b (int64 i, bool ci, float[3] s, float[3] t)
            => (bool co, float[3] so, float[3] to) {
            co = Identity(ci) so = Identity(t) to = Identity(s) }> }"""
    assert ops(rewritten(parse(text)).model)["Loop"] == 1


def test_scan_outputs_that_change_shape_are_not_stacked() -> None:
    text = """g (float[3] x) => (float[K,L] r) <int64 m = {2}, float[2] z = {1, 2}> {
        y, r = Loop (m, , z) <body = b (int64 i, bool ci, float[N] s)
            => (bool co, float[P] so, float[Q] row) {
            co = Identity(ci) so = Concat<axis=0>(s, x) row = Neg(s) }> }"""
    assert "may differ in shape" in reason_of(UnrollShortLoop, parse(text))
