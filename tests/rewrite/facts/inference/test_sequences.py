"""Facts of sequences and their elements hold on onnxruntime."""

from __future__ import annotations

from looplift.rewrite import symbolic

from ...fact_cases import Case, cases
from ...fact_oracle import facts_of, value

_TWO = "g (float[N,2] x, float[M,2] z)"

SEQUENCES = {
    "construct": Case(f"{_TWO} => (s, n) {{ s = SequenceConstruct(x, z) n = SequenceLength(s) }}", {"n=": "(2,)"}),
    "elements_differ": Case(
        f"""{_TWO} => (a, b, e) <int64 i = {{0}}, int64 j = {{-1}}> {{ s = SequenceConstruct(x, z)
        a = SequenceAt(s, i) b = SequenceAt(s, j) p = Shape(a) q = Shape(b) e = Equal(p, q) }}""",
        {"a": "(None, 2)", "e=": "(None, True)"},
    ),
    "elements_alike": Case(
        """g (float[N,2] x) => (a, b) <int64 i = {0}, int64 j = {1}> { z = Exp(x)
        s = SequenceConstruct(x, z) a = SequenceAt(s, i) b = SequenceAt(s, j) }""",
        {"a": "(N, 2)", "b": "(N, 2)"},
    ),
    "ranks_differ": Case(
        """g (float[N,2] x, float[2] z) => (a, b) <int64 i = {0}, int64 j = {1}> {
        s = SequenceConstruct(x, z) a = SequenceAt(s, i) b = SequenceAt(s, j) }"""
    ),
    "insert": Case(
        f"""{_TWO} => (a, b, n) <int64 i = {{0}}, int64 j = {{1}}> {{ e = SequenceEmpty() s = SequenceInsert(e, x)
        t = SequenceInsert(s, z, i) a = SequenceAt(t, i) b = SequenceAt(t, j) n = SequenceLength(t) }}""",
        {"n=": "(2,)"},
    ),
    "insert_into_empty": Case(
        f"""{_TWO} => (a, n) <int64 i = {{0}}> {{ e = SequenceEmpty<dtype=1>() s = SequenceInsert(e, x)
        a = SequenceAt(s, i) n = SequenceLength(s) }}""",
        {"a": "(N, 2)", "n=": "(1,)"},
    ),
    "erase": Case(
        f"""{_TWO} => (a, n) <int64 i = {{0}}> {{ s = SequenceConstruct(x, z) t = SequenceErase(s, i)
        a = SequenceAt(t, i) n = SequenceLength(t) }}""",
        {"n=": "(1,)", "a": "(None, 2)"},
    ),
    "concatenate": Case(f"{_TWO} => (y) {{ s = SequenceConstruct(x, z) y = ConcatFromSequence<axis=0>(s) }}"),
    "concatenate_other_axis": Case(
        f"{_TWO} => (y) {{ s = SequenceConstruct(x, z) y = ConcatFromSequence<axis=-1>(s) }}"
    ),
    "stack": Case(
        """g (float[N,2] x) => (a, b, c) { s = SequenceConstruct(x, x, x)
        a = ConcatFromSequence<axis=0, new_axis=1>(s) b = ConcatFromSequence<axis=-1, new_axis=1>(s)
        c = ConcatFromSequence<axis=1>(s) }""",
        {"a": "(3, N, 2)", "b": "(N, 2, 3)", "c": "(N, 6)"},
    ),
    "input": Case(
        """g (seq(float[2,3]) s) => (a, n, y) <int64 i = {0}> { a = SequenceAt(s, i)
        n = SequenceLength(s) y = ConcatFromSequence<axis=0, new_axis=1>(s) }""",
        {"a": "(2, 3)", "y": "(None, 2, 3)"},
        values={"s": [[], [[[1.0] * 3] * 2], [[[1.0] * 3] * 2] * 2]},
    ),
    "split": Case(
        "g (float[N,4] x) => (s, a, n) <int64 i={0}> { s = SplitToSequence(x) a = SequenceAt(s, i) n = SequenceLength(s) }",
        {"a": "(1, 4)", "n=": "(N,)"},
    ),
    "split_and_squeeze": Case(
        """g (float[N,4] x) => (s, a, n) <int64 i={0}> { s = SplitToSequence<keepdims=0, axis=1>(x)
        a = SequenceAt(s, i) n = SequenceLength(s) }""",
        {"a": "(N,)", "n=": "(4,)"},
    ),
    "split_by_one": Case(
        """g (float[N,4] x) => (s, t, a, b) <int64 i={0}, int64 one={1}> {
        s = SplitToSequence<keepdims=0>(x, one) a = SequenceAt(s, i)
        t = SplitToSequence(x, one) b = SequenceAt(t, i) }"""
    ),
    "split_by_two": Case(
        """g (float[N,4] x) => (s, t, a, b, n) <int64 i={0}, int64 two={2}> {
        s = SplitToSequence(x, two) a = SequenceAt(s, i) n = SequenceLength(s)
        t = SplitToSequence<axis=1>(x, two) b = SequenceAt(t, i) }""",
        {"n=": "((N + 1) // 2,)", "b": "(N, 2)"},
    ),
    "split_unevenly": Case(
        """g (float[N,5] x) => (a, b, e) <int64 i={0}, int64 j={2}, int64 two={2}> {
        s = SplitToSequence<axis=1>(x, two) a = SequenceAt(s, i) b = SequenceAt(s, j)
        p = Shape(a) q = Shape(b) e = Equal(p, q) }""",
        {"e=": "(True, None)"},
    ),
    "split_by_sizes": Case(
        """g (float[N,5] x) => (s, a, b, n) <int64 i={0}, int64 j={1}, int64[2] p={2, 3}> {
        s = SplitToSequence<axis=1>(x, p) a = SequenceAt(s, i) b = SequenceAt(s, j) n = SequenceLength(s) }""",
        {"n=": "(2,)"},
    ),
    "split_by_ones": Case(
        """g (float[2,5] x) => (s, a) <int64 i={0}, int64[2] p={1, 1}> {
        s = SplitToSequence<axis=0, keepdims=0>(x, p) a = SequenceAt(s, i) }"""
    ),
    "split_run_time": Case(
        "g (float[4,2] x, int64 k) => (s, n) { s = SplitToSequence(x, k) n = SequenceLength(s) }",
        values={"k": [1, 2, 3, 9]},
    ),
    "split_run_time_and_squeeze": Case(
        """g (float[4,2] x, int64 k) => (s, a) <int64 i={0}> { s = SplitToSequence<keepdims=0>(x, k)
        a = SequenceAt(s, i) }""",
        values={"k": [1, 2]},
    ),
    "split_run_time_sizes": Case(
        "g (float[4] x, int64[R] k) => (s, n) { s = SplitToSequence(x, k) n = SequenceLength(s) }",
        values={"k": [[4], [1, 3], [1, 1, 2]]},
        sizes=(1,),
    ),
    "joined": Case(
        """g (float[N,2] x, float[M,2] z, bool c) => (s, n, a, b) <int64 i = {0}, int64 j = {-1}> {
        s = If (c) <then_branch = t () => (p) { p = SequenceConstruct(x, z) },
                    else_branch = e () => (q) { q = SequenceConstruct(z) }>
        n = SequenceLength(s) a = SequenceAt(s, i) b = SequenceAt(s, j) }"""
    ),
    "strings": Case(
        'g (string[N] x) => (a, n) <int64 i = {0}> { s = SequenceConstruct(x) a = SequenceAt(s, i) n = SequenceLength(s) }',
        {"a": "(N,)", "n=": "(1,)"},
    ),
}  # fmt: skip


@cases(SEQUENCES)
def test_sequence(case: Case) -> None:
    case.check()


def test_elements_of_one_sequence_share_no_open_dim() -> None:
    """A dim that is open in the declared element type may differ from element to element."""
    case = Case(
        """g (seq(float[?]) s) => (a, b) <int64 i = {0}, int64 j = {1}> {
        a = SequenceAt(s, i) b = SequenceAt(s, j) }"""
    )
    facts = facts_of(case.model())
    first, second = (facts.shape(value(facts, name)) for name in "ab")
    assert first is not None
    assert second is not None
    assert symbolic.eq(first[0], second[0]) is None
