"""Reductions of rows beside onnxruntime, and which kernels share a function for them."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm

import looplift
from looplift.lowering.scheduling.reductions.reduction import RowReduction

from ...comparison import TARGETS, check, taken_by, vector_statements
from ...compiled import NATIVE, virtual_machine
from ...conftest import parse

CASES = {
    "softmax": ("y = Softmax <axis = -1> (x)", ["maxima_of_numbers", "sums"]),
    "log softmax": ("y = LogSoftmax <axis = -1> (x)", ["maxima_of_numbers"]),
    "norm": (
        """m = ReduceMean <axes = [-1]> (x) d = Sub (x, m) q = Mul (d, d)
        v = ReduceMean <axes = [-1]> (q) e = Constant <value_float = 0.1> () w = Add (v, e)
        r = Sqrt (w) y = Div (d, r)""",
        ["sums"],
    ),
    "plane": ("y = ReduceMean <axes = [1, 2]> (x)", ["sums"]),
    "axes apart": ("y = ReduceMax <axes = [0, 2]> (x)", []),
    "square": ("y = ReduceSumSquare <axes = [-1], keepdims = 0> (x)", ["sums"]),
    "maximum": ("y = ReduceMax <axes = [-1]> (x)", ["maxima"]),
    "minimum": ("y = ReduceMin <axes = [1, 2], keepdims = 0> (x)", ["minima"]),
    "everything": ("y = ReduceMean <keepdims = 0> (x)", ["sums"]),
    "all of one": ("y = ReduceMean (x)", ["sums"]),
}
"""Nodes, and what shared functions reduce the rows of their kernels to."""


def text_of(name: str) -> str:
    return f"model (float[b, 2, n] x) => (y) {{ {CASES[name][0]} }}"


@pytest.mark.parametrize("name", CASES)
def test_rows_of_any_length(name: str) -> None:
    lengths = (1, 7, 16, 64, 65, 130, 1001)
    check(text_of(name), {}, [{"b": b, "n": n} for n in lengths for b in (1, 3)])


@pytest.mark.parametrize("target", TARGETS[1:], ids=lambda target: target["mcpu"])
def test_on_other_processors(target: object) -> None:
    check(text_of("norm"), {}, [{"b": 3, "n": n} for n in (1, 7, 65)], target)


@pytest.mark.parametrize("name", CASES)
def test_rows_that_lie_at_one_distance_share_a_function(name: str) -> None:
    scripts = [schedule.mod.script() for schedule in taken_by(RowReduction(), text_of(name), {})]
    assert scripts
    assert sorted(set(re.findall(r"looplift_row_(\w+)", "".join(scripts)))) == CASES[name][1]


ROWS = {
    "softmax": ("float[b, 2, n] x", "y = Softmax <axis = -1> (x)", True),
    "masked": (
        "float[b, 2, n] x, bool[n] c",
        "l = Constant <value_float = -1e30> () m = Where (c, x, l) y = Softmax <axis = -1> (m)",
        True,
    ),
    "norm": ("float[b, 2, 33] x", CASES["norm"][0], False),
}
"""Inputs, nodes, and whether divisions become multiplications by the reciprocal."""


@pytest.mark.parametrize("name", ROWS)
def test_all_nests_compute_a_row_before_the_next(name: str) -> None:
    inputs, nodes, has_reciprocal = ROWS[name]
    text = f"model ({inputs}) => (y) {{ {nodes} }}"
    scripts = [schedule.mod.script() for schedule in taken_by(RowReduction(), text, {})]
    assert all('T.sblock("rows")' in script for script in scripts)
    script = "".join(scripts)
    assert 'T.sblock("reduction")' not in script
    # One division for each row and each kind of loop over rows, none for each element.
    divisions = [line for line in script.splitlines() if " / " in line]
    assert divisions
    assert all("T.float32(1.0) /" in line for line in divisions) == has_reciprocal
    check(text, {}, [{"b": b, "n": n} for b in (0, 1, 3) for n in (1, 16, 77)])


def test_a_sum_of_powers_may_be_too_small_for_a_reciprocal() -> None:
    """They are below another tensor's maximum."""
    text = """model (float[b, 3, n] x, float[b, 3, n] z) => (y) {
        k = Constant <value_ints = [-1]> () o = Constant <value_float = 44.0> ()
        w = Sub (z, o) m = ReduceMax <axes = [-1]> (x) v = Add (m, o) d = Sub (w, v) e = Exp (d)
        s = ReduceSum (e, k) y = Div (e, s) }"""
    check(text, {}, [{"b": 2, "n": n} for n in (1, 16, 40)])
    assert not any("T.float32(1.0) /" in s.mod.script() for s in taken_by(RowReduction(), text, {}))


