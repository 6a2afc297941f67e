"""Kernels check what they get, other than what every call in the module is known to pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script import tirx as T  # noqa: N812  as everywhere in TVM

import looplift
from looplift.lowering import emit
from looplift.lowering.scheduling import pipeline
from looplift.lowering.scheduling.codegen.argument_checks import (
    accept_any_alignment,
    drop_guaranteed_checks,
    mark_guaranteed_arguments,
)
from looplift.lowering.values import fresh_dim

from ....samples import one_of
from ...comparison import TARGETS
from ...compiled import compile_quickly, virtual_machine
from ...conftest import parse

GUARANTEED = "looplift.guaranteed_arguments"
SIZES = "looplift.guaranteed_sizes"
CHAIN = "g (float[n, 8] x) => (float[n, 8] y) { a = Softmax (x) y = LogSoftmax (a) }"


def test_results_of_other_kernels_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: dict[str, list[str]] = {}
    addresses: dict[str, list[str]] = {}
    choices: dict[str, bool] = {}

    def record(module: tvm.IRModule) -> tvm.IRModule:
        lowered = drop_guaranteed_checks(module)
        for variable, kernel in lowered.functions_items():
            asserted: list[Any] = []
            tvm_ffi.structural_walk(kernel.body, (tirx.AssertStmt, asserted.append))
            checks[variable.name_hint] = [_says(check) for check in asserted]
            bound: list[Any] = []
            tvm_ffi.structural_walk(kernel.body, (tirx.Bind, bound.append))
            addresses[variable.name_hint] = [str(each.var.name) for each in bound]
            handles = [str(each.value) for each in bound if each.var.name.endswith("handle")]
            choices[variable.name_hint] = any("if_then_else" in handle for handle in handles)
        return lowered

    monkeypatch.setattr(pipeline, "drop_guaranteed_checks", record)
    compile_quickly(emit(parse(CHAIN)), relax_pipeline="looplift")
    of_input = checks["softmax"]
    for words in ("x.ndim", "x.dtype", "x.byte_offset", "x.strides", "x data pointer is NULL"):
        assert any(words in check for check in of_input), words
    assert not checks["log_softmax"]
    assert any("strides" in name for name in addresses["softmax"])
    assert not any("strides" in name for name in addresses["log_softmax"])
    # Only what comes from outside may be a bare DLTensor.
    assert "log_softmax" in choices
    assert [name for name, has_choice in choices.items() if has_choice] == ["softmax"]


def test_the_table_of_sizes_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: dict[str, list[Any]] = {}

    def record(module: tvm.IRModule) -> tvm.IRModule:
        lowered = drop_guaranteed_checks(module)
        for variable, kernel in lowered.functions_items():
            asserted = checks.setdefault(variable.name_hint, [])
            tvm_ffi.structural_walk(kernel.body, (tirx.AssertStmt, asserted.append))
        return lowered

    monkeypatch.setattr(pipeline, "drop_guaranteed_checks", record)
    model = parse("g (float[n, m] x) => (float[1, k] y) { y = Flatten <axis = 0> (x) }")
    machine = virtual_machine(compile_quickly(emit(model), relax_pipeline="looplift"))
    of_sizes = [checks[name] for name in checks if name.startswith("shape_func")]
    assert of_sizes
    assert not any(of_sizes)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    given = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(given, x.reshape(1, -1))


def _says(check: Any) -> str:
    return "".join(str(part.value) for part in check.message_parts)


@T.prim_func(private=True, s_tir=True)  # type: ignore[untyped-decorator]
def _double(x: T.handle, y: T.handle) -> None:
    T.func_attr({"op_pattern": 8})
    n = T.int64()
    source = T.match_buffer(x, (n,))
    target = T.match_buffer(y, (n,))
    for i in range(n):
        with T.sblock("double"):
            vi = T.axis.spatial(n, i)
            target[vi] = source[vi] * T.float32(2)


def _calls(size: str) -> tvm.IRModule:
    """A module that calls a kernel for a parameter of size n, and for its result of size n or m."""
    bb = relax.BlockBuilder()
    n, m = fresh_dim("n"), fresh_dim("m")
    of_n, of_m = (relax.TensorType([s], "float32") for s in (n, m))
    x, like = relax.Var("x", of_n), relax.Var("like", of_m)
    kernel = bb.add_func(_double, "double")
    with bb.function("main", [x, like], private=False):
        with bb.dataflow():
            a = bb.emit(relax.op.call_tir(kernel, [x], of_n))
            b = relax.op.call_tir(kernel, [a], {"n": of_n, "m": of_m}[size])
            result = bb.emit_output(b)
        bb.emit_func_output(result)
    return bb.get()


def test_a_parameter_that_one_call_gives_an_input_keeps_its_checks() -> None:
    marked = mark_guaranteed_arguments(_calls("n"))
    assert _numbers(marked["double"].attrs[GUARANTEED]) == [1]
    # Of an input, only the run knows the size, and so whether the result has the same.
    assert _numbers(marked["double"].attrs[SIZES]) == []


def test_a_tensor_that_a_function_returns_as_it_is_stays_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where two tensors of unknown sizes are broadcast."""
    guaranteed: dict[str, list[Any]] = {}

    def record(module: tvm.IRModule) -> tvm.IRModule:
        marked = mark_guaranteed_arguments(module)
        for variable, kernel in marked.functions_items():
            if isinstance(kernel, tirx.PrimFunc):
                numbers = _numbers((kernel.attrs or {}).get(GUARANTEED, []))
                guaranteed[variable.name_hint] = numbers
        return marked

    monkeypatch.setattr(pipeline, "mark_guaranteed_arguments", record)
    text = "g (float[n] x, float[m] y) => (float[k] z) { a = Exp (x) b = Exp (y) z = Add (a, b) }"
    compiled = compile_quickly(emit(parse(text)), relax_pipeline="looplift")
    assert guaranteed["add"] == [0, 1, 2]
    machine = virtual_machine(compiled)
    x, y = np.ones(1, np.float32), np.arange(3, dtype=np.float32)
    given = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(y)).numpy()
    np.testing.assert_allclose(given, np.exp(x) + np.exp(y), rtol=1e-6)


