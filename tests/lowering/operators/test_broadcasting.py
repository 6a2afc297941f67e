"""Tensors whose symbolic sizes agree only at run time, against onnxruntime."""

from __future__ import annotations

from typing import Any

import pytest

from .inputs import Load, check_sizes, output_dims, random


def test_broadcasting_is_decided_at_run_time(imported: Load) -> None:
    model = imported("""
    g (float[n, m] x, float[k, m] t) => (float[a, b] y, bool[a, b] z, float[a, b] w) {
        y = Add(x, t) z = Less(x, t) w = Where(z, x, t)
    }""")
    for left, right in (((3, 2), (1, 2)), ((1, 3), (5, 3)), ((5, 1), (5, 1)), ((0, 2), (1, 2))):
        model.check(random(*left), random(*right))


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("g (float[b, n, k] x, float[c, m, j] w) => (float[a, p, q] y) { y = MatMul(x, w) }",
         [((2, 3, 4), (1, 4, 5)), ((2, 3, 4), (2, 4, 5)), ((1, 3, 4), (2, 4, 5))]),
        ("g (float[n, k] x, float[m] w) => (float[a, b] y) { y = Gemm <transB = 1> (x, x, w) }",
         [((3, 4), (3,)), ((3, 4), (1,))]),
        ("g (float[n, k] x, float[m, j] w) => (float[a, b] y) { y = Concat <axis = 0> (x, w) }",
         [((3, 4), (2, 4)), ((0, 1), (3, 1))]),
    ],
    ids=["MatMul", "Gemm", "Concat"],
)  # fmt: skip
def test_sizes_of_two_inputs_that_agree_at_run_time(
    imported: Load, text: str, shapes: list[tuple[tuple[int, ...], ...]]
) -> None:
    for given in shapes:
        imported(text).check(*(random(*shape) for shape in given))


@pytest.mark.parametrize("op_type", ["And", "Or", "Xor"])
def test_broadcasting_of_logic(imported: Load, op_type: str) -> None:
    model = imported(f"""
    g (bool[n, m] x, bool[k, m] t) => (bool[a, b] y) {{ z = {op_type}(x, t) y = Not(z) }}""")
    for left, right in (((3, 2), (1, 2)), ((1, 3), (5, 3)), ((5, 1), (5, 1)), ((0, 2), (1, 2))):
        model.check(random(*left) > 0, random(*right) > 0)


def test_broadcasting_of_bits_and_of_several_inputs(imported: Load) -> None:
    model = imported("""
    <ir_version: 8, opset_import: ["" : 18]>
    g (float[n, m] x, float[k, m] t) => (float[a, b] y, float[a, b] z, bool[a, b] c, int32[a, b] w) {
        y = Sum(x, t, x) z = Mean(t, x) c = LessOrEqual(x, t)
        i = Cast <to = 6> (x) j = Cast <to = 6> (t)
        p = BitwiseAnd(i, j) q = BitwiseOr(p, j) w = BitwiseXor(q, i)
    }""")
    for left, right in (((3, 2), (1, 2)), ((1, 3), (5, 3)), ((5, 1), (5, 1))):
        model.check(random(*left) * 9, random(*right) * 9)


@pytest.mark.parametrize(
    ("text", "valid", "invalid"),
    [
        (
            "float[a] p, float[b] q) => (float[c] y) { y = Add (p, q) }",
            [((8,), (1,)), ((1,), (3,)), ((1,), (0,)), ((4,), (4,))],
            [((8,), (3,)), ((3,), (8,)), ((0,), (2,))],
        ),
        (
            "float[a] p, float[5] q) => (float[c] y) { y = Mul (p, q) }",
            [((1,), (5,)), ((5,), (5,))],
            [((3,), (5,)), ((8,), (5,))],
        ),
        (
            """float[a] p, float[b] q, float[c] r) => (float[d] y) {
                s = Add (p, q) y = Mul (s, r) }""",
            [((8,), (1,), (8,)), ((1,), (1,), (3,))],
            [((8,), (1,), (3,)), ((1,), (8,), (3,))],
        ),
        (
            "float[a, b] p, float[c] q) => (float[d, e] y) { y = Add (p, q) }",
            [((2, 3), (3,)), ((2, 1), (4,)), ((2, 4), (1,))],
            [((2, 3), (2,)), ((3, 2), (3,))],
        ),
    ],
    ids=["two", "known", "three", "ranks"],
)
def test_sizes_that_do_not_broadcast_fail(
    imported: Load, text: str, valid: Any, invalid: Any
) -> None:
    """Kernels would read past the end of the smaller input."""
    check_sizes(imported(f"g ({text}"), valid, invalid)


@pytest.mark.parametrize(
    ("text", "valid", "invalid"),
    [
        (
            "float[n, k] p, float[j, m] q) => (float[a, b] y) { y = MatMul (p, q) }",
            [((2, 3), (3, 4)), ((2, 0), (0, 4))],
            ((2, 3), (2, 4)),
        ),
        (
            "float[n, k] p, float[3, m] q) => (float[a, b] y) { y = MatMul (p, q) }",
            [((2, 3), (3, 4))],
            ((2, 5), (3, 4)),
        ),
        (
            "float[b, n, k] p, float[j] q) => (float[c, d] y) { y = MatMul (p, q) }",
            [((2, 1, 3), (3,))],
            ((2, 1, 3), (4,)),
        ),
        (
            "float[k, n] p, float[m, j] q) => (float[a, b] y) { y = Gemm <transA = 1> (p, q) }",
            [((2, 3), (2, 4))],
            ((3, 2), (2, 4)),
        ),
    ],
    ids=["matrices", "known", "vector", "Gemm"],
)
def test_factors_that_do_not_fit_fail(imported: Load, text: str, valid: Any, invalid: Any) -> None:
    check_sizes(imported(f"g ({text}"), valid, [invalid])


def test_a_slice_of_a_table_has_the_size_that_it_is_added_to(imported: Load) -> None:
    """The size `min(n, 4)` broadcasts to n, or the run fails."""
    model = imported("""
    g (float[b, n] x, float[4] table) => (float[b, n] y) {
        s = Shape(x)
        zero = Constant <value_ints = [0]> ()
        one = Constant <value_ints = [1]> ()
        n = Gather(s, one)
        part = Slice(table, zero, n)
        y = Add(part, x)
    }""")
    assert output_dims(model) == ["b", "n"]
    valid = [((2, size), (4,)) for size in (0, 1, 2, 4)]
    check_sizes(model, valid, [((2, 5), (4,))])


def test_a_slice_of_an_unknown_number_of_elements_may_broadcast(imported: Load) -> None:
    model = imported("""
    g (float[n] x, float[m] table) => (float[n] y) {
        n = Shape(x)
        zero = Constant <value_ints = [0]> ()
        part = Slice(table, zero, n)
        y = Add(part, x)
    }""")
    check_sizes(model, [((3,), (1,)), ((3,), (3,)), ((3,), (5,)), ((1,), (4,))], [((3,), (2,))])


def test_a_slice_of_one_element_may_broadcast(imported: Load) -> None:
    model = imported("""
    g (float[n] x, float[1] table) => (float[n] y) {
        n = Shape(x)
        zero = Constant <value_ints = [0]> ()
        part = Slice(table, zero, n)
        y = Add(part, x)
    }""")
    check_sizes(model, [((size,), (1,)) for size in (0, 1, 5)], [])
