"""Facts of operators that move elements hold on onnxruntime."""

from __future__ import annotations

from ...fact_cases import Case, cases

SHAPES = {
    "shape": Case("g (float[N,3] x) => (y) { y = Shape(x) }", {"y=": "(N, 3)"}),
    "shape_part": Case(
        "g (float[N,3,M] x) => (a, b, c) { a = Shape<start=1>(x) b = Shape<start=-2, end=-1>(x)"
        " c = Shape<start=5>(x) }",
        {"a=": "(3, M)", "b=": "(3,)", "c=": "()"},
    ),
    "shape_of_scalar": Case("g (float x) => (y, z) { y = Shape(x) z = Size(x) }", {"z=": "(1,)"}),
    "size": Case("g (float[N,3,M] x) => (y) { y = Size(x) }", {"y=": "(3*M*N,)"}),
    "flatten": Case(
        """g (float[N,3,M] x) => (a, b, c, d) { a = Flatten(x) b = Flatten<axis=0>(x)
        c = Flatten<axis=-1>(x) d = Flatten<axis=3>(x) }""",
        {"a": "(N, 3*M)", "b": "(1, 3*M*N)", "c": "(3*N, M)", "d": "(3*M*N, 1)"},
    ),
    "transpose": Case(
        "g (float[N,3,M] x) => (a, b) { a = Transpose(x) b = Transpose<perm=[1,2,0]>(x) }",
        {"a": "(M, 3, N)", "b": "(3, M, N)"},
    ),
    "transpose_dims": Case(
        """g (float[N] x) => (y, z) <int64[1,2] k = {5, 6}, int64[2] t = {2, 1}> { s = Shape(x)
        a = Add(k, s) y = Transpose(a) z = Reshape(a, t) }""",
        {"y=": "(N + 5, N + 6)", "z=": "(N + 5, N + 6)"},
    ),
    "space_and_depth": Case(
        """g (float[N,12,H,4] x) => (a, b) { a = DepthToSpace<blocksize=2>(x)
        b = SpaceToDepth<blocksize=2>(a) }""",
        {"a": "(N, 3, 2*H, 8)", "b": "(N, 12, H, 4)"},
    ),
    "unknown_rank": Case(
        """g (float[4] x, int64[R] s) => (a, b, c, d, e, f) { r = Reshape(x, s) a = Shape(r)
        b = Size(r) c = Flatten(r) d = Transpose<perm=[1,0]>(r) e = Identity(r) f = Squeeze(r) }""",
        values={"s": [[2, 2], [1, 4], [4, 1]]},
        sizes=(2,),
    ),
}  # fmt: skip


@cases(SHAPES)
def test_shape(case: Case) -> None:
    case.check()


GATHER = {
    "data": Case("g (float[N,3] x, int64[M,2] i) => (y) { y = Gather(x, i) }", {"y": "(M, 2, 3)"}),
    "axis": Case(
        "g (float[N,3] x, int64 i) => (y) { y = Gather<axis=-1>(x, i) }", {"y": "(N,)"}
    ),
    "dims": Case(
        """g (float[N,3,M] x) => (a, b, c) <int64 i = {-1}, int64[2] j = {0, 2}, int64[1,1] k = {1}> {
        s = Shape(x) a = Gather(s, i) b = Gather(s, j) c = Gather(s, k) }""",
        {"a=": "(M,)", "b=": "(N, M)", "c=": "(3,)", "c": "(1, 1)"},
    ),
    "run_time_index": Case(
        "g (float[N,3] x, int64 i) => (y) { s = Shape(x) y = Gather(s, i) }", values={"i": [0, -1, 5]}
    ),
    "index_of_dims": Case(
        """g (float[N] x) => (y) <int64[3] k = {4, 5, 6}> { n = Shape(x) y = Gather(k, n) }"""
    ),
    "elements": Case(
        "g (float[N,3] x, int64[M,2] i) => (y) { y = GatherElements<axis=1>(x, i) }", {"y": "(M, 2)"}
    ),
    "nd": Case("g (float[2,3,N] x, int64[M,2] i) => (y) { y = GatherND(x, i) }", {"y": "(M, N)"}),
    "nd_batch": Case(
        "g (float[N,3,4] x, int64[N,1] i) => (y) { y = GatherND<batch_dims=1>(x, i) }", {"y": "(N, 4)"}
    ),
    "scatter": Case(
        """g (float[N,3] x, int64[M,1] i, float[M,3] u) => (y) { y = ScatterND(x, i, u) }""",
        {"y": "(N, 3)"},
    ),
    "scatter_elements": Case(
        "g (float[N,3] x, int64[1,3] i, float[1,3] u) => (y) { y = ScatterElements(x, i, u) }",
        {"y": "(N, 3)"},
    ),
    "scatter_of_old": Case(
        "g (float[N,3] x, int64[1,3] i, float[1,3] u) => (y) { y = Scatter(x, i, u) }",
        {"y": "(N, 3)"},
        opset=10,
    ),
    "reverse": Case(
        "g (float[N,2,M] x) => (y) <int64[2] l = {1, 1}> { y = ReverseSequence(x, l) }",
        {"y": "(N, 2, M)"},
    ),
}  # fmt: skip


