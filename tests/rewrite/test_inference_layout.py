"""Facts of reshapes, splits, pads and copies hold on onnxruntime."""

from __future__ import annotations

from .fact_cases import Case, cases

RESHAPE = {
    "numbers": Case("g (float[6] x) => (y) <int64[2] t = {2, 3}> { y = Reshape(x, t) }", {"y": "(2, 3)"}),
    "wildcard": Case(
        "g (float[N,4] x) => (y) <int64[2] t = {-1, 2}> { y = Reshape(x, t) }", {"y": "(2 * N, 2)"}
    ),
    "zero_copies": Case(
        "g (float[N,4] x) => (y) <int64[3] t = {0, 2, 2}> { y = Reshape(x, t) }", {"y": "(N, 2, 2)"}
    ),
    "zero_and_wildcard": Case(
        "g (float[N,M,4] x) => (y) <int64[2] t = {0, -1}> { y = Reshape(x, t) }", {"y": "(N, 4 * M)"}
    ),
    "zero_in_second_place": Case(
        "g (float[N,M] x) => (y) <int64[2] t = {-1, 0}> { y = Reshape(x, t) }", {"y": "(N, M)"}
    ),
    "zero_is_zero": Case(
        "g (float[N,M] x) => (y) <int64[2] t = {0, 3}> { y = Reshape<allowzero=1>(x, t) }",
        {"y": "(0, 3)"},
    ),
    "to_scalar": Case("g (float[N] x) => (y) <int64[0] t = {}> { y = Reshape(x, t) }", {"y": "()"}),
    "from_scalar": Case("g (float x) => (y) <int64[2] t = {1, -1}> { y = Reshape(x, t) }", {"y": "(1, 1)"}),
    "by_own_dims": Case(
        """g (float[N,M,4] x) => (y) <int64 i = {0}, int64[1] a = {0}, int64[1] m = {-1}> {
        s = Shape(x) d = Gather(s, i) n = Unsqueeze(d, a) t = Concat<axis=0>(n, m)
        y = Reshape(x, t) }""",
        {"y": "(N, 4 * M)"},
    ),
    "by_product_of_dims": Case(
        """g (float[N,M,4] x) => (y) <int64[2] i = {0, 1}, int64[1] m = {-1}> {
        s = Shape(x) d = Gather(s, i) n = ReduceProd(d) o = Reshape(n, m)
        t = Concat<axis=0>(o, m) y = Reshape(x, t) }"""
    ),
    "by_foreign_dim": Case(
        """g (float[A,B] x, float[N] n) => (y) <int64[1] two = {2}> { s = Shape(n)
        t = Concat<axis=0>(s, two) y = Reshape(x, t) }""",
        sizes=(0, 1, 2, 4),
    ),
    "by_foreign_dim_and_wildcard": Case(
        """g (float[A,4] x, float[N] n) => (y) <int64[1] m = {-1}> { s = Shape(n)
        t = Concat<axis=0>(s, m) y = Reshape(x, t) }""",
    ),
    "wildcard_and_foreign_dim": Case(
        """g (float[A,4] x, float[N] n) => (y) <int64[1] m = {-1}> { s = Shape(n)
        t = Concat<axis=0>(m, s) y = Reshape(x, t) }""",
    ),
    "by_sum_of_dims": Case(
        """g (float[A,B] x, float[N] n) => (y) <int64[1] m = {-1}, int64[1] one = {1}> { s = Shape(n)
        e = Add(s, one) t = Concat<axis=0>(e, m) y = Reshape(x, t) }""",
    ),
    "run_time_target": Case(
        "g (float[A,B] x, int64[2] t) => (y) { y = Reshape(x, t) }",
        values={"t": [[0, 0], [-1, 2], [2, -1], [0, -1], [7, 2], [2, 7]]},
    ),
    "run_time_target_allowing_zero": Case(
        "g (float[A,B] x, int64[2] t) => (y) { y = Reshape<allowzero=1>(x, t) }",
        values={"t": [[0, 0], [-1, 2], [2, -1], [0, 3], [7, 2], [2, 7]]},
    ),
    "half_run_time_target": Case(
        """g (float[A,B] x, int64[1] k) => (y, z, w) <int64[1] m = {-1}, int64[1] two = {2}> {
        t = Concat<axis=0>(m, k) y = Reshape(x, t)
        u = Concat<axis=0>(two, k) z = Reshape(x, u) w = Reshape<allowzero=1>(x, u) }""",
        values={"k": [[2], [1], [7]]},
        sizes=(2, 7),
    ),
    "open_rank": Case(
        "g (float[6] x, int64[R] t) => (y, z) { y = Reshape(x, t) z = Exp(y) }",
        values={"t": [[6], [2, 3], [1, 2, 3]]},
    ),
    "values": Case(
        """g (int64[1] k) => (y, z) <int64[2,3] x = {1,2,3,4,5,6}, int64[1] three = {3}> {
        t = Concat<axis=0>(k, three) y = Reshape(x, t) z = Add(y, y) }""",
        values={"k": [[2], [-1]]},
    ),
    "attribute": Case(
        "g (float[N,4] x) => (y) { y = Reshape<shape=[-1, 2]>(x) }", {"y": "(2 * N, 2)"}, opset=4
    ),
}  # fmt: skip


