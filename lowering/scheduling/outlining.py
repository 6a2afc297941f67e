"""Keeps LLVM from inlining a shared function in the kernels that call it."""

from __future__ import annotations

from tvm import ir, tirx


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
