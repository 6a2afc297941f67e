"""Random models compute the same on TVM and on onnxruntime.

Each model is compiled by the default pipeline, and after rewriting by the pipeline of looplift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import looplift
from looplift.lowering import emit

from ..lowering.compiled import UNOPTIMIZED, compile_quickly
from .cases import make_case, make_feeds
from .check_lowering import (
    casts_out_of_range,
    check_lowering,
    differ_by_one,
    rewritten,
    truncates_roundings,
)


def _stock(model: onnx.ModelProto) -> Any:
    return compile_quickly(emit(model))


def _with_pipeline(model: onnx.ModelProto) -> Any:
    return looplift.compile(emit(model), UNOPTIMIZED)


SAMPLE = [
    *((seed, _stock) for seed in (100, 104, 107)),
    *((seed, _with_pipeline) for seed in (144, 146, 148, 152)),
    *((seed, rewritten) for seed in (192, 194, 198, 203)),
]
MORE = [
    *((seed, _stock) for seed in (101, 102, 105, 106, 108, 111)),
    *((seed, _with_pipeline) for seed in (145, 150, 153)),
    *((seed, rewritten) for seed in (193, 196, 199, 200, 201, 202)),
]


@pytest.mark.parametrize(
    ("seed", "build"), [*SAMPLE, *(pytest.param(*case, marks=pytest.mark.soak) for case in MORE)]
)
def test_random_models_compute_the_same_on_tvm(
    seed: int, build: Callable[[onnx.ModelProto], Any]
) -> None:
    model = make_case(seed).model
    tally: Counter[str] = Counter()
    assert check_lowering(model, make_feeds(model, seed), tally, build) == []
    assert tally["runs on TVM"], dict(tally)


def test_a_cast_out_of_range_is_open() -> None:
    """The conversion of an infinity to an integer differs between processors."""
    text = "g (float[N] x) => (int64[N] y) { y = Cast<to = 7>(x) }"
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    infinite = {"x": np.array([1, np.inf], np.float32)}
    assert casts_out_of_range(model, infinite)
    assert not casts_out_of_range(model, {"x": np.array([1, 2**60], np.float32)})


def test_a_failing_run_with_an_empty_input_is_open_if_the_reference_refuses_it() -> None:
    def parsed(text: str) -> onnx.ModelProto:
        return parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)

    two = parsed("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    feed = {"x": np.zeros(0, np.float32)}
    plain = parsed("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    assert check_lowering(plain, [feed], None, lambda _: _stock(two))
    joined = parsed("""g (float[N] x) => (float[M] y) <float[1,2] row = {1, 2}> {
        one = Constant<value_ints = [1]>() none = Unsqueeze(x, one) z = Concat<axis = 1>(none, row) flat = Constant<value_ints = [-1]>()
        a = Reshape(z, flat) y = Concat<axis = 0>(a, x) }""")
    assert check_lowering(joined, [feed], None, lambda _: _stock(two)) == []


def test_an_integer_may_differ_by_one_where_a_rounded_number_is_truncated() -> None:
    text = "g (int32[N] x) => (int32[N] y) { f = Cast<to = 1>(x) t = %s(f) y = Cast<to = 6>(t) }"
    for op, open_ in (("Tanh", True), ("Neg", False)):
        model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text % op)
        assert truncates_roundings(model) is open_
    apart = """g (float[N] x) => (float[N] t, int32[N] y) { t = Tanh(x) y = Cast<to = 6>(x) }"""
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + apart)
    assert not truncates_roundings(model)
    ones = np.ones(2, np.int32)
    assert differ_by_one([ones, [ones]], [ones - 1, [ones + 1]])
    assert not differ_by_one([ones, [ones]], [ones, [ones + 2]])
    assert not differ_by_one([ones], [np.ones(3, np.int32)])
    assert not differ_by_one([np.float32(1)], [np.float32(2)])
