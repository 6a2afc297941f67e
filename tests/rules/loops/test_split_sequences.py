"""Reads of the pieces of a split tensor become reads of the tensor."""

from __future__ import annotations

import pytest

from looplift.rewrite.engine.rule import Options
from looplift.rules.loops.split_sequences import (
    ConcatOfSplitSequence,
    GatherFromSplitSequence,
    LengthOfSplitSequence,
)

from ...equivalence import assert_equivalent, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(values={"n": [0, 1, -1, 6, -7]})


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("keeps", [0, 1])
def test_an_element_of_a_split_tensor(axis: int, keeps: int) -> None:
    output = "float[P,Q,R]" if keeps else "float[P,Q]"
    model = parse(f"""g (float[T,B,3] x, int64 n) => ({output} y) {{
        s = SplitToSequence<axis={axis}, keepdims={keeps}>(x) y = SequenceAt(s, n) }}""")
    result, trace, _ = run_rules(model, [GatherFromSplitSequence])
    assert len(trace.commits()) == 1
    assert_equivalent(model, result, FEEDS)


@pytest.mark.parametrize("axis", [0, 1, -2])
def test_the_length_of_a_split_tensor(axis: int) -> None:
    model = parse(f"""g (float[T,B] x) => (int64 n) {{
        s = SplitToSequence<axis={axis}, keepdims=0>(x) n = SequenceLength(s) }}""")
    result, trace, _ = run_rules(model, [LengthOfSplitSequence])
    assert len(trace.commits()) == 1
    assert_equivalent(model, result)


@pytest.mark.parametrize("split", [0, 1, 2])
@pytest.mark.parametrize(
    ("axis", "new"), [(0, 1), (1, 1), (2, 1), (-1, 1), (0, 0), (1, 0), (-1, 0)]
)
def test_joined_pieces(split: int, axis: int, new: int) -> None:
    output = "float[P,Q,R]" if new else "float[P,Q]"
    model = parse(f"""g (float[A,B,C] x) => ({output} y) {{
        s = SplitToSequence<axis={split}, keepdims=0>(x)
        y = ConcatFromSequence<axis={axis}, new_axis={new}>(s) }}""")
    result, trace, _ = run_rules(model, [ConcatOfSplitSequence])
    assert trace.defects() == []
    assert len(trace.commits()) == 1
    assert_equivalent(model, result)


@pytest.mark.parametrize(("axis", "joined"), [(0, True), (1, False)])
def test_pieces_that_keep_their_axis_are_joined_along_it_only(axis: int, joined: bool) -> None:
    model = parse(f"""g (float[A,B] x) => (float[P,Q] y) {{
        s = SplitToSequence<axis=0>(x) y = ConcatFromSequence<axis={axis}>(s) }}""")
    result, trace, _ = run_rules(model, [ConcatOfSplitSequence])
    assert bool(trace.commits()) is joined
    assert_equivalent(model, result)


@pytest.mark.parametrize(("length", "commits"), [("T", 0), ("2", 1)])
def test_strict_keeps_joining_an_empty_sequence(length: str, commits: int) -> None:
    model = parse(f"""g (float[{length},3] x) => (float[P,Q] y) {{
        s = SplitToSequence<axis=0, keepdims=0>(x) y = ConcatFromSequence<axis=0, new_axis=1>(s) }}""")
    result, trace, _ = run_rules(model, [ConcatOfSplitSequence], options=Options(strict=True))
    assert len(trace.commits()) == commits
    assert_equivalent(model, result, fails_alike=True)


def test_pieces_of_two_stay() -> None:
    model = parse("""g (float[4,3] x) => (int64 n) <int64 two = {2}> {
        s = SplitToSequence<axis=0>(x, two) n = SequenceLength(s) }""")
    assert "pieces of 2" in reason_of(LengthOfSplitSequence, model)
