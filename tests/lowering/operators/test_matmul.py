"""MatMul, Gemm and Einsum against onnxruntime: one module for all sizes."""

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


def test_an_einsum_broadcasts_a_size_of_one(imported: Load) -> None:
    model = imported("""
    g (float[B, T] a, float[4, 3] b, float[S, 2] c) => (float[B, 3] y, float[B, 2] z) {
        y = Einsum <equation = "bi,ij->bj"> (a, b)
        z = Einsum <equation = "bi,ij"> (a, c)
    }""")
    for rows, inner, other in ((2, 4, 4), (2, 1, 4), (1, 4, 1), (0, 4, 4), (3, 1, 1)):
        model.check(random(rows, inner), random(4, 3), random(other, 2))


@pytest.mark.parametrize(
    ("a", "b"), [("float[3]", "float[3, 3]"), ("float[2, 3, 3]", "float[3, 3]")]
)
def test_gemm_multiplies_matrices_only(a: str, b: str) -> None:
    model = parse(f"g ({a} x, {b} w) => (float[P, Q] y) {{ y = Gemm <transB = 1> (x, w) }}")
    with pytest.raises(UnsupportedError, match="but Gemm multiplies matrices"):
        looplift.from_onnx(model)
