"""Facts of constants, ranges and other created tensors hold on onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from ...fact_cases import Case, cases

CREATION = {
    "constants": Case(
        """g () => (a, b, c, d, e, f) { a = Constant<value_int = 3>() b = Constant<value_ints = [1, 2]>()
        c = Constant<value_float = 0.5>() d = Constant<value_floats = [1.0]>()
        e = Constant<value_string = "x">() f = Constant<value_strings = ["x", "y"]>() }""",
        {"a=": "(3,)", "a": "()", "b=": "(1, 2)", "c": "()", "d": "(1,)", "e": "()", "f": "(2,)"},
    ),
    "constant_tensor": Case(
        "g () => (a, b) { a = Constant<value = int64[2] {3, 4}>() b = Constant<value = bool {1}>() }",
        {"a=": "(3, 4)", "b=": "(True,)"},
    ),
    "filled": Case(
        """g (float[N,3] x) => (y, z) { s = Shape(x) y = ConstantOfShape(s)
        z = ConstantOfShape<value = int64[1] {7}>(s) }""",
        {"y": "(N, 3)", "z": "(N, 3)"},
    ),
    "filled_small": Case(
        """g () => (y, z) <int64[2] s = {1, 2}> { y = ConstantOfShape<value = int64[1] {7}>(s)
        z = ConstantOfShape<value = bool[1] {1}>(s) }""",
        {"y=": "(7, 7)", "z=": "(True, True)"},
    ),
    "filled_scalar": Case(
        "g () => (y) <int64[0] s = {}> { y = ConstantOfShape<value = int32[1] {7}>(s) }", {"y=": "(7,)"}
    ),
    "filled_run_time": Case(
        "g (int64[2] s) => (y) { y = ConstantOfShape(s) }", values={"s": [[0, 3], [2, 2]]}
    ),
    "filled_open_rank": Case(
        "g (int64[R] s) => (y) { y = ConstantOfShape(s) }", values={"s": [[], [2], [2, 2]]}
    ),
    "eye": Case("g (float[N,M] x) => (y, z) { y = EyeLike(x) z = EyeLike<dtype=7>(x) }", {"y": "(N, M)"}),
    "random": Case(
        """g (float[N,3] x) => (a, b, c, d) { a = RandomNormal<shape=[2,3]>()
        b = RandomUniform<shape=[2], dtype=11>() c = RandomNormalLike(x)
        d = RandomUniformLike<dtype=11>(x) }""",
        {"a": "(2, 3)", "b": "(2,)", "c": "(N, 3)"},
    ),
    "coins": Case("g (float[N] x) => (y) { p = Sigmoid(x) y = Bernoulli<dtype=9>(p) }", {"y": "(N,)"}),
    "non_zero": Case(
        "g (float[N,M] x, float z) => (a, b) { a = NonZero(x) b = NonZero(z) }", {"a": "(2, None)"}
    ),
    "non_zero_open_rank": Case(
        "g (float[4] x, int64[R] t) => (y) { a = Reshape(x, t) y = NonZero(a) }",
        values={"t": [[4], [2, 2]]},
    ),
    "non_zero_known": Case(
        """g (int64 k) => (a, b, c, d) <bool[2,2] m = {0, 1, 1, 1}, int64[3] z = {0, 0, 0}, int32 s = {7}> {
        a = NonZero(m) b = NonZero(z) c = NonZero(s) p = Constant<value_ints = [1]>() v = Reshape(k, p) d = NonZero(v) }""",
        {"a=": "(0, 1, 1, 1, 0, 1)", "a": "(2, 3)", "b": "(1, 0)", "c=": "(0,)", "d": "(1, None)"},
    ),
    "one_hot": Case(
        """g (int64[N] x) => (a, b) <int64 d = {4}, float[2] v = {0, 1}> { a = OneHot(x, d, v)
        b = OneHot<axis=0>(x, d, v) }""",
        {"a": "(N, 4)", "b": "(4, N)"},
    ),
    "one_hot_by_dim": Case(
        """g (int64[N] x, float[M] z) => (y) <float[2] v = {0, 1}> { d = Shape(z)
        y = OneHot(x, d, v) }""",
        {"y": "(N, M)"},
    ),
    "one_hot_float_depth": Case(
        "g (int64[N] x) => (y) <float d = {4}, float[2] v = {0, 1}> { y = OneHot(x, d, v) }"
    ),
}  # fmt: skip


@cases(CREATION)
def test_creation(case: Case) -> None:
    case.check()


RANGE = {
    "numbers": Case("g () => (y) <int64 a={2}, int64 b={9}, int64 d={3}> { y = Range(a, b, d) }", {"y=": "(2, 5, 8)"}),
    "backwards": Case(
        "g () => (y) <int64 a={9}, int64 b={2}, int64 d={-3}> { y = Range(a, b, d) }", {"y=": "(9, 6, 3)"}
    ),
    "empty": Case("g () => (y) <int64 a={9}, int64 b={2}, int64 d={1}> { y = Range(a, b, d) }", {"y=": "()"}),
    "to_a_dim": Case(
        "g (float[N] x) => (y) <int64 a={0}, int64 d={1}> { s = Shape(x) n = Squeeze(s) y = Range(a, n, d) }",
        {"y": "(N,)"},
    ),
    "to_a_dim_by_two": Case(
        "g (float[N] x) => (y) <int64 a={1}, int64 d={2}> { s = Shape(x) n = Squeeze(s) y = Range(a, n, d) }",
        {"y": "(N // 2,)"},
    ),
    "down_from_a_dim": Case(
        "g (float[N] x) => (y) <int64 b={-1}, int64 d={-1}> { s = Shape(x) n = Squeeze(s) y = Range(n, b, d) }",
        {"y": "(N + 1,)"},
    ),
    "down_by_two": Case(
        "g (float[N] x) => (y) <int64 b={0}, int64 d={-2}> { s = Shape(x) n = Squeeze(s) y = Range(n, b, d) }"
    ),
    "around_a_dim": Case(
        """g (float[N] x) => (y) <int64 k={3}, int64 d={1}> { s = Shape(x) n = Squeeze(s)
        b = Add(n, k) y = Range(n, b, d) }""",
        {"y=": "(N, N + 1, N + 2)"},
    ),
    "run_time": Case(
        "g (int64 a, int64 b, int64 d) => (y) { y = Range(a, b, d) }",
        values={"a": [0, 5], "b": [3, -4], "d": [1, -2]},
    ),
    "int32": Case("g () => (y) <int32 a={2}, int32 b={9}, int32 d={3}> { y = Range(a, b, d) }", {"y": "(3,)"}),
    "run_time_floats": Case(
        "g (float a, float b) => (y) <float d={0.5}> { y = Range(a, b, d) }",
        values={"a": [0.0, 0.3], "b": [2.0, 1.1]},
    ),
}  # fmt: skip


@cases(RANGE)
def test_range(case: Case) -> None:
    case.check()


@pytest.mark.parametrize("seed", range(4))
def test_range_of_float_numbers(seed: int) -> None:
    """The number of steps depends on the precision it is computed in."""
    rng = np.random.default_rng(seed)
    nodes, outputs, stored = [], [], []
    for i in range(60):
        low, step = rng.integers(-20, 20) / 10, rng.integers(1, 9) / 10
        count = rng.integers(0, 30)
        stored += [f"float a{i} = {{{low}}}", f"float b{i} = {{{low + count * step:.3f}}}"]
        stored += [f"float d{i} = {{{step}}}"]
        nodes.append(f"y{i} = Range(a{i}, b{i}, d{i})")
        outputs.append(f"y{i}")
    Case(f"g () => ({', '.join(outputs)}) <{', '.join(stored)}> {{ {' '.join(nodes)} }}").check()
