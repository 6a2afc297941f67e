"""SimplifyLinearRecurrence: one product and one sum stay in the body, which becomes a Scan."""

from __future__ import annotations

import numpy as np
import pytest

from looplift.rules.reductions.linear_recurrence import SimplifyLinearRecurrence

from ...equivalence import (
    assert_equal,
    assert_equivalent,
    ops,
    outcome,
    rewritten,
    run_rules,
    session,
)
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..bodies import body_ops
from ..reasons import reason_of

COUNTS = Feeds(sizes=(7, 1), values={"n": [1, 2, 7]})
ANY_COUNT = Feeds(sizes=(7, 1, 0), values={"n": [0, 1, 7]})


def _text(work: str, outputs: str = "float[B,3] y, float[R,B,3] ys") -> str:
    return f"""g (float[T,B,3] xs, float[T,B,3] zs, bool[T,1,3] ms, float[B,3] s0, int64 n) => ({outputs})
        <float one = {{1}}, float decay = {{0.9}}, float[3] v = {{0.5, -0.25, 1}}> {{
        y, ys = Loop (n, , s0) <body = b (int64 i, bool ci, float[B,3] s)
            => (bool co, float[B,3] so, float[Q,3] r) {{
            co = Identity(ci) x = Gather(xs, i) q = Gather(zs, i) z = Sigmoid(q) k = Gather(ms, i)
            {work} r = Identity(so) }}> }}"""


RECURRENCES = {
    "already": "p = Mul(z, s) so = Add(p, x)",
    "average": "p = Mul(decay, s) e = Exp(x) so = Add(e, p)",
    "qrnn": "p = Mul(z, s) u = Sub(one, z) q2 = Mul(u, x) so = Add(p, q2)",
    "move towards x": "d = Sub(x, s) p = Mul(z, d) so = Add(s, p)",
    "move away from x": "d = Sub(s, x) p = Mul(d, z) so = Sub(s, p)",
    "shared factor": "a = Add(s, x) so = Mul(a, z) ",
    "scaled": "a = Add(s, x) p = Mul(a, z) b = Sub(p, v) so = Div(b, v)",
    "negative": "a = Neg(s) p = Mul(z, a) so = Sub(x, p)",
    "masked": "p = Mul(z, s) c = Add(p, x) so = Where(k, c, s)",
    "masked the other way": "p = Mul(z, s) c = Add(p, x) so = Where(k, s, c)",
}


@pytest.mark.parametrize("work", RECURRENCES.values(), ids=RECURRENCES)
def test_a_scan_with_a_product_and_a_sum(work: str) -> None:
    result = rewritten(parse(_text(work)), COUNTS, 1e-5)
    assert body_ops(result.model) == {"Mul": 1, "Add": 1}
    assert ops(result.model)["Scan"] == 1


@pytest.mark.parametrize("work", RECURRENCES.values(), ids=RECURRENCES)
def test_the_final_value_of_a_loop_that_may_not_run(work: str) -> None:
    result = rewritten(parse(_text(work, "float[B,3] y")), ANY_COUNT, 1e-5)
    assert body_ops(result.model) == {"Mul": 1, "Add": 1}
    assert ops(result.model)["Scan"] == 1


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("batch", [0, 1, 4])
def test_an_empty_scan_output_has_the_size_of_the_batch(count: int, batch: int) -> None:
    model = parse(_text(RECURRENCES["move towards x"]))
    result = rewritten(model, COUNTS, 1e-5)
    rng = np.random.default_rng(0)
    feed = {
        "xs": rng.standard_normal((5, batch, 3), np.float32),
        "zs": rng.standard_normal((5, batch, 3), np.float32),
        "s0": rng.standard_normal((batch, 3), np.float32),
        "ms": np.zeros((5, 1, 3), bool),
        "n": np.array(count),
    }
    actual = outcome(session(result.model), feed)
    assert actual is not None
    assert actual[1].shape == (count, batch, 3)
    if count:
        expected = outcome(session(model), feed)
        assert_equal(expected, actual, 1e-5)


@pytest.mark.parametrize("mask", ["so = Where(k, x, s)", "p = Mul(s, z) so = Where(k, x, p)"])
def test_a_reset_is_not_a_factor_of_0(mask: str) -> None:
    """0 times infinity is NaN, but a reset replaces an infinite value, too."""
    model = parse(_text(mask))
    _, trace, _ = run_rules(model, [SimplifyLinearRecurrence])
    assert trace.commits() == []
    rewritten(model, COUNTS, 1e-5)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (RECURRENCES["already"], "one product and one sum already"),
        ("p = Mul(s, s) q2 = Mul(p, z) so = Add(q2, x)", "no carried value is linear"),
        ("d = Sub(x, s) p = Mul(z, d) so = Tanh(p)", "no carried value is linear"),
        ("a = Add(s, x) b = Add(a, z) so = Add(b, v)", "is a sum or a product"),
        ("a = Mul(s, x) b = Mul(a, z) so = Mul(b, v)", "is a sum or a product"),
    ],
)
def test_other_updates_stay(work: str, words: str) -> None:
    model = parse(_text(work))
    assert words in reason_of(SimplifyLinearRecurrence, model)
    rewritten(model, COUNTS, 1e-4)


def test_integers_stay() -> None:
    text = """g (int64[T,3] xs, int64[3] s0, int64 n) => (int64[3] y) <int64 two = {2}> {
        y = Loop (n, , s0) <body = b (int64 i, bool ci, int64[3] s) => (bool co, int64[3] so) {
            co = Identity(ci) x = Gather(xs, i) d = Sub(x, s) p = Div(d, two) so = Add(s, p) }> }"""
    assert "is not a float tensor" in reason_of(SimplifyLinearRecurrence, parse(text))
    rewritten(parse(text), ANY_COUNT)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (
            "d = Sub(x, s) p = Mul(z, d) so = Add(s, p) e = Exp(p)",
            "something other than the update",
        ),
        (
            "d = Sub(x, s) e = Exp(d) p = Mul(z, d) so = Add(s, p)",
            "something other than the update",
        ),
    ],
)
def test_a_node_with_other_readers_stays(work: str, words: str) -> None:
    model = parse(_text(work))
    assert words in reason_of(SimplifyLinearRecurrence, model)
    rewritten(model, COUNTS, 1e-5)


def test_the_rule_alone() -> None:
    """d, p and so give way to factor * s + offset."""
    model = parse(_text("d = Sub(x, s) p = Mul(z, d) so = Add(s, p)"))
    result, trace, _ = run_rules(model, [SimplifyLinearRecurrence])
    assert trace.defects() == []
    assert [c.rule for c in trace.commits()] == ["SimplifyLinearRecurrence"]
    assert_equivalent(model, result, COUNTS, 1e-5)
