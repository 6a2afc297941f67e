"""Constants that are computed from others, at import and when a module is compiled.

A small file may describe constants that fit no memory; the import and the compiler leave those to
the run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

from looplift.lowering.emit import emit
from looplift.lowering.scheduling.relax import constant_folding
from looplift.lowering.values import Constant

from ...compiled import compile_quickly
from ...conftest import parse
from ...operators.inputs import Load, random


def _model(signature: str, body: str) -> onnx.ModelProto:
    return parse(f"g () => (float[n] y) {signature} {{ {body} }}")


def _doubled(times: int, last: str = "Identity") -> str:
    nodes = [f"v{k + 1} = Concat <axis = 0> (v{k}, v{k})" for k in range(times)]
    return " ".join([*nodes, f"y = {last} (v{times})"])


HUGE = {
    "doubled": ("<float[2] v0 = {1, 2}>", _doubled(40)),
    "doubled integers": ("<int64[2] v0 = {1, 2}>", _doubled(36, "Cast <to = 1>")),
    "zeros": ("<int64[1] n = {4398046511104}>", "y = ConstantOfShape (n)"),
    "expanded": ("<float[1] v = {1}, int64[1] n = {4398046511104}>", "y = Expand (v, n)"),
    "repeated": ("<float[2] v = {1, 2}, int64[1] n = {4398046511104}>", "y = Tile (v, n)"),
    "counted": (
        "<int64 a = {0}, int64 b = {4398046511104}, int64 c = {1}>",
        "r = Range (a, b, c) y = Cast <to = 1> (r)",
    ),
    "padded": ("<float[2] v = {1, 2}, int64[2] n = {0, 4398046511104}>", "y = Pad (v, n)"),
}
"""Constants of at least 512 GiB, in files of less than 2 KiB."""


SLOW = {
    "einsum": (
        "<int64[2] n = {300, 300}, int64[1] all = {-1}>",
        """a = ConstantOfShape (n) e = Einsum <equation = "ij,kl,mn->im"> (a, a, a)
        y = Reshape (e, all)""",
    ),
    "matrix products": (
        "<int64[2] n = {2048, 2048}, int64[1] all = {-1}>",
        """a = ConstantOfShape (n) b = MatMul (a, a) c = MatMul (b, a) d = MatMul (c, b)
        y = Reshape (d, all)""",
    ),
}
"""Constants that take minutes to compute."""


def _stored_elements(module: tvm.IRModule) -> int:
    """How many elements the constants have, each as often as it is read."""
    sizes: list[int] = []

    def visit(constant: Any) -> None:
        if isinstance(constant.ty, relax.TensorType):
            sizes.append(int(np.prod(constant.value.shape)))

    for _, function in module.functions_items():
        tvm_ffi.structural_walk(function, (Constant, visit))
    return sum(sizes)


@pytest.mark.parametrize("name", HUGE)
def test_constants_that_fit_no_memory_are_left_to_the_run(name: str) -> None:
    module = emit(_model(*HUGE[name]))
    assert _stored_elements(module) < 1 << 16
    compile_quickly(module, relax_pipeline=relax.get_pipeline("looplift"))


@pytest.mark.parametrize("name", SLOW)
def test_constants_that_take_long_are_left_to_the_run(name: str) -> None:
    module = emit(_model(*SLOW[name]))
    compile_quickly(module, relax_pipeline=relax.get_pipeline("looplift"))


def test_truth_values_that_fit_no_memory_are_left_to_the_run() -> None:
    """Two constants of a megabyte would become one of a terabyte."""
    model = _model("", "c = And (p, q) d = Cast <to = 1> (c) y = Flatten (d)")
    for name, dims in (("p", (1 << 20, 1)), ("q", (1, 1 << 20))):
        array = np.ones(dims, np.bool_)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert _stored_elements(emit(model)) == 2 << 20


@pytest.mark.parametrize("kind", ["float", "double", "int32", "int64"])
def test_long_ranges_are_right(kind: str, imported: Load) -> None:
    """The last element but one, and the number of elements."""
    model = imported(f"""g ({kind}[n] x) => ({kind}[n] y, int64[1] size)
    <{kind} a = {{-3}}, {kind} b = {{3500000}}, {kind} c = {{2}}, int64 at = {{1750000}}> {{
        r = Range (a, b, c) some = Gather (r, at) size = Shape (r) y = Add (x, some) }}""")
    assert _stored_elements(model.module) < 1 << 16
    model.check(np.zeros(2, {"float": "f4", "double": "f8"}.get(kind, kind)))


LONG = f"""
g (float[8192] x, int64[k] i) => (float[8192] y, float[m] picked, bool[64, 192] less, int64[6000] r)
<float[2] v0 = {{1, 2}}, float[64, 1] column = {{{", ".join(map(str, range(64)))}}},
 float[1, 3] some = {{0.5, 2.5, 80}}, int64[2] rows = {{64, 3}}, int64[1] all = {{-1}},
 int64 zero = {{0}}, int64 many = {{6000}}, int64 one = {{1}}> {{
    {_doubled(12, "Mul (x, v12) unused = Identity")}
    shape = Shape (v12) threes = ConstantOfShape <value = float[1] {{3}}> (shape)
    both = Concat <axis = 0> (threes, v12) picked = Gather (both, i)
    repeated = Expand (some, rows) row = Reshape (repeated, all) less = Less (column, row)
    r = Range (zero, many, one)
}}"""
"""Computes constants of more than 4,096 elements."""


def test_long_constants_are_right(imported: Load) -> None:
    model = imported(LONG)
    assert "R.concat" in str(model.module)  # The import has not computed them all.
    for positions in ([], [0, 8191, 8192, 16383]):
        model.check(random(8192), np.array(positions, np.int64))


@pytest.mark.parametrize(("left", "computed"), [(3, 0), (4, 1), (8, 2), (1 << 24, 2)])
def test_only_some_constants_are_computed(
    monkeypatch: pytest.MonkeyPatch, left: int, computed: int
) -> None:
    """Two results of four elements each; the second is computed from the first."""
    monkeypatch.setattr(constant_folding, "_MOST_COMPUTED", left)
    monkeypatch.setattr(constant_folding, "_TIMES_STORED", 0)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4], "float32"))
    with builder.function("main", [x]):
        one = relax.const(np.arange(4, dtype=np.float32))
        two = builder.emit(relax.op.exp(one))
        three = builder.emit(relax.op.negative(two))
        builder.emit_func_output(builder.emit(relax.op.add(x, three)))
    module = relax.transform.LegalizeOps()(builder.get())
    module = constant_folding.fold_constant_calls(module)
    (block,) = module["main"].body.blocks
    assert len(block.bindings) == 3 - computed
    machine = relax.VirtualMachine(compile_quickly(module), tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(np.ones(4, np.float32))).numpy()
    np.testing.assert_allclose(got, 1 - np.exp(np.arange(4, dtype=np.float32)), rtol=1e-6)


def test_constants_in_branches_are_computed() -> None:
    module = tvm.script.from_source("""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((2,), "float32"), c: R.Tensor((), "bool")) -> R.Tensor((2,), "float32"):
        if c:
            one = R.exp(R.const([0.0, 1.0], "float32"))
            y = R.add(x, R.negative(one))
        else:
            y = R.exp(R.const([2.0, 3.0], "float32"))
        return y
