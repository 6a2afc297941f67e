"""Slice and Split against onnxruntime: one module for all sizes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from looplift.rewrite.errors import UnsupportedError

from .inputs import Load, random


@pytest.mark.parametrize(
    "bounds",
    [(1, 2**63 - 1, 1), (0, -1, 1), (-3, 2**63 - 1, 1), (1, -1, 1), (1, 3, 2), (-3, -1, 1),
     (0, 2**31 - 1, 2), (2, 1, 1), (-1, -(2**63), -1), (-1, -(2**63), -2), (-2, -(2**63), -1),
     (4, 0, -1), (2**63 - 1, 1, -3), (-2, -5, -2), (1, -1, -1), (5, -(2**63), -2), (2, 2**31 - 1, -1), (-9, -1, -1)],
)  # fmt: skip
def test_constant_bounds_are_clamped_to_the_axis(
    imported: Load, bounds: tuple[int, int, int]
) -> None:
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


@pytest.mark.parametrize("bounds", [(-2, 1, 1), (5, 2, 2), (1, -2, -1), (9, 12, 1)])
@pytest.mark.parametrize("rows", ["n", "3"])
def test_an_empty_slice_of_an_axis_of_known_size(
    imported: Load, rows: str, bounds: tuple[int, int, int]
) -> None:
    start, end, step = bounds
    model = imported(f"""
    g (float[{rows}, 8] x) => (float[k, j] y) {{
        start = Constant <value_ints = [{start}]> ()
        end = Constant <value_ints = [{end}]> ()
        axis = Constant <value_ints = [1]> ()
        step = Constant <value_ints = [{step}]> ()
        y = Slice(x, start, end, axis, step)
    }}""")
    model.check(random(3, 8))


@pytest.mark.parametrize("step", [1, 2, -1, -2])
def test_bounds_that_are_inputs(stock: Load, step: int) -> None:
    model = stock(f"""
    g (float[n, 2] x, int64[1] start, int64[1] end) => (float[k, 2] y) {{
        axis = Constant <value_ints = [-2]> ()
        step = Constant <value_ints = [{step}]> ()
        y = Slice(x, start, end, axis, step)
    }}""")
    for start, end in ((0, 3), (-1, 0), (4, 1), (1, 2**31 - 1), (-1, -(2**31)), (-3, -1), (5, -9)):
        for rows in (1, 4, 7):
            model.check(random(rows, 2), np.array([start]), np.array([end]))


def test_bounds_that_are_attributes(imported: Load) -> None:
    model = imported("""<ir_version: 8, opset_import: ["" : 9]>
    g (float[n, 4] x) => (float[k, 2] y) {
        y = Slice <starts = [1, -3], ends = [9223372036854775807, 3], axes = [0, 1]> (x)
    }""")
    model.check(random(3, 4))


def test_operators_after_a_slice_of_unknown_length(imported: Load) -> None:
    model = imported("""
    g (float[n, 3] x, int64[1] s, int64[1] e) => (float[k, 3] y, float[3] z) {
        part = Slice(x, s, e)
        y = Exp(part)
        z = ReduceMax <axes = [0], keepdims = 0> (y)
    }""")
    model.check(random(5, 3), np.array([1]), np.array([3]))
    model.check(random(5, 3), np.array([0]), np.array([5]))


@pytest.mark.parametrize("sizes", ["0, 7, 0", "3, 0, 4", "7, 0, 0"])
def test_split_into_empty_parts(imported: Load, sizes: str) -> None:
    model = imported(
        f"""
        g (float[n, 7] x) => (float[n, ?] a, float[n, ?] b, float[n, ?] c) {{
            sizes = Constant <value_ints = [{sizes}]> ()
            a, b, c = Split <axis = 1> (x, sizes)
        }}"""
    )
    model.check(random(2, 7))


def test_split_by_an_input(imported: Load) -> None:
    model = imported(
        """
        g (float[n, m] x, int64[2] sizes) => (float[n, ?] a, float[n, ?] b) {
            a, b = Split <axis = -1> (x, sizes)
        }"""
    )
    model.check(random(2, 7), np.array([3, 4]))
    model.check(random(5, 4), np.array([0, 4]))
    with pytest.raises(Exception, match="match_cast error"):
        model.run(random(2, 7), np.array([3, 3]))
    with pytest.raises(Exception, match=r"match_cast error|bad_alloc"):
        model.run(random(2, 7), np.array([-1, 8]))


def test_split_by_fixed_sizes_that_do_not_add_up_fails(imported: Load) -> None:
    text = (
        "g (float[n] x) => (float[2] a, float[3] b) <int64[2] s = {2, 3}> { a, b = Split (x, s) }"
    )
    model = imported(text)
    model.check(random(5))
    with pytest.raises(Exception, match="match_cast error"):
        model.run(random(6))


def test_split_by_constant_sizes_that_do_not_add_up_is_refused(imported: Load) -> None:
    with pytest.raises(UnsupportedError, match="axis 0 has size 4, but the operator needs size 3"):
        imported("g (float[4] x) => (float[?] a, float[?] b) <int64[2] s={1,2}> {a,b = Split(x,s)}")


@pytest.mark.parametrize(("opset", "attribute"), [(17, ""), (18, "<num_outputs = 3>")])
def test_split_into_equal_parts(imported: Load, opset: int, attribute: str) -> None:
    model = imported(
        f"""
        <ir_version: 8, opset_import: ["" : {opset}]>
        g (float[n] x) => (float[?] a, float[?] b, float[?] c) {{ a, b, c = Split {attribute} (x) }}"""
    )
    model.check(random(6))
    if attribute:
        model.check(random(5))
    with pytest.raises(Exception, match=r"match_cast error|An input is too small"):
        model.run(random(1))


def test_split_by_sizes_computed_from_shapes(imported: Load) -> None:
    model = imported(
        """
        g (float[n] x, float[m] like) => (float[?] a, float[?] b) {
            all = Shape (x)
            first = Shape (like)
            rest = Sub (all, first)
            sizes = Concat <axis = 0> (first, rest)
            a, b = Split (x, sizes)
        }"""
    )
    model.check(random(9), random(2))
    model.check(random(3), random(3))


@pytest.mark.parametrize("step", [1, 2, -1])
def test_bounds_that_the_run_computes(imported: Load, step: int) -> None:
    """Their sign is not known either. TVM takes a symbol of a shape for a number of elements."""
    model = imported(f"""g (float[A, B] x, int64[1] start, int64[1] end) => (float[A, C] y)
        <int64[1] axis = {{1}}, int64[1] step = {{{step}}}> {{ y = Slice (x, start, end, axis, step) }}""")
    for size in (0, 1, 5):
        x = random(2, size)
        for start, end in itertools.product((-9, -2, -1, 0, 1, 9), repeat=2):
            model.check(x, np.array([start]), np.array([end]))


@pytest.mark.parametrize(
    ("declared", "axes", "step"),
    [
        (
            "int64[n] s, int64[n] e, int64[n] along",
            [[0], [1, 0], [2, 0, 1], [], [-1], [-2, 2]],
            None,
        ),
        ("int32[2] s, int32[2] e, int32[2] along", [[0, 1], [2, 1], [-1, -3]], None),
        ("int64[2] s, int64[2] e, int64[2] along, int64[2] step", [[0, 1], [2, -3]], [2, -1]),
        ("int64[n] s, int64[n] e", [[0], [0, 1], []], None),
    ],
    ids=["any number", "two", "with steps", "the first ones"],
)
def test_axes_that_the_run_computes(
    imported: Load, declared: str, axes: list[list[int]], step: list[int] | None
) -> None:
    """TVM's converter gives the result a negative size where an end is before its start."""
    names = ", ".join(part.split()[1] for part in declared.split(", "))
    model = imported(
        f"g (float[a, b, c] x, {declared}) => (float[?, ?, ?] y) {{ y = Slice (x, {names}) }}"
    )
    kind = np.int32 if "int32" in declared else np.int64
    bounds = [([0, 1, 0], [2, 2, 1]), ([3, 2, 5], [1, 1, 1]), ([-1, -2, -9], [99, -1, 3])]
    for along in axes:
        for starts, ends in bounds:
            given = [starts[: len(along)], ends[: len(along)], along, step]
            given = [each for each, _ in zip(given, declared.split(", "))]
            for shape in ((4, 3, 2), (0, 1, 5)):
                model.check(random(*shape), *(np.array(each, kind) for each in given))


