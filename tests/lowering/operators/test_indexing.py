"""OneHot, ReverseSequence and TopK against onnxruntime: one module for all sizes."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from looplift.rewrite.errors import UnsupportedError

from ...samples import one_of
from .inputs import Load, check_reference, random


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(imported: Load, axis: int) -> None:
    indices = np.array([[0, 2, -1], [7, -9, 1]])
    by_input = imported(
        f"""
        g (int64[n, m] x, int64 depth, int64[2] v) => (int64[?, ?, ?] y)
        {{ y = OneHot <axis = {axis}> (x, depth, v) }}"""
    )
    for depth in (1, 4):
        by_input.check(indices, np.array(depth), np.array([5, 9]))
    by_constant = imported(
        f"""
        g (int64[n, m] x) => (float[?, ?, ?] y) <int64[1] depth = {{3}}, float[2] v = {{0.5, 2}}>
        {{ y = OneHot <axis = {axis}> (x, depth, v) }}"""
    )
    by_constant.check(indices)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [-1, 0])
def test_top_k_of_an_input_k(imported: Load, axis: int, largest: int) -> None:
    model = imported(
        f"""
        g (float[n, m] x, int64[1] k) => (float[?, ?] values, int64[?, ?] places) {{
            values, places = TopK <axis = {axis}, largest = {largest}> (x, k)
        }}"""
    )
    model.check(random(4, 6), np.array([3]))
    model.check(np.ones((3, 5), np.float32), np.array([2]))
    model.check(random(4, 6), np.array([0]))
    model.check(random(4, 4), np.array([4]))


@pytest.mark.parametrize("dtype", ["float", "int64"])
def test_top_k_among_equal_elements_takes_the_first(imported: Load, dtype: str) -> None:
    model = imported(
        f"""
        g ({dtype}[b, c, n] x, int64[1] k) => ({dtype}[?, ?, ?] values, int64[?, ?, ?] places) {{
            values, places = TopK (x, k)
        }}"""
    )
    for rows, size, count in (
        (1, 300, 41),
        (2, 17, 17),
        (3, 1, 1),
        (2, 8, 0),
        (0, 5, 2),
        (4, 9, 1),
    ):
        drawn = np.random.default_rng(size).integers(0, 6, (rows, 2, size))
        model.check(drawn.astype(np.float32 if dtype == "float" else np.int64), np.array([count]))


def test_top_k_in_a_loop(imported: Load) -> None:
    model = imported(
        """
        g (int64 n, float[5] a) => (float[5] x) {
            x = Loop (n, "", a) <body = turn (int64 i, bool go, float[5] p) => (bool on, float[5] q) {
                on = Identity (go)
                five = Constant <value = int64[1] {5}> ()
                sorted, places = TopK (p, five)
                moved = Cast <to = 1> (places)
                q = Add (sorted, moved)
            }>
        }"""
    )
    for count in (0, 1, 4):
        model.check(np.array(count), random(5))


def test_top_k_of_a_computed_k(imported: Load) -> None:
    model = imported(
        """
        g (float[n] x) => (float[k] values, int64[k] places)
        <int64[1] most = {5}, int64[1] first = {0}> {
            sizes = Shape (x)
            n = Gather (sizes, first)
            k = Min (n, most)
            values, places = TopK <sorted = 0> (x, k)
        }"""
    )
    for count in (3, 5, 9):
        values, places = model.run(x := random(count))
        np.testing.assert_array_equal(values, np.sort(x)[::-1][:5])
        np.testing.assert_array_equal(x[places], values)


@pytest.mark.parametrize("given", ["int64[1] k", "weight"])
def test_top_k_larger_than_the_axis_fails(stock: Load, given: str) -> None:
    inputs, weights = (", " + given, "") if given != "weight" else ("", "<int64[1] k = {5}>")
    model = stock(
        f"""
        g (float[n] x{inputs}) => (float[?] values, int64[?] places) {weights} {{
            values, places = TopK (x, k)
        }}"""
    )
    count = [] if weights else [np.array([5])]
    model.check(random(5), *count)
    with pytest.raises(Exception, match="match_cast error"):
        model.run(random(4), *count)
    if count:
        with pytest.raises(Exception, match="match_cast error"):
            model.run(random(4), np.array([-1]))


def test_top_k_of_a_constant_larger_than_the_axis_is_refused(imported: Load) -> None:
    with pytest.raises(UnsupportedError, match="axis 0 has size 4, but the operator needs size 5"):
        imported("g (float[4] x) => (float[5] v, int64[5] p) <int64[1] k={5}> {v, p = TopK (x, k)}")


@pytest.mark.parametrize(("time", "batch"), [(0, 1), (1, 0)])
def test_reverse_sequence(imported: Load, time: int, batch: int) -> None:
    model = imported(f"""
    g (float[a, b, 3] x, int64[k] lengths) => (float[a, b, 3] y) {{
        y = ReverseSequence <time_axis = {time}, batch_axis = {batch}> (x, lengths)
    }}""")
    shape = (4, 3) if time == 0 else (3, 4)
    model.check(random(*shape, 3), np.array([1, 4, 2]))


def test_scatter_of_updates_whose_sizes_are_checked_at_run_time(imported: Load) -> None:
    model = imported("""
    g (float[n, m] x, int64[k, 1] places, float[j, m] updates) => (float[n, m] y) {
        y = ScatterND (x, places, updates)
    }""")
    model.check(random(4, 3), np.array([[2], [0]]), random(2, 3))
    with pytest.raises(Exception, match="match_cast error"):
        model.run(random(4, 3), np.array([[2], [0]]), random(1, 3))


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(imported: Load, mode: str) -> None:
    model = imported(
        f"""
        <ir_version: 10, opset_import: ["" : 24]>
        g (float16[b, n, 2] x, float16[b, k, 2] update, int64[b] at) => (float16[b, n, 2] y,
          float16[b, n, 2] z) {{
            y = TensorScatter <mode = "{mode}"> (x, update, at)
            z = TensorScatter <axis = 1> (x, update)
        }}"""
    )
    wrapped = [3, 1] if mode == "circular" else [2, 1]
    for count in (0, 1, 2):
        x, update = (random(2, size, 2).astype(np.float16) for size in (4, count))
        check_reference(model, x, update, np.array(wrapped))


def test_top_k_of_unsigned_integers(imported: Load) -> None:
    model = imported("""
    <ir_version: 10, opset_import: ["" : 24]>
    g (uint64[n, 4] x, int64[1] k) => (uint64[?, ?] y, int64[?, ?] at) { y, at = TopK (x, k) }""")
    x = np.array([[1, 2**63, 2**64 - 1, 2**63 - 1]] * 2, np.uint64)
    for count in (1, 3):
        check_reference(model, x, np.array([count]))


@pytest.mark.parametrize("shape", [[3, 0], [0]])
@pytest.mark.parametrize("reduction", ["none", "add"])
def test_scatter_nd_of_all_data(imported: Load, shape: list[int], reduction: str) -> None:
    """Indices without elements select all data."""
    sizes = "".join(f"{size}, " for size in shape[:-1])
    model = imported(f"""<ir_version: 8, opset_import: ["" : 18]>
    g (float[n, 4] x, float[{sizes} n, 4] updates) => (float[n, 4] y)
    <int64{shape} places = {{}}> {{
        y = ScatterND <reduction = "{reduction}"> (x, places, updates) }}""")
    for n in (1, 3):
        model.check(random(n, 4), random(*shape[:-1], n, 4) + 1)


@pytest.mark.parametrize(
    ("depth", "reduction"),
    one_of(2, itertools.product((1, 2, 3), ("none", "add", "mul", "min", "max"))),
)
def test_scatter_nd_of_rows(imported: Load, depth: int, reduction: str) -> None:
    """Several updates of one place, and indices that count from the end."""
    tail = ", ".join(["c", "3"][depth - 1 :])
    updates = f"m, k, {tail}" if tail else "m, k"
    model = imported(f"""
    <ir_version: 8, opset_import: ["" : 18]>
    g (float[n, c, 3] x, int64[m, k, {depth}] i, float[{updates}] u) => (float[n, c, 3] y) {{
        y = ScatterND <reduction = "{reduction}"> (x, i, u)
    }}""")
    rng = np.random.default_rng(depth)
    for rows in ((2, 4), (1, 1), (0, 3)):
        indices = rng.integers(-2, 2, (*rows, depth))
        if reduction == "none":  # The order of updates of one place is not defined.
            indices = np.zeros((*rows, depth), np.int64)
            indices[..., 0] = np.arange(rows[0] * rows[1]).reshape(rows)
        model.check(random(9, 5, 3), indices, random(*rows, *(5, 3)[depth - 1 :]))


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_scatter_nd_without_updates(imported: Load, depth: int) -> None:
    shape = [0, *[3, 4][depth:]]
    model = imported(f"""<ir_version: 8, opset_import: ["" : 18]>
    g (float[3, 4] x) => (float[3, 4] y)
    <int64[0, {depth}] places = {{}}, float{shape} updates = {{}}> {{
        y = ScatterND (x, places, updates) }}""")
    model.check(random(3, 4))


def test_scatter_nd_of_computed_sizes(imported: Load) -> None:
    """Equal sizes that are computed twice, and a constant as long as the indices must be."""
    model = imported(
        """
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[b, 4, n] x, int64[m, 1] rows) => (float[?, 4, ?] y, float[b, 4, n] z)
        <int64[1, 1] first = {0}, float zero = {0}, float[2] two = {5, 6}, int64[1] all = {-1},
         int64[1] none = {0}, int64[1] low = {0}, int64[1] most = {2}> {
            a = MaxPool <kernel_shape = [3], strides = [2], pads = [1, 1]> (x)
            p = AveragePool <kernel_shape = [4], strides = [2], pads = [1, 2]> (x)
            q = Tanh (p)
            u = Gather <axis = 0> (q, low)
            y = ScatterND (a, first, u)
            flat = Reshape (x, all)
            few = Slice (rows, low, most)
            s = ScatterND (flat, few, two)
            sizes = Shape (x)
            z = Reshape (s, sizes)
        }"""
    )
    rows = np.array([[3], [1], [0]])
    model.check(random(2, 4, 7), rows)
    model.check(random(1, 4, 8), rows[:2])
    with pytest.raises(RuntimeError, match="mismatch"):
        model.run(random(1, 4, 8), rows[:1])


@pytest.mark.parametrize(
    ("axis", "reduction"),
    one_of(3, itertools.product((0, 1, -2, 3), ("none", "add", "mul", "max", "min"))),
)
def test_scatter_elements_beside_longer_axes(imported: Load, axis: int, reduction: str) -> None:
    """TVM's kernel writes to wrong places where the data is longer than the indices."""
    model = imported(f"""
    <ir_version: 8, opset_import: ["" : 18]>
    g (float[a, b, c, d] x, int64[p, q, r, s] i, float[p, q, r, s] u) => (float[a, b, c, d] y) {{
        y = ScatterElements <axis = {axis}, reduction = "{reduction}"> (x, i, u) }}""")
    for data, written in (
        ((3, 4, 5, 6), (2, 3, 4, 5)),
        ((4, 4, 4, 4), (4, 1, 2, 4)),
        ((3,) * 4, (0,) * 4),
    ):
        indices = np.indices(written)[axis] - data[axis] * (np.indices(written).sum(0) % 2)
        model.check(random(*data), indices, random(*written))


