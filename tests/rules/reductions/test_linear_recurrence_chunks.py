"""ChunkLinearRecurrence divides long linear recurrences of few elements into chunks."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from looplift import rewrite
from looplift.rules.reductions.linear_recurrence_chunks import ChunkLinearRecurrence

from ...equivalence import assert_equal, ops, optimized_session, rewritten, session
from ...small_models import parse
from ..reasons import reason_of


def _text(
    length: str, state: str = "3", factor: str = "z", offset: str = "x", collected: str = "so"
) -> str:
    return f"""g (float[{length},{state}] xs, float[{length},{state}] zs, float[{state}] s0)
        => (float[{state}] y, float[{length},{state}] ys) <float a = {{-0.5}}, float b = {{0.25}}> {{
        fs = Tanh(zs)
        y, ys = Scan <num_scan_inputs=2, body = b (float[{state}] s, float[{state}] x, float[{state}] z)
            => (float[{state}] so, float[{state}] r) {{
            p = Mul({factor}, s) so = Add(p, {offset}) r = Identity({collected}) }}> (s0, xs, fs) }}"""


@pytest.mark.parametrize("length", [256, 257, 287, 288, 289, 1000])
@pytest.mark.parametrize("state", ["3", "2,4", "1"])
def test_any_length(length: int, state: str) -> None:
    result = rewritten(parse(_text(str(length), state)), tolerance=1e-5)
    assert ops(result.model)["Scan"] == 2


@pytest.mark.parametrize(("factor", "offset"), [("a", "x"), ("z", "b"), ("a", "b")])
def test_invariant_factor_and_offset(factor: str, offset: str) -> None:
    result = rewritten(parse(_text("300", factor=factor, offset=offset)), tolerance=1e-5)
    assert ops(result.model)["Scan"] == 2


def test_infinite_values_and_factors_of_0() -> None:
    """There is no division, and the iterations that fill the last chunk up change nothing."""
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


DECLINED = {
    "short": (_text("255"), "not known to have 256 iterations"),
    "large": (_text("300", "65"), "has 65 elements"),
    "growing": (_text("300", factor="z").replace("Tanh", "Neg"), "may grow"),
    "another scan output": (_text("300", collected="p"), "is not the carried value"),
    "no product": (_text("300").replace("Mul(z, s)", "Sub(z, s)"), "by a product and a sum"),
    "two carried values": (
        """g (float[300,3] xs, float[3] s0) => (float[3] y, float[3] z) <float a = {0.5}> {
        y, z = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] u, float[3] x) => (float[3] so, float[3] uo) {
            p = Mul(a, u) so = Add(p, x) uo = Sin(s) }> (s0, s0, xs) }""",
        "does not carry exactly one value",
    ),
}


@pytest.mark.parametrize(("text", "words"), DECLINED.values(), ids=DECLINED)
def test_other_recurrences_stay(text: str, words: str) -> None:
    assert words in reason_of(ChunkLinearRecurrence, parse(text))


def test_the_body_is_written_as_onnx() -> None:
    model = rewrite(parse(_text("300"), opset=21)).model
    onnx.checker.check_model(model, full_check=True)
