"""Numbers in a body are simplified by the trip count of the Loop."""

from __future__ import annotations

import pytest

from looplift.rewrite.facts.elements import element
from looplift.rewrite.facts.iteration_bounds import nonnegative_in_iteration, simplify_in_iteration

from ...small_models import parse
from ..fact_oracle import facts_of, value


def _body(steps: str, trip: str) -> str:
    """`v` is computed in a loop of `trip` iterations, within one that runs N times."""
    return f"""g (float[N,T,3] x, int64 m) => (float[3] y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, int64 four = {{4}}, float[3] s0 = {{0, 0, 0}}> {{
        all = Shape(x) n = Gather(all, zero) t = Gather(all, one) last = Sub(t, one) sum = Add(n, t)
        y = Loop (n, , s0) <body = o (int64 j, bool cj, float[3] r) => (bool dj, float[3] q) {{
            dj = Identity(cj)
            q = Loop ({trip}, , r) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {{
                co = Identity(ci) {steps} f = Cast<to=1>(v) so = Add(s, f) }}> }}> }}"""


@pytest.mark.parametrize(
    ("steps", "trip", "wanted"),
    [
        ("a = Sub(last, i) b = Neg(t) v = Max(a, b)", "t", "T - i - 1"),
        ("a = Sub(last, i) v = Max(a, zero)", "t", "T - i - 1"),
        ("a = Sub(last, i) v = Min(a, zero)", "t", "0"),
        ("a = Add(i, one) v = Min(a, t)", "last", "i + 1"),
        ("a = Add(i, two) v = Min(a, t)", "last", "i + 2"),
        ("a = Add(i, two) v = Min(a, t)", "t", None),
        ("a = Sub(last, i) v = Max(a, zero)", "m", None),
        ("a = Sub(last, i) v = Max(a, zero)", "n", None),
        ("a = Add(i, one) v = Min(a, four)", "four", "i + 1"),
        ("a = Add(i, two) v = Min(a, four)", "four", None),
        ("a = Min(i, last) b = Min(j, n) v = Add(a, b)", "t", "i + j"),
        ("a = Add(i, j) v = Min(a, sum)", "t", "i + j"),
        ("a = Min(i, n) v = Identity(a)", "sum", None),
    ],
)
def test_minima_and_maxima_are_decided_inside_an_iteration(
    steps: str, trip: str, wanted: str | None
) -> None:
    facts = facts_of(parse(_body(steps, trip)))
    found = element(facts, value(facts, "v"), ())
    assert found is not None
    result = simplify_in_iteration(facts, found)
    assert (str(result) == wanted) if wanted is not None else (result == found)


@pytest.mark.parametrize(
    ("steps", "trip", "sure"),
    [
        ("v = Sub(last, i)", "t", True),
        ("v = Sub(last, i)", "last", True),
        ("a = Sub(last, i) v = Sub(a, one)", "last", True),
        ("a = Sub(last, i) v = Sub(a, one)", "t", False),
        ("v = Sub(last, i)", "m", False),
        ("v = Sub(last, j)", "t", False),
        ("v = Sub(four, i)", "four", True),
        ("v = Sub(two, i)", "four", False),
        ("a = Sub(n, j) b = Sub(t, i) c = Add(a, b) v = Sub(c, two)", "t", True),
    ],
)
def test_signs(steps: str, trip: str, sure: bool) -> None:
    facts = facts_of(parse(_body(steps, trip)))
    found = element(facts, value(facts, "v"), ())
    assert found is not None
    assert nonnegative_in_iteration(facts, found) is sure
