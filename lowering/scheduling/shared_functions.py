"""Functions that kernels share: how they are declared, and kept from being inlined."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tvm import ir, tirx
from tvm.tirx.script import builder as ib

ANY_SHAPE = (1 << 48,)
"""The shape of a buffer that is only a pointer."""


def outlined(name: str, function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with a body that LLVM does not inline: TVM forbids it for a compute scope.

    In its caller it would be wrong: TVM tells LLVM that accesses by way of different variables
    never meet (TBAA). That holds within a kernel, but not between what this function writes and the
    buffer that the caller reads after it.
    """
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
