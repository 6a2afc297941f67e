"""A state that is linear in itself: one product and one sum stay in the body, which is a Scan."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

from looplift.rules.reductions.linear_recurrence import SimplifyLinearRecurrence

from ...equivalence import assert_equal, ops, outcome, rewritten, run_rules, session
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

COUNTS = Feeds(sizes=(7, 1), values={"n": [1, 2, 7]})
NONE = Feeds(sizes=(7, 1, 0), values={"n": [0, 1, 7]})


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
    "step towards": "d = Sub(x, s) p = Mul(z, d) so = Add(s, p)",
    "step away": "d = Sub(s, x) p = Mul(d, z) so = Sub(s, p)",
    "shared factor": "a = Add(s, x) so = Mul(a, z) ",
    "scaled": "a = Add(s, x) p = Mul(a, z) b = Sub(p, v) so = Div(b, v)",
    "negative": "a = Neg(s) p = Mul(z, a) so = Sub(x, p)",
    "masked": "p = Mul(z, s) c = Add(p, x) so = Where(k, c, s)",
    "masked the other way": "p = Mul(z, s) c = Add(p, x) so = Where(k, s, c)",
}


def _body(model: onnx.ModelProto) -> Counter[str]:
    (loop,) = (n for n in model.graph.node if n.op_type in ("Scan", "Loop"))
    body = next(a.g for a in loop.attribute if a.name == "body")
    return Counter(n.op_type for n in body.node if n.op_type != "Identity")


@pytest.mark.parametrize("work", RECURRENCES.values(), ids=RECURRENCES)
def test_a_scan_with_a_product_and_a_sum(work: str) -> None:
    result = rewritten(parse(_text(work)), COUNTS, 1e-5)
    assert _body(result.model) == {"Mul": 1, "Add": 1}
    assert ops(result.model)["Scan"] == 1


@pytest.mark.parametrize("work", RECURRENCES.values(), ids=RECURRENCES)
def test_the_last_state_also_of_no_steps(work: str) -> None:
    result = rewritten(parse(_text(work, "float[B,3] y")), NONE, 1e-5)
    assert _body(result.model) == {"Mul": 1, "Add": 1}
    assert ops(result.model)["Scan"] == 1


@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.parametrize("batch", [0, 1, 4])
def test_rows_of_no_steps_have_a_batch(steps: int, batch: int) -> None:
    model = parse(_text(RECURRENCES["step towards"]))
    result = rewritten(model, COUNTS, 1e-5)
    rng = np.random.default_rng(0)
    feed = {
        "xs": rng.standard_normal((5, batch, 3), np.float32),
        "zs": rng.standard_normal((5, batch, 3), np.float32),
        "s0": rng.standard_normal((batch, 3), np.float32),
        "ms": np.zeros((5, 1, 3), bool),
        "n": np.array(steps),
    }
    actual = outcome(session(result.model), feed)
    assert actual is not None
    assert actual[1].shape == (steps, batch, 3)
    if steps:
        expected = outcome(session(model), feed)
        assert_equal(expected, actual, 1e-5)


@pytest.mark.parametrize("mask", ["so = Where(k, x, s)", "p = Mul(s, z) so = Where(k, x, p)"])
def test_a_reset_is_no_factor_of_0(mask: str) -> None:
    """0 * infinity is no number, but an infinite state can be reset."""
    model = parse(_text(mask))
    _, trace, _ = run_rules(model, [SimplifyLinearRecurrence])
    assert trace.commits() == []
    rewritten(model, COUNTS, 1e-5)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (RECURRENCES["already"], "one product and one sum already"),
        ("p = Mul(s, s) q2 = Mul(p, z) so = Add(q2, x)", "no state is linear"),
        ("d = Sub(x, s) p = Mul(z, d) so = Tanh(p)", "no state is linear"),
        ("a = Add(s, x) b = Add(a, z) so = Add(b, v)", "is a sum or a product"),
        ("a = Mul(s, x) b = Mul(a, z) so = Mul(b, v)", "is a sum or a product"),
    ],
)
def test_other_updates_stay(work: str, words: str) -> None:
    model = parse(_text(work))
    assert words in reason_of(SimplifyLinearRecurrence, model)
    rewritten(model, COUNTS, 1e-4)


def test_whole_numbers_stay() -> None:
    text = """g (int64[T,3] xs, int64[3] s0, int64 n) => (int64[3] y) <int64 two = {2}> {
        y = Loop (n, , s0) <body = b (int64 i, bool ci, int64[3] s) => (bool co, int64[3] so) {
            co = Identity(ci) x = Gather(xs, i) d = Sub(x, s) p = Div(d, two) so = Add(s, p) }> }"""
    assert "are no floats" in reason_of(SimplifyLinearRecurrence, parse(text))
    rewritten(parse(text), NONE)
