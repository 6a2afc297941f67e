# mypy: disable-error-code="union-attr"
"""Control-flow nodes by role."""

from __future__ import annotations

import pytest

from looplift.rewrite.engine.engine import Engine
from looplift.rewrite.graph.views import IfView, LoopView, ScanView
from looplift.rewrite.storage.model import import_model

from ...small_models import parse
from ..fact_oracle import facts_of, value


def _engine(text: str) -> Engine:
    return Engine(import_model(parse(text, 21, 10)), ())


def _loop(text: str, op: str = "Loop") -> tuple[LoopView, Engine]:
    engine = _engine(text)
    node = next(n for n in engine.index.root.nodes if n.op == op)
    return LoopView(node), engine


def test_if() -> None:
    engine = _engine(
        """g (float[3] x, bool c) => (float[3] y) {
        y = If (c) <else_branch = e () => (float[3] b) { b = Abs(x) },
                    then_branch = t () => (float[3] a) { a = Neg(x) }> }"""
    )
    (node,) = engine.index.root.nodes
    view = IfView(node)
    assert view.condition.name == "c"
    assert (view.then.name, view.orelse.name) == ("t", "e")
    assert view.branch(True) is view.then
    assert view.branch(False) is view.orelse


LOOP = """g (float[3] x, int64 m, bool c) => (float[3] y, float[?,3] ys) {
    y, , ys = Loop (m, c, x, x) <body = b (int64 i, bool ci, float[3] s, float[3] t)
    => (bool co, float[3] so, float[3] to, float[3] r) {
        co = Identity(ci) so = Add(s, t) to = Neg(t) r = Exp(so) }> }"""


def test_loop() -> None:
    view, _ = _loop(LOOP)
    assert view.trip is not None
    assert view.condition is not None
    assert (view.trip.name, view.condition.name) == ("m", "c")
    assert (view.iteration.name, view.condition_in.name, view.condition_out.name) == (
        "i",
        "ci",
        "co",
    )
    first, second = view.carried
    assert (first.initial.name, first.input.name, first.output.name) == ("x", "s", "so")
    assert first.final is not None
    assert first.final.name == "y"
    assert second.final is None
    (row,) = view.scan_outputs
    assert getattr(row, "row", row).name == "r"


def test_loop_without_count_and_condition() -> None:
    view, _ = _loop(LOOP.replace("Loop (m, c, x, x)", "Loop (, , x, x)"))
    assert view.trip is None
    assert view.condition is None
    assert len(view.carried) == 2


@pytest.mark.parametrize(
    ("first", "out", "never"),
    [
        ("", "Identity(ci)", True),
        ("t", "Identity(ci)", True),
        ("t", "Identity(t)", True),
        ("c", "Identity(ci)", False),
        ("", "Not(ci)", False),
        ("t", "Identity(c)", False),
        ("", "Or(ci, t)", True),
        ("", "And(ci, t)", False),
    ],
)
def test_loop_that_never_stops_early(first: str, out: str, never: bool) -> None:
    view, engine = _loop(
        f"""g (float[3] x, int64 m, bool c) => (float[3] y) <bool t = {{1}}> {{
        y = Loop (m, {first}, x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {{
            co = {out} so = Neg(s) }}> }}"""
    )
    assert view.never_stops_early(engine.facts) is never


def _scan(attributes: str) -> ScanView:
    engine = _engine(
        f"""g (float[3] x, float[4,3] xs, float[3,4] zs) => (float[3] y, float[4,3] ys, float[3,4] ws) {{
        y, ys, ws = Scan <num_scan_inputs = 2, {attributes} body = b (float[3] s, float[3] t, float[3] u)
        => (float[3] so, float[3] r, float[3] q) {{ so = Add(s, t) r = Exp(so) q = Neg(u) }}> (x, xs, zs) }}"""
    )
    (node,) = engine.index.root.nodes
    return ScanView(node)


def test_scan() -> None:
    view = _scan(
        """scan_input_axes = [0, 1], scan_input_directions = [0, 1], scan_output_axes = [0, 1],
        scan_output_directions = [1, 0],"""
    )
    (state,) = view.carried
    assert (state.initial.name, state.input.name, state.output.name) == ("x", "s", "so")
    assert state.final is not None
    assert state.final.name == "y"
    one, two = view.scan_inputs
    assert (one.sequence.name, one.slice.name, one.axis, one.reverse) == ("xs", "t", 0, False)
    assert (two.sequence.name, two.slice.name, two.axis, two.reverse) == ("zs", "u", 1, True)
    first, second = view.scan_outputs
    assert (first.slice.name, first.axis, first.reverse) == ("r", 0, True)
    assert (second.slice.name, second.axis, second.reverse) == ("q", 1, False)
    assert first.stacked is not None
    assert first.stacked.name == "ys"


def test_scan_defaults() -> None:
    view = _scan("")
    assert [(s.axis, s.reverse) for s in view.scan_inputs] == [(0, False)] * 2
    assert [(s.axis, s.reverse) for s in view.scan_outputs] == [(0, False)] * 2


def test_roles_do_not_depend_on_names() -> None:
    """The text of two bodies that use each other's names."""
    facts = facts_of(
        parse(
            """g (float[2] x, float[3] s, int64 m) => (float[2] y, float[3] z) {
            y = Loop (m, , x) <body = b (int64 i, bool ci, float[?] s) => (bool co, float[?] so) {
                co = Identity(ci) so = Neg(s) }>
            z = Loop (m, , s) <body = b2 (int64 i, bool ci, float[?] x) => (bool co, float[?] so) {
                co = Identity(ci) so = Neg(x) }> }""",
            21,
            10,
        )
    )
    assert facts.shape(value(facts, "y")) == (2,)
    assert facts.shape(value(facts, "z")) == (3,)


@pytest.mark.parametrize(
    ("trip", "condition", "runs"),
    [
        ("m", "", False),
        ("three", "", True),
        ("none", "", False),
        ("size", "", True),
        ("three", "c", False),
        ("three", "yes", True),
        ("", "", True),
        ("", "c", False),
    ],
)
def test_runs_at_least_once(trip: str, condition: str, runs: bool) -> None:
    view, engine = _loop(
        f"""g (float[3] x, int64 m, bool c) => (float[3] y)
        <int64 three = {{3}}, int64 none = {{0}}, bool yes = {{1}}> {{ size = Size(x)
        y = Loop ({trip}, {condition}, x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {{
            q = ReduceMax<keepdims=0>(s) co = IsNaN(q) so = Neg(s) }}> }}"""
    )
    assert view.runs_at_least_once(engine.facts) is runs
    known = {"three": 3, "none": 0, "size": 3}
    trips = view.trips(engine.facts)
    assert trips == known[trip] if trip in known else not isinstance(trips, int)
