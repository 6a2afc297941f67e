"""Facts of element-wise operators hold on onnxruntime."""

from __future__ import annotations

import pytest

from ...fact_cases import Case, cases

_UNARY = [
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Cosh",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "Hardmax",
    "Identity",
    "LeakyRelu",
    "Log",
    "LogSoftmax",
    "Mish",
    "Neg",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softmax",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Trilu",
    "LpNormalization",
]


@pytest.mark.parametrize("op", _UNARY)
def test_unary(op: str) -> None:
    Case(f"g (float[N,3] x) => (y) {{ y = {op}(x) }}", {"y": "(N, 3)"}).check()


SHAPES = {
    "equal": Case("g (float[N,3] x, float[N,3] z) => (y) { y = Add(x, z) }", {"y": "(N, 3)"}),
    "scalar": Case("g (float[N,3] x, float z) => (y) { y = Mul(x, z) }", {"y": "(N, 3)"}),
    "ones": Case("g (float[N,1,3] x, float[M,1] z) => (y) { y = Sub(x, z) }", {"y": "(N, M, 3)"}),
    "number_against_name": Case("g (float[3] x, float[N] z) => (y) { y = Div(x, z) }", {"y": "(3,)"}),
    "two_names": Case("g (float[N] x, float[M] z) => (y) { y = Max(x, z) }"),
    "name_plus_two": Case(
        """g (float[N] x, float[M] z) => (y) <float[2] k = {1, 2}> {
        w = Concat<axis=0>(x, k) y = Min(w, z) }""",
        {"y": "(N + 2,)"},
    ),
    "variadic": Case(
        "g (float[N,1] x, float[1,M] z, float[1] w) => (y) { y = Sum(x, z, w) }", {"y": "(N, M)"}
    ),
    "mean": Case("g (float[N,1] x, float[4] z) => (y) { y = Mean(x, z) }", {"y": "(N, 4)"}),
    "zero_dim": Case("g (float[0] x, float[N] z) => (y) { y = Add(x, z) }", {"y": "(0,)"}),
    "power": Case("g (float[N] x, int64[1] e) => (y) { y = Pow(x, e) }", {"y": "(N,)"}),
    "power_of_unknown_type": Case(
        "g (float[N] x, int64[1] e) => (y) { a = com.microsoft.Gelu(x) y = Pow(a, e) }"
    ),
    "prelu": Case("g (float[N,3] x, float[3] s) => (y) { y = PRelu(x, s) }", {"y": "(N, 3)"}),
    "prelu_of_name": Case("g (float[N,M] x, float[M] s) => (y) { y = PRelu(x, s) }"),
    "bitwise": Case(
        """g (int32[N,1] x, int32[M] z) => (a, b, c, d) {
        a = BitwiseAnd(x, z) b = BitwiseOr(x, z) c = BitwiseXor(x, z) d = BitwiseNot(x) }""",
        {"a": "(N, M)", "d": "(N, 1)"},
    ),
    "shift": Case(
        'g (uint32[N] x, uint32[1] z) => (y) { y = BitShift<direction="LEFT">(x, z) }',
        {"y": "(N,)"},
    ),
    "nan": Case("g (float[N] x) => (y, z) { y = IsNaN(x) z = IsInf(x) }", {"y": "(N,)"}),
    "where": Case(
        "g (bool[N,1] c, float[M] x, float z) => (y) { y = Where(c, x, z) }", {"y": "(N, M)"}
    ),
    "clip": Case("g (float[N] x, float lo) => (y) { y = Clip(x, lo) }", {"y": "(N,)"}),
    "normalized": Case(
        "g (float[N,3,M] x, float[3] s, float[3] b) => (y) { y = InstanceNormalization(x, s, b) }",
        {"y": "(N, 3, M)"},
        sizes=(1, 2, 7),
    ),
    "local_response": Case("g (float[N,3,2,2] x) => (y) { y = LRN<size=3>(x) }", {"y": "(N, 3, 2, 2)"}),
    "mean_variance": Case(
        "g (float[N,3,2,2] x) => (y) { y = MeanVarianceNormalization(x) }",
        {"y": "(N, 3, 2, 2)"},
        sizes=(1, 2, 7),
    ),
    "remainder_of_floats": Case(
        "g (float[N] x, float[1] d) => (y) { y = Mod<fmod=1>(x, d) }", {"y": "(N,)"}
    ),
}  # fmt: skip


