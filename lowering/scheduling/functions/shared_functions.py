"""Functions that kernels share: how they are declared, and kept from being inlined."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tvm
from tvm import ir, tirx
from tvm.tirx.script import builder as ib

ANY_SHAPE = (1 << 48,)
"""The shape of a buffer that is only a pointer."""

_NOINLINE = "looplift.noinline"
"""The attribute of a function that `forbid_inlining` keeps from being inlined."""


def noinline(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function, marked not to be inlined by LLVM.

    Inlined, it would be miscompiled: TVM tells LLVM that accesses through different variables never
    alias (TBAA). That holds within a kernel, but not between what this function writes and the
    buffer that the caller reads after it.
    """
    return function.with_attr(_NOINLINE, True)


def forbid_inlining(module: tvm.IRModule) -> tvm.IRModule:
    """The module of kernels, ready for LLVM, with the marked functions in compute scopes.

    This comes after TVM's lowering, which moves buffers out of a compute scope: LLVM would then
    keep them in memory, and store sums that nothing reads.
    """
    for variable, function in list(module.functions_items()):
        if isinstance(function, tirx.PrimFunc) and _NOINLINE in (function.attrs or {}):
            module[variable] = in_compute_scope(
                variable.name_hint, function.without_attr(_NOINLINE)
            )
    return module


def in_compute_scope(name: str, function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The lowered function with its body in a compute scope, which TVM forbids LLVM to inline."""
    scope = ir.StringImm(f"{name}_compute_")
    zero = tirx.const(0, "int32")
    body = tirx.AttrStmt(zero, "compute_scope", scope, function.body)
    success = tirx.Return(zero)  # The code that TVM writes around the scope returns errors.
    return tirx.PrimFunc(
        function.params, tirx.SeqStmt([body, success]), ir.PrimType("int32"), attrs=function.attrs
    )


@contextmanager
def function_frame() -> Iterator[None]:
    """The frame of a function that kernels share."""
    with ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        yield
