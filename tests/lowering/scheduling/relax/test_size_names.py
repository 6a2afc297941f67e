"""Kernels that differ in the order of their scalar parameters are one."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, sym, tirx

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.pipeline import lower_to_kernels
from looplift.lowering.scheduling.relax.size_names import name_kernel_sizes

from ...comparison import check, weight, with_weights
from ...compiled import NATIVE, compile_quickly, virtual_machine
from ...kernel_modules import calls_of, kernels_of


def _shifted(scalars: str) -> tirx.PrimFunc:
    """A kernel for `y[i] = x[i] * factor + offset` with scalars in some order."""
    return tvm.script.from_source(
        f"""@T.prim_func(private=True, s_tir=True)
def kernel(a: T.handle, {scalars}, b: T.handle) -> None:
    n = T.int64()
    x = T.match_buffer(a, (n,), "int64")
    y = T.match_buffer(b, (n,), "int64")
    for i in range(n):
        y[i] = x[i] * factor + offset"""
    )


def test_scalars_stand_in_the_order_in_which_the_body_reads_them() -> None:
    builder = relax.BlockBuilder()
    kind = relax.TensorType([tirx.Var("n", "int64")], "int64")
    x, three, five = relax.Var("x", kind), tirx.IntImm("int64", 3), tirx.IntImm("int64", 5)
    in_order = _shifted("factor: T.int64, offset: T.int64")
    swapped = _shifted("unused: T.int64, offset: T.int64, factor: T.int64")
    kernels = [builder.add_func(k, f"k_{i}") for i, k in enumerate((in_order, swapped))]
    with builder.function("main", [x], private=False):
        with builder.dataflow():
            first = relax.op.call_tir(kernels[0], [x, three, five], kind)
            second = relax.op.call_tir(kernels[1], [x, three, five, three], kind)
            results = [builder.emit_output(call) for call in (first, second)]
        builder.emit_func_output(relax.Tuple(results))
    named = name_kernel_sizes(builder.get())
    assert len(kernels_of(named)) == 1
    assert [list(map(int, call.args[1].fields[1:])) for call in calls_of(named)] == [[3, 5]] * 2
    values = np.array([1, -2], np.int64)
    for found in virtual_machine(compile_quickly(named))["main"](tvm.runtime.tensor(values)):
        np.testing.assert_array_equal(found.numpy(), values * 3 + 5)


def test_public_kernels_keep_their_parameters() -> None:
    builder = relax.BlockBuilder()
    kind = relax.TensorType([tirx.Var("n", "int64")], "int64")
    x, three = relax.Var("x", kind), tirx.IntImm("int64", 3)
    kernel = _shifted("offset: T.int64, factor: T.int64").with_attr("global_symbol", "shifted")
    variable = builder.add_func(kernel, "shifted")
    with builder.function("main", [x], private=False):
        builder.emit_func_output(builder.emit(relax.op.call_tir(variable, [x, three, three], kind)))
    module = builder.get()
    assert name_kernel_sizes(module).same_as(module)


@pytest.mark.parametrize("width", [9, 17, 41])
def test_a_size_that_a_caller_writes_in_two_ways(width: int) -> None:
    """A slice of all windows: their number is that of other windows, less 1, 2 or 5."""
    bb = relax.BlockBuilder()
    b, n = (tirx.Var(name, "int64") for name in "bn")
    x = relax.Var("x", relax.TensorType([b, 4, n], "float32"))
    size = sym.Analyzer().simplify(tirx.floordiv(n - 1, 8) + 1 - width // 8)
    with bb.function("main", [x]):
        with bb.dataflow():
            pools = [bb.emit(relax.op.nn.avg_pool1d(x, [k], [8])) for k in (width, 1)]
            few, many = (
                bb.emit(relax.op.strided_slice(pool, [2], [0], [size], assume_inbound=True))
                for pool in pools
            )
            y = bb.emit_output(relax.op.add(few, bb.emit(relax.op.tanh(many))))
        bb.emit_func_output(y)
    machine = virtual_machine(looplift.compile(bb.get(), NATIVE))
    for length in (width, width + 1, 3 * width):
        given = np.random.default_rng(0).standard_normal((2, 4, length)).astype(np.float32)
        starts = range(0, length - width + 1, 8)
        want = [given[..., k : k + width].mean(-1) + np.tanh(given[..., k]) for k in starts]
        got = machine["main"](tvm.runtime.tensor(given)).numpy()
        np.testing.assert_allclose(got, np.stack(want, -1), rtol=1e-5, atol=1e-6)


def test_a_size_that_differs_from_a_computed_one_by_a_number() -> None:
    """The second convolution has two lines fewer than the first: it is fused with what follows."""
    text = """model (float[b, 3, h, w] x) => (y) {
        s = Conv <strides = [2, 2]> (x, f) p = Conv (s, g, c) y = Relu (p) }"""
    weights = {"f": weight(16, 3, 3, 3), "g": weight(32, 16, 3, 3), "c": weight(32)}
    with as_target("native"):
        module = lower_to_kernels(looplift.from_onnx(with_weights(text, weights)))
    assert len(calls_of(module)) == 2
    check(text, weights, [{"b": 2, "h": 9, "w": 14}, {"b": 1, "h": 7, "w": 8}])


def test_a_divisor_that_is_zero_for_some_sizes() -> None:
    """Examples of sizes must not divide by it."""
    n, m = (tirx.Var(name, "int64") for name in "nm")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([n, m], "float32"))
    with builder.function("main", [x]):
        shape = relax.ShapeExpr([n * m // (m - 1), m - 1])
        wide = builder.emit(relax.op.reshape(x, shape))
        builder.emit_func_output(builder.emit(relax.op.negative(wide)))
    compiled = looplift.compile(builder.get(), NATIVE)
    given = np.arange(12, dtype=np.float32).reshape(4, 3)
    got = relax.VirtualMachine(compiled, tvm.cpu())["main"](tvm.runtime.tensor(given)).numpy()
    np.testing.assert_array_equal(got, -given.reshape(6, 2))