@cases(SHAPES)
def test_shape(case: Case) -> None:
    case.check()


_N = "s = Shape(x) n = Squeeze(s)"
"""The number of elements of `float[N] x` as a scalar."""


def _dim(nodes: str, knows: dict[str, str], constants: str = "int64 two = {2}") -> Case:
    return Case(f"g (float[N] x) => (y) <{constants}> {{ {_N} {nodes} }}", knows)


ARITHMETIC = {
    "add": _dim("y = Add(n, two)", {"y=": "(N + 2,)"}),
    "subtract": _dim("y = Sub(two, n)", {"y=": "(-1*N + 2,)"}),
    "multiply": _dim("y = Mul(n, n)", {"y=": "(N*N,)"}),
    "divide": _dim("y = Div(n, two)", {"y=": "(N // 2,)"}),
    "divide_by_a_dim": _dim("y = Div(two, n)", {}),
    "divide_negative": _dim("d = Sub(n, five) y = Div(d, two)", {}, "int64 two={2}, int64 five={5}"),
    "divide_by_negative": _dim("y = Div(n, k)", {}, "int64 k = {-2}"),
    "divide_negative_numbers": Case(
        "g () => (y) <int64[4] a = {7, -7, 7, -7}, int64[4] b = {2, 2, -2, -2}> { y = Div(a, b) }",
        {"y=": "(3, -3, -3, 3)"},
    ),
    "divide_exactly": _dim("a = Mul(n, two) y = Div(a, two)", {"y=": "(N,)"}),
    "remainder": _dim("y = Mod(n, two)", {"y=": "(N % 2,)"}),
    "remainder_of_negative": _dim("a = Neg(n) y = Mod(a, two)", {}),
    "remainder_by_negative": _dim("y = Mod(n, k)", {}, "int64 k = {-3}"),
    "remainder_c_style": _dim("a = Neg(n) y = Mod<fmod=1>(a, two)", {}),
    "remainder_of_numbers": Case(
        "g () => (y) <int64[4] a = {7, -7, 7, -7}, int64[4] b = {3, 3, -3, -3}> { y = Mod(a, b) }"
    ),
    "least": _dim("y = Min(n, two)", {"y=": "(min(2, N),)"}),
    "greatest": _dim("y = Max(n, two, k)", {"y=": "(max(2, N),)"}, "int64 two={2}, int64 k={-1}"),
    "greatest_known": _dim("y = Max(n, k)", {"y=": "(N,)"}, "int64 k = {-5}"),
    "negate": _dim("y = Neg(n)", {"y=": "(-1*N,)"}),
    "absolute": _dim("a = Sub(n, two) y = Abs(a)", {}),
    "absolute_of_positive": _dim("y = Abs(n)", {"y=": "(N,)"}),
    "rectify": _dim("a = Sub(n, two) b = Cast<to=6>(a) y = Relu(b)", {}),
    "power": _dim("y = Pow(n, two)", {}),
    "broadcast": _dim("y = Add(n, k)", {"y=": "(N + 1, N + 2)"}, "int64[2] k = {1, 2}"),
    "narrow": _dim("a = Cast<to=3>(n) y = Add(a, k)", {}, "int8 k = {100}"),
    "unsigned": Case(
        "g (uint32 x) => (y, z, a) <uint32 k = {5}> { y = Sub(x, k) z = Mul(x, y) a = Add(y, k) }",
        values={"x": [0, 3, 4_000_000_000]},
    ),
    "unsigned_64": Case(
        "g (uint64 x) => (y, c) <uint64 k = {5}> { y = Sub(x, k) c = Less(y, x) }",
        values={"x": [0, 3, 9]},
    ),
    "unsigned_8": Case(
        "g (uint8[2] x) => (y, z) { y = Sub(x, x) z = Mul(x, x) }",
        values={"x": [[0, 3], [200, 255]]},
    ),
    "unknown_numbers": Case(
        "g (int64[2] x, int64 k) => (y, z, a) { y = Add(x, k) z = Sub(y, k) a = Mul(x, k) }",
        values={"k": [-3, 0, 4, 2**63 - 1]},
    ),
}  # fmt: skip


