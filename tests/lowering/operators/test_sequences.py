"""Sequences of known and of unknown length, and operators on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm

from looplift.rewrite.errors import UnsupportedError

Load = Callable[..., Any]


def values(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def given(model: Any, *inputs: Any) -> Any:
    """Run with sequences among the inputs, as tuples."""

    def convert(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(convert(item) for item in value)
        return tvm.runtime.tensor(np.asarray(value))

    return model.machine["main"](*(convert(value) for value in inputs))


KNOWN_OR_NOT = """
g (float[n, 4] x, bool c, int64 p) => (float[a, 4] y, int64 count, float[b, 4] z, float[c, d, 4] w) {
    pair = SequenceConstruct(x, x)
    s = If (c) <
        then_branch = t () => (seq(float[n, 4]) more) {
            e = Exp(x)
            more = SequenceInsert(pair, e)
        },
        else_branch = u () => (seq(float[n, 4]) fewer) { fewer = SequenceErase(pair, p) }
    >
    count = SequenceLength(s)
    y = ConcatFromSequence <axis = 0> (s)
    z = SequenceAt(s, p)
    w = ConcatFromSequence <axis = 1, new_axis = 1> (s)
}
"""


@pytest.mark.parametrize("position", [0, -1])
@pytest.mark.parametrize("taken", [True, False])
def test_branches_that_give_sequences_of_different_lengths(
    imported: Load, taken: bool, position: int
) -> None:
    imported(KNOWN_OR_NOT).check(values(3, 4), np.array(taken), np.int64(position))


def test_a_position_outside_is_an_error(imported: Load) -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        imported(KNOWN_OR_NOT).run(values(3, 4), np.array(True), np.int64(3))
    with pytest.raises(IndexError, match="out of bounds"):
        imported(KNOWN_OR_NOT).run(values(3, 4), np.array(False), np.int64(-3))


LOOP = """
g (float[4] x, int64 n, int64 p) => (float[a, 4] y, int64 count, float[b] z, float[e, 4] start) {
    one = SequenceConstruct(x)
    s, t, u = Loop (n, , x, one, one) <
        body = b (int64 i, bool c, float[4] v, seq(float[4]) grows, seq(float[4]) mixed)
            => (bool c2, float[4] v2, seq(float[4]) grown, seq(float[q]) mixed2) {
            v2 = Add(v, x)
            grown = SequenceInsert(grows, v2)
            last = SequenceAt(mixed, p)
            longer = Concat <axis = 0> (last, x)
            mixed2 = SequenceInsert(mixed, longer, i)
            c2 = Identity(c)
        }
    >
    count = SequenceLength(t)
    y = ConcatFromSequence <axis = 0, new_axis = 1> (t)
    z = ConcatFromSequence <axis = 0> (u)
    start = ConcatFromSequence <axis = 0, new_axis = 1> (one)
}
"""


@pytest.mark.parametrize("count", [0, 1, 5])
def test_sequences_as_carried_values(imported: Load, count: int) -> None:
    """One sequence is appended to in place; the other has tensors of different sizes."""
    for position in (0, -1):
        imported(LOOP).check(values(4), np.int64(count), np.int64(position))


def test_the_first_sequence_is_not_changed(imported: Load) -> None:
    model = imported("""
    g (seq(float[2]) s, int64 n) => (int64 before, int64 after) {
        t = Loop (n, , s) <
            body = b (int64 i, bool c, seq(float[2]) a) => (bool c2, seq(float[2]) a2)
            <float[2] item = {1, 2}> {
                a2 = SequenceInsert(a, item)
                c2 = Identity(c)
            }
        >
        after = SequenceLength(t)
        before = SequenceLength(s)
    }""")
    before, after = given(model, (values(2), values(2)), np.int64(3))
    assert (before.numpy(), after.numpy()) == (2, 5)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_split_of_a_symbolic_size(imported: Load, axis: int, keepdims: int) -> None:
    model = imported(f"""
    g (float[n, m] x, int64 p) => (int64 count, float[?] piece) {{
        s = SplitToSequence <axis = {axis}, keepdims = {keepdims}> (x)
        count = SequenceLength(s)
        one = SequenceAt(s, p)
        shape = Constant <value_ints = [-1]> ()
        piece = Reshape(one, shape)
    }}""")
    model.check(values(3, 5), np.int64(2))
    model.check(values(1, 1), np.int64(-1))


def test_split_into_pieces_of_a_given_size(imported: Load) -> None:
    model = imported("""
    g (float[n, 2] x, int64 size) => (int64 count, float[a, 2] last, float[b, 2] all) {
        s = SplitToSequence <axis = 0> (x, size)
        count = SequenceLength(s)
        end = Constant <value_int = -1> ()
        last = SequenceAt(s, end)
        all = ConcatFromSequence <axis = 0> (s)
    }""")
    for rows, size in ((6, 2), (7, 3), (2, 5)):
        model.check(values(rows, 2), np.int64(size))


def test_a_map(imported: Load) -> None:
    model = imported("""
    g (seq(float[n, 2]) s, float[2] y) => (seq(float[n, 2]) t, seq(int64[2]) sizes) {
        t, sizes = SequenceMap (s, y) <
            body = b (float[n, 2] a, float[2] b) => (float[n, 2] sum, int64[2] size) {
                sum = Add(a, b)
                size = Shape(a)
            }
        >
    }""")
    sums, sizes = given(model, (values(1, 2), values(3, 2)), values(2))
    for got, want in zip(sums, (values(1, 2), values(3, 2)), strict=True):
        np.testing.assert_allclose(got.numpy(), want + values(2))
    assert [size.numpy().tolist() for size in sizes] == [[1, 2], [3, 2]]


def test_the_end_of_an_empty_sequence(imported: Load) -> None:
    with pytest.raises(UnsupportedError, match="position -1 is outside of a sequence of 0"):
        imported("""
        g (float[2] x) => (float[2] y) {
            s = SequenceEmpty <dtype = 1> ()
            e = Constant <value_int = -1> ()
            y = SequenceAt(s, e)
        }""")


def test_split_of_a_known_size(imported: Load) -> None:
    model = imported("""
    g (float[4, 2] x) => (float[2, 2] y, int64 n) {
        two = Constant <value_int = 2> ()
        one = Constant <value_int = 1> ()
        s = SplitToSequence(x, two)
        same = Identity(s)
        y = SequenceAt(same, one)
        n = SequenceLength(same)
    }""")
    model.check(np.arange(8, dtype=np.float32).reshape(4, 2))


def test_an_optional_tensor(imported: Load) -> None:
    imported("""
    g (float[n] x) => (float[n] y, bool b) {
        o = Optional (x) y = OptionalGetElement (o) b = OptionalHasElement (o)
    }""").check(values(3))
