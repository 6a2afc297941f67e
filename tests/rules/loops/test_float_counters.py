"""Integers that are computed as floats are computed as integers."""

from __future__ import annotations

import onnx
import pytest

from looplift.rewrite.engine.rule import Options
from looplift.rules.loops.float_counters import FloatCounterToInteger
from looplift.rules.values.dead_nodes import EliminateDeadNode

from ...equivalence import assert_equivalent, ops, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(values={"m": [-7, -2, -1, 0, 1, 2, 3, 7, 12, 1000003]})


def _count(work: str, to: int = 7, via: int = 1) -> onnx.ModelProto:
    kind, number = {6: "int32", 7: "int64"}[to], {1: "float", 11: "double"}[via]
    return parse(f"""g (int64 m) => ({kind} n)
        <{number} one = {{1}}, {number} two = {{2}}, {number} three = {{3}}, {number} minus = {{-1}},
         {number} back = {{-3}}, {number} half = {{0.5}}, {number} zero = {{0}}> {{
        f = Cast<to={via}>(m) {work} n = Cast<to={to}>(c) }}""")


@pytest.mark.parametrize("to", [6, 7])
@pytest.mark.parametrize("via", [1, 11])
@pytest.mark.parametrize(
    "work",
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
def test_integers_are_computed_without_floats(work: str, to: int, via: int) -> None:
    model = _count(work, to, via)
    result, trace, _ = run_rules(model, [FloatCounterToInteger, EliminateDeadNode])
    assert trace.defects() == []
    (commit,) = (c for c in trace.commits() if c.rule == "FloatCounterToInteger")
    assert any("exact up to" in note for note in commit.notes)
    assert not {"Ceil", "Floor"} & set(ops(result))
    assert_equivalent(model, result, FEEDS)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ("c = Div(f, two)", "is not known to be an integer"),
        ("d = Div(f, half) c = Ceil(d)", "is not known to be an integer"),
        ("d = Div(two, f) c = Ceil(d)", "is not known to be an integer"),
        ("d = Div(f, zero) c = Ceil(d)", "is not known to be an integer"),
        ("d = Sqrt(f) c = Floor(d)", "is not known to be an integer"),
        ("d = Mul(f, half) c = Floor(d)", "is not known to be an integer"),
        ("c = Identity(f)", "is not known to be an integer"),
    ],
)
def test_fractions_stay(work: str, words: str) -> None:
    model = parse(
        onnx.printer.to_text(_count(work).graph).replace("f = Cast <to: int = 1> (m)", "f = Id(m)")
        .replace("Id(m)", "CastLike(m, one)")
    )  # fmt: skip
    assert words in reason_of(FloatCounterToInteger, model)


@pytest.mark.parametrize(
    ("work", "kind"),
    [
        ("c = Max(f, big)", "int64[3]"),
        ("d = Div(f, parts) c = Ceil(d)", "int64[3]"),
        ("a = Sub(f, big) d = Div(a, backs) c = Floor(d)", "int64[3]"),
        ("c = Add(f, column)", "int64[2,3]"),
    ],
)
def test_vectors_of_a_few_numbers(work: str, kind: str) -> None:
    model = parse(f"""g (int64[3] k) => ({kind} n)
        <float[3] big = {{100, -100, 7}}, float[3] parts = {{1, 2, 3}}, float[3] backs = {{-1, -2, -3}},
         float[2,1] column = {{5, -5}}> {{
        f = Cast<to=1>(k) {work} n = Cast<to=7>(c) }}""")
    result, trace, _ = run_rules(model, [FloatCounterToInteger, EliminateDeadNode])
    assert [c.rule for c in trace.commits()].count("FloatCounterToInteger") == 1
    assert_equivalent(model, result, Feeds(values={"k": [[-7, 0, 7], [1, 101, -101], [6, 8, 9]]}))


@pytest.mark.parametrize(
    "work",
    [
        "c = Max(f, half)",
        "d = Div(f, signs) c = Ceil(d)",
        "d = Div(f, some) c = Ceil(d)",
        "c = Max(f, beyond)",
        "w = Expand(f, wide) c = Max(w, whole)",
    ],
)
def test_vectors_that_stay(work: str) -> None:
    model = parse(f"""g (int64[3] k) => (n)
        <float[3] half = {{1, 2, 0.5}}, float[3] signs = {{1, -1, 2}}, float[3] some = {{1, 0, 2}},
         float[3] whole = {{1, 2, 3}}, float[3] beyond = {{1, 2, 3000000000}}, int64[2] wide = {{99, 3}}> {{
        f = Cast<to=1>(k) {work} n = Cast<to=6>(c) }}""")
    _, trace, _ = run_rules(model, [FloatCounterToInteger])
    assert trace.commits() == []


def test_a_vector_of_unknown_length_stays() -> None:
    model = parse("""g (float[N] x) => (int64[N] n) { c = Ceil(x) n = Cast<to=7>(c) }""")
    assert "is not known to be 16 numbers or fewer" in reason_of(FloatCounterToInteger, model)


def test_strict_keeps_the_rounding_of_floats() -> None:
    text = "g (float x) => (int64 n) <float one = {1}, float two = {2}> { a = Add(one, two) n = Cast<to=7>(a) }"
    assert "strict" in reason_of(FloatCounterToInteger, parse(text), Options(strict=True))


def test_intermediate_results_may_be_beyond_the_type() -> None:
    model = parse("""g (int64 m) => (int32 n) <float big = {100000}> {
        f = Cast<to=1>(m) p = Mul(f, big) d = Div(p, big) c = Ceil(d) n = Cast<to=6>(c) }""")
    result, trace, _ = run_rules(model, [FloatCounterToInteger, EliminateDeadNode])
    assert [c.rule for c in trace.commits()].count("FloatCounterToInteger") == 1
    assert_equivalent(model, result, Feeds(values={"m": [-100000, 0, 3, 100000]}))


@pytest.mark.parametrize("to", [6, 7])
@pytest.mark.parametrize(
    "work",
    [
        "c = Min(f, far)",
        "c = Add(f, beyond)",
        "a = Max(f, beyond) c = Sub(a, two)",
        "a = Mul(f, f) b = Mul(a, f) c = Ceil(b)",
        "a = Mul(f, f) b = Mul(a, f) d = Div(b, two) c = Ceil(d)",
    ],
)
def test_numbers_that_are_not_exact_stay(work: str, to: int) -> None:
    model = parse(f"""g (int64 m) => (n)
        <float far = {{1e10}}, float beyond = {{1000000000}}, float two = {{2}}> {{
        f = Cast<to=1>(m) {work} n = Cast<to={to}>(c) }}""")
    result, trace, _ = run_rules(model, [FloatCounterToInteger])
    assert (trace.commits(), trace.defects()) == ([], [])
    assert_equivalent(model, result, FEEDS)


@pytest.mark.parametrize("to", [6, 7])
def test_a_constant_that_is_only_compared_with_may_be_larger(to: int) -> None:
    model = parse(f"""g (int64 m) => (n) <float far = {{1000000000}}> {{
        f = Cast<to=1>(m) d = Min(f, far) n = Cast<to={to}>(d) }}""")
    result, trace, _ = run_rules(model, [FloatCounterToInteger, EliminateDeadNode])
    assert [c.rule for c in trace.commits()].count("FloatCounterToInteger") == 1
    assert_equivalent(model, result, FEEDS)