@cases(ARITHMETIC)
def test_arithmetic_on_dims(case: Case) -> None:
    case.check()


_TWO = "g (float[N] x, float[M] z) => (y)"
_NM = "n = Shape(x) m = Shape(z)"

DECISIONS = {
    "equal_to_itself": Case(
        f"{_TWO} <int64[1] one = {{1}}> {{ {_NM} a = Add(n, one) b = Add(one, n) y = Equal(a, b) }}",
        {"y=": "(True,)"},
    ),
    "equal_open": Case(f"{_TWO} {{ {_NM} y = Equal(n, m) }}", {"y=": "(None,)"}),
    "never_equal": Case(
        f"{_TWO} <int64[1] one = {{1}}> {{ {_NM} a = Add(n, one) y = Equal(a, n) }}",
        {"y=": "(False,)"},
    ),
    "odd_is_not_even": Case(
        f"""{_TWO} <int64[1] one = {{1}}, int64[1] two = {{2}}> {{ {_NM}
        a = Mul(n, two) b = Mul(m, two) c = Add(b, one) y = Equal(a, c) }}""",
        {"y=": "(False,)"},
    ),
    "less_than_zero": Case(
        f"{_TWO} <int64[1] zero = {{0}}> {{ {_NM} y = Less(n, zero) }}", {"y=": "(False,)"}
    ),
    "less_or_equal_sum": Case(
        f"{_TWO} {{ {_NM} a = Add(n, m) y = LessOrEqual(n, a) }}", {"y=": "(True,)"}
    ),
    "greater_open": Case(f"{_TWO} {{ {_NM} y = Greater(n, m) }}", {"y=": "(None,)"}),
    "greater_or_equal": Case(
        f"{_TWO} {{ {_NM} a = Max(n, m) y = GreaterOrEqual(a, m) }}", {}
    ),
    "not_and_or": Case(
        f"""{_TWO} <bool[1] t = {{1}}> {{ {_NM}
        c = Equal(n, m) d = Not(c) e = Or(c, t) f = And(d, e) h = Not(t) y = And(f, h) }}""",
        {"e=": "(True,)", "y=": "(False,)"},
    ),
    "and_false_or_true_of_unknown": Case(
        """g (float[2] x) => (y, z, w) <int64[1] k = {0}, bool f = {0}, bool[2] ft = {0, 1}> {
        u = IsNaN(x) y = And(u, f) z = Or(ft, u) v = Gather<axis=0>(z, k) w = And(f, v) }""",
        {"y=": "(False, False)", "z=": "(None, True)", "w=": "(False,)"},
    ),
    "exclusive": Case(
        f"""{_TWO} <bool[1] t = {{1}}> {{ {_NM} c = Equal(n, n) d = Xor(c, t) e = Equal(n, m)
        y = Xor(e, d) }}""",
        {"d=": "(False,)", "y=": "(None,)"},
    ),
    "equal_bools": Case("g (bool x) => (y, z) { n = Not(x) y = Equal(x, n) z = Equal(x, x) }"),
    "where_picks": Case(
        f"{_TWO} <bool[1] t = {{0}}> {{ {_NM} y = Where(t, n, m) }}", {"y=": "(M,)"}
    ),
    "where_larger": Case(
        f"{_TWO} {{ {_NM} c = Greater(n, m) y = Where(c, n, m) }}", {"y=": "(max(M, N),)"}
    ),
    "where_larger_of_less": Case(
        f"{_TWO} {{ {_NM} c = Less(n, m) y = Where(c, m, n) }}", {"y=": "(max(M, N),)"}
    ),
    "where_smaller": Case(
        f"{_TWO} {{ {_NM} c = Greater(n, m) y = Where(c, m, n) }}", {"y=": "(min(M, N),)"}
    ),
    "where_neither": Case(
        f"{_TWO} {{ {_NM} c = Greater(n, m) k = Add(n, m) y = Where(c, k, m) }}"
    ),
    "where_open": Case(f"{_TWO} {{ {_NM} c = Equal(n, m) y = Where(c, n, m) }}"),
    "where_equal": Case(
        f"{_TWO} {{ {_NM} c = Equal(n, m) y = Where(c, n, n) }}", {"y=": "(N,)"}
    ),
    "where_of_a_size_or_nothing": Case(
        f"""{_TWO} <int64[1] none = {{0}}, int64[1] one = {{1}}, float[1] zero = {{0}}> {{ {_NM}
        f = Cast<to=1>(n) c0 = Less(zero, f) c1 = Greater(n, none) c = And(c0, c1)
        k = Max(n, one) y = Where(c, k, none) }}""",
        {"y=": "(N,)"},
    ),
    "where_of_another_size": Case(
        f"""{_TWO} <int64[1] none = {{0}}> {{ {_NM}
        c0 = Less(none, n) c1 = Less(none, m) c = And(c0, c1) y = Where(c, n, none) }}""",
        {"y=": "None"},
    ),
    "where_of_a_larger_size": Case(
        f"""{_TWO} <int64[1] none = {{0}}, int64[1] one = {{1}}> {{ {_NM}
        c = Less(one, n) d = Less(none, n) a = Where(c, n, none) b = Where(d, n, one)
        y = Add(a, b) }}""",
        {"a=": "None", "b=": "None"},
    ),
    "where_of_bools": Case(
        "g (bool c, bool d) => (y) <bool t = {1}, bool f = {0}> { n = Not(c) a = Or(d, t)"
        " b = And(d, f) y0 = Cast<to=6>(a) y1 = Cast<to=6>(b) y = Where(c, y0, y1) }"
    ),
    "unknown_input": Case(
        "g (int64 x) => (y, z) <int64 one = {1}> { a = Add(x, one) y = Less(x, a) z = Equal(x, one) }",
        {"z=": "(None,)"},
        values={"x": [-4, 0, 1, 2**63 - 1]},
    ),
    "floats": Case(
        "g (float[2] x) => (y, z) <float[2] k = {0.5, 1}> { y = Less(x, k) z = Equal(x, x) }"
    ),
    "strings": Case('g (string[N] x) => (y) <string[1] k = {"a"}> { y = Equal(x, k) }'),
}  # fmt: skip


