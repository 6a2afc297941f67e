"""Loops that run on one core or on all of them get one body."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
import tvm_ffi
from onnx import numpy_helper
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

import looplift
from looplift.lowering.scheduling import pipeline
from looplift.lowering.scheduling.codegen.shared_bodies import share_loop_bodies
from looplift.lowering.scheduling.kernels.emission import ON_ONE_CORE

from ...compiled import virtual_machine
from ...conftest import parse

SUMS = """g (float[1, 40, h, w] x) => (float[1, 9, 1, 1] y) {
    m = GlobalAveragePool (x) p = Conv (m, f) y = Relu (p) }"""
"""A kernel with two loops; the second reads what the first writes to the stack."""


def _loops(module: tvm.IRModule) -> list[tuple[Any, Any]]:
    """The pairs of loops in the branches of an If, of all kernels."""
    found: list[Any] = []
    for kernel in module.functions.values():
        tvm_ffi.structural_walk(kernel.body, (tirx.IfThenElse, found.append))
    return [
        (choice.then_case, choice.else_case)
        for choice in found
        if isinstance(choice.then_case, tirx.For) and isinstance(choice.else_case, tirx.For)
        and choice.then_case.kind == tirx.ForKind.PARALLEL
    ]  # fmt: skip


def test_both_loops_call_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[tuple[Any, Any]] = []

    def record(module: tvm.IRModule) -> tvm.IRModule:
        shared = share_loop_bodies(module)
        pairs.extend(_loops(shared))
        return shared

    monkeypatch.setattr(pipeline, "share_loop_bodies", record)
    model = parse(SUMS)
    weight = np.random.default_rng(0).standard_normal((9, 40, 1, 1)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "f"))
    executable = looplift.compile(looplift.from_onnx(model), "native")
    machine = virtual_machine(executable)
    assert pairs
    for parallel, serial in pairs:
        assert serial.kind == tirx.ForKind.SERIAL
        (calls, others) = (_calls(loop) for loop in (parallel, serial))
        assert len(calls) == 1
        assert calls == others
        assert _is_compiled_once(executable, calls[0])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    # The last one has enough work for all cores.
    for height, width in ((1, 1), (7, 9), (130, 150)):
        x = np.random.default_rng(1).standard_normal((1, 40, height, width)).astype(np.float32)
        (expected,) = session.run(None, {"x": x})
        given = machine["main"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-6)


def _is_compiled_once(executable: Any, name: str) -> bool:
    """Whether LLVM has kept two calls of a function's body, and inlined none."""
    (library,) = (part for part in executable.mod.imports if part.kind == "llvm")
    code = library.inspect_source("ll")
    return len(re.findall(rf"call .*@{name}_compute_\(", code)) >= 2


def _calls(loop: Any) -> list[str]:
    """The functions of the module that a loop calls."""
    calls: list[Any] = []
    tvm_ffi.structural_walk(loop.body, (tvm.ir.Call, calls.append))
    return [call.op.name_hint for call in calls if isinstance(call.op, tvm.ir.GlobalVar)]


def _choice(of_all: float, of_one: float, *, is_marked: bool = True) -> tvm.IRModule:
    """A kernel that fills memory on all cores or on one, with a number each."""
    n, memory = tirx.Var("n", "int64"), tirx.decl_buffer((8,), "float32", "memory", layout=None)
    pointer = tirx.Var("pointer", memory.data.ty)
    zero = tirx.IntImm("int64", 0)

    def fill(number: float, annotations: dict[str, bool] | None = None) -> Any:
        item = tirx.Var("item", "int64")
        store = tirx.BufferStore(memory, tirx.const(number, "float32"), [item])
        return tirx.For(item, zero, n, tirx.ForKind.PARALLEL, store, annotations=annotations)

    second = {ON_ONE_CORE: True} if is_marked else None
    choice = tirx.IfThenElse(n > 4, fill(of_all), fill(of_one, second))
    body = tirx.SeqStmt([tirx.DeclBuffer(memory, data=pointer), choice])
    kernel = tirx.PrimFunc([pointer, n], body).with_attr("target", tvm.target.Target("llvm"))
    return tvm.IRModule({"fill": kernel})


def test_different_bodies_stay() -> None:
    ((parallel, serial),) = _loops(share_loop_bodies(_choice(1, 2)))
    assert serial.kind == tirx.ForKind.SERIAL
    assert not _calls(parallel)
    assert [float(loop.body.value) for loop in (parallel, serial)] == [1, 2]


def test_a_loop_for_one_core_is_serial_wherever_it_is() -> None:
    """TVM may have proven that there is too little work, and removed the other loop."""
    kernel = _choice(1, 1)["fill"]
    declared, choice = kernel.body.seq
    module = tvm.IRModule({"fill": kernel.with_body(tirx.SeqStmt([declared, choice.else_case]))})
    loop = share_loop_bodies(module)["fill"].body.seq[1]
    assert loop.kind == tirx.ForKind.SERIAL


def test_loops_of_other_kernels_stay_parallel() -> None:
    for loop in _loops(share_loop_bodies(_choice(1, 1, is_marked=False)))[0]:
        assert loop.kind == tirx.ForKind.PARALLEL
        assert not _calls(loop)


def test_equal_bodies_become_a_function_of_what_they_read() -> None:
    module = share_loop_bodies(_choice(1, 1))
    ((parallel, serial),) = _loops(module)
    assert _calls(parallel) == _calls(serial) == ["fill_item_0"]
    item, memory = module["fill_item_0"].params
    assert str(item.ty) == "int64"
    assert isinstance(memory.ty, tvm.ir.PointerType)


@pytest.mark.parametrize("calls_runtime", [False, True])
def test_bodies_that_call_packed_functions_stay(calls_runtime: bool) -> None:
    """Their arguments lie on the stack of the kernel, which another function cannot use."""
    with IRBuilder() as builder, ib.prim_func(s_tir=True):
        ib.func_attr({"global_symbol": "main", "target": tvm.target.Target("llvm")})
        memory = ib.arg("memory", ib.buffer((64,), "float32"))
        count = ib.arg("count", ib.int32())

        def body(item: Any) -> None:
            call = (
                tirx.call_packed if calls_runtime else functools.partial(tirx.call_extern, "int32")
            )
            ib.evaluate(call("note", item))
            ib.buffer_store(memory, tirx.const(1.0, "float32"), [item])

        with ib.If(count > 5):
            with ib.Then(), ib.parallel(count) as item:
                body(item)
            with ib.Else(), ib.parallel(count, annotations={ON_ONE_CORE: True}) as item:
                body(item)
    shared = share_loop_bodies(tvm.IRModule({"main": builder.get()}))
    assert len(shared.functions) == (1 if calls_runtime else 2)
    ((parallel, serial),) = _loops(shared)
    assert parallel.kind == tirx.ForKind.PARALLEL
    assert serial.kind == tirx.ForKind.SERIAL
