"""Intervals that hold all elements of a float value."""

from __future__ import annotations

import numpy as np
import pytest

from looplift.rules.reductions.value_ranges import float_range

from ...equivalence import run_rules, session
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse

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
    "a = Tanh(x) "
    + " ".join(
        f"{new} = Mul({old}, {old})" for old, new in zip("abdefghijklmnop", "bdefghijklmnopy")
    ): (-1, 1),
    "y = Log(x)": (-np.inf, np.inf),
    "a = Sigmoid(x) y = Log(a)": (-np.inf, 0),
    "a = Sigmoid(x) b = Log(a) d = Div(b, sixteen) y = Exp(d)": (0, 1),
    "a = Sigmoid(x) y = Sqrt(a)": (0, 1),
    "a = Sigmoid(x) y = Pow(a, half)": (0, 1),
    "a = Tanh(x) y = Pow(a, half)": (-np.inf, np.inf),
    "a = Exp(x) b = Add(a, one) y = Reciprocal(b)": (0, 1),
    "a = Exp(x) b = Add(a, one) y = Div(one, b)": (0, 1),
    "a = Exp(x) b = Neg(a) d = Sub(b, one) y = Div(half, d)": (-0.5, 0),
    "a = Exp(x) y = Div(one, a)": (-np.inf, np.inf),
    "y = Clip(x, half, one)": (0.5, 1),
    "y = Clip(x, , half)": (-np.inf, 0.5),
    "a = Sigmoid(x) y = Clip(a, half)": (0.5, 1),
    "a = Abs(x) y = Min(a, one)": (0, 1),
    "a = Tanh(x) y = Max(a, half)": (0.5, 1),
    "a = Greater(x, half) y = Cast<to=1>(a)": (0, 1),
    "y = Identity(x)": (-np.inf, np.inf),
    "y = Div(x, half)": (-np.inf, np.inf),
}


@pytest.mark.parametrize(("work", "wanted"), RANGES.items(), ids=RANGES)
def test_ranges(work: str, wanted: tuple[float, float]) -> None:
    text = f"""g (float[N,3] x, bool c) => (y) <float one = {{1}}, float half = {{0.5}}, float sixteen = {{16}}, float[3] minus = {{-1, -2, -0.5}}, int64[1] flat = {{-1}}> {{
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