@cases(DECISIONS)
def test_decision(case: Case) -> None:
    case.check()


CASTS = {
    "to_narrower_and_back": _dim("a = Cast<to=6>(n) y = Cast<to=7>(a)", {"y=": "(N,)"}),
    "through_float": _dim("a = Cast<to=1>(n) y = Cast<to=7>(a)", {}),
    "to_byte": _dim("a = Add(n, k) y = Cast<to=3>(a)", {}, "int64 k = {127}"),
    "to_bool": _dim("a = Add(n, two) y = Cast<to=9>(a)", {"y=": "(True,)"}),
    "to_bool_open": _dim("y = Cast<to=9>(n)", {"y=": "(None,)"}),
    "from_bool": Case(
        "g (bool x) => (y, z) <bool t = {1}> { a = Or(x, t) y = Cast<to=7>(a) z = Cast<to=7>(x) }",
        {"y=": "(1,)"},
    ),
    "like": Case("g (float[N] x, int32 k) => (y) { s = Shape(x) y = CastLike(s, k) }", {"y=": "(N,)"}),
    "fractions": Case(
        "g () => (y, z) <float[4] k = {1.9, -1.9, 0.0, -0.5}> { y = Cast<to=7>(k) z = Cast<to=9>(k) }",
        {"y=": "(1, -1, 0, 0)", "z=": "(True, True, False, True)"},
    ),
    "fractions_to_byte": Case("g () => (y) <float[2] k = {1.9, -1.9}> { y = Cast<to=3>(k) }"),
    "largest_float": Case(
        "g () => (y, z) <float[1] k = {9223372036854775807}> { y = Cast<to=7>(k) z = Identity(y) }"
    ),
    "data": Case(
        "g (int64[2] x) => (y, z) { y = Cast<to=6>(x) z = Cast<to=9>(x) }",
        values={"x": [[0, 5_000_000_000], [-1, 2]]},
    ),
}  # fmt: skip


@cases(CASTS)
def test_cast(case: Case) -> None:
    case.check()
