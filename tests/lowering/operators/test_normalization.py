"""Normalizations against onnxruntime: one module for all sizes."""

from __future__ import annotations

import numpy as np
import pytest

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
