"""Sequences that each iteration inserts tensors into become scan outputs."""

from __future__ import annotations

import onnx
import pytest

from looplift.rules.loops.sequence_accumulation import SequenceInsertToScanOutput
from looplift.rules.values.dead_nodes import EliminateIdentity

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(values={"m": [0, 1, 2, 7]})
EMPTY = "e = SequenceEmpty()"


def _collecting(
    use: str,
    output: str,
    insert: str = "qo = SequenceInsert(q, r)",
    initial: str = EMPTY,
    going: str = "co = Identity(ci)",
) -> onnx.ModelProto:
    """A loop that collects tensors [B, 3] in the sequence l; `use` computes w from it."""
    return parse(f"""g (float[B,3] x, float[B,3] a, float[B,3] d, int64 m) => (float[B,3] y, {output} w)
        <int64 zero = {{0}}, int64 minus = {{-1}}, int64 one = {{1}}, float big = {{2}}> {{
        {initial}
        y, l = Loop (m, , x, e) <body = b (int64 i, bool ci, float[B,3] s, seq(float[B,3]) q)
            => (bool co, float[B,3] so, seq(float[B,3]) qo) {{
            {going} so = Tanh(s) r = Mul(so, a) {insert} }}>
        {use} }}""")


STACK = "w = ConcatFromSequence<axis=0, new_axis=1>(l)"
STACKED = "float[K,B,3]"


@pytest.mark.parametrize(
    "insert",
    [
        "qo = SequenceInsert(q, r)",
        "qo = SequenceInsert(q, r, zero)",
        "qo = SequenceInsert(q, r, i)",
        "p = SequenceInsert(q, r) qo = SequenceInsert(p, so)",
        "p = SequenceInsert(q, r) t = SequenceInsert(p, so) qo = SequenceInsert(t, r)",
        "p = SequenceInsert(q, r, zero) qo = SequenceInsert(p, so, zero)",
        "k = Add(i, i) n = Add(k, one) p = SequenceInsert(q, r, k) qo = SequenceInsert(p, so, n)",
    ],
)
@pytest.mark.parametrize(
    ("use", "output"),
    [
        (STACK, STACKED),
        ("w = ConcatFromSequence<axis=1, new_axis=1>(l)", "float[B,K,3]"),
        ("w = ConcatFromSequence<axis=-1, new_axis=1>(l)", "float[B,3,K]"),
        ("w = ConcatFromSequence<axis=0>(l)", "float[K,3]"),
        ("w = ConcatFromSequence<axis=-1>(l)", "float[B,K]"),
        ("w = SequenceAt(l, minus)", "float[B,3]"),
        ("w = SequenceLength(l)", "int64"),
    ],
)
def test_no_sequence_remains(use: str, output: str, insert: str) -> None:
    result = rewritten(_collecting(use, output, insert), FEEDS, 1e-6)
    assert result.report.commits["SequenceInsertToScanOutput"] == 1
    assert not [op for op in ops(result.model) if "Sequence" in op]


@pytest.mark.parametrize(
    "insert",
    [
        "qo = SequenceInsert(q, r)",
        "qo = SequenceInsert(q, r, zero)",
        "p = SequenceInsert(q, r) qo = SequenceInsert(p, so)",
        "p = SequenceInsert(q, r, zero) qo = SequenceInsert(p, so, zero)",
    ],
)
@pytest.mark.parametrize(
    "initial",
    [
        "e = SequenceConstruct(a)",
        "e = SequenceConstruct(a, d)",
        "f = SequenceEmpty() e = SequenceInsert(f, d)",
    ],
)
@pytest.mark.parametrize(
    ("use", "output"),
    [
        (STACK, STACKED),
        ("w = ConcatFromSequence<axis=0>(l)", "float[K,3]"),
        ("w = SequenceAt(l, minus)", "float[B,3]"),
        ("w = SequenceLength(l)", "int64"),
    ],
)
def test_initial_elements_precede_or_follow_the_inserted_ones(
    use: str, output: str, initial: str, insert: str
) -> None:
    result = rewritten(_collecting(use, output, insert, initial), FEEDS, 1e-6)
    assert result.report.commits["SequenceInsertToScanOutput"] == 1
    assert not [op for op in ops(result.model) if "Sequence" in op]


def test_an_insertion_after_the_initial_elements() -> None:
    """Its position is the length of the sequence; a smaller one is in the middle."""
    insert = "p = Add(i, one) qo = SequenceInsert(q, r, p)"
    result = rewritten(_collecting(STACK, STACKED, insert, "e = SequenceConstruct(a)"), FEEDS, 1e-6)
    assert result.report.commits["SequenceInsertToScanOutput"] == 1
    middle = _collecting(
        STACK, STACKED, "qo = SequenceInsert(q, r, i)", "e = SequenceConstruct(a, d)"
    )
    assert "not at an end" in reason_of(SequenceInsertToScanOutput, middle)


@pytest.mark.parametrize("opset", [13, 14])
def test_several_tensors_in_old_opsets(opset: int) -> None:
    """Before opset 14, their sizes must be known, because a Reshape merges them."""
    text = """g (float[T,B] x, float[T,3] z) => (float[K,B] v, float[L,3] w) <int64 zero = {0}> {
        s = Shape(x) n = Gather(s, zero) e = SequenceEmpty() f = SequenceEmpty()
        l, k = Loop (n, , e, f) <body = b (int64 i, bool ci, seq(float[B]) q, seq(float[3]) p)
            => (bool co, seq(float[B]) qo, seq(float[3]) po) {
            co = Identity(ci) a = Gather(x, i) c = Sin(a) d = Gather(z, i) g = Sin(d)
            q1 = SequenceInsert(q, a) qo = SequenceInsert(q1, c) p1 = SequenceInsert(p, d) po = SequenceInsert(p1, g) }>
        v = ConcatFromSequence<axis=0, new_axis=1>(l) w = ConcatFromSequence<axis=0, new_axis=1>(k) }"""
    result = rewritten(parse(text, opset), FEEDS, 1e-6)
    left = 1 if opset < 14 else 0
    assert ops(result.model).get("Loop", 0) == left
    assert ops(result.model).get("ConcatFromSequence", 0) == left


