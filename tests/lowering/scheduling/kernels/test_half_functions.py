"""Functions of float16 are computed in float32, in vectors."""

from __future__ import annotations

import numpy as np
import pytest

import looplift

from ...conftest import Imported, parse

FUNCTIONS = ("Exp", "Tanh", "Sigmoid", "Erf", "Log", "Sin", "Cos")
TEXT = "g (float16[n] x) => (float16[n] y) {{ y = {}(x) }}"
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 6e-8, 65504, -65504, 11.1, -17.4, 1e-3, 3.0]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str) -> None:
    model = Imported(parse(TEXT.format(name)))
    random = np.random.default_rng(0).standard_normal(100) * 3
    with np.errstate(all="ignore"):
        model.check(np.concatenate([SPECIAL, np.abs(random), random]).astype(np.float16))


@pytest.mark.parametrize("name", ["Exp", "Tanh", "Sigmoid"])
def test_no_function_is_called_for_each_element(name: str) -> None:
    module = looplift.from_onnx(parse(TEXT.format(name)))
    compiled = looplift.compile(module, {"kind": "llvm", "mcpu": "skylake-avx512"})
    assembly = compiled.mod.imports[0].inspect_source("asm")
    assert "vcvtph2ps\t" in assembly
    assert not any(function in assembly for function in ("expf", "tanhf"))
