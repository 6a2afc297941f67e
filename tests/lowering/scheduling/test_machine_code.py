"""The machine code of micro-kernels: sums in registers, and vector instructions."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm import relax

import looplift
from looplift.lowering.scheduling.functions.micro_kernels import ROWS_OF_KNOWN_STRIDES

from ..comparison import weight, with_weights

SPILL = re.compile(r"%[yz]mm\d+, [-\d]*\(%rsp\)")
"""A store of a vector register to the stack."""


def machine_code(compiled: relax.VMExecutable, name: str) -> dict[str, str]:
    """The assembly of each function whose name matches."""
    assembly = compiled.mod.imports[0].inspect_source("asm")
    return dict(re.findall(rf"^({name}):(.*?)\.size\s+\1", assembly, re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("processor", ["znver4", "skylake-avx512", "haswell"])
def test_the_sums_of_a_product_stay_in_registers(processor: str) -> None:
    """Also where several kernels share the function, which LLVM then adapts to none of them."""
    text = """model (float[n, 24] x, float[n, m] z) => (y) {
        p = MatMul (x, w) q = MatMul (p, v) t = Transpose <perm = [1, 0]> (z) y = MatMul (t, q) }"""
    model = with_weights(text, {"w": weight(24, 40), "v": weight(40, 33)})
    compiled = looplift.compile(looplift.from_onnx(model), {"kind": "llvm", "mcpu": processor})
    functions = machine_code(compiled, r"looplift_product_\w+?_\d+_compute_")
    assert len(functions) >= 6
    for code in functions.values():
        assert "vfmadd" in code
        assert not SPILL.search(code)


@pytest.mark.parametrize("size", ["8, 8", "16, 16", "h, w"])
def test_the_sums_of_a_convolution_stay_in_registers(size: str) -> None:
    """Also where LLVM knows that lines of the input are a multiple of a tile apart."""
    text = f"model (float[1, 256, {size}] x) => (y) {{ y = Conv (x, w) }}"
    model = with_weights(text, {"w": weight(64, 256, 1, 1)})
    target = {"kind": "llvm", "mcpu": "skylake-avx512"}
    compiled = looplift.compile(looplift.from_onnx(model), target)
    functions = machine_code(compiled, r"looplift_tile_16x2\w*?_compute_")
    of_rows = {name: re.findall(r"_(\d+)_compute_", name) for name in functions}
    assert {"looplift_tile_16x2_compute_", "looplift_tile_16x2_14_compute_"} <= set(of_rows)
    # With known strides, no function for more rows is called.
    most = 14 if size == "h, w" else ROWS_OF_KNOWN_STRIDES
    for name in (n for n, rows in of_rows.items() if not rows or int(rows[0]) <= most):
        assert "vfmadd" in functions[name]
        assert not SPILL.search(functions[name])


def test_a_product_stores_each_of_its_sums_once() -> None:
    """The buffers of a shared function are its own: LLVM keeps them in registers alone."""
    model = with_weights(
        "model (float[n, 24] x) => (y) { y = MatMul (x, w) }", {"w": weight(24, 40)}
    )
    target = {"kind": "llvm", "mcpu": "haswell"}
    code = looplift.compile(looplift.from_onnx(model), target).mod.imports[0].inspect_source("ll")
    pattern = r"^define [^\n]*@looplift_product_8x2_(\d)_compute_\((.*?)^}"
    functions = dict(re.findall(pattern, code, re.DOTALL | re.MULTILINE))
    assert sorted(functions) == ["1", "2", "3", "4", "5", "6"]
    for rows, body in functions.items():
        assert body.count("store <8 x float>") == 2 * int(rows)


def test_neon_code_has_vectors_and_fused_multiply_add() -> None:
    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    text = "model (float[n, 16] x) => (y) { y = MatMul (x, w) }"
    model = with_weights(text, {"w": weight(16, 24)})
    compiled = looplift.compile(looplift.from_onnx(model), target)
    assembly = compiled.mod.imports[0].inspect_source("asm")
    assert "fmla\tv" in assembly


@pytest.mark.parametrize("processor", ["skylake-avx512", "haswell"])
def test_exp_is_scaled_by_an_instruction_where_there_is_one(processor: str) -> None:
    model = with_weights("model (float[n] x) => (y) { y = Exp (x) }", {})
    compiled = looplift.compile(looplift.from_onnx(model), {"kind": "llvm", "mcpu": processor})
    assembly = compiled.mod.imports[0].inspect_source("asm")
    assert ("vscalefps\t%zmm" in assembly) == (processor == "skylake-avx512")
    assert "expf" not in assembly
