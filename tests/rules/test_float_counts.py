"""Counts that are computed as floats are computed as integers."""

from __future__ import annotations

import onnx
import pytest

from looplift.rewrite.rule import Options
from looplift.rules.loops.float_counts import CountInIntegers
from looplift.rules.values.dead import RemoveUnread

from ..equivalence import assert_equivalent, ops, run_rules
from ..rewrite.fact_oracle import Feeds
from ..small_models import parse
from .reasons import reason_of

FEEDS = Feeds(values={"m": [-7, -2, -1, 0, 1, 2, 3, 7, 12, 1000003]})


def _count(steps: str, to: int = 7, via: int = 1) -> onnx.ModelProto:
    kind, number = {6: "int32", 7: "int64"}[to], {1: "float", 11: "double"}[via]
    return parse(f"""g (int64 m) => ({kind} n)
        <{number} one = {{1}}, {number} two = {{2}}, {number} three = {{3}}, {number} minus = {{-1}},
         {number} back = {{-3}}, {number} half = {{0.5}}, {number} zero = {{0}}> {{
        f = Cast<to={via}>(m) {steps} n = Cast<to={to}>(c) }}""")


@pytest.mark.parametrize("to", [6, 7])
@pytest.mark.parametrize("via", [1, 11])
@pytest.mark.parametrize(
    "steps",
    [
        "d = Div(f, two) c = Ceil(d)",
        "d = Div(f, two) c = Floor(d)",
        "d = Div(f, back) c = Ceil(d)",
        "d = Div(f, back) c = Floor(d)",
        "d = Div(f, minus) c = Ceil(d)",
        "a = Add(f, one) d = Div(a, three) c = Floor(d)",
        "a = Sub(one, f) d = Div(a, two) e = Ceil(d) c = Max(e, zero)",
        "a = Mul(f, three) b = Neg(a) c = Min(b, two)",
        "d = Div(f, two) e = Floor(d) g = Add(e, one) h = Div(g, three) c = Ceil(h)",
    ],
)
def test_the_same_numbers_without_floats(steps: str, to: int, via: int) -> None:
    model = _count(steps, to, via)
    result, trace, _ = run_rules(model, [CountInIntegers, RemoveUnread])
    assert trace.defects() == []
    (commit,) = (c for c in trace.commits() if c.rule == "CountInIntegers")
    assert any("exact up to" in note for note in commit.notes)
    assert not {"Ceil", "Floor"} & set(ops(result))
    assert_equivalent(model, result, FEEDS)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ("c = Div(f, two)", "is not a whole number"),
        ("d = Div(f, half) c = Ceil(d)", "is not a whole number"),
        ("d = Div(two, f) c = Ceil(d)", "is not a whole number"),
        ("d = Div(f, zero) c = Ceil(d)", "is not a whole number"),
        ("d = Sqrt(f) c = Floor(d)", "is not a whole number"),
        ("d = Mul(f, half) c = Floor(d)", "is not a whole number"),
        ("c = Identity(f)", "is not a whole number"),
    ],
)
def test_fractions_stay(steps: str, words: str) -> None:
    model = parse(
        onnx.printer.to_text(_count(steps).graph).replace("f = Cast <to: int = 1> (m)", "f = Id(m)")
        .replace("Id(m)", "CastLike(m, one)")
    )  # fmt: skip
    assert words in reason_of(CountInIntegers, model)


def test_several_numbers_stay() -> None:
    model = parse("""g (float[N] x) => (int64[N] n) { c = Ceil(x) n = Cast<to=7>(c) }""")
    assert "is not a single number" in reason_of(CountInIntegers, model)


def test_strict_keeps_the_rounding_of_floats() -> None:
    text = "g (float x) => (int64 n) <float one = {1}, float two = {2}> { a = Add(one, two) n = Cast<to=7>(a) }"
    assert "strict" in reason_of(CountInIntegers, parse(text), Options(strict=True))
