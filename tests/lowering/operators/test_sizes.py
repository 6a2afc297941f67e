"""Integers computed from sizes stay symbolic: one module for all sizes, against onnxruntime."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from .inputs import Load, check_sizes, output_dims, random


def test_sizes_stay_symbolic_through_arithmetic(imported: Load) -> None:
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
        ("y = ReduceMax <keepdims = 0> (s)", "int64"),
        ("y = ReduceMin <keepdims = 0> (s)", "int64"),
        ("y = ReduceSum <keepdims = 0> (s)", "int64"),
        ("n = Cast <to = 6> (s) y = Size(n)", "int64"),
        ("p = ReduceProd(s) y = Squeeze(p)", "int64"),
        ("y = Transpose(a)", "int64"),
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
        "a = Gather(s, zeros) y = Reshape(a, last)",
        "y = Reshape(s, zeros)",
        "p = Reshape(s, row) y = Reshape(p, last)",
        "p = Reshape(s, row) y = Squeeze(p, zeros)",
        "p = Unsqueeze(s, zeros) q = Concat <axis = 0> (p, p) y = Gather <axis = 1> (q, zero)",
        "p = Reshape(s, row) q = Neg(p) r = Add(q, order) y = ReduceMin <axes = [0], keepdims = 0> (r)",
        "p = Reshape(s, row) q = Transpose(p) y = Reshape(q, last)",
        "n = Cast <to = 6> (s) p = Reshape(n, row) q = Cast <to = 7> (p) y = Squeeze(q, zeros)",
        "p = Reshape(s, row) q = ReduceSum(p) y = Squeeze(q, zeros)",
        "p = Reshape(s, row) q = Equal(p, p) y = Squeeze(q, zeros)",
        "y = Tile(s, two)",
        "k = Gather(s, zeros) y = Tile(s, k)",
        "r = ReduceSum(s) y = Where(both, s, r)",
        "y = Where(both, s, order)",
        "y = Where(both, zero, s)",
        "far = Constant <value_ints = [-5]> () least = Constant <value_ints = [-9223372036854775807]> ()"
        " y = Slice(s, far, least, zeros, last)",
    ],
)
def test_vectors_of_sizes_feed_any_operator(imported: Load, node: str) -> None:
    dtype = "bool" if "Equal" in node else "int64"
    model = imported(f"""
    g (float[n, m] x) => ({dtype}[k] y) {{
        order = Constant <value_ints = [1, 0]> ()
        zeros = Constant <value_ints = [0]> ()
        zero = Constant <value_int = 0> ()
        last = Constant <value_ints = [-1]> ()
        row = Constant <value_ints = [1, -1]> ()
        two = Constant <value_ints = [2]> ()
        both = Constant <value = bool[2] {{1, 0}}> ()
        s = Shape(x)
        {node}
    }}""")
    model.check(random(2, 5))
    model.check(random(1, 0))


def test_sizes_of_a_narrower_type_stay_symbolic(imported: Load) -> None:
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


def test_a_matrix_of_sizes_stays_symbolic(imported: Load) -> None:
    """PyTorch turns its list of amounts, last axis first, into that of ONNX so."""
    model = imported("""
    g (float[n, m] x) => (float[a, b] y) {
        zeros = Constant <value_ints = [0, 0]> ()
        pair = Constant <value_ints = [-1, 2]> ()
        flat = Constant <value_ints = [-1]> ()
        first = Constant <value_ints = [0]> ()
        least = Constant <value_ints = [-9223372036854775807]> ()
        one = Constant <value_ints = [1]> ()
        two = Constant <value_ints = [2]> ()
        s = Shape(x)
        columns = Gather(s, one)
        less = Sub(columns, one)
        amounts = Concat <axis = 0> (two, less, zeros)
        rows = Reshape(amounts, pair)
        backwards = Slice(rows, flat, least, first, flat)
        turned = Transpose <perm = [1, 0]> (backwards)
        pads = Reshape(turned, flat)
        same = Cast <to = 7> (pads)
        y = Pad(x, same)
    }""")
    assert output_dims(model) == ["n", "m * 2 + 1"]
    for shape in ((2, 5), (3, 1), (0, 2)):
        model.check(random(*shape))


def test_sizes_reach_operators_that_take_tensors(imported: Load) -> None:
    model = imported("""
    g (float[n] x) => (float[k] y, int64[k] places) {
        s = Shape(x)
        most = Constant <value_ints = [3]> ()
        both = Concat <axis = 0> (s, most)
        least = ReduceMin <keepdims = 0> (both)
        flat = Constant <value_ints = [-1]> ()
        k = Reshape(least, flat)
        y, places = TopK(x, k)
    }""")
    assert output_dims(model) == ["T.min(n, 3)"]
    for size in (0, 1, 3, 7):
        model.check(random(size))


@pytest.mark.parametrize(
    ("first", "step", "dims"),
    [("0.0", "1.0", ["m"]), ("0.1", "1.0", None), ("0.0", "0.5", None), ("0.0", "-1.0", None)],
)
@pytest.mark.parametrize("to", ["float", "double"])
def test_a_range_below_a_size_in_floats(
    imported: Load, first: str, step: str, dims: list[str] | None, to: str
) -> None:
    """Detectors count the columns of a map in floats, as the centres of their anchors."""
    model = imported(f"""
    g (float[n, m] x) => ({to}[k] y) {{
        s = Shape(x)
        one = Constant <value_int = 1> ()
        columns = Gather(s, one)
        limit = Cast <to = {1 if to == "float" else 11}> (columns)
        first = Constant <value = {to} {{{first}}}> ()
        step = Constant <value = {to} {{{step}}}> ()
        y = Range(first, limit, step)
    }}""")
    assert dims is None or output_dims(model) == dims
    for columns in (0, 1, 2, 9):
        model.check(random(2, columns))
    assert ("R.shape([T.max" in model.module["main"].script()) == (dims is not None)


@pytest.mark.parametrize(
    ("first", "shift", "dims"),
    [
        ("0.5", "0.0", ["m"]),
        ("0.0", "-0.5", ["m"]),
        ("-1.25", "0.5", ["m + 2"]),
        ("3.0", "0.0", ["T.max(m - 3, 0)"]),
        ("0.5", "-2.0", ["T.max(m - 2, 0)"]),
        ("0.1", "0.0", None),
        ("0.0", "0.3", None),
        ("1e30", "0.0", None),
    ],
)
def test_a_range_of_floats_from_and_to_a_fraction(
    imported: Load, first: str, shift: str, dims: list[str] | None
) -> None:
    model = imported(f"""
    g (float[n, m] x) => (float[k] y) {{
        s = Shape(x)
        one = Constant <value_int = 1> ()
        columns = Gather(s, one)
        size = Cast <to = 1> (columns)
        shift = Constant <value = float {{{shift}}}> ()
        limit = Add(size, shift)
        first = Constant <value = float {{{first}}}> ()
        step = Constant <value = float {{1.0}}> ()
        y = Range(first, limit, step)
    }}""")
    assert dims is None or output_dims(model) == dims
    assert ("R.shape([T.max" in model.module["main"].script()) == (dims is not None)
    for columns in (0, 1, 2, 3, 9):
        model.check(random(2, columns))


def test_a_range_of_more_numbers_than_floats_have(imported: Load) -> None:
    model = imported("""
    g (float[n, m] x) => (float[k] y) {
        s = Shape(x)
        one = Constant <value_int = 1> ()
        columns = Gather(s, one)
        limit = Cast <to = 1> (columns)
        first = Constant <value = float {0.0}> ()
        step = Constant <value = float {1.0}> ()
        y = Range(first, limit, step)
    }""")
    check_sizes(model, [((0, 3),)], [((0, (1 << 24) + 1),)])


DERIVED = """
    g (float[b, 1, n] x, float[4, 1, 3] w, float[4, 4, 2] v) => (float[b, 4, k] y) {{
        s = Shape(x)
        last = Constant <value_int = 2> ()
        one = Constant <value_int = 1> ()
        three = Constant <value_int = 3> ()
        n = Gather(s, last)
        less = Sub(n, three)
        half = Div(less, last)
        c = Conv <strides = [2]> (x, w)
        zero = Constant <value_int = 0> ()
        flat = Constant <value_ints = [-1]> ()
        {}
    }}"""
"""A convolution of `(n - 3) // 2 + 1` columns, and `half`, which is computed before it."""


@pytest.mark.parametrize(
    ("nodes", "size"),
    [
        (
            "k = Add(half, one) f = Range(zero, k, one) g = Cast <to = 1> (f) y = Add(c, g)",
            "(n - 3) // 2 + 1",
        ),
        (
            "less2 = Sub(half, one) fourth = Div(less2, last) d = Conv <strides = [2]> (c, v) "
            "k = Add(fourth, one) f = Range(zero, k, one) g = Cast <to = 1> (f) y = Mul(d, g)",
            "(n - 5) // 4 + 1",
        ),
        (
            "far = Constant <value_ints = [-1]> () z = Constant <value_ints = [0]> () "
            "two = Constant <value_ints = [2]> () d = Conv <pads = [1, 1]> (c, v) "
            "e = Slice(d, z, far, two) y = Sub(e, c)",
            None,
        ),
    ],
)
def test_recomputed_sizes_of_convolutions(imported: Load, nodes: str, size: str | None) -> None:
    """Where no column is left, Div rounds another way, and the run fails."""
    model = imported(DERIVED.format(nodes))
    if size is not None:
        assert output_dims(model) == ["b", "4", size]
    assert "T.Select" not in model.module["main"].script()
    weights = (4, 1, 3), (4, 4, 2)
    valid = [((2, 1, columns), *weights) for columns in (7, 9, 16)]
    check_sizes(model, valid, [((2, 1, 2), *weights)])


@pytest.mark.parametrize(
    "node",
    [
        "y = Div(a, b)",
        "y = Mod(a, b)",
        "t = Sub(a, b) y = Div(a, t)",
        "p = Reshape(s, row) q = Mod(p, s) y = ReduceMax <keepdims = 0> (q)",
        "y = Mod(a, minus)",
        "t = Concat <axis = 0> (h, minus1) r = Reshape(x, t) y = Size(r)",
    ],
)
def test_divisions_by_a_size_of_0_do_not_end_the_process(imported: Load, node: str) -> None:
    model = imported(f"""
    g (float[n, m] x) => (int64 y) {{
        zero = Constant <value_int = 0> ()
        zeros = Constant <value_ints = [0]> ()
        one = Constant <value_int = 1> ()
        two = Constant <value_ints = [2]> ()
        row = Constant <value_ints = [2, 1]> ()
        minus = Constant <value_int = -1> ()
        minus1 = Constant <value_ints = [-1]> ()
        s = Shape(x) a = Gather(s, zero) b = Gather(s, one) k = Gather(s, zeros) h = Div(k, two)
        {node}
    }}""")
    for shape in ((4, 3), (6, 4)):
        model.check(random(*shape))
    for shape in ((3, 0), (0, 3), (1, 1)):
        with contextlib.suppress(RuntimeError, ValueError):  # of another size that does not fit
            model.run(random(*shape))


def test_a_quotient_that_no_convolution_has(imported: Load) -> None:
    """Every second element of n is `(n + 1) // 2`; a size of 0 is no reason to fail."""
    model = imported("""
    g (float[n] x) => (float[k] y, int64 d) {
        zero = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        two = Constant <value_int = 2> ()
        first = Constant <value_ints = [0]> ()
        end = Constant <value_ints = [9223372036854775807]> ()
        step = Constant <value_ints = [2]> ()
        y = Slice(x, first, end, first, step)
        s = Shape(x)
        n = Gather(s, zero)
        less = Sub(n, one)
        d = Div(less, two)
    }""")
    for size in (0, 1, 4, 7):
        model.check(random(size))


def test_a_size_that_a_run_pads_by_a_negative_amount(imported: Load) -> None:
    model = imported("""
    g (float[n] x, float[9] w, int64[2] p) => (float[k] y) {
        q = Pad(x, p)
        a = Shape(q)
        b = Shape(x)
        d = Sub(a, b)
        end = Constant <value_ints = [9]> ()
        y = Slice(w, d, end)
    }""")
    for amounts in ([-1, -1], [1, 1], [0, -2]):
        model.check(random(5), random(9), np.array(amounts))


def test_a_slice_that_always_has_the_size_of_an_axis(imported: Load) -> None:
    """Relative attention selects t of 2t - 1 positions, from t - 1 on."""
    model = imported("""
    g (float[t] x) => (float[t] y) {
        t = Shape(x)
        zero = Constant <value_ints = [0]> ()
        one = Constant <value_ints = [1]> ()
        two = Constant <value_ints = [2]> ()
        less = Sub(t, one)
        double = Mul(t, two)
        most = Sub(double, one)
        places = Expand(zero, most)
        end = Constant <value_ints = [9223372036854775807]> ()
        part = Slice(places, less, end)
        values = Cast <to = 1> (part)
        y = Add(x, values)
    }""")
    assert output_dims(model) == ["t"]
    for size in (1, 2, 5):
        model.check(random(size))


def test_a_slice_that_has_another_size_once(imported: Load) -> None:
    """`max(t - 1, 0) + 1` is t unless t is 0."""
    model = imported("""
    g (float[t] x) => (float[d] y) {
        t = Shape(x)
        zero = Constant <value_ints = [0]> ()
        one = Constant <value_ints = [1]> ()
        less = Sub(t, one)
        some = Max(less, zero)
        count = Add(some, one)
        ones = ConstantOfShape <value = float[1] {1}> (count)
        y = Add(x, ones)
    }""")
    for size in (0, 1, 2, 5):
        model.check(random(size))


def test_a_quotient_that_may_be_negative_beside_a_convolution(imported: Load) -> None:
    """`(n - 3) / 2` is -1 rounded down for n = 2, where a convolution of `(n - 1) // 2 + 1` has 1."""
    model = imported("""
    g (float[b, 1, n] x, float[1, 1, 3] w) => (float[b, 1, k] y) {
        z = Conv <strides = [2], pads = [1, 1]> (x, w)
        s = Shape(x)
        two = Constant <value_ints = [2]> ()
        three = Constant <value_ints = [3]> ()
        zero = Constant <value_ints = [0]> ()
        n = Gather(s, two)
        less = Sub(n, three)
        half = Div(less, two)
        some = Max(half, zero)
        y = Slice(z, zero, some, two)
    }""")
    for columns in (1, 2, 3, 8):
        model.check(random(2, 1, columns), random(1, 1, 3))


@pytest.mark.parametrize(
    ("node", "vector"),
    [
        ("y = Tile (x, v)", [2, 1]),
        ("y = Pad (x, v)", [1, 0, 0, 2]),
        ('y = Pad <mode = "edge"> (x, v, , one)', [1, 2]),
        ("y, z = Split <axis = 1> (x, v)", [1, 3]),
        ("s = Cast <to = 1> (v) y = Resize (x, , s)", [2, 3]),
    ],
    ids=["Tile", "Pad", "Pad along an axis", "Split", "Resize"],
)
def test_vectors_of_unknown_length(imported: Load, node: str, vector: list[int]) -> None:
    """The operator decides the length."""
    results = "float[?, ?] y, float[?, ?] z" if "z =" in node else "float[?, ?] y"
    model = imported(f"""
    <ir_version: 8, opset_import: ["" : 18]>
    g (float[a, b] x, int64[n] v) => ({results}) <int64[1] one = {{1}}> {{ {node} }}""")
    model.check(random(2, 4), np.array(vector))
    with pytest.raises(RuntimeError, match="match_cast error"):
        model.run(random(2, 4), np.array([*vector, 1]))