@pytest.mark.parametrize("shape", ["1, n", "b, 1, n", "b, 3, 100, 200"])
def test_long_rows_are_shared_by_all_cores(shape: str) -> None:
    axes = "[-2, -1]" if "200" in shape else "[-1]"
    text = f"""model (float[{shape}] x) => (y) {{
        m = ReduceMean <axes = {axes}> (x) d = Sub (x, m) q = Mul (d, d)
        y = ReduceMean <axes = {axes}> (q) }}"""
    assert not any('T.sblock("rows")' in s.mod.script() for s in taken_by(RowReduction(), text, {}))
    check(text, {}, [{"b": 2, "n": 1001}])


@pytest.mark.parametrize("length", [2, 3, 12, 31, 49, 64])
def test_short_rows(length: int) -> None:
    text = f"""model (float[b, n, {length}] x, float[n, {length}] z, float[b, n, {length}, 2] q)
        => (a, c, d, e) {{
        l = Constant <value_ints = [-1]> () a = Softmax <axis = -1> (x)
        p = Mul (x, z) c = ReduceSum <keepdims = 0> (p, l) d = ReduceMin <axes = [2]> (x)
        k = Constant <value_ints = [-1, -2]> () e = ReduceSum (q, k) }}"""
    check(text, {}, [{"b": b, "n": n} for b in (1, 3) for n in (1, 5, 1001)])


@pytest.mark.parametrize("length", [2, 12, 49])
def test_short_rows_with_nan(length: int) -> None:
    text = f"""model (float[n, {length}] x) => (float[n] y, float[n] z) {{
        y = ReduceMax <axes = [1], keepdims = 0> (x) z = ReduceMin <axes = [1], keepdims = 0> (x) }}"""
    machine = virtual_machine(looplift.compile(looplift.from_onnx(parse(text)), NATIVE))
    rows = np.where(np.eye(length, dtype=bool), np.float32("nan"), np.float32(3))
    infinite = np.full((1, length), np.float32("inf"))
    given = np.concatenate([rows, infinite, -infinite, np.arange(length, dtype="f4")[None]])
    for result, want in zip(
        machine["main"](tvm.runtime.tensor(given)), (given.max(1), given.min(1)), strict=True
    ):
        np.testing.assert_array_equal(result.numpy(), want)


def test_llvm_compiles_a_shared_function_once() -> None:
    text = """model (float[b, 8, n] x, float[m, 80] z) => (float[b, 8, 1] y, float[m] w) {
        y = ReduceMean <axes = [2]> (x) w = ReduceMean <axes = [1], keepdims = 0> (z) }"""
    compiled = looplift.compile(looplift.from_onnx(parse(text)), "native")
    code = compiled.mod.imports[0].inspect_source("ll")
    assert len(re.findall(r"^define .*@looplift_row_sums_compute_", code, re.MULTILINE)) == 1
    assert len(re.findall("call .*@looplift_row_sums_compute_", code)) >= 2


def test_other_rows_are_reduced_in_vectors() -> None:
    schedules = taken_by(RowReduction(), text_of("axes apart"), {})
    assert schedules
    assert all(
        any("T.isnan" in statement and "n * " in statement for statement in vector_statements(each))
        for each in schedules
    )


@pytest.mark.parametrize(
    ("op_type", "of_no_elements"), [("ReduceSum", 0), ("ReduceMax", -np.inf), ("ReduceMin", np.inf)]
)
def test_empty_rows(op_type: str, of_no_elements: float) -> None:
    """onnxruntime 1.31 returns results of the wrong shape for them."""
    text = f"""model (float[b, 2, n] x) => (float[b, 2, 1] y) {{
        l = Constant <value_ints = [-1]> () y = {op_type} (x, l) }}"""
    model = parse(f'<ir_version: 9, opset_import: ["" : 19]> {text}')
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    for shape in ((2, 2, 0), (0, 2, 5), (0, 2, 0)):
        got = machine["main"](tvm.runtime.tensor(np.ones(shape, np.float32))).numpy()
        want = np.full((shape[0], 2, 1), of_no_elements, np.float32)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
def test_an_extreme_of_elements_with_nan_is_nan(op_type: str) -> None:
    """Wherever the NaN is: onnxruntime returns NaN or another element, depending on the place."""
    model = parse(f"model (float[n] x) => (float[1] y) {{ y = {op_type} <axes = [0]> (x) }}")
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    for length in (1, 3, 16, 70, 150):
        for place in {0, length // 2, length - 1}:
            x = np.arange(length, dtype=np.float32)
            x[place] = np.nan
            assert np.isnan(machine["main"](tvm.runtime.tensor(x)).numpy()).all(), (length, place)


def test_a_softmax_of_float64_after_another_operator() -> None:
    model = parse("""model (double[b, 2, n] x) => (double[b, 2, n] y) {
        s = Neg (x) y = Softmax <axis = -1> (s) }""")
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    for b, n in ((1, 1), (3, 7), (2, 40), (0, 3)):
        x = np.random.default_rng(0).standard_normal((b, 2, n))
        powers = np.exp(-x)
        got = machine["main"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(got, powers / powers.sum(-1, keepdims=True), rtol=1e-12)
