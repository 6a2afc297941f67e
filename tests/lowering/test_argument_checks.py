"""Kernels check the sizes of tensors that the module allocates, and everything about others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script import tirx as T  # noqa: N812  as everywhere in TVM

from looplift.lowering import emit
from looplift.lowering.scheduling import pipeline
from looplift.lowering.scheduling.argument_checks import (
    drop_guaranteed_checks,
    mark_allocated_arguments,
)
from looplift.lowering.values import fresh_dim

from .compiled import compile_quickly, virtual_machine
from .conftest import parse

ALLOCATED = "looplift.allocated_arguments"
CHAIN = "g (float[n, 8] x) => (float[n, 8] y) { a = Softmax (x) y = LogSoftmax (a) }"


def test_results_of_other_kernels_are_checked_for_their_sizes_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks: dict[str, list[str]] = {}

    def record(module: tvm.IRModule) -> tvm.IRModule:
        lowered = drop_guaranteed_checks(module)
        for variable, kernel in lowered.functions_items():
            asserted: list[Any] = []
            tvm_ffi.structural_walk(kernel.body, (tirx.AssertStmt, asserted.append))
            checks[variable.name_hint] = [_says(check) for check in asserted]
        return lowered

    monkeypatch.setattr(pipeline, "drop_guaranteed_checks", record)
    compile_quickly(emit(parse(CHAIN)), relax_pipeline="looplift")
    of_input, of_result = checks["softmax"], checks["log_softmax"]
    for words in ("x.ndim", "x.dtype", "x.byte_offset", "x.strides", "x data pointer is NULL"):
        assert any(words in check for check in of_input), words
    assert of_result
    for check in of_result:
        assert ".shape[" in check or "Expected" in check or "args pointer" in check


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
    marked = mark_allocated_arguments(_calls("n"))
    assert list(marked["double"].attrs[ALLOCATED]) == [1]


def test_a_result_of_other_sizes_than_the_kernel_computes_is_found() -> None:
    machine = virtual_machine(compile_quickly(_calls("m"), relax_pipeline="looplift"))
    two, three = (tvm.runtime.tensor(np.ones(size, np.float32)) for size in (2, 3))
    np.testing.assert_array_equal(machine["main"](two, two).numpy(), np.full(2, 4, np.float32))
    with pytest.raises(Exception, match=r"shape\[0\]"):
        machine["main"](two, three)