@pytest.mark.parametrize("steps", [[1, 1], [2, -1], [-2, 3], [-1, -1], [7, -7]])
def test_steps_that_the_run_computes(imported: Load, steps: list[int]) -> None:
    model = imported("""
    g (float[n, 3, m] x, int64[2] a, int64[2] b, int64[2] s) => (float[p, q, r] y) {
        axes = Constant <value_ints = [2, 0]> ()
        y = Slice(x, a, b, axes, s)
    }""")
    most, least = 2**63 - 1, -(2**63)
    for starts, ends in (([0, 0], [9, 9]), ([-1, -1], [least, least]), ([4, 1], [0, 5]),
                         ([2, 9], [-2, most]), ([-99, 5], [1, -3])):  # fmt: skip
        for shape in ((5, 3, 4), (1, 3, 1), (0, 3, 2)):
            model.check(random(*shape), *map(np.array, (starts, ends, steps)))


def test_a_step_of_0(imported: Load) -> None:
    model = imported("""
    g (float[n] x, int64[1] s) => (float[k] y) {
        zero = Constant <value_ints = [0]> ()
        end = Constant <value_ints = [9]> ()
        y = Slice(x, zero, end, zero, s)
    }""")
    with pytest.raises(Exception, match="match_cast error"):
        model.run(random(3), np.array([0]))
    model.check(random(3), np.array([2]))