@cases(RESHAPE)
def test_reshape(case: Case) -> None:
    case.check()


EXPAND = {
    "numbers": Case("g (float[N,1] x) => (y) <int64[2] t = {1, 5}> { y = Expand(x, t) }", {"y": "(N, 5)"}),
    "more_axes": Case("g (float[3] x) => (y) <int64[2] t = {2, 1}> { y = Expand(x, t) }", {"y": "(2, 3)"}),
    "by_dims": Case(
        "g (float[1,3] x, float[N] z) => (y) { s = Shape(z) y = Expand(x, s) }",
    ),
    "by_dims_of_row": Case(
        """g (float[1,3] x, float[N] z) => (y) <int64[1] one = {1}> { s = Shape(z)
        t = Concat<axis=0>(s, one) y = Expand(x, t) }""",
        {"y": "(N, 3)"},
    ),
    "run_time": Case(
        "g (float[N,3] x, int64[2] t) => (y) { y = Expand(x, t) }",
        values={"t": [[1, 1], [2, 3], [7, 1]]},
    ),
    "run_time_rank": Case(
        "g (float[1,3] x, int64[R] t) => (y) { y = Expand(x, t) }",
        values={"t": [[1], [2, 1], [2, 2, 1]]},
    ),
    "values": Case(
        "g (float[N] x) => (y) <int64[2] t = {2, 1}> { s = Shape(x) y = Expand(s, t) }",
        {"y=": "(N, N)", "y": "(2, 1)"},
    ),
    "tile": Case(
        "g (float[N,3] x) => (y) <int64[2] r = {2, 1}> { y = Tile(x, r) }", {"y": "(2 * N, 3)"}
    ),
    "tile_by_dims": Case(
        "g (float[N,M] x) => (y) { r = Shape(x) y = Tile(x, r) }", {"y": "(N * N, M * M)"},
    ),
    "tile_run_time": Case(
        "g (float[N,3] x, int64[2] r) => (y) { y = Tile(x, r) }", values={"r": [[0, 1], [2, 3]]}
    ),
}  # fmt: skip


@cases(EXPAND)
def test_expand_and_tile(case: Case) -> None:
    case.check()


