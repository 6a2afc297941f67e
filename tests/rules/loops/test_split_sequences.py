"""What is read from the pieces of a tensor is read from the tensor."""

from __future__ import annotations

import pytest

from looplift.rewrite.engine.rule import Options
from looplift.rules.loops.split_sequences import (
    ConcatOfSplitSequence,
    ElementOfConstructedSequence,
    GatherFromSplitSequence,
    InsertsToConstruct,
    LengthOfSplitSequence,
)

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
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
def test_pieces_side_by_side(split: int, axis: int, new: int) -> None:
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
def test_strict_keeps_joining_no_pieces(length: str, commits: int) -> None:
    model = parse(f"""g (float[{length},3] x) => (float[P,Q] y) {{
        s = SplitToSequence<axis=0, keepdims=0>(x) y = ConcatFromSequence<axis=0, new_axis=1>(s) }}""")
    result, trace, _ = run_rules(model, [ConcatOfSplitSequence], options=Options(strict=True))
    assert len(trace.commits()) == commits
    assert_equivalent(model, result, fails_alike=True)


def test_pieces_of_two_stay() -> None:
    model = parse("""g (float[4,3] x) => (int64 n) <int64 two = {2}> {
        s = SplitToSequence<axis=0>(x, two) n = SequenceLength(s) }""")
    assert "pieces of 2" in reason_of(LengthOfSplitSequence, model)


@pytest.mark.parametrize("place", [0, 1, -1, -2])
def test_an_element_of_single_tensors(place: int) -> None:
    model = parse(f"""g (float[N] x, float[M] z) => (float[P] y) <int64 k = {{{place}}}> {{
        s = SequenceConstruct(x, z) e = SequenceAt(s, k) y = Neg(e) }}""")
    result, trace, _ = run_rules(model, [ElementOfConstructedSequence])
    assert len(trace.commits()) == 1
    assert_equivalent(model, result)


def test_an_element_that_is_an_output_is_copied() -> None:
    model = parse("""g (float[N] x, float[M] z) => (float[P] y) <int64 one = {1}> {
        s = SequenceConstruct(x, z) y = SequenceAt(s, one) }""")
    assert ops(rewritten(model).model) == {"Identity": 1}


@pytest.mark.parametrize("place", [2, -3])
def test_an_element_that_is_not_there_stays(place: int) -> None:
    model = parse(f"""g (float[N] x, float[M] z) => (float[P] y) <int64 k = {{{place}}}> {{
        s = SequenceConstruct(x, z) e = SequenceAt(s, k) y = Neg(e) }}""")
    assert f"position {place} is not one of the 2" in reason_of(ElementOfConstructedSequence, model)


@pytest.mark.parametrize("place", ["", ", zero", ", minus", ", one", ", behind"])
def test_tensors_inserted_one_by_one(place: str) -> None:
    model = parse(f"""g (float[N] x, float[N] z, float[N] w) => (float[P] y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 minus = {{-1}}, int64 behind = {{-2}}> {{
        e = SequenceEmpty() a = SequenceInsert(e, x) b = SequenceInsert(a, z)
        c = SequenceInsert(b, w{place}) y = ConcatFromSequence<axis=0>(c) }}""")
    result = rewritten(model)
    assert ops(result.model) == {"Concat": 1}


def test_an_insertion_behind_the_end_stays() -> None:
    model = parse("""g (float[N] x, float[N] z) => (int64 n) <int64 two = {2}> {
        a = SequenceConstruct(x) b = SequenceInsert(a, z, two) n = SequenceLength(b) }""")
    assert "position 2 is not known" in reason_of(InsertsToConstruct, model)
