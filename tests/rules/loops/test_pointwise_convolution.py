"""PointwiseConvToProduct: convolutions of one position in recurrent cells."""

from __future__ import annotations

import numpy as np
import pytest

from looplift.rules.loops.pointwise_convolution import PointwiseConvToProduct

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import model

FEEDS = Feeds(sizes=(0, 1, 2, 5))
RNG = np.random.default_rng(2)
CELL = """g (float[T, B, 4{ones}] x, float[B, 8{ones}] h0) => (float[B, 8{ones}] y) {{
  zero = Constant<value_int = 0>() all = Shape(x) n = Gather(all, zero)
  y = Loop (n, , h0) <body = s (int64 i, bool ci, float[B, 8{ones}] h)
    => (bool co, float[B, 8{ones}] ho) {{
      co = Identity(ci) xt = Gather(x, i) p = Conv{attributes}(xt, w, b) q = Conv(h, r)
      a = Add(p, q) ho = Tanh(a) }}>
}}"""


def _weights(axes: int) -> dict[str, np.ndarray]:
    shapes = {"w": (8, 4), "r": (8, 8), "b": (8,)}
    return {
        name: RNG.normal(size=(*shape, *[1] * axes * (len(shape) > 1))).astype(np.float32) * 0.3
        for name, shape in shapes.items()
    }


ATTRIBUTES = ["", "<strides = [{two}]>", "<dilations = [{two}]>", "<auto_pad = {same}>"]


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("attributes", ATTRIBUTES)
def test_a_cell_of_convolutions_is_an_rnn(attributes: str, axes: int, opset: int) -> None:
    attributes = attributes.format(two=", ".join("2" * axes), same='"SAME_UPPER"')
    text = CELL.format(ones=", 1" * axes, attributes=attributes)
    cell = model(text, opset, 8, **_weights(axes))
    alone, trace, _ = run_rules(cell, [PointwiseConvToProduct])
    assert trace.defects() == []
    assert "Conv" not in ops(alone)
    assert_equivalent(cell, alone, FEEDS, 1e-5)
    result = ops(rewritten(cell, FEEDS, 1e-5).model)
    assert not result.keys() & {"Loop", "Scan", "Conv"}
    assert result["RNN"] == 1


def test_a_kernel_of_three_positions_stays() -> None:
    weights = {**_weights(1), "w": RNG.normal(size=(8, 4, 3)).astype(np.float32)}
    text = CELL.format(ones=", 1", attributes="<pads = [1, 1]>")
    result = rewritten(model(text, 17, 8, **weights), FEEDS, 1e-5)
    assert ops(result.model)["Conv"] == 1
