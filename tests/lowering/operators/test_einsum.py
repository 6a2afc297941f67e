"""Einsum against onnxruntime: one module for all sizes."""

from __future__ import annotations

import re

import numpy as np
import pytest

import looplift
from looplift.rewrite.errors import LoopliftError

from ...small_models import parse
from .inputs import Array, Load, random


def test_an_einsum_broadcasts_a_size_of_one(imported: Load) -> None:
    model = imported("""
    g (float[B, T] a, float[4, 3] b, float[S, 2] c) => (float[B, 3] y, float[B, 2] z) {
        y = Einsum <equation = "bi,ij->bj"> (a, b)
        z = Einsum <equation = "bi,ij"> (a, c)
    }""")
    for rows, inner, other in ((2, 4, 4), (2, 1, 4), (1, 4, 1), (0, 4, 4), (3, 1, 1)):
        model.check(random(rows, inner), random(4, 3), random(other, 2))


@pytest.mark.parametrize(
    ("equation", "is_rearranged"),
    [
        ("bhid,bhjd->bhij", False),
        ("bhij,bjhd->bihd", True),
        ("bihk,biok->bohi", True),
        ("bki,bkj->jbi", True),
        ("bki,kj->bij", False),
        ("abki,bkj->aij", True),
        ("akbi,bj->akij", False),
        ("kj,abik->aibj", False),
        ("abkl,ckl->cab", True),
        ("bij,bj->bi", False),
        ("i,j->ij", False),
        ("bij,bij->bij", False),
        ("bij,jk->bk", False),
        ("iik,kj->ij", False),
        ("ij,kj->", False),
        ("iik,kk->i", False),
    ],
)
def test_products_of_any_order_of_axes(imported: Load, equation: str, is_rearranged: bool) -> None:
    operands, result = equation.split("->")
    left, right = operands.split(",")
    outcome = f"[{', '.join(result)}]" if result else ""
    model = imported(f"""
    g (float[{", ".join(left)}] a, float[{", ".join(right)}] b)
        => (float{outcome} y) {{ y = Einsum <equation = "{equation}"> (a, b) }}""")
    assert bool(re.search(r"R\.matmul", model.module.script())) == is_rearranged
    # onnxruntime divides by a size of 0, and dies.
    for base in (3, 1, 0):
        sizes = {letter: base + k * (base > 1) for k, letter in enumerate(sorted({*left, *right}))}
        a, b = (random(*(sizes[letter] for letter in names)) for names in (left, right))
        (y,) = model.run(a, b)
        np.testing.assert_allclose(y, np.einsum(equation, a, b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", ["bki,kj->bij", "bik,kj->bij", "kbi,kj->bij"])
def test_a_constant_factor_beside_rows_in_any_order(imported: Load, equation: str) -> None:
    left = equation.split(",")[0]
    numbers = ", ".join(str(k % 7 - 3) for k in range(24))
    model = imported(f"""
    g (float[{", ".join(left.replace("k", "4"))}] a) => (float[b, i, 6] y)
        <float[4, 6] w = {{{numbers}}}> {{ y = Einsum <equation = "{equation}"> (a, w) }}""")
    for batch, size in ((1, 1), (2, 3), (5, 40)):
        model.check(random(*({"b": batch, "i": size, "k": 4}[c] for c in left)))


def test_bytes_stay_bytes(imported: Load) -> None:
    model = imported("""
    g (int8[a, b, c] x, int8[a, b, d] z) => (int8[c, d] y) {
        y = Einsum <equation = "abc,abd->cd"> (x, z)
    }""")
    x, z = (np.arange(6, dtype=np.int8).reshape(1, 2, 3) for _ in range(2))
    (y,) = model.run(x, z)
    assert y.dtype == np.int8
    np.testing.assert_array_equal(y, np.einsum("abc,abd->cd", x, z))


@pytest.mark.parametrize(
    ("equation", "left", "right"),
    [
        ("...ij,...jk->...ik", "P, 3, 4", "Q, 4, 5"),
        ("...ij,...jk", "P, 3, 4", "Q, 4, 5"),
        ("...ij,...jk->...ik", "P, 3, 4", "4, 5"),
        ("...ij, ...kj -> ...ik", "2, P, 3, 4", "Q, 5, 4"),
        ("...i,...i->...", "P, 3", "Q, 3"),
        ("i...,...j->i...j", "3, P", "Q, 5"),
        ("...ij,jk->k...i", "P, 3, 4", "4, 5"),
        ("b...i,b...ij->b...j", "2, P, 3", "2, Q, 3, 4"),
    ],
)
def test_an_ellipsis_broadcasts(imported: Load, equation: str, left: str, right: str) -> None:
    def operands(first: int, second: int) -> list[Array]:
        known = {"P": first, "Q": second}
        shapes = [[known.get(n) or int(n) for n in names.split(", ")] for names in (left, right)]
        return [random(*shape) for shape in shapes]

    rank = np.einsum(equation, *operands(1, 1)).ndim
    result = ", ".join(f"y{axis}" for axis in range(rank))
    model = imported(f"""
    g (float[{left}] a, float[{right}] b) => (float[{result}] y) {{
        y = Einsum <equation = "{equation}"> (a, b)
    }}""")
    for sizes in ((2, 2), (1, 3), (3, 1), (1, 1)):
        factors = operands(*sizes)
        (y,) = model.run(*factors)
        np.testing.assert_allclose(y, np.einsum(equation, *factors), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "words"),
    [
        ("i,j->ik", "'i,j->ik' of Einsum"),
        ("i->i", "'i->i' of Einsum"),
        ("ij,j->i", "not one for operands of ranks [1, 1]"),
        ("ij...,j->i", "not one for operands of ranks [1, 1]"),
        ("...,j->j", "lacks the axes of an ellipsis"),
    ],
)
def test_equations_that_do_not_fit(equation: str, words: str) -> None:
    text = f"""g (float[N] x, float[M] z) => (float y) {{
        y = Einsum <equation = "{equation}"> (x, z) }}"""
    with pytest.raises(LoopliftError, match=re.escape(words)):
        looplift.from_onnx(parse(text))


@pytest.mark.parametrize("result", ["...ij", "j...i"])
def test_an_ellipsis_of_the_result_only_has_no_axes(imported: Load, result: str) -> None:
    model = imported(f"""g (float[N] x, float[M] z) => (float[P, Q] y) {{
        y = Einsum <equation = "i,j->{result}"> (x, z) }}""")
    for rows, columns in ((2, 3), (1, 0)):
        x, z = random(rows), random(columns)
        (y,) = model.run(x, z)
        np.testing.assert_array_equal(y, np.einsum(f"i,j->{result}", x, z))
