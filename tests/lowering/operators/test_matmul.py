"""MatMul and Gemm against onnxruntime: one module for all sizes."""

from __future__ import annotations

import pytest

import looplift
from looplift.rewrite.errors import UnsupportedError

from ...small_models import parse
from .inputs import Load, random


def test_sums_of_no_products(imported: Load) -> None:
    model = imported("""
    g (float[2, n] a, float[n, 3] b, float[3] c) => (float[2, 3] x, float[2, 3] y, float[2, 3] z) {
        x = MatMul (a, b)
        y = Gemm <alpha = 2.0> (a, b)
        z = Gemm <alpha = 0.5> (a, b, c)
    }""")
    for inner in (0, 1, 5):
        model.check(random(2, inner), random(inner, 3), random(3))


@pytest.mark.parametrize(
    ("a", "b"), [("float[3]", "float[3, 3]"), ("float[2, 3, 3]", "float[3, 3]")]
)
def test_gemm_multiplies_matrices_only(a: str, b: str) -> None:
    model = parse(f"g ({a} x, {b} w) => (float[P, Q] y) {{ y = Gemm <transB = 1> (x, w) }}")
    with pytest.raises(UnsupportedError, match="but Gemm multiplies matrices"):
        looplift.from_onnx(model)