NONE = """
        axis = Constant <value_ints = [1]> ()
        start = Constant <value_ints = [0]> ()
        none = Slice ({}, start, start, axis)"""


def test_parts_without_elements_are_not_concatenated(imported: Load) -> None:
    model = imported(f"""
    g (float[n, 2] x) => (float[n, 4] y, float[n, 2] z, float[n, 0] w) {{
        {NONE.format("x")}
        y = Concat <axis = 1> (none, x, none, x)
        z = Concat <axis = -1> (none, x)
        w = Concat <axis = 1> (none, none)
    }}""")
    assert model.module.script().count("R.concat") == 2
    for rows in (0, 1, 3):
        model.check(random(rows, 2))


def test_a_part_without_elements_has_the_other_sizes(imported: Load) -> None:
    model = imported(f"""
    g (float[2, 2] x, float[m, 2] z) => (float[a, b] y) {{
        {NONE.format("z")}
        y = Concat <axis = 1> (none, x)
    }}""")
    assert "R.concat" not in model.module.script()
    model.check(random(2, 2), random(2, 2))
    with pytest.raises(RuntimeError, match="match_cast"):
        model.run(random(2, 2), random(3, 2))


@pytest.mark.parametrize(
    ("declared", "given"),
    [
        ("int64[n] s, int64[m] e, int64[m] along", ([0, 1], [1], [0])),
        ("int64[n] s, int64[n] e, int64[n] along", ([0], [1], [3])),
        ("int64[n] s, int64[n] e, int64[n] along", ([0], [1], [-4])),
        ("int64[n] s, int64[n] e, int64[n] along", ([0, 0], [1, 1], [1, -2])),
        ("int64[n] s, int64[n] e", ([0] * 4, [1] * 4)),
    ],
    ids=[
        "other lengths",
        "no such axis",
        "no such axis from the end",
        "one axis twice",
        "too many",
    ],
)
def test_computed_axes_that_do_not_fit(
    imported: Load, declared: str, given: tuple[list[int], ...]
) -> None:
    names = ", ".join(part.split()[1] for part in declared.split(", "))
    model = imported(
        f"g (float[a, b, c] x, {declared}) => (float[?, ?, ?] y) {{ y = Slice (x, {names}) }}"
    )
    with pytest.raises(RuntimeError, match="match_cast error"):
        model.run(random(3, 4, 2), *map(np.array, given))


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("int64[2] s, int64[2] e, int64[1] along", "are not equally many"),
        ("int64[4] s, int64[4] e, int64[4] along, int64[4] step", "an axis that data with 3 axes"),
        ("int64[2] s, int64[2] e, int64[2] along, int64[2] step", "one axis twice"),
    ],
)
def test_axes_that_cannot_fit(imported: Load, declared: str, message: str) -> None:
    names = [part.split()[1] for part in declared.split(", ")]
    if "step" in names:
        names[2] = "few" if "[2]" in declared else ""
    with pytest.raises(UnsupportedError, match=message):
        imported(f"""g (float[a, b, c] x, {declared}) => (float[?, ?, ?] y)
            <int64[2] few = {{1, -2}}> {{ y = Slice (x, {", ".join(names)}) }}""")