def test_a_loop_that_ends_early_collects_fewer_elements() -> None:
    going = "t = ReduceMax<keepdims=0>(s) co = Less(t, big)"
    model = _collecting(STACK, STACKED, going=going, initial="e = SequenceConstruct(a)")
    result, trace, _ = run_rules(model, [SequenceInsertToScanOutput])
    assert len(trace.commits()) == 1
    assert_equivalent(model, result, Feeds(sizes=(1, 2), values={"m": [0, 1, 2, 7]}))


def test_a_sequence_that_is_an_output_is_split_again() -> None:
    result = rewritten(_collecting("w = Identity(l)", "seq(float[B,3])"), FEEDS, 1e-6)
    assert ops(result.model)["SplitToSequence"] == 1


@pytest.mark.parametrize(
    ("insert", "words"),
    [
        ("qo = SequenceInsert(q, r, minus)", "not at an end"),
        ("qo = SequenceInsert(q, r, m)", "not at an end"),
        ("p = SequenceInsert(q, r) qo = SequenceInsert(p, so, zero)", "at both ends"),
        (
            "p = SequenceInsert(q, r) t = ReduceMax(s) qo = SequenceInsert(p, t)",
            "may differ in shape",
        ),
        (
            "p = SequenceInsert(q, r) n = SequenceLength(p) qo = SequenceInsert(p, r, n)",
            "is read in the body",
        ),
        ("p = SequenceInsert(q, r) qo = SequenceInsert(p, r, i)", "not at an end"),
        ("qo = SequenceErase(q)", "other than SequenceInsert changes the sequence"),
        (
            "n = SequenceLength(q) p = SequenceInsert(q, r) qo = SequenceInsert(p, r, n)",
            "is read in the body",
        ),
        (
            """c = Less(i, one) qo = If (c) <
                then_branch = t () => (seq(float[B,3]) u) { u = SequenceInsert(q, r) },
                else_branch = z () => (seq(float[B,3]) v) { v = SequenceInsert(q, so) }>""",
            "other than SequenceInsert changes the sequence",
        ),
    ],
)
def test_other_changes_stay(insert: str, words: str) -> None:
    assert words in reason_of(SequenceInsertToScanOutput, _collecting(STACK, STACKED, insert))


@pytest.mark.parametrize(
    ("initial", "words"),
    [
        ("c = Concat<axis=0>(a, d) e = SequenceConstruct(c)", "may have another shape"),
        (
            "e = SplitToSequence<axis=0, keepdims=0>(t) t = Unsqueeze(a, z)",
            "not made of known tensors",
        ),
    ],
)
def test_other_initial_elements_stay(initial: str, words: str) -> None:
    if "Split" in initial:
        initial = "z = Constant<value_ints=[0]>() t = Unsqueeze(a, z) e = SplitToSequence<axis=0, keepdims=0>(t)"
    model = _collecting("w = SequenceLength(l)", "int64", initial=initial)
    assert words in reason_of(SequenceInsertToScanOutput, model)
    rewritten(model, FEEDS)


def test_elements_that_grow_are_not_a_scan_output() -> None:
    model = parse("""g (float[N] x, int64 m) => (float[P] y, int64 w) {
        e = SequenceEmpty()
        y, l = Loop (m, , x, e) <body = b (int64 i, bool ci, float[P] s, seq(float[P]) q)
            => (bool co, float[P] so, seq(float[P]) qo) {
            co = Identity(ci) so = Concat<axis=0>(s, s) qo = SequenceInsert(q, so) }>
        w = SequenceLength(l) }""")
    assert "may differ in shape" in reason_of(SequenceInsertToScanOutput, model)
    rewritten(model, Feeds(sizes=(0, 1, 2), values={"m": [0, 1, 3]}))


def test_a_branch_that_returns_the_sequence_reads_it() -> None:
    """onnxruntime cannot split bytes; the sequence need not be split only if every reader joins it."""
    model = parse("""g (uint8[3] x, uint8[3] a, int64 m, bool c) => (uint8[K,3] w) <int64[3] k = {2, 0, 1}> {
        e = SequenceEmpty<dtype=2>()
        y, l = Loop (m, , x, e) <body = b (int64 i, bool ci, uint8[3] s, seq(uint8[3]) q)
            => (bool co, uint8[3] so, seq(uint8[3]) qo) {
            co = Identity(ci) so = Gather(s, k) qo = SequenceInsert(q, so) }>
        u = SequenceConstruct(a)
        z = If (c) <then_branch = t () => (seq(uint8[3]) p) { p = Identity(l) },
                    else_branch = f () => (seq(uint8[3]) r) { r = Identity(u) }>
        w = ConcatFromSequence<axis=0, new_axis=1>(z) }""")
    result, trace, _ = run_rules(model, [EliminateIdentity, SequenceInsertToScanOutput])
    assert trace.defects() == []
    assert "SequenceInsertToScanOutput" not in [commit.rule for commit in trace.commits()]
    assert_equivalent(model, result, FEEDS)