def _passed_on(changes: bool) -> tvm.IRModule:
    """A module that calls a kernel for what a function returns of an input and of a result."""
    bb = relax.BlockBuilder()
    kind = relax.TensorType([fresh_dim("n")], "float32")
    kernel = bb.add_func(_double, "double")
    tensor = relax.Var("tensor", kind)
    with bb.function("pass_on", [tensor], private=True):
        bb.emit_func_output(bb.emit(relax.op.negative(tensor)) if changes else tensor)
    (pass_on,) = (v for v in bb.get().get_global_vars() if v.name_hint == "pass_on")
    x = relax.Var("x", kind)
    with bb.function("main", [x], private=False):
        result = bb.emit(relax.op.call_tir(kernel, [x], kind))
        given = bb.emit(relax.Call(pass_on, [result if changes else x]))
        bb.emit_func_output(bb.emit(relax.op.call_tir(kernel, [given], kind)))
    return bb.get()


@pytest.mark.parametrize("changes", [False, True])
def test_what_a_function_returns_of_an_input_or_computes_is_checked(changes: bool) -> None:
    marked = mark_guaranteed_arguments(_passed_on(changes))
    assert _numbers(marked["double"].attrs[GUARANTEED]) == [1]


def _numbers(attribute: Any) -> list[Any]:
    return [tuple(map(int, n)) if hasattr(n, "__iter__") else int(n) for n in attribute]


@T.prim_func(private=True, s_tir=True)  # type: ignore[untyped-decorator]
def _shift(x: T.handle, by: T.int64, y: T.handle) -> None:
    T.func_attr({"op_pattern": 8})
    n = T.int64()
    source = T.match_buffer(x, (n, T.int64(2)))
    target = T.match_buffer(y, (n + by, T.int64(2)))
    for i, j in T.grid(n + by, T.int64(2)):
        with T.sblock("shift"):
            vi, vj = T.axis.remap("SS", [i, j])
            target[vi, vj] = source[T.max(vi - by, T.int64(0)), vj]


def _chain(given: Any, results: dict[str, Any]) -> tvm.IRModule:
    """A module that shifts the result of a shift, by `given`; `results` are the sizes it expects."""
    bb = relax.BlockBuilder()
    n, m = results["n"], results["m"]
    kinds = [relax.TensorType([size, 2], "float32") for size in (n, n + 1, results["last"])]
    x, like = relax.Var("x", kinds[0]), relax.Var("like", relax.TensorType([m, 2], "float32"))
    first, second = bb.add_func(_shift, "first"), bb.add_func(_shift.with_attr("k", 1), "second")
    with bb.function("main", [x, like], private=False):
        with bb.dataflow():
            a = bb.emit(relax.op.call_tir(first, [x, tirx.IntImm("int64", 1)], kinds[1]))
            b = relax.op.call_tir(second, [a, given], kinds[2])
            result = bb.emit_output(b)
        bb.emit_func_output(result)
    return bb.get()