PAD = {
    "numbers": Case(
        "g (float[N,3] x) => (y) <int64[4] p = {1, 0, 2, 5}> { y = Pad(x, p) }", {"y": "(N + 3, 8)"}
    ),
    "negative": Case("g (float[N,3] x) => (y) <int64[4] p = {0, -1, 0, 0}> { y = Pad(x, p) }", {"y": "(N, 2)"}),
    "axes": Case(
        "g (float[N,3] x) => (y) <int64[2] p = {1, 2}, int64[1] a = {-1}> { y = Pad(x, p, , a) }",
        {"y": "(N, 6)"},
    ),
    "by_dims": Case(
        """g (float[N] x, float[M] z) => (y) <int64[1] o = {0}> { m = Shape(z)
        p = Concat<axis=0>(o, m) y = Pad(x, p) }""",
        {"y": "(N + M,)"},
    ),
    "run_time": Case(
        "g (float[N] x, int64[2] p) => (y) { y = Pad(x, p) }", values={"p": [[0, 0], [1, 2], [-1, 3]]}
    ),
    "run_time_axes": Case(
        "g (float[N,M] x, int64[1] a) => (y) <int64[2] p = {1, 2}> { y = Pad(x, p, , a) }",
        values={"a": [[0], [1]]},
    ),
    "reflect": Case(
        'g (float[N,3] x) => (y) <int64[4] p = {0, 1, 0, 2}> { y = Pad<mode="reflect">(x, p) }',
        {"y": "(N, 6)"},
    ),
    "attribute": Case(
        "g (float[N,3] x) => (y) { y = Pad<pads=[1, 0, 0, 1]>(x) }", {"y": "(N + 1, 4)"}, opset=10
    ),
}  # fmt: skip


@cases(PAD)
def test_pad(case: Case) -> None:
    case.check()


SPLIT = {
    "sizes": Case(
        "g (float[N,5] x) => (a, b) <int64[2] s = {2, 3}> { a, b = Split<axis=1>(x, s) }",
        {"a": "(N, 2)", "b": "(N, 3)"},
    ),
    "even": Case(
        "g (float[6,N] x) => (a, b, c) { a, b, c = Split<num_outputs=3>(x) }",
        {"a": "(2, N)", "c": "(2, N)"},
    ),
    "open": Case("g (float[N] x) => (a, b) { a, b = Split<num_outputs=2>(x) }"),
    "open_in_three": Case("g (float[N] x) => (a, b, c) { a, b, c = Split<num_outputs=3>(x) }"),
    "uneven_number": Case(
        "g (float[7] x) => (a, b, c, d) { a, b, c, d = Split<num_outputs=4>(x) }",
        {"a": "(2,)", "d": "(1,)"},
    ),
    "by_default_even": Case("g (float[N] x) => (a, b) { a, b = Split(x) }", opset=13),
    "attribute": Case(
        "g (float[5] x) => (a, b) { a, b = Split<split=[1, 4]>(x) }", {"b": "(4,)"}, opset=11
    ),
    "attribute_missing": Case("g (float[N] x) => (a, b) { a, b = Split(x) }", opset=11),
    "run_time": Case(
        "g (float[5] x, int64[2] s) => (a, b) { a, b = Split(x, s) }",
        values={"s": [[1, 4], [5, 0], [2, 3]]},
    ),
    "dims": Case(
        """g (float[N,3,M,4] x) => (a, b, c) <int64[3] p = {1, 2, 1}> { s = Shape(x)
        a, b, c = Split(s, p) }""",
        {"a=": "(N,)", "b=": "(3, M)", "c=": "(4,)"},
    ),
    "known_behind_a_dim": Case(
        """g (float[N] x) => (a, b, y) <int64[4] p = {10, 20, 30, 40}, int64[1] two = {2}>
        { n = Shape(x) s = Concat<axis=0>(n, two) a, b = Split(p, s) y = Expand(x, n) }""",
        {"a": "(N,)", "b": "(2,)"},
    ),
    "by_a_dim": Case(
        """g (float[N] x, float[M] z) => (a, b) { n = Shape(x) m = Shape(z) r = Sub(n, m)
        s = Concat<axis=0>(m, r) a, b = Split(x, s) }""",
        {"a": "(M,)"},
    ),
}  # fmt: skip


@cases(SPLIT)
def test_split(case: Case) -> None:
    case.check()