@cases(GATHER)
def test_gather_and_scatter(case: Case) -> None:
    case.check()


CONCAT = {
    "names": Case(
        "g (float[N,3] x, float[M,3] z) => (y) { y = Concat<axis=0>(x, z, x) }", {"y": "(M + 2*N, 3)"}
    ),
    "negative_axis": Case(
        "g (float[2,N] x, float[2,5] z) => (y) { y = Concat<axis=-1>(x, z) }", {"y": "(2, N + 5)"}
    ),
    "other_axis_differs": Case("g (float[N,K] x, float[M,L] z) => (y) { y = Concat<axis=0>(x, z) }"),
    "other_axis_differs_1": Case("g (float[N,K] x, float[M,L] z) => (y) { y = Concat<axis=1>(x, z) }"),
    "three_operands": Case(
        "g (float[A,K] x, float[M,L] z, float[B,H] w) => (y) { y = Concat<axis=0>(x, z, w) }",
        sizes=(0, 1, 2),
        dims={"K": 3, "L": 4, "H": 3},
    ),
    "empty_and_number": Case(
        "g (float[K,L] x, float[M,N] z) => (y) { y = Concat<axis=0>(x, z) }", dims={"K": 0, "L": 4}
    ),
    "number_and_empty": Case(
        "g (float[K,L] x, float[M,N] z) => (y) { y = Concat<axis=0>(x, z) }", dims={"K": 2, "L": 4}
    ),
    "surely_different": Case(
        """g (float[K,L] x, float[M,N] z, bool c) => (y) {
        y = If (c) <then_branch = t () => (p) { p = Concat<axis=0>(x, z) },
                    else_branch = e () => (q) { q = Identity(x) }> }""",
        dims={"K": 2, "L": 4, "M": 1, "N": 3},
    ),
    "values": Case(
        """g (float[N] x) => (y, z) <int64[1] k = {7}> { s = Shape(x) y = Concat<axis=0>(s, k, s)
        a = Unsqueeze(s, i) z = Concat<axis=-1>(a, a) i = Constant<value_ints=[0]>() }""",
        {"y=": "(N, 7, N)", "z=": "(N, N)", "z": "(1, 2)"},
    ),
    "known_and_unknown": Case(
        """g (float[2,3] x, float[6] z, int64[2] t) => (y) { w = Reshape(z, t)
        y = Concat<axis=0>(x, w) }""",
        values={"t": [[2, 3], [-1, 3], [6, 1]]},
    ),
    "ranks_open": Case(
        """g (float[3] x, float[6] z, int64[R] t) => (y) { w = Reshape(z, t)
        y = Concat<axis=0>(x, w) }""",
        values={"t": [[6], [-1]]},
        sizes=(1,),
    ),
}  # fmt: skip


@cases(CONCAT)
def test_concat(case: Case) -> None:
    case.check()
