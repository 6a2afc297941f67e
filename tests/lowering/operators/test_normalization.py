"""Normalizations against onnxruntime: one module for all sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm

import looplift
from looplift.rewrite.errors import UnsupportedError

from ..compiled import virtual_machine
from .inputs import Load, random


@pytest.mark.parametrize(("axis", "shape"), [(-1, (3,)), (1, (4, 3)), (1, (3,))])
def test_layer_normalization_gives_mean_and_deviation(
    imported: Load, axis: int, shape: tuple[int, ...]
) -> None:
    scale = f"float[{', '.join(map(str, shape))}]"
    model = imported(
        f"""
        g (float[n, 4, 3] x, {scale} scale)
            => (float[n, 4, 3] y, float[?, ?, ?] mean, float[?, ?, ?] d)
        {{
            y, mean, d = LayerNormalization <axis = {axis}, epsilon = 0.01> (x, scale)
        }}"""
    )
    for rows in (2, 1, 5):
        model.check(random(rows, 4, 3), random(*shape))


@pytest.mark.parametrize("axis", [-1, 0])
def test_rms_normalization(imported: Load, axis: int) -> None:
    model = imported(
        f"""
        <ir_version: 10, opset_import: ["" : 23]>
        g (float[n, 5] x, float[5] scale) => (float[n, 5] y)
        {{ y = RMSNormalization <axis = {axis}> (x, scale) }}"""
    )
    model.check(random(3, 5), random(5))
    model.check(random(7, 5), random(5))


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [-1, 0])
def test_lp_normalization(imported: Load, p: int, axis: int) -> None:
    text = "g (float[n, m] x) => (float[n, m] y) {{ y = LpNormalization <p = {}, axis = {}> (x) }}"
    model = imported(text.format(p, axis))
    model.check(random(3, 5))
    model.check(np.vstack([random(2, 4), np.zeros((1, 4), np.float32)]))


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_group_normalization(imported: Load, dtype: str) -> None:
    tensor = f"{dtype}[n, 6, h, w]"
    model = imported(
        f"""
        <ir_version: 10, opset_import: ["" : 21]>
        g ({tensor} x, {dtype}[6] scale, {dtype}[6] bias) => ({tensor} y)
        {{ y = GroupNormalization <num_groups = 2, epsilon = 0.01> (x, scale, bias) }}"""
    )
    kind = np.float32 if dtype == "float" else np.float64
    for shape in ((2, 6, 4, 5), (1, 6, 1, 1), (3, 6, 33, 1)):
        given = (random(*shape) + 1, random(6), random(6))
        model.check(*(value.astype(kind) for value in given))


@pytest.mark.filterwarnings("ignore:.*GroupNormalization.*:UserWarning")
def test_the_first_version_of_group_normalization(imported: Load) -> None:
    """Deprecated by the second, but models have it, and onnxruntime runs it."""
    model = imported("""
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[n, 6, h] x, float[2] scale, float[2] bias) => (float[n, 6, h] y)
        { y = GroupNormalization <num_groups = 2, epsilon = 0.01> (x, scale, bias) }""")
    for shape in ((2, 6, 5), (1, 6, 1)):
        model.check(random(*shape), random(2), random(2))


def _group_normalization(opset: int, numbers: str) -> Any:
    """A virtual machine for one in two groups, of any channels."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : {opset}]>
        g (float[n, c, h] x, float[{numbers}] scale, float[{numbers}] bias) => (float[n, c, h] y)
        {{ y = GroupNormalization <num_groups = 2, epsilon = 0.01> (x, scale, bias) }}""")
    return virtual_machine(looplift.compile(looplift.from_onnx(model), "llvm"))


def _normalized(x: Any, scale: Any, bias: Any) -> Any:
    """What the machine should compute, in float64; `scale` and `bias` of each channel."""
    rows = x.astype(np.float64).reshape(x.shape[0], 2, -1)
    centred = rows - rows.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 0.01)
    return normal.reshape(x.shape) * scale[:, None] + bias[:, None]


def test_group_normalization_of_a_large_mean() -> None:
    """It cancels in onnxruntime."""
    x, scale, bias = random(2, 6, 5) + 1000, random(6), random(6)
    got = _group_normalization(21, "c")["main"](*map(tvm.runtime.tensor, (x, scale, bias)))
    np.testing.assert_allclose(got.numpy(), _normalized(x, scale, bias), rtol=0, atol=2e-4)


@pytest.mark.filterwarnings("ignore:.*GroupNormalization.*:UserWarning")
def test_group_normalization_with_numbers_of_groups() -> None:
    """As in opset 18."""
    x, scale, bias = random(2, 6, 5), random(2), random(2)
    got = _group_normalization(18, "2")["main"](*map(tvm.runtime.tensor, (x, scale, bias)))
    wanted = _normalized(x, scale.repeat(3), bias.repeat(3))
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("channels", "numbers"), [(7, 7), (6, 2), (6, 1)])
def test_group_normalization_of_unfitting_sizes_fails(channels: int, numbers: int) -> None:
    given = (random(1, channels, 4), random(numbers), random(numbers))
    machine = _group_normalization(21, "d")
    with pytest.raises(RuntimeError, match="match_cast error"):
        machine["main"](*map(tvm.runtime.tensor, given))


def test_batch_normalization_of_a_batch(imported: Load) -> None:
    vectors = [f"float[3] {name}" for name in ("scale", "bias", "mean", "variance")]
    model = imported(
        f"""
        g (float[n, 3, m] x, {", ".join(vectors)}) => (float[n, 3, m] y, float[3] a, float[3] b) {{
            y, a, b = BatchNormalization <training_mode = 1, momentum = 0.8, epsilon = 0.01>
                (x, scale, bias, mean, variance)
        }}"""
    )
    given = [random(3), random(3) + 1, random(3) - 1, np.abs(random(3))]
    for shape in ((2, 3, 5), (4, 3, 1)):
        model.check(random(*shape), *given)


@pytest.mark.parametrize("scale", ["2, 1, 7", "n, m, 7", "m, 7"])
@pytest.mark.parametrize("results", [1, 3])
def test_layer_normalization_with_a_scale_for_each_row(
    imported: Load, scale: str, results: int
) -> None:
    names = ("y", "mean", "deviation")[:results]
    declared = ", ".join(f"float[?, ?, ?] {name}" for name in names)
    model = imported(f"""
    g (float[n, m, 7] x, float[{scale}] s, float[{scale}] b) => ({declared}) {{
        {", ".join(names)} = LayerNormalization <axis = -1> (x, s, b) }}""")
    sizes = [{"n": 2, "m": 5, "2": 2, "1": 1, "7": 7}[size] for size in scale.split(", ")]
    model.check(random(2, 5, 7), random(*sizes), random(*sizes))


@pytest.mark.parametrize("training", [0, 1])
def test_batch_normalization_of_a_vector(imported: Load, training: int) -> None:
    """It has one channel."""
    vectors = [f"float[1] {name}" for name in ("scale", "bias", "mean", "variance")]
    results = "y, a, b" if training else "y"
    declared = "float[n] y, float[1] a, float[1] b" if training else "float[n] y"
    model = imported(f"""
        g (float[n] x, {", ".join(vectors)}) => ({declared}) {{
            {results} = BatchNormalization <training_mode = {training}>
                (x, scale, bias, mean, variance) }}""")
    given = [random(1), random(1) + 1, random(1) - 1, np.abs(random(1))]
    for size in (5, 1, 0) if not training else (5, 1):
        model.check(random(size), *given)


@pytest.mark.parametrize(
    ("data", "scale"), [("n, s, w", "3"), ("n, s, 3", "v"), ("n, s, w", "v"), ("n, s, w", "s, 3")]
)
@pytest.mark.parametrize("bias", [False, True])
def test_sizes_of_a_layer_normalization_that_the_run_finds_equal(
    imported: Load, data: str, scale: str, bias: bool
) -> None:
    inputs = [f"float[{scale}] {name}" for name in ("scale", "bias")[: 1 + bias]]
    shape = (4, 3) if "," in scale else (3,)
    model = imported(
        f"""
        g (float[{data}] x, {", ".join(inputs)}) => (float[n, s, w] y)
        {{ y = LayerNormalization <axis = {-len(shape)}> (x, scale{", bias" * bias}) }}"""
    )
    for rows in (2, 1):
        model.check(random(rows, 4, 3), *(random(*shape) for _ in inputs))


def test_a_scale_of_one_element_is_broadcast(imported: Load) -> None:
    model = imported(
        "g (float[n, w] x, float[1] s) => (float[n, w] y) { y = LayerNormalization (x, s) }"
    )
    for width in (5, 1):
        model.check(random(2, width), random(1))


def test_another_size_than_the_scale_has_fails(imported: Load) -> None:
    model = imported(
        "g (float[n, w] x, float[3] s) => (float[n, w] y) { y = LayerNormalization (x, s) }"
    )
    model.check(random(2, 3), random(3))
    with pytest.raises(Exception, match="3"):
        model.run(random(2, 4), random(3))


@pytest.mark.parametrize(
    ("operator", "names", "version"),
    [
        ("BatchNormalization", ("scale", "bias", "mean", "variance"), 17),
        ("InstanceNormalization", ("scale", "bias"), 17),
        ("RMSNormalization", ("scale",), 23),
    ],
)
def test_channels_whose_number_the_run_finds_equal(
    imported: Load, operator: str, names: tuple[str, ...], version: int
) -> None:
    vectors = ", ".join(f"float[4] {name}" for name in names)
    data = "n, w, c" if operator == "RMSNormalization" else "n, c, w"
    model = imported(
        f"""
        <ir_version: 10, opset_import: ["" : {version}]>
        g (float[{data}] x, {vectors}) => (float[{data}] y)
        {{ y = {operator} (x, {", ".join(names)}) }}"""
    )
    shape = (2, 5, 4) if operator == "RMSNormalization" else (2, 4, 5)
    model.check(random(*shape), *(np.abs(random(4)) for _ in names))


def test_layer_normalization_with_a_scale_that_does_not_fit(imported: Load) -> None:
    model = imported("""
    g (float[a, b] x, float[2, 3] s) => (float[?, ?] y) { y = LayerNormalization (x, s) }""")
    with pytest.raises(RuntimeError, match="match_cast error"):
        model.run(random(1, 3), random(2, 3))
    with pytest.raises(UnsupportedError, match="the data has 2 axes, its scale or bias more"):
        imported("""
        g (float[a, b] x, float[1, a, b] s) => (float[?, ?] y) { y = LayerNormalization (x, s) }""")