@pytest.mark.parametrize(
    ("last", "is_known"),
    [
        (lambda n, m: n + 1 + 4, True),
        (lambda n, m: n + 5, False),
        (lambda n, m: 2 * n, False),
        (lambda n, m: m, False),
    ],
)
def test_sizes_that_the_caller_writes_as_the_kernel_does_are_guaranteed(
    last: Callable[[Any, Any], Any], is_known: bool
) -> None:
    n, m = fresh_dim("n"), fresh_dim("m")
    four = tirx.IntImm("int64", 4)
    marked = mark_guaranteed_arguments(_chain(four, {"n": n, "m": m, "last": last(n, m)}))
    assert _numbers(marked["second"].attrs[GUARANTEED]) == [0, 1, 2]
    known = {(0, 0), (0, 1), (2, 1)} | ({(2, 0)} if is_known else set())
    assert set(_numbers(marked["second"].attrs[SIZES])) == known


def test_a_size_that_differs_in_a_run_is_found() -> None:
    """The caller may write it in another way than the kernel, if it is the same in the run."""
    n, m = fresh_dim("n"), fresh_dim("m")
    module = _chain(tirx.IntImm("int64", 4), {"n": n, "m": m, "last": m})
    machine = virtual_machine(compile_quickly(module, relax_pipeline="looplift"))
    x, seven, eight = (tvm.runtime.tensor(np.ones((k, 2), np.float32)) for k in (2, 7, 8))
    np.testing.assert_array_equal(machine["main"](x, seven).numpy(), np.ones((7, 2)))
    with pytest.raises(Exception, match=r"shape\[0\]"):
        machine["main"](x, eight)


def test_a_result_of_other_sizes_than_the_kernel_computes_is_found() -> None:
    machine = virtual_machine(compile_quickly(_calls("m"), relax_pipeline="looplift"))
    two, three = (tvm.runtime.tensor(np.ones(size, np.float32)) for size in (2, 3))
    np.testing.assert_array_equal(machine["main"](two, two).numpy(), np.full(2, 4, np.float32))
    with pytest.raises(Exception, match=r"shape\[0\]"):
        machine["main"](two, three)


def at_offset(array: Any, offset: int) -> Any:
    """A copy of an array that begins `offset` bytes after a multiple of 64."""
    memory = np.zeros(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@pytest.mark.parametrize("target", one_of(2, [TARGETS[0], TARGETS[2], TARGETS[1]]))
@pytest.mark.parametrize("rows", ["33", "n"])
def test_arrays_may_begin_anywhere(rows: str, target: Any) -> None:
    """NumPy aligns to 16 bytes, TVM to 64: an aligned load would end the process."""
    text = f"""m (float[{rows}, 64] x, float[{rows}, 64] z) => (float[{rows}, 64] y, float[{rows}] r) {{
        s = Add (x, z) p = Softmax (x) q = Mul (p, z) y = Sub (s, q)
        r = ReduceMean <axes = [1], keepdims = 0> (x) }}"""
    model = parse(text)
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), target))
    x, z = np.random.default_rng(0).standard_normal((2, 33, 64)).astype(np.float32)
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x, "z": z})
    for offset in (0, 4, 16, 32):
        got = machine["main"](at_offset(x, offset), at_offset(z, offset))
        for result, wanted in zip(got, want, strict=True):
            np.testing.assert_allclose(result.numpy(), wanted, rtol=0, atol=1e-5)


def test_a_kernel_of_many_parameters() -> None:
    """TVM writes a statement within another for each of them."""
    address = tirx.Var("address", "handle")
    body: Any = tirx.Evaluate(tirx.const(0))
    for number in range(2000):
        key = "storage_alignment" if number % 2 else "device_id"
        parts = [tirx.Evaluate(tirx.const(number)), body]
        body = tirx.AttrStmt(address, key, tirx.const(64), tirx.SeqStmt(parts))
    kernel = tirx.PrimFunc([address], body)
    module = accept_any_alignment(tvm.IRModule({"kernel": kernel}))
    found: list[Any] = []
    tvm_ffi.structural_walk(module["kernel"].body, (tirx.AttrStmt, found.append))
    assert [statement.attr_key for statement in found] == ["device_id"] * 1000
