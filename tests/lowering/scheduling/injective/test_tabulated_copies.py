"""Copies from computed columns beside onnxruntime: padding by copies, nearest neighbours, tiling."""

from __future__ import annotations

import itertools
import re
from functools import cache
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.injective.tabulated_copies import TabulatedCopy
from looplift.lowering.scheduling.pipeline import lower_to_kernels

from ....samples import one_of
from ...comparison import TARGETS
from ...compiled import NATIVE, virtual_machine
from ...conftest import parse

NEAREST = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
COPIES = {
    "reflected": 'y = Pad <mode = "reflect"> (x, p)',
    "edge": 'y = Pad <mode = "edge"> (x, p)',
    "wrapped": 'y = Pad <mode = "wrap"> (x, p)',
    "twice as large": f"y = Resize <{NEAREST}> (x, , twice)",
    "three times as large": f"y = Resize <{NEAREST}> (x, , thrice)",
    "half as large": f"y = Resize <{NEAREST}> (x, , half)",
    "tiled": "y = Tile (x, times)",
    "lines without a source": "y = Pad (x, outer, five)",
}
CONSTANTS = """<int64[6] p = {0, 2, 3, 0, 1, 2}, float[3] twice = {1, 1, 2}, float[3] half = {1, 2, 0.5},
    float[3] thrice = {1, 1, 3}, int64[3] times = {2, 1, 3},
    int64[6] outer = {1, 2, 0, 0, 3, 0}, float five = {5}>"""


def model_of(name: str, dtype: str = "float") -> Any:
    return parse(f"""<ir_version: 9, opset_import: ["" : 19]>
        model ({dtype}[b, c, n] x) => ({dtype}[q, r, s] y) {CONSTANTS} {{ {COPIES[name]} }}""")


def check(name: str, target: Any, dtype: str = "float") -> None:
    model = model_of(name, dtype)
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), target))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for shape in ((1, 3, 4), (2, 5, 15), (1, 4, 16), (3, 3, 40), (1, 64, 100), (2, 3, 333)):
        kind = {"float": np.float32, "double": np.float64, "uint8": np.uint8, "int64": np.int64}
        x = np.arange(np.prod(shape)).reshape(shape).astype(kind[dtype])
        (want,) = session.run(None, {"x": x})
        got = machine["main"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_array_equal(got, want, err_msg=str(shape))


@pytest.mark.parametrize(("name", "target"), one_of(2, itertools.product(COPIES, TARGETS)))
def test_copies(name: str, target: Any) -> None:
    check(name, target)


@pytest.mark.parametrize("dtype", ["double", "uint8", "int64"])
@pytest.mark.parametrize("name", ["edge", "tiled"])
def test_other_types(name: str, dtype: str) -> None:
    check(name, "native", dtype)


@pytest.mark.parametrize("name", COPIES)
def test_the_rule_takes_them(name: str) -> None:
    with as_target("native") as target:
        module = lower_to_kernels(looplift.from_onnx(model_of(name)))
        kernels = [f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
        assert any(TabulatedCopy().apply(kernel, target, False) for kernel in kernels)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 5), (2, 3, 0)])
def test_nothing_is_copied_of_an_empty_tensor(shape: tuple[int, ...]) -> None:
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model_of("tiled")), NATIVE))
    got = machine["main"](tvm.runtime.tensor(np.zeros(shape, np.float32)))
    assert got.shape == (2 * shape[0], shape[1], 3 * shape[2])


EXPANDED = """<ir_version: 9, opset_import: ["" : 19]>
    model (float[a, b, c] x, int64[3] shape) => (float[d, e, f] y) { y = Expand (x, shape) }"""


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ((2, 3, 40), (2, 3, 40)), ((2, 3, 1), (2, 3, 40)), ((1, 3, 40), (2, 3, 40)),
        ((1, 1, 1), (3, 5, 7)), ((2, 1, 5), (2, 64, 5)), ((1, 1, 1), (1, 1, 1)),
        ((1, 4, 1), (1, 4, 0)), ((0, 4, 1), (0, 4, 3)), ((1, 2, 1), (30, 2, 3000)),
    ],
)  # fmt: skip
def test_expanded_along_axes_that_may_have_one_element(
    given: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    """All bits are copied, those of NaN and of negative zero, too."""
    bits = np.arange(np.prod(given), dtype=np.uint32).reshape(given) * 0x01000193 + 0x7FC00001
    x = bits.view(np.float32)
    got = _expansion()["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(np.array(shape))).numpy()
    np.testing.assert_array_equal(got.view(np.uint32), np.broadcast_to(bits, shape))


@cache
def _expansion() -> Any:
    module = looplift.from_onnx(parse(EXPANDED))
    with as_target("native") as target:
        kernels = [
            kernel
            for kernel in lower_to_kernels(module).functions.values()
            if isinstance(kernel, tvm.tirx.PrimFunc)
        ]
        schedules = [TabulatedCopy().apply(kernel, target, False) for kernel in kernels]
    scripts = [schedule.mod.script() for schedule in schedules if schedule is not None]
    assert any("looplift_copy_row" in script for script in scripts)
    return virtual_machine(looplift.compile(module, NATIVE))


def test_gathered_lines_are_left_alone() -> None:
    """Their places are values of a tensor."""
    model = parse("model (float[n, m] x, int64[k] i) => (float[k, m] y) { y = Gather (x, i) }")
    with as_target("native") as target:
        module = lower_to_kernels(looplift.from_onnx(model))
        kernels = [f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
        assert not any(TabulatedCopy().apply(kernel, target, False) for kernel in kernels)


@pytest.mark.parametrize("shape", ["n", "6"])
@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_padding_that_is_larger_than_the_data(mode: Any, shape: str) -> None:
    """It goes back and forth; nothing is read outside of the data."""
    model = parse(f"""<ir_version: 9, opset_import: ["" : 19]>
        model (float[{shape}] x) => (float[m] y) <int64[2] p = {{8, 13}}> {{
            y = Pad <mode = "{mode}"> (x, p) }}""")
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    x = np.arange(6, dtype=np.float32)
    got = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(got, np.pad(x, (8, 13), mode=mode))


def test_padding_of_old_models() -> None:
    """Before opset 11, an attribute has the amounts."""
    model = parse("""<ir_version: 6, opset_import: ["" : 10]>
        model (float[a, b] x) => (float[c, d] y) {
            y = Pad <mode = "reflect", pads = [0, 2, 0, 3]> (x) }""")
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    got = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(got, np.pad(x, ((0, 0), (2, 3)), mode="reflect"))


def test_copies_of_a_type_share_a_function() -> None:
    model = parse("""<ir_version: 9, opset_import: ["" : 19]>
        model (float[b, n] x, float[b, c, m] z) => (float[p, q] y, float[r, s, t] w)
        <int64[4] by = {0, 2, 0, 1}, int64[6] more = {0, 0, 1, 0, 0, 3}> {
            y = Pad <mode = "edge"> (x, by) w = Pad <mode = "reflect"> (z, more) }""")
    compiled = looplift.compile(looplift.from_onnx(model), "native")
    code = compiled.mod.imports[0].inspect_source("ll")
    for name in ("copy_columns_float32", "gaps"):
        assert len(re.findall(rf"^define .*@looplift_{name}_compute_", code, re.MULTILINE)) == 1
        assert len(re.findall(f"call .*@looplift_{name}_compute_", code)) >= 2
