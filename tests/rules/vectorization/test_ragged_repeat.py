"""RaggedRepeat gathers what a loop repeats and concatenates."""

from __future__ import annotations

import numpy as np
import pytest

from looplift import rewrite
from looplift.rules.vectorization.ragged_repeat import RaggedRepeat

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
from ..reasons import reason_of


def _regulator(sizes: str, axis: int, shape: str) -> str:
    return f"""g (float[N,{shape}] xs, int64[N] d) => (y) <int64 zero = {{0}}> {{
        all = Shape(xs) n = Gather(all, zero) e = SequenceEmpty<dtype=1>()
        l = Loop (n, , e) <body = b (int64 i, bool ci, seq(float) q) => (bool co, seq(float) qo)
            <int64[1] first = {{0}}, int64[1] one = {{1}}, int64[1] four = {{4}}, int64[1] ax = {{{axis}}}> {{
            x = Gather(xs, i) row = Unsqueeze(x, ax) c = Gather(d, i) k = Unsqueeze(c, first)
            sizes = Concat<axis=0>({sizes}) r = Expand(row, sizes) qo = SequenceInsert(q, r)
            co = Identity(ci) }}>
        y = ConcatFromSequence<axis={axis}>(l) }}"""


REGULATORS = {
    "rows": ("k, one", 0, "3"),
    "columns": ("one, k", 1, "3"),
    "other axes expanded": ("four, k, one", 1, "1,2"),
}


@pytest.mark.parametrize(("sizes", "axis", "shape"), REGULATORS.values(), ids=REGULATORS)
def test_slices_are_repeated(sizes: str, axis: int, shape: str) -> None:
    model = parse(_regulator(sizes, axis, shape))
    result = rewritten(model, Feeds(sizes=(1, 2, 5)))
    assert not ops(result.model).keys() & {"Loop", "ConcatFromSequence"}
    for counts in ([0, 3, 1, 0, 2], [0], [4], [1, 1]):
        feeds = Feeds(fixed={"N": len(counts)}, values={"d": [counts]})
        assert_equivalent(model, result.model, feeds)


def test_a_sequence_with_insertions_elsewhere_stays() -> None:
    text = _regulator("k, one", 0, "3").replace(
        "qo = SequenceInsert(q, r)", "qo = SequenceInsert(q, r, zero)"
    )
    reason = "does more to the sequence than append"
    assert reason in reason_of(RaggedRepeat, parse(text))
    rewritten(parse(text), Feeds(sizes=(1, 2, 5)))


def test_invariant_sizes() -> None:
    """The sizes follow from the shape of a slice, which is the same in every iteration."""
    model = parse("""g (float[N,K,1] xs) => (y) <int64 zero = {0}> {
        all = Shape(xs) n = Gather(all, zero) e = SequenceEmpty<dtype=1>()
        l = Loop (n, , e) <body = b (int64 i, bool ci, seq(float) q) => (bool co, seq(float) qo) {
            x = Gather(xs, i) sizes = Shape(x) twice = Add(sizes, sizes)
            r = Expand(x, twice) qo = SequenceInsert(q, r) co = Identity(ci) }>
        y = ConcatFromSequence<axis=1>(l) }""")
    feeds = Feeds(sizes=(1, 2, 5), fixed={"K": 1})
    result, trace, _ = run_rules(model, [RaggedRepeat])
    assert trace.defects() == []
    assert [c.rule for c in trace.commits()] == ["RaggedRepeat"]
    assert_equivalent(model, result, feeds)


def test_the_shape_of_an_empty_tensor_does_not_count() -> None:
    """onnxruntime concatenates a tensor of shape [0, 5] with one of shape [2, 3]."""
    model = parse("""g (float[N,1] xs, int64[N,2] d) => (y) <int64 zero = {0}> {
        all = Shape(xs) n = Gather(all, zero) e = SequenceEmpty<dtype=1>()
        l = Loop (n, , e) <body = b (int64 i, bool ci, seq(float) q) => (bool co, seq(float) qo)
            <int64[1] first = {0}> {
            x = Gather(xs, i) row = Unsqueeze(x, first) sizes = Gather(d, i)
            r = Expand(row, sizes) qo = SequenceInsert(q, r) co = Identity(ci) }>
        y = ConcatFromSequence<axis=0>(l) }""")
    result = rewrite(model)
    assert "Loop" not in ops(result.model)
    xs = np.array([[1], [2], [3]], np.float32)
    for sizes in ([[0, 5], [2, 3], [1, 3]], [[2, 3], [0, 5], [1, 3]], [[0, 5], [0, 3], [0, 1]]):
        feed = {"xs": xs, "d": np.array(sizes, np.int64)}
        expected = outcome(session(model), feed)
        assert expected is not None
        assert_equal(expected, outcome(session(result.model), feed))
