"""Facts of slices, pads and splits hold on onnxruntime."""

from __future__ import annotations

import itertools

import pytest

from ....small_models import parse
from ...fact_cases import Case, cases
from ...fact_oracle import facts_of


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
    "run_time_bounds_of_axis_0": Case(
        """g (float[N,M,3] x, int64[1] a, int64[1] b) => (y) { y = Slice(x, a, b) }""",
        {"y": "(None, M, 3)"},
        values={"a": [[0], [-2], [9]], "b": [[0], [3], [_MAX]]},
        sizes=(0, 1, 4),
    ),
    "run_time_bounds_of_axis_1": Case(
        """g (float[N,M,3] x, int64[1] a, int64[1] b) => (y) <int64[1] c = {1}> {
        y = Slice(x, a, b, c) }""",
        {"y": "(N, None, 3)"},
        values={"a": [[0], [-2], [9]], "b": [[0], [3], [_MAX]]},
        sizes=(0, 1, 4),
    ),
    "run_time_bounds_and_steps": Case(
        """g (float[N,M,3] x, int64[1] a, int64[1] b, int64[1] d) => (y) <int64[1] c = {-2}> {
        y = Slice(x, a, b, c, d) }""",
        {"y": "(N, None, 3)"},
        values={"a": [[0], [-2]], "b": [[0], [3], [_MAX]], "d": [[1], [2], [-1]]},
        sizes=(0, 1, 4),
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


@pytest.mark.parametrize(("parts", "fails"), [("1, 1", True), ("1, 2", False)])
def test_parts_that_do_not_make_up_the_operand(parts: str, fails: bool) -> None:
    facts = facts_of(
        parse(f"g (float[3] x) => (a, b) <int64[2] p = {{{parts}}}> {{ a, b = Split(x, p) }}")
    )
    node = next(iter(facts.index.walk()))
    assert (facts.failure(node) is not None) is fails
