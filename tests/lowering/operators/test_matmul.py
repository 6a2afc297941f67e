"""MatMul and Gemm of matrices without elements, against onnxruntime: one module for all sizes."""

from __future__ import annotations

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
