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


def _repeat_interleave(dims: str, number: str, target: str, axis: int = 0, expand: str = "") -> str:
    """As PyTorch exports `torch.repeat_interleave(xs, d, dim=axis)`."""
    others = dims.split(",")
    sizes = [*others[:axis], "1", "k", *others[axis + 1 :]]
    vectors = ", ".join(f"int64[1] c{n} = {{{n}}}" for n in {*sizes, "1", "5"} if n.isdigit())
    parts = ", ".join(n if n == "k" else f"c{n}" for n in sizes)
    return f"""g (float[{dims}] xs, int64[N] d) => (y)
      <int64[1] zero = {{0}}, int64[1] after = {{{axis + 1}}}, int64[1] minus = {{-1}}, {vectors}> {{
        n = Shape(d) ones = ConstantOfShape<value = int64[1] {{1}}>(n)
        counts = SplitToSequence<axis = 0>(d, ones) rows = SplitToSequence<axis = {axis}>(xs, ones)
        e = SequenceEmpty<dtype = 1>()
        l = Loop (n, , e) <body = b ({number} i, bool ci, seq(float) q) => (bool co, seq(float) qo)
          <int64[{len(target.split(","))}] shape = {{{target}}}> {{
            k = SequenceAt(counts, i) x = SequenceAt(rows, i) u = Unsqueeze(x, after)
            sizes = Concat<axis = 0>({expand or parts}) s = Shape(sizes)
            all = ConstantOfShape<value = int64[1] {{1}}>(s) low = Mul(all, minus)
            open = Equal(sizes, low) target = Where(open, all, sizes)
            r = Expand(u, target) j = Reshape(r, shape) qo = SequenceInsert(q, j)
            co = Identity(ci) }}>
        y = ConcatFromSequence<axis = {axis}>(l) }}"""


INTERLEAVED = {
    "vector": ("N", "-1", 0),
    "rows": ("N,3", "-1,3", 0),
    "columns": ("4,N", "4,-1", 1),
    "middle": ("4,N,3", "4,-1,3", 1),
    "rows of one": ("N,1", "-1,1", 0),
}


@pytest.mark.parametrize("number", ["int64", "int64[1]"])
@pytest.mark.parametrize(("dims", "target", "axis"), INTERLEAVED.values(), ids=INTERLEAVED)
def test_two_axes_are_joined(dims: str, target: str, axis: int, number: str) -> None:
    model = parse(_repeat_interleave(dims, number, target, axis))
    feeds = Feeds(sizes=(1, 2), values={"d": [[2, 1], [1], [0, 3]]})
    result = rewritten(model, feeds)
    assert not ops(result.model).keys() & {"Loop", "ConcatFromSequence", "SequenceAt"}
    for counts in ([0, 3, 1, 0, 2], [0], [4], [1, 1]):
        assert_equivalent(
            model, result.model, Feeds(fixed={"N": len(counts)}, values={"d": [counts]})
        )


@pytest.mark.parametrize(
    ("dims", "target", "expand"),
    [
        ("N,1", "-1,1", "c1, k, c5"),  # the last axis is expanded, too, and then joined as well
        ("N,3", "-1,1", ""),
        ("N,3", "-1", ""),
    ],
)
def test_another_order_of_the_elements_stays(dims: str, target: str, expand: str) -> None:
    model = parse(_repeat_interleave(dims, "int64", target, 0, expand))
    result = rewritten(model, Feeds(sizes=(1, 2), values={"d": [[2, 1], [1], [0, 3]]}))
    assert "Loop" in ops(result.model)
