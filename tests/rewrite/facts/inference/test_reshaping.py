"""Facts of operators that keep elements and change axes hold on onnxruntime."""

from __future__ import annotations

from ...fact_cases import Case, cases

ROWS = """g (float[T,B,4] x) => (y, z) <float[4,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
    int64[1] m = {-1}, int64[2] halves = {2, 2}> {
    t = Shape<end = 1>(x) b = Shape<start = 1, end = 2>(x) n = Mul(t, b) r = Concat<axis=0>(n, m)
    back = Concat<axis=0>(t, b, m) other = Concat<axis=0>(b, t, m)"""
"""The rows of all time steps in one matrix, in which r has the shape (T * B, -1)."""

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
    "all_rows_and_back": Case(
        f"{ROWS} y = Reshape(x, r) e = Relu(y) z = Reshape(e, back) }}",
        {"y": "(T * max(B, 1), 4 * min(B, 1))", "z": "(T, B, 4)"},
    ),
    "all_rows_of_open_features": Case(
        f"{ROWS} y = Reshape(x, r) z = Reshape(y, back) }}".replace("T,B,4", "T,B,K"),
        {"y": "(T * max(B, 1), K * min(B, 1))", "z": "(T, B, K)"},
    ),
    "all_rows_back_to_split_features": Case(
        f"{ROWS} two = Concat<axis=0>(t, b, halves) y = Reshape(x, r) z = Reshape(y, two) }}",
        {"z": "(T, B, 2, 2)"},
    ),
    "all_rows_back_in_another_order": Case(
        f"{ROWS} y = Reshape(x, r) z = Reshape(y, other) }}", {"z": "(None, None, None)"}
    ),
    "all_rows_projected": Case(
        f"{ROWS} y = Reshape(x, r) e = MatMul(y, w) z = Reshape(e, back) }}",
        {"e": "(T * max(B, 1), 3)", "z": "(T, None, None)"},
    ),
    "all_rows_where_zeros_are_sizes": Case(
        f"{ROWS} y = Reshape<allowzero = 1>(x, r) z = Reshape<allowzero = 1>(y, back) }}",
        {"y": "(T * B, None)", "z": "(T, B, None)"},
    ),
    "two_zeros_where_zeros_are_sizes": Case(
        """g (float[N,M,K] x) => (y) <int64[1] m = {-1}> { s = Shape<end = 1>(x)
        t = Concat<axis=0>(s, m) y = Reshape<allowzero=1>(x, t) }""",
        {"y": "(N, None)"},
    ),
    "rows_of_one_row": Case(
        """g (float[1,K] x, float[N] n) => (y) <int64[1] m = {-1}> { s = Shape(n)
        t = Concat<axis=0>(s, m) y = Reshape(x, t) }""",
        {"y": "(max(N, 1), None)"},
        sizes=(0, 1, 2, 4),
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
    "by_trip_count": Case(
        """g (float[T] t, float[N] x) => (y) <int64[1] three = {3}, int64[1] flat = {-1}> {
        n = Shape(t) w = Concat<axis=0>(n, three)
        y = Loop(n, , x) <body = b (int64 i, bool ci, float[K] s) => (bool co, float[K] so) {
          co = Identity(ci) r = Reshape(s, w) so = Reshape(r, flat) }> }""",
        {"r": "(T, 3)"},
        sizes=(0, 1, 2, 3, 6),
    ),
    "by_more_than_the_trip_count": Case(
        """g (float[T] t, float[N] x) => (y) <int64[1] one = {1}, int64[2] flat = {-1, 1}> {
        n = Shape(t) m = Sub(n, one)
        y = Loop(m, , x) <body = b (int64 i, bool ci, s) => (bool co, so) {
          co = Identity(ci) r = Reshape(s, n) q = Reshape(r, flat) so = Squeeze(q, one) }> }""",
        {"r": "(T,)"},
        sizes=(0, 1, 2, 3),
    ),
    "by_another_size_than_the_trip_count": Case(
        """g (float[T] t, float[N] x, int64 m) => (y) <int64[1] three = {3}, int64[1] flat = {-1}> {
        n = Shape(t) w = Concat<axis=0>(n, three)
        y = Loop(m, , x) <body = b (int64 i, bool ci, float[K] s) => (bool co, float[K] so) {
          co = Identity(ci) r = Reshape(s, w) so = Reshape(r, flat) }> }""",
        {"r": "(None, 3)"},
        values={"m": [0, 1, 2]},
        sizes=(0, 1, 3, 6),
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


SQUEEZE = {
    "axis": Case(
        "g (float[N,1,M] x) => (y) <int64[1] a = {1}> { y = Squeeze(x, a) }", {"y": "(N, M)"}
    ),
    "negative_axes": Case(
        "g (float[1,N,1] x) => (y) <int64[2] a = {-1, 0}> { y = Squeeze(x, a) }", {"y": "(N,)"}
    ),
    "open_axis": Case("g (float[N,M] x) => (y) <int64[1] a = {0}> { y = Squeeze(x, a) }", {"y": "(M,)"}),
    "no_axes": Case("g (float[1,3,1] x) => (y) { y = Squeeze(x) }", {"y": "(3,)"}),
    "no_axes_open": Case("g (float[N,3,1] x) => (y) { y = Squeeze(x) }", {"y": "None"}),
    "empty_axes": Case("g (float[1,N] x) => (y) <int64[0] a = {}> { y = Squeeze(x, a) }"),
    "empty_axes_decided": Case("g (float[1,3] x) => (y) <int64[0] a = {}> { y = Squeeze(x, a) }"),
    "run_time_axes": Case(
        "g (float[1,N] x, int64[1] a) => (y) { y = Squeeze(x, a) }", values={"a": [[0], [1]]}
    ),
    "attribute": Case(
        "g (float[N,1,M] x) => (y) { y = Squeeze<axes=[1]>(x) }", {"y": "(N, M)"}, opset=11
    ),
    "attribute_missing": Case("g (float[N,1,M] x) => (y) { y = Squeeze(x) }", opset=11),
    "always_fails": Case(
        """g (float[N,K] x, bool c) => (y) <int64[1] a = {1}> {
        y = If (c) <then_branch = t () => (p) { p = Squeeze(x, a) },
                    else_branch = e () => (q) { q = Identity(x) }> }""",
        dims={"K": 3},
    ),
    "unsqueeze": Case(
        "g (float[N,M] x) => (y) <int64[2] a = {0, -1}> { y = Unsqueeze(x, a) }",
        {"y": "(1, N, M, 1)"},
    ),
    "unsqueeze_scalar": Case(
        "g (float x) => (y) <int64[2] a = {1, 0}> { y = Unsqueeze(x, a) }", {"y": "(1, 1)"}
    ),
    "unsqueeze_attribute": Case(
        "g (float[N,M] x) => (y) { y = Unsqueeze<axes=[0, 3]>(x) }", {"y": "(1, N, M, 1)"}, opset=11
    ),
    "unsqueeze_run_time": Case(
        "g (float[N] x, int64[1] a) => (y) { y = Unsqueeze(x, a) }", values={"a": [[0], [1]]}
    ),
    "either_rank": Case(
        """g (float[1,N] x, bool c) => (y, z) <int64[1] a = {0}> {
        v = If (c) <then_branch = t () => (p) { p = Squeeze(x, a) },
                    else_branch = e () => (q) { q = Identity(x) }>
        y = Unsqueeze(v, a) z = Exp(y) }"""
    ),
}  # fmt: skip


@cases(SQUEEZE)
def test_squeeze_and_unsqueeze(case: Case) -> None:
    case.check()
