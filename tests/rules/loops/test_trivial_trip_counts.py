"""Loops that have no iteration, or exactly one."""

from __future__ import annotations

import pytest

from looplift.rules.loops.trivial_trip_counts import (
    EliminateZeroTripLoop,
    InlineSingleTripLoop,
    InlineSingleTripScan,
)

from ...equivalence import ops, rewritten
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(values={"m": [0, 1, 3], "c": [True, False]})

TEXT = """g (float[3] x, int64 m, bool c) => (float[3] y, float[K,3] r)
    <int64 none = {{0}}, int64 minus = {{-2}}, int64 one = {{1}},
     int64 far = {{9223372036854775807}}, bool f = {{0}}, bool t = {{1}}> {{
    y, r = Loop ({trip}, {first}, x) <body = b (int64 i, bool ci, float[3] s)
        => (bool co, float[3] so, float[3] row) {{
        g = Cast<to=1>(i) so = Add(s, g) row = Neg(s) {condition} }}>
}}"""


def _text(trip: str, first: str = "", condition: str = "co = Identity(ci)") -> str:
    return TEXT.format(trip=trip, first=first, condition=condition)


@pytest.mark.parametrize(
    ("trip", "first"), [("none", ""), ("minus", "c"), ("m", "f"), ("", "f"), ("far", "f")]
)
def test_a_loop_that_never_runs_returns_its_initial_values(trip: str, first: str) -> None:
    result = rewritten(parse(_text(trip, first)), FEEDS)
    assert set(ops(result.model)) <= {"Identity"}


STOP = "co = Constant<value = bool {0}>()"


@pytest.mark.parametrize(
    ("trip", "first", "condition"),
    [
        ("one", "", "co = Identity(ci)"),
        ("one", "t", "co = Identity(c)"),
        ("far", "", STOP),
        ("", "t", STOP),
        ("", "", STOP),
    ],
)
def test_a_loop_that_runs_once_is_its_body(trip: str, first: str, condition: str) -> None:
    result = rewritten(parse(_text(trip, first, condition)), FEEDS)
    assert "Loop" not in ops(result.model)


@pytest.mark.parametrize(
    ("trip", "first", "condition", "words"),
    [
        ("m", "", "co = Identity(ci)", "not exactly once"),
        ("m", "", STOP, "not exactly once"),
        ("one", "c", "co = Identity(ci)", "may not run at all"),
        ("", "", "co = Identity(c)", "until `co` is false"),
    ],
)
def test_loops_that_may_not_run_exactly_once_stay(
    trip: str, first: str, condition: str, words: str
) -> None:
    assert words in reason_of(InlineSingleTripLoop, parse(_text(trip, first, condition)))


def test_a_loop_that_may_run_stays() -> None:
    assert "may run" in reason_of(EliminateZeroTripLoop, parse(_text("m")))


def test_scan_outputs_of_unknown_shape_stay() -> None:
    text = """g (float[N] x) => (float[K,L] r) <int64 none = {0}> {
        y, r = Loop (none, , x) <body = b (int64 i, bool ci, float[N] s)
            => (bool co, float[N] so, float[N] row) {
            co = Identity(ci) so = Add(s, s) row = Neg(s) }> }"""
    assert "type and shape of `row` are not known" in reason_of(EliminateZeroTripLoop, parse(text))
    rewritten(parse(text), FEEDS)


def test_the_iteration_number_of_shape_1_is_0_in_that_shape() -> None:
    text = """g (float[3] x) => (float[3] y, int64[K,L] r) <int64 one = {1}> {
        y, r = Loop (one, , x) <body = b (int64[1] i, bool ci, float[3] s)
            => (bool co, float[3] so, int64[1] row) {
            co = Identity(ci) so = Add(s, s) row = Add(i, i) }> }"""
    result = rewritten(parse(text), FEEDS)
    assert "Loop" not in ops(result.model)


SCAN = """g (float[{length},3] xs, float[3] s0) => (float[3] y, float[P,Q] r) {{
    y, r = Scan <num_scan_inputs=1, scan_input_axes=[{axis}], scan_output_axes=[{out}],
        scan_input_directions=[1],
        body = b (float[3] s, float[3] xt) => (float[3] so, float[3] row) {{
        so = Sub(xt, s) row = Neg(so) }}> (s0, xs) }}"""


@pytest.mark.parametrize(("axis", "out"), [(0, 0), (-2, 1), (0, -1), (-2, -2)])
def test_a_scan_over_one_slice_is_its_body(axis: int, out: int) -> None:
    result = rewritten(parse(SCAN.format(length=1, axis=axis, out=out)))
    assert "Scan" not in ops(result.model)


def test_a_scan_over_an_unknown_number_of_slices_stays() -> None:
    model = parse(SCAN.format(length="T", axis=0, out=0))
    assert "not known to be 1" in reason_of(InlineSingleTripScan, model)
    assert ops(rewritten(model).model)["Scan"] == 1
