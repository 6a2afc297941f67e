"""Operators on tensors whose sizes are symbols: one module serves every size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from looplift.lowering.values import as_int

Load = Callable[..., Any]
Array = np.ndarray[Any, np.dtype[np.float32]]


def random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def output_dims(model: Any) -> list[str]:
    """The shape of the first output, as far as the importer knows it."""
    kind = model.module["main"].ret_ty
    first = kind.fields[0] if isinstance(kind, relax.TupleType) else kind
    return [str(as_int(size) or size) for size in first.shape.values]


def test_sizes_stay_formulas_through_arithmetic(imported: Load) -> None:
    model = imported("""
    g (float[n, m, 4] x) => (float[k, 4] y) {
        i = Constant <value_int = 0> ()
        j = Constant <value_ints = [1]> ()
        axis = Constant <value_ints = [0]> ()
        four = Constant <value_ints = [4]> ()
        s = Shape(x)
        a = Gather(s, i)
        b = Gather(s, j)
        a1 = Unsqueeze(a, axis)
        rows = Mul(a1, b)
        same = Cast <to = 7> (rows)
        target = Concat <axis = 0> (same, four)
        y = Reshape(x, target)
    }""")
    assert output_dims(model) == ["n * m", "4"]
    model.check(random(2, 3, 4))
    model.check(random(1, 5, 4))


@pytest.mark.parametrize(
    ("node", "dtype"),
    [
        ("y = Add(a, b)", "int64"),
        ("y = Sub(a, b)", "int64"),
        ("d = Sub(a, b) y = Div(d, two)", "int64"),
        ("y = Div(a, two)", "int64"),
        ("y = Max(a, b, two)", "int64"),
        ("y = Min(a, b)", "int64"),
        ("y = Less(a, b)", "bool"),
        ("y = Equal(a, b)", "bool"),
        ("y = GreaterOrEqual(a, two)", "bool"),
        ("y = Size(x)", "int64"),
        ("y = ReduceProd <keepdims = 0> (s)", "int64"),
        ("y = Cast <to = 1> (a)", "float"),
        ("f = Cast <to = 1> (a) y = Sqrt(f)", "float"),
        ("y = Neg(a)", "int64"),
        ("c = Less(a, b) y = Not(c)", "bool"),
        ("c = Less(a, b) y = Where(c, a, b)", "int64"),
    ],
)
def test_scalars_computed_from_sizes(imported: Load, node: str, dtype: str) -> None:
    model = imported(f"""
    g (float[n, m] x) => ({dtype} y) {{
        zero = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        two = Constant <value_int = 2> ()
        s = Shape(x) a = Gather(s, zero) b = Gather(s, one)
        {node}
    }}""")
    model.check(random(2, 5))
    model.check(random(4, 1))
    model.check(random(3, 3))


@pytest.mark.parametrize(
    "node",
    [
        "y = Neg(s)",
        "y = Identity(s)",
        "y = Mul(s, s)",
        "y = Gather(s, order)",
        "y = Equal(s, order)",
        "y = Slice(s, zeros, zeros)",
        "y = Transpose(s)",
        "c = Greater(s, order) y = Where(c, s, order)",
        "y = ReduceMax(s)",
    ],
)
def test_vectors_of_sizes_feed_any_operator(imported: Load, node: str) -> None:
    dtype = "bool" if "Equal" in node else "int64"
    model = imported(f"""
    g (float[n, m] x) => ({dtype}[k] y) {{
        order = Constant <value_ints = [1, 0]> ()
        zeros = Constant <value_ints = [0]> ()
        s = Shape(x)
        {node}
    }}""")
    model.check(random(2, 5))
    model.check(random(1, 0))


def test_sizes_in_a_narrower_type_stay_formulas(imported: Load) -> None:
    """TensorFlow computes shapes in int32. The sum needs to know that both have n rows."""
    model = imported("""
    g (float[n, 3] x) => (float[n, 3] y, int32[2] z) {
        zero = Constant <value_ints = [0]> ()
        one = Constant <value_ints = [1]> ()
        three = Constant <value = int32[1] {3}> ()
        s = Shape(x)
        narrow = Cast <to = 6> (s)
        rows = Slice(narrow, zero, one)
        scalar = Squeeze(rows, zero)
        again = Unsqueeze(scalar, zero)
        z = Concat <axis = 0> (again, three)
        target = Cast <to = 7> (z)
        ones = ConstantOfShape <value = float[1] {1}> (target)
        y = Add(x, ones)
    }""")
    assert output_dims(model) == ["n", "3"]
    model.check(random(2, 3))
    model.check(random(1, 3))


def test_a_squeezed_size_may_be_symbolic(imported: Load) -> None:
    model = imported("""
    g (float[n, m] x, float[m] b) => (float[m] y) {
        axis = Constant <value_ints = [0]> () v = Squeeze(x, axis) y = Add(v, b)
    }""")
    model.check(random(1, 4), random(4))
    with pytest.raises(Exception, match=r"(?i)match_?cast|mismatch|shape"):
        model.run(random(2, 4), random(4))


def test_broadcasting_is_decided_at_run_time(imported: Load) -> None:
    model = imported("""
    g (float[n, m] x, float[k, m] t) => (float[a, b] y, bool[a, b] z, float[a, b] w) {
        y = Add(x, t) z = Less(x, t) w = Where(z, x, t)
    }""")
    for left, right in (((3, 2), (1, 2)), ((1, 3), (5, 3)), ((5, 1), (5, 1)), ((0, 2), (1, 2))):
        model.check(random(*left), random(*right))


def test_expand_broadcasts_both_ways(imported: Load) -> None:
    model = imported("""
    g (float[n, 1] x, float[m, k] t) => (float[2, a, b] y, float[d, e] z) {
        s = Shape(t)
        two = Constant <value_ints = [2]> ()
        target = Concat <axis = 0> (two, s)
        y = Expand(x, target)
        fixed = Constant <value_ints = [1, 4]> ()
        z = Expand(t, fixed)
    }""")
    for left, right in (((3, 1), (1, 4)), ((1, 1), (5, 4)), ((5, 1), (5, 1))):
        model.check(random(*left), random(*right))


@pytest.mark.parametrize("shape", [[2, -1, 3], [0, 2, -1], [0, -1, 1], [8, 3, 1]])
def test_a_new_shape_that_is_an_input(imported: Load, shape: list[int]) -> None:
    model = imported("""
    g (float[n, m] x, int64[3] s) => (float[a, b, c] y) { r = Reshape(x, s) y = Exp(r) }""")
    model.check(random(4, 6), np.array(shape))


def test_a_shape_that_is_an_input_is_filled(imported: Load) -> None:
    model = imported("g (int64[2] s) => (float[a, b] y) { y = ConstantOfShape(s) }")
    model.check(np.array([2, 3]))
    model.check(np.array([0, 3]))


@pytest.mark.parametrize(
    "bounds",
    [(1, 2**63 - 1, 1), (0, -1, 1), (-3, 2**63 - 1, 1), (1, -1, 1), (1, 3, 2), (-3, -1, 1),
     (0, 2**31 - 1, 2), (2, 1, 1), (-1, -(2**63), -1), (-1, -(2**63), -2), (-2, -(2**63), -1),
     (4, 0, -1), (2**63 - 1, 1, -3), (-2, -5, -2), (1, -1, -1), (5, -(2**63), -2), (2, 2**31 - 1, -1), (-9, -1, -1)],
)  # fmt: skip
def test_slices_are_cut_to_the_size(imported: Load, bounds: tuple[int, int, int]) -> None:
    start, end, step = bounds
    model = imported(f"""
    g (float[n, 2] x) => (float[k, 2] y) {{
        start = Constant <value_ints = [{start}]> ()
        end = Constant <value_ints = [{end}]> ()
        axis = Constant <value_ints = [0]> ()
        step = Constant <value_ints = [{step}]> ()
        y = Slice(x, start, end, axis, step)
    }}""")
    for rows in (0, 1, 2, 3, 7):
        model.check(random(rows, 2))


@pytest.mark.parametrize("step", [1, 2, -1, -2])
def test_slices_with_bounds_that_are_inputs(imported: Load, step: int) -> None:
    model = imported(f"""
    g (float[n, 2] x, int64[1] start, int64[1] end) => (float[k, 2] y) {{
        axis = Constant <value_ints = [-2]> ()
        step = Constant <value_ints = [{step}]> ()
        y = Slice(x, start, end, axis, step)
    }}""")
    for start, end in ((0, 3), (-1, 0), (4, 1), (1, 2**31 - 1), (-1, -(2**31)), (-3, -1), (5, -9)):
        for rows in (1, 4, 7):
            model.check(random(rows, 2), np.array([start]), np.array([end]))


def test_slice_with_bounds_as_attributes(imported: Load) -> None:
    model = imported("""<ir_version: 8, opset_import: ["" : 9]>
    g (float[n, 4] x) => (float[k, 2] y) {
        y = Slice <starts = [1, -3], ends = [9223372036854775807, 3], axes = [0, 1]> (x)
    }""")
    model.check(random(3, 4))


def test_a_range_has_a_length_that_is_known(imported: Load) -> None:
    """Otherwise its sum with a tensor of that length would not be known to be of that length."""
    model = imported("""
    g (float[n, m] x) => (float[n] y, int64[k] z, int64[j] w) {
        zero = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        two = Constant <value_int = 2> ()
        back = Constant <value_int = -1> ()
        axis = Constant <value_ints = [1]> ()
        s = Shape(x) a = Gather(s, zero) b = Gather(s, one)
        r = Range(zero, a, one) f = Cast <to = 1> (r)
        total = ReduceSum <keepdims = 0> (x, axis)
        y = Add(f, total)
        z = Range(a, b, two)
        w = Range(b, zero, back)
    }""")
    assert output_dims(model) == ["n"]
    for shape in ((3, 8), (5, 2), (4, 4)):
        model.check(random(*shape))


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
def test_sizes_of_two_inputs_that_agree_when_it_runs(
    imported: Load, text: str, shapes: list[tuple[tuple[int, ...], ...]]
) -> None:
    for given in shapes:
        imported(text).check(*(random(*shape) for shape in given))


def test_what_follows_a_slice_of_unknown_length(imported: Load) -> None:
    model = imported("""
    g (float[n, 3] x, int64[1] s, int64[1] e) => (float[k, 3] y, float[3] z) {
        part = Slice(x, s, e)
        y = Exp(part)
        z = ReduceMax <axes = [0], keepdims = 0> (y)
    }""")
    model.check(random(5, 3), np.array([1]), np.array([3]))
    model.check(random(5, 3), np.array([0]), np.array([5]))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_padding_by_amounts_that_are_inputs(imported: Load, mode: str) -> None:
    model = imported(f"""
    g (float[n, m] x, int64[4] p) => (float[a, b] y) {{ y = Pad <mode = "{mode}"> (x, p) }}""")
    for amounts in ([1, 2, 0, 1], [0, 0, 2, 3], [0, 0, 0, 0]):
        model.check(random(3, 4), np.array(amounts))


def test_padding_with_a_value_that_is_an_input(imported: Load) -> None:
    model = imported("""
    g (float[n, m] x, int64[4] p, float v) => (float[a, b] y) { y = Pad(x, p, v) }""")
    model.check(random(3, 4), np.array([1, -2, 0, 1]), np.float32(7))


def test_padding_to_a_multiple(imported: Load) -> None:
    model = imported("""
    g (float[n] x) => (float[a] y) {
        zero = Constant <value_ints = [0]> ()
        four = Constant <value_ints = [4]> ()
        size = Shape(x)
        less = Neg(size)
        missing = Mod(less, four)
        amounts = Concat <axis = 0> (zero, missing)
        y = Pad(x, amounts)
    }""")
    for size in (1, 3, 4, 5):
        model.check(random(size))
