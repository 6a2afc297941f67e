"""Changes of shape that lead back to an earlier shape are removed."""

from __future__ import annotations

import pytest

from looplift.rules.values.reshapes import EliminateRedundantReshape

from ...equivalence import ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse


@pytest.mark.parametrize(
    "detour",
    [
        "u = Unsqueeze(x, a) z = Squeeze(u, a)",
        "u = Unsqueeze(x, ab) z = Squeeze(u, ab)",
        "s = Shape(x) u = Reshape(x, flat) z = Reshape<allowzero=1>(u, s)",
        "s = Shape(x) z = Reshape(x, s)",
        "s = Shape(x) z = Expand(x, s)",
        "z = Flatten<axis=1>(x)",
    ],
)
def test_the_earlier_shape_is_restored(detour: str) -> None:
    model = parse(f"""g (float[N,3] x) => (float[N,3] y)
        <int64[1] a = {{1}}, int64[2] ab = {{0, 2}}, int64[1] flat = {{-1}}> {{
        {detour} y = Neg(z) }}""")
    assert ops(rewritten(model).model) == {"Neg": 1}


@pytest.mark.parametrize(
    "detour",
    [
        "z = Reshape(x, flat)",
        "z = Transpose(x)",
        "s = Shape(x) r = Neg(x) t = Transpose(r) z = Reshape(t, s)",
        "z = Reshape(x, other)",
        "u = Unsqueeze(x, a) z = Expand(u, wide)",
    ],
)
def test_another_shape_or_order_stays(detour: str) -> None:
    model = parse(f"""g (float[N,4] x) => (float y)
        <int64[1] a = {{1}}, int64[1] flat = {{-1}}, int64[2] other = {{2, -1}},
         int64[3] wide = {{1, 2, 1}}> {{
        {detour} y = Neg(z) }}""")
    _, trace, _ = run_rules(model, [EliminateRedundantReshape])
    assert trace.commits() == []
    rewritten(model, Feeds(sizes=(1, 2, 4)))
