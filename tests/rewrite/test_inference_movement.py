"""Facts of operators that move elements hold on onnxruntime."""

from __future__ import annotations

import itertools

import pytest

from .fact_cases import Case, cases

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


def _slice(bounds: str, knows: dict[str, str], dims: str = "N") -> Case:
    """`bounds`: start, stop, axis and step."""
    start, stop, axis, step = bounds.split()
    constants = ", ".join(
        f"int64[1] {name} = {{{number}}}" for name, number in zip("abcd", (start, stop, axis, step))
    )
    return Case(f"g (float[{dims}] x) => (y) <{constants}> {{ y = Slice(x, a, b, c, d) }}", knows)


_MAX, _MIN = 2**63 - 1, -(2**63)

SLICE = {
    "head": _slice("0 2 0 1", {"y": "(min(2, N),)"}),
    "tail": _slice(f"1 {_MAX} 0 1", {"y": "(max(N - 1, 0),)"}),
    "all": _slice(f"0 {_MAX} 0 1", {"y": "(N,)"}),
    "to_int32_end": _slice(f"0 {2**31 - 1} 0 1", {"y": "(N,)"}),
    "drop_last": _slice("0 -1 0 1", {}),
    "last_two": _slice(f"-2 {_MAX} 0 1", {}),
    "last_two_of_three": _slice(f"-2 {_MAX} 0 1", {"y": "(2,)"}, "3"),
    "between": _slice("1 -1 0 1", {}),
    "empty": _slice("3 1 0 1", {"y": "(0,)"}),
    "from_far_below": _slice("-100 2 0 1", {}),
    "far_stop_below": _slice(f"0 {_MIN} 0 1", {}),
    "steps": _slice(f"0 {_MAX} 0 2", {"y": "((N + 1) // 2,)"}),
    "steps_from_one": _slice(f"1 {_MAX} 0 3", {}),
    "reverse": _slice(f"-1 {_MIN} 0 -1", {"y": "(N,)"}),
    "reverse_by_two": _slice(f"-1 {_MIN} 0 -2", {"y": "((N + 1) // 2,)"}),
    "reverse_int32": _slice(f"-1 {-(2**31)} 0 -1", {"y": "(N,)"}),
    "reverse_from_far": _slice(f"{_MAX} {_MIN} 0 -1", {"y": "(N,)"}),
    "reverse_part": _slice("3 0 0 -1", {}),
    "reverse_part_of_number": _slice("3 0 0 -1", {"y": "(3,)"}, "5"),
    "reverse_to_negative": _slice("4 -6 0 -2", {"y": "(3,)"}, "5"),
    "reverse_past_start": _slice("9 -9 0 -3", {"y": "(2,)"}, "5"),
    "reverse_nothing": _slice("0 3 0 -1", {"y": "(0,)"}, "5"),
    "second_axis": _slice("1 3 -1 1", {"y": "(N, 2)"}, "N,5"),
    "run_time_start": Case(
        """g (float[N] x, int64[1] a) => (y) <int64[1] b = {5}> { y = Slice(x, a, b) }""",
        values={"a": [[0], [-2], [9], [-9]]},
    ),
    "run_time_stop": Case(
        """g (float[N] x, int64[1] b) => (y) <int64[1] a = {0}> { y = Slice(x, a, b) }""",
        values={"b": [[0], [-2], [9], [-9], [_MAX]]},
    ),
    "run_time_axis": Case(
        """g (float[N,3] x, int64[1] c) => (y) <int64[1] a = {0}, int64[1] b = {2}> {
        y = Slice(x, a, b, c) }""",
        values={"c": [[0], [1], [-1]]},
    ),
    "run_time_step": Case(
        """g (float[N] x, int64[1] d) => (y) <int64[1] a = {4}, int64[1] b = {0}, int64[1] c = {0}> {
        y = Slice(x, a, b, c, d) }""",
        values={"d": [[1], [-1], [-3]]},
    ),
    "by_a_dim": Case(
        "g (float[N] x, float[M] z) => (y) <int64[1] a = {0}> { b = Shape(z) y = Slice(x, a, b) }",
        {"y": "(min(M, N),)"},
    ),
    "from_a_dim": Case(
        f"""g (float[N] x, float[M] z) => (y) <int64[1] b = {{{_MAX}}}> {{ a = Shape(z)
        y = Slice(x, a, b) }}"""
    ),
    "back_by_a_dim": Case(
        f"""g (float[N] x, float[M] z) => (y) <int64[1] b = {{{_MAX}}}> {{ m = Shape(z) a = Neg(m)
        y = Slice(x, a, b) }}"""
    ),
    "two_axes": Case(
        """g (float[N,M,4] x) => (y) <int64[2] a = {1, 0}, int64[2] b = {3, 2}, int64[2] c = {2, 0}> {
        y = Slice(x, a, b, c) }""",
        {"y": "(min(2, N), M, 2)"},
    ),
    "dims": Case(
        """g (float[N,3,M,4] x) => (y, z, w) <int64[1] a={1}, int64[1] b={3}, int64[1] m={-1},
        int64[1] e={-9}, int64[1] o={0}, int64[1] two={2}, int64[1] far={99}> { s = Shape(x)
        y = Slice(s, a, b) z = Slice(s, m, e, o, m) w = Slice(s, o, far, o, two) }""",
        {"y=": "(3, M)", "z=": "(4, M, 3, N)", "w=": "(N, M)"},
    ),
    "attributes": Case(
        "g (float[N,5] x) => (y) { y = Slice<starts=[1, 0], ends=[9, -1]>(x) }", opset=9
    ),
    "attributes_with_axes": Case(
        "g (float[N,5] x) => (y) { y = Slice<axes=[1], starts=[-4], ends=[9999]>(x) }",
        {"y": "(N, 4)"},
        opset=9,
    ),
}  # fmt: skip


@cases(SLICE)
def test_slice(case: Case) -> None:
    case.check()


_BOUNDS = (_MAX, 2**31 - 1, 7, 2, 1, 0, -1, -2, -3, -7, -(2**31), _MIN)


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("step", [1, 2, -1, -2])
def test_slice_of_a_number(size: int, step: int) -> None:
    """All combinations of bounds near and far, of a tensor and of its shape as elements."""
    stored = [f"int64[1] b{i} = {{{bound}}}" for i, bound in enumerate(_BOUNDS)]
    stored += ["int64[1] axis = {0}", f"int64[1] step = {{{step}}}"]
    pairs = list(itertools.product(range(len(_BOUNDS)), repeat=2))
    nodes = " ".join(
        f"x{i}_{j} = Slice(x, b{i}, b{j}, axis, step) s{i}_{j} = Slice(s, b{i}, b{j}, axis, step)"
        for i, j in pairs
    )
    outputs = ", ".join(f"x{i}_{j}, s{i}_{j}" for i, j in pairs)
    kind = f"float[{', '.join('NML'[:size])}]" if size else "float"
    Case(
        f"""g (float[K] x, {kind} z) => ({outputs}) <{", ".join(stored)}> {{ s = Shape(z)
        {nodes} }}""",
        sizes=(1, 2),
        dims={"K": size},
    ).check()