def test_scatter_elements_of_equal_sizes(imported: Load) -> None:
    model = imported("""
    g (float[a, b, c] x, int32[a, b, n] i, float[a, b, n] u) => (float[a, b, c] y) {
        y = ScatterElements <axis = 2> (x, i, u) }""")
    model.check(random(2, 3, 7), np.tile(np.array([6, -7], np.int32), (2, 3, 1)), random(2, 3, 2))


def test_scatter_elements_of_other_ranks_and_reductions(imported: Load) -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
        g (float[2, 2] x, int64[{0}] i, float[{0}] u) => (float[2, 2] y) {{
        y = ScatterElements <reduction = "{1}"> (x, i, u) }}"""
    with pytest.raises(UnsupportedError, match="the data has 2 axes, the indices have 1"):
        imported(text.format("2", "add"))
    with pytest.raises(UnsupportedError, match="the reduction is 'mean', not none or add"):
        imported(text.format("2, 2", "mean"))


@pytest.mark.parametrize(
    "attributes", ["sorted = 0", "sorted = 1", "axis = 1", "axis = -3, sorted = 0"]
)
def test_unique_elements_of_several_axes(imported: Load, attributes: str) -> None:
    result = "?, ?, ?" if "axis" in attributes else "?"
    model = imported(f"""
    g (int64[a, b, c] x) => (int64[{result}] y, int64[?] i, int64[?] v, int64[?] n) {{
        y, i, v, n = Unique <{attributes}> (x) }}""")
    rng = np.random.default_rng(0)
    for shape in ((4, 3, 2), (1, 1, 1)):
        model.check(rng.integers(0, 5, shape))


def test_scatter_elements_was_called_scatter(imported: Load) -> None:
    model = imported("""
    <ir_version: 4, opset_import: ["" : 9]>
    g (float[a, b, c] x, int64[p, q, r] i, float[p, q, r] u) => (float[a, b, c] y) {
        y = Scatter <axis = 1> (x, i, u) }""")
    model.check(random(3, 4, 5), np.indices((2, 3, 4))[1], random(2, 3, 4))


def test_scatter_nd_of_an_unknown_number_of_coordinates(imported: Load) -> None:
    """The ranks of the three operands decide it."""
    model = imported("""
    g (float[a, b, c] x, int64[n, k] i, float[n, c] u) => (float[a, b, c] y) {
        y = ScatterND (x, i, u) }""")
    model.check(random(3, 4, 5), np.array([[0, 1], [-1, 3]]), random(2, 5))
    with pytest.raises(RuntimeError, match="match_cast error"):
        model.run(random(3, 4, 5), np.array([[0], [2]]), random(2, 5))
    with pytest.raises(UnsupportedError, match="updates with 3 axes do not fit data and indices"):
        imported("""
        g (float[a] x, int64[n, k] i, float[n, a, a] u) => (float[a] y) { y = ScatterND (x, i, u) }""")


def test_gather_nd(imported: Load) -> None:
    model = imported("""
    g (float[a, b, c] x, int64[a, n, 1] i) => (float[?, ?, ?] y) {
        y = GatherND <batch_dims = 1> (x, i) }""")
    model.check(random(2, 4, 3), np.array([[[0], [3]], [[-1], [1]]]))
    with pytest.raises(UnsupportedError, match="which decides the rank of the result"):
        imported("g (float[a, b] x, int64[n, k] i) => (float[?, ?] y) { y = GatherND (x, i) }")


@pytest.mark.parametrize("shape", [(3, 0, 2), (0, 2, 2)])
def test_no_elements_are_gathered(imported: Load, shape: tuple[int, ...]) -> None:
    sizes = ", ".join(map(str, shape))
    model = imported(f"""
    g (float[a, b, c] x) => (float[?, ?, ?] y) <int64[{sizes}] i = {{}}> {{
        y = GatherElements <axis = 1> (x, i) }}""")
    model.check(random(3, 2, 2))


def test_scatter_elements_beside_shorter_axes(imported: Load) -> None:
    text = """g (float[{0}] x, int64[{1}] i, float[{1}] u) => (float[?, ?] y) {{
        y = ScatterElements (x, i, u) }}"""
    model = imported(text.format("a, b", "c, d"))
    with pytest.raises(RuntimeError, match="match_cast error"):
        model.run(random(3, 2), np.zeros((1, 4), np.int64), random(1, 4))
    with pytest.raises(UnsupportedError, match="axis 1 has size 2, but the operator needs size 4"):
        imported(text.format("3, 2", "1, 4"))


def test_indices_outside_of_the_data_are_taken_for_the_first_or_last(imported: Load) -> None:
    """onnxruntime refuses them; they must not read what lies beyond the data."""
    model = imported("g (float[n, 3] x, int64[k] i) => (float[k, 3] y) { y = Gather (x, i) }")
    x = random(4, 3)
    (found,) = model.run(x, np.array([1, 4, 10**15, -5, -(10**15)]))
    np.testing.assert_array_equal(found, x[[1, 3, 3, 0, 0]])
    places = imported("g (float[n, m] x, int64 i) => (int64 y) { s = Shape (x) y = Gather (s, i) }")
    (found,) = places.run(x, np.array(10**9))
    assert found == 3


def test_gathers_outside_of_the_data(imported: Load) -> None:
    x = random(4, 3)
    far = np.array([[1, 4, 10**15], [-5, -(10**15), -1]])
    elements = imported("""
        g (float[n, 3] x, int64[k, 3] i) => (float[k, 3] y) { y = GatherElements (x, i) }""")
    (found,) = elements.run(x, far)
    np.testing.assert_array_equal(found, x[[[1, 3, 3], [0, 0, 3]], [0, 1, 2]])
    points = imported("""
        g (float[n, m] x, int64[k, 2] i) => (float[k] y) { y = GatherND (x, i) }""")
    (found,) = points.run(x, np.array([[1, 9], [10**15, -1], [-(10**15), -3]]))
    np.testing.assert_array_equal(found, x[[1, 3, 0], [2, 2, 0]])


@pytest.mark.parametrize("reduction", ["none", "add", "mul"])
def test_updates_outside_of_the_data_are_left_out(imported: Load, reduction: str) -> None:
    """onnxruntime refuses them; they must not write what lies beyond the data."""
    x, updates = random(4, 3), random(2, 3)
    elements = imported(f"""
        g (float[n, 3] x, int64[k, 3] i, float[k, 3] u) => (float[n, 3] y) {{
            y = ScatterElements <reduction = "{reduction}"> (x, i, u) }}""")
    expected = x.copy()
    combine: Callable[[Any, Any], Any] = {
        "none": lambda _, update: update, "add": operator.add, "mul": operator.mul
    }[reduction]  # fmt: skip
    expected[-1, 2] = combine(expected[-1, 2], updates[1, 2])
    (found,) = elements.run(x, np.array([[4, -5, 10**15], [-(10**15), 7, -1]]), updates)
    np.testing.assert_array_equal(found, expected)
    rows = imported(f"""
        g (float[n, 3] x, int64[k, 1] i, float[k, 3] u) => (float[n, 3] y) {{
            y = ScatterND <reduction = "{reduction}"> (x, i, u) }}""")
    expected = x.copy()
    expected[2] = combine(expected[2], updates[1])
    (found,) = rows.run(x, np.array([[10**15], [-2]]), updates)
    np.testing.assert_array_equal(found, expected)
    (found,) = rows.run(np.zeros((0, 3), np.float32), np.array([[0], [-1]]), updates)
    assert found.shape == (0, 3)
