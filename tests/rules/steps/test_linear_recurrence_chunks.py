"""Long linear recurrences over few numbers are worked off in chunks; ranges decide where."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from looplift import rewrite
from looplift.rules.reductions.linear_recurrence_chunks import ChunkLinearRecurrence
from looplift.rules.reductions.value_ranges import float_range

from ...equivalence import assert_equal, ops, optimized_session, rewritten, run_rules, session
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of


def _text(
    length: str, state: str = "3", factor: str = "z", offset: str = "x", row: str = "so"
) -> str:
    return f"""g (float[{length},{state}] xs, float[{length},{state}] zs, float[{state}] s0)
        => (float[{state}] y, float[{length},{state}] ys) <float a = {{-0.5}}, float b = {{0.25}}> {{
        fs = Tanh(zs)
        y, ys = Scan <num_scan_inputs=2, body = b (float[{state}] s, float[{state}] x, float[{state}] z)
            => (float[{state}] so, float[{state}] r) {{
            p = Mul({factor}, s) so = Add(p, {offset}) r = Identity({row}) }}> (s0, xs, fs) }}"""


@pytest.mark.parametrize("length", [256, 257, 287, 288, 289, 1000])
@pytest.mark.parametrize("state", ["3", "2,4", "1"])
def test_any_length_comes_out_right(length: int, state: str) -> None:
    result = rewritten(parse(_text(str(length), state)), tolerance=1e-5)
    assert ops(result.model)["Scan"] == 2


@pytest.mark.parametrize(("factor", "offset"), [("a", "x"), ("z", "b"), ("a", "b")])
def test_what_does_not_change_is_spread_out(factor: str, offset: str) -> None:
    result = rewritten(parse(_text("300", factor=factor, offset=offset)), tolerance=1e-5)
    assert ops(result.model)["Scan"] == 2


def test_an_infinite_state_and_factors_of_0_stay_what_they_are() -> None:
    """There is no division, and the neutral steps that fill the last chunk change nothing."""
    model = parse(_text("300"))
    result = rewrite(model).model
    feed = {
        "xs": np.ones((300, 3), np.float32),
        "zs": np.zeros((300, 3), np.float32),
        "s0": np.array([1, 2, 3], np.float32),
    }
    feed["zs"][:, 1] = 50
    feed["xs"][280, 2] = np.inf
    feed["zs"][:, 2] = 1
    expected = session(model).run(None, feed)
    actual = optimized_session(result).run(None, feed)
    assert np.isinf(expected[0][2])
    assert_equal(expected, actual, 1e-5)


def test_an_open_length_that_is_long_enough() -> None:
    model = parse(_text("T"))
    assert ops(rewrite(model).model)["Scan"] == 1
    result = rewrite(model, dims=["T>=256"]).model
    assert ops(result)["Scan"] == 2
    rng = np.random.default_rng(0)
    for length in (256, 300):
        feed = {
            "xs": rng.standard_normal((length, 3), np.float32),
            "zs": rng.standard_normal((length, 3), np.float32),
            "s0": rng.standard_normal(3, np.float32),
        }
        assert_equal(session(model).run(None, feed), session(result).run(None, feed), 1e-5)


SPARED = {
    "short": (_text("255"), "may be too few steps"),
    "large": (_text("300", "65"), "has 65 elements"),
    "growing": (_text("300", factor="z").replace("Tanh", "Neg"), "may grow"),
    "another row": (_text("300", row="p"), "is another row"),
    "no product": (_text("300").replace("Mul(z, s)", "Sub(z, s)"), "no recurrence"),
    "two states": (
        """g (float[300,3] xs, float[3] s0) => (float[3] y, float[3] z) <float a = {0.5}> {
        y, z = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] u, float[3] x) => (float[3] so, float[3] uo) {
            p = Mul(a, u) so = Add(p, x) uo = Sin(s) }> (s0, s0, xs) }""",
        "does not carry one state",
    ),
}


@pytest.mark.parametrize(("text", "words"), SPARED.values(), ids=SPARED)
def test_other_recurrences_stay(text: str, words: str) -> None:
    assert words in reason_of(ChunkLinearRecurrence, parse(text))


RANGES = {
    "y = Sigmoid(x)": (0, 1),
    "a = Sigmoid(x) y = Neg(a)": (-1, 0),
    "a = Sigmoid(x) y = Sub(one, a)": (0, 1),
    "a = Softplus(x) b = Neg(a) y = Exp(b)": (0, 1),
    "a = Softplus(x) b = Mul(a, minus) y = Exp(b)": (0, 1),
    "a = Tanh(x) y = Mul(a, half)": (-0.5, 0.5),
    "a = Sin(x) y = Add(a, half)": (-0.5, 1.5),
    "a = Tanh(x) b = Sigmoid(x) y = Where(c, a, b)": (-1, 1),
    "a = Sigmoid(x) b = Relu(x) y = Concat<axis=0>(a, b)": (0, np.inf),
    "a = Sigmoid(x) b = Transpose(a) y = Reshape(b, flat)": (0, 1),
    "y = Log(x)": (-np.inf, np.inf),
    "y = Identity(x)": (-np.inf, np.inf),
    "y = Div(x, half)": (-np.inf, np.inf),
}


@pytest.mark.parametrize(("work", "wanted"), RANGES.items(), ids=RANGES)
def test_ranges(work: str, wanted: tuple[float, float]) -> None:
    text = f"""g (float[N,3] x, bool c) => (y) <float one = {{1}}, float half = {{0.5}}, float[3] minus = {{-1, -2, -0.5}}, int64[1] flat = {{-1}}> {{
        {work} }}"""
    model = parse(text)
    _, _, engine = run_rules(model, [])
    (output,) = engine.index.root.outputs
    assert float_range(engine.facts, output) == wanted
    for feed in Feeds(sizes=(1, 50)).of(model):
        given = {i.name for i in model.graph.input}
        (values,) = session(model).run(None, {k: v for k, v in feed.items() if k in given})
        numbers = values[~np.isnan(values)]
        assert (numbers >= wanted[0]).all()
        assert (numbers <= wanted[1]).all()


def test_the_body_is_written_as_onnx() -> None:
    model = rewrite(parse(_text("300"), opset=21)).model
    onnx.checker.check_model(model, full_check=True)
