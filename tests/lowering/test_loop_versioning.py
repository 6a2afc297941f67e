"""Loops with a version for runs in which sizes that meet in the body are equal."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tvm

from looplift.lowering import emit
from looplift.lowering.forms import Form
from looplift.lowering.transform.unused import without_unused

from .conftest import parse

Load = Callable[..., Any]


def values(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def is_versioned(model: Any) -> bool:
    return any(name.endswith("_of_equal_sizes") for name in model.functions())


def check_trip_counts(model: Any, sizes: tuple[int, ...], width: int) -> None:
    assert is_versioned(model)
    for count in (0, 1, 3):
        model.check(np.int64(count), *(values(size, width) for size in sizes))


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
    check_trip_counts(load(THREE), sizes, width=4)


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


CAPTURES = """
g (int64 m, float[b1, 2] x, float[b2, 2] h) => (float[p, 2] y, int64[2] sizes, int32[1] narrow)
    <int64 zero = {0}, int64[1] none = {0}, int64[1] one = {1}> {
    shape = Shape(h)
    first = Gather(shape, zero)
    row = Slice(shape, none, one, none)
    small = Cast <to = 6> (row)
    pair = SequenceConstruct(x, h)
    y, sizes, narrow = Loop (m, , h, shape, small) <
        body = step (int64 i, bool c, float[u, 2] s, int64[2] w, int32[1] k)
            => (bool c2, float[v, 2] s2, int64[2] w2, int32[1] k2) {
            other = SequenceAt(pair, zero)
            sum = Add(s, other)
            count = Cast <to = 1> (first)
            s2 = Add(sum, count)
            w2 = Identity(shape)
            k2 = Identity(small)
            c2 = Identity(c)
        }
    >
}
"""


@pytest.mark.parametrize("sizes", [(3, 3), (1, 3), (1, 1)])
def test_captured_sizes_are_those_of_the_version(load: Load, sizes: tuple[int, int]) -> None:
    check_trip_counts(load(CAPTURES), sizes, width=2)


def test_scan_outputs_of_known_sizes(load: Load) -> None:
    """The shape of all rows is known before the loop, which is a function without branches then."""
    model = load("""
    g (int64 m, float[b1] x, float[b2] z) => (float[p] y, float[k] rows, int64[k, 1] counts) {
        y, rows, counts = Loop (m, , z) <
            body = step (int64 i, bool c, float[u] s)
                => (bool c2, float[v] s2, float row, int64[1] count) {
                s2 = Sub(s, x)
                row = ReduceSum <keepdims = 0> (s2)
                count = Shape(s)
                c2 = Identity(c)
            }
        >
    }""")
    assert is_versioned(model)
    for first, second in ((3, 3), (1, 3), (1, 1)):
        for trips in (0, 1, 4):
            model.check(np.int64(trips), values(first), values(second))


def nested(depth: int) -> str:
    """Loops in each other, which all add an input with a batch of its own."""
    inputs = ", ".join(f"float[b{level}, 2] x{level}" for level in range(depth))
    body = "r0 = Identity(s0)"
    for level in reversed(range(depth)):
        inner = "" if level + 1 == depth else body
        total = f"s{level}" if level + 1 == depth else f"r{level + 1}"
        body = f"""r{level} = Loop (m, , {"h" if level == 0 else f"s{level - 1}"}) <
            body = b{level} (int64 i{level}, bool c{level}, float[u{level}, 2] s{level})
                => (bool d{level}, float[v{level}, 2] t{level}) {{
                {inner}
                t{level} = Add({total}, x{level})
                d{level} = Identity(c{level})
            }}
        >"""
    return f"g (int64 m, float[n, 2] h, {inputs}) => (float[p, 2] r0) {{ {body} }}"


def test_the_number_of_functions_is_linear_in_the_depth(stock: Load) -> None:
    counts = [len(stock(nested(depth)).functions()) for depth in (1, 2, 3, 4)]
    steps = [after - before for before, after in pairwise(counts)]
    assert len(set(steps)) == 1
    model = stock(nested(3))
    for size in (2, 1):
        model.check(np.int64(2), values(2, 2), *(values(size, 2) for _ in range(3)))


def test_every_function_is_called(stock: Load) -> None:
    module = stock(nested(3)).module
    assert set(without_unused(module.clone()).get_global_vars()) == set(module.get_global_vars())
    names = "".join(str(function.body) for function in module.functions.values())
    unused = [v.name_hint for v in module.get_global_vars() if v.name_hint not in names]
    assert unused == ["main"]


def test_all_names_that_meet_are_equal_in_the_version(load: Load) -> None:
    """A sum of two batches stands for the first of them where it meets a third."""
    functions = load(THREE).functions()
    body = next(f for name, f in functions.items() if name.startswith("y_body_"))
    assert "match_cast" not in str(body.body)
    assert "==" in str(functions["main"].body)
    assert str(functions["main"].body).count("==") == 2


def test_a_node_has_one_form(stock: Load) -> None:
    found: list[Form] = []
    emit(parse(nested(3)), on_form=found.append)
    assert len(found) == len({form.place for form in found}) == 3