""")
    module = relax.transform.LegalizeOps()(module)
    assert str(module).count("call_tir") == 4
    module = constant_folding.fold_constant_calls(module)
    assert str(module).count("call_tir") == 1
    machine = relax.VirtualMachine(compile_quickly(module), tvm.cpu())
    x = np.array([5, 7], np.float32)
    for condition, want in ((True, x - np.exp([0, 1])), (False, np.exp([2, 3]))):
        given = [tvm.runtime.tensor(value) for value in (x, np.array(condition))]
        np.testing.assert_allclose(machine["main"](*given).numpy(), want, rtol=1e-6)


def test_a_constant_that_is_cast_stays_bound() -> None:
    """The cast defines a size."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([1], "float32"))
    with builder.function("main", [x]):
        kind = relax.TensorType([tirx.Var("k", "int64")], "float32")
        c = builder.match_cast(relax.const(np.array([0, 1], np.float32)), kind)
        builder.emit_func_output(builder.emit(relax.op.add(x, c)))
    module = builder.get()
    compiled = compile_quickly(module, relax_pipeline=relax.get_pipeline("looplift"))
    machine = relax.VirtualMachine(compiled, tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(np.ones(1, np.float32))).numpy()
    np.testing.assert_array_equal(got, [1, 2])


def test_a_constant_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is what the module stores: that of four elements, not of the three reads."""
    monkeypatch.setattr(constant_folding, "_MOST_COMPUTED", 0)
    monkeypatch.setattr(constant_folding, "_TIMES_STORED", 1)
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        stored = relax.const(np.arange(4, dtype=np.float32))
        results = [builder.emit(op(stored)) for op in (relax.op.exp, relax.op.sin, relax.op.cos)]
        builder.emit_func_output(builder.emit(relax.Tuple(results)))
    module = relax.transform.LegalizeOps()(builder.get())
    assert str(module).count("call_tir") == 3
    module = constant_folding.fold_constant_calls(module)
    assert str(module).count("call_tir") == 2
