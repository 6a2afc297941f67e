"""Functions that kernels share: how they are declared, and kept from being inlined."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tvm
from tvm import ir, tirx
from tvm.tirx.script import builder as ib

ANY_SHAPE = (1 << 48,)
"""The shape of a buffer that is only a pointer."""

_OUTLINED = "looplift.is_outlined"
"""The attribute of a function that `outline_functions` keeps from being inlined."""


def outlined(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function, marked not to be inlined by LLVM.

    In its caller it would be wrong: TVM tells LLVM that accesses by way of different variables
    never meet (TBAA). That holds within a kernel, but not between what this function writes and the
    buffer that the caller reads after it.
    """
    return function.with_attr(_OUTLINED, True)


def outline_shared_functions(module: tvm.IRModule) -> tvm.IRModule:
    """The module of kernels, ready for LLVM, with the marked functions in scopes of their own.

    Earlier, TVM would move the buffers of a function out of the scope. LLVM would have to keep them
    in memory then, not in registers: it would store sums that nothing reads.
    """
    for variable, function in list(module.functions_items()):
        if isinstance(function, tirx.PrimFunc) and _OUTLINED in (function.attrs or {}):
            module[variable] = in_scope(variable.name_hint, function.without_attr(_OUTLINED))
    return module


def in_scope(name: str, function: tirx.PrimFunc) -> tirx.PrimFunc:
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
