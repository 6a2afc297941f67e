"""Loops with a version for runs in which sizes that meet in the body are equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm

Load = Callable[..., Any]


@pytest.fixture(params=["imported", "stock"])
def load(request: pytest.FixtureRequest) -> Load:
    chosen: Load = request.getfixturevalue(request.param)
    return chosen


def values(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def is_versioned(model: Any) -> bool:
    return any(name.endswith("_of_equal_sizes") for name in model.functions())


CELL = """
g (int64 m, float[t, b1, 4] x, float[b2, 4] h) => (float[p, 4] y, float[k, q, 4] rows) {
    y, rows = Loop (m, , h) <
        body = step (int64 i, bool c, float[u, 4] s) => (bool c2, float[v, 4] s2, float[w, 4] row) {
            part = Gather(x, i)
            sum = Add(s, part)
            s2 = Tanh(sum)
            row = Neg(s2)
            c2 = Identity(c)
        }
    >
}
"""


@pytest.mark.parametrize(("of_input", "of_state"), [(3, 3), (1, 1), (0, 0), (1, 3), (3, 1), (1, 0)])
def test_batches_of_two_names(load: Load, of_input: int, of_state: int) -> None:
    model = load(CELL)
    assert is_versioned(model)
    for count in (0, 1, 5):
        if count > 1 and (of_input, of_state) == (3, 1):
            continue  # onnxruntime refuses rows of several shapes.
        model.check(np.int64(count), values(6, of_input, 4), values(of_state, 4))


def test_batches_that_do_not_broadcast(load: Load) -> None:
    model = load(CELL)
    with pytest.raises((tvm.error.InternalError, ValueError, RuntimeError)):
        model.run(np.int64(2), values(6, 2, 4), values(3, 4))


THREE = """
g (int64 m, float[b1, 4] x, float[b2, 4] z, float[b3, 4] h) => (float[p, 4] y) {
    y = Loop (m, , h) <
        body = step (int64 i, bool c, float[u, 4] s) => (bool c2, float[v, 4] s2) {
            sum = Add(s, x)
            s2 = Mul(sum, z)
            c2 = Identity(c)
        }
    >
}
"""


@pytest.mark.parametrize(
    "sizes", [(2, 2, 2), (1, 2, 2), (2, 1, 2), (2, 2, 1), (1, 1, 2), (1, 1, 1)]
)
def test_batches_of_three_names(load: Load, sizes: tuple[int, int, int]) -> None:
    model = load(THREE)
    assert is_versioned(model)
    for count in (0, 1, 3):
        model.check(np.int64(count), *(values(size, 4) for size in sizes))


def test_scan_inputs_and_sizes_of_the_run(load: Load) -> None:
    """The body reads the number of rows too, which is one of the sizes that are equal."""
    model = load("""
    g (float[t, b1] x, float[b2] h) => (float[p] y, float[t, q] rows, int64[t, 1] counts) {
        y, rows, counts = Scan <
            num_scan_inputs = 1,
            body = step (float[u] s, float[v] part) => (float[w] s2, float[r] row, int64[1] count) {
                s2 = Add(s, part)
                row = Identity(s2)
                count = Shape(h)
            }
        > (h, x)
    }""")
    assert is_versioned(model)
    for batch in (1, 4):
        model.check(values(3, batch), values(batch))
    y, rows, counts = model.run(values(3, 1), values(4))
    np.testing.assert_allclose(y, values(4) + values(3, 1).sum(), rtol=1e-5)
    assert (rows.shape, counts.tolist()) == ((3, 4), [[4]] * 3)


def test_a_sequence_is_carried(load: Load) -> None:
    model = load("""
    g (int64 m, float[b1, 2] x, float[b2, 2] z) => (float[p, 2] y) {
        none = SequenceEmpty ()
        found = Loop (m, , none) <
            body = step (int64 i, bool c, seq(float[u, 2]) s) => (bool c2, seq(float[v, 2]) s2) {
                sum = Add(x, z)
                s2 = SequenceInsert(s, sum)
                c2 = Identity(c)
            }
        >
        y = ConcatFromSequence <axis = 0> (found)
    }""")
    assert is_versioned(model)
    for first, second in ((2, 2), (1, 2), (2, 1)):
        model.check(np.int64(3), values(first, 2), values(second, 2))


def test_nested_loops(load: Load) -> None:
    model = load("""
    g (int64 m, float[b1, 2] x, float[b2, 2] h) => (float[p, 2] y) {
        y = Loop (m, , h) <
            body = outer (int64 i, bool c, float[u, 2] s) => (bool c2, float[v, 2] s2) {
                s2 = Loop (m, , s) <
                    body = inner (int64 j, bool d, float[w, 2] q) => (bool d2, float[r, 2] q2) {
                        q2 = Add(q, x)
                        d2 = Identity(d)
                    }
                >
                c2 = Identity(c)
            }
        >
    }""")
    assert is_versioned(model)
    for first, second in ((2, 2), (1, 2), (2, 1)):
        for count in (0, 2):
            model.check(np.int64(count), values(first, 2), values(second, 2))


def test_one_name_needs_one_version(load: Load) -> None:
    model = load(CELL.replace("b2", "b1"))
    assert not is_versioned(model)
    model.check(np.int64(2), values(6, 3, 4), values(3, 4))
