"""Kernels that only reshape, as reshapes again: the virtual machine makes a view instead of a copy.

TVM's RewriteDataflowReshape does the same, and proves it anew for each call. In TVM 0.27 it fails
on empty results: `relax.reshape` reads a size of 0 as the size of the input on that axis.
"""

from __future__ import annotations

from functools import reduce
from operator import mul
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, sym, tirx

from .dataflow import with_body

_CALL_TIR = ir.Op.get("relax.call_tir")


def restore_reshapes(module: tvm.IRModule) -> tvm.IRModule:
    """The module with `relax.reshape` for calls of kernels that reshape their one tensor.

    Results that leave a dataflow block stay copies: a caller may write to them.
    """
    known: dict[Any, bool] = {}

    def is_reshape(kernel: Any) -> bool:
        if kernel not in known:
            function = module[kernel]
            known[kernel] = isinstance(function, tirx.PrimFunc) and reshapes(function)
        return known[kernel]

    def restore(binding: Any) -> Any:
        call = binding.value
        local = isinstance(binding.var, relax.DataflowVar) and isinstance(call, ir.Call)
        if not local or not call.op.same_as(_CALL_TIR) or not is_reshape(call.args[0]):
            return binding
        return relax.VarBinding(binding.var, relax.op.reshape(call.args[1][0], call.ty.shape))

    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function):
            body = tvm_ffi.structural_map(function.body, (relax.VarBinding, restore), order="post")
            module[variable] = with_body(function, body)
    return relax.transform.Normalize()(module)


def reshapes(kernel: tirx.PrimFunc) -> bool:
    """Whether a kernel copies all elements of its first parameter to the last in their order."""
    if len(kernel.params) < 2:
        return False
    source, *others, target = kernel.params
    if not all(hasattr(buffer, "shape") for buffer in (source, target)):
        return False
    if any(hasattr(other, "shape") for other in others) or source.dtype != target.dtype:
        return False
    if not isinstance(kernel.body, s_tir.SBlockRealize):
        return False
    if any(isinstance(size, tirx.IntImm) and int(size) == 0 for size in target.shape):
        return False
    counts = [reduce(mul, buffer.shape, tirx.IntImm("int64", 1)) for buffer in (source, target)]
    if not sym.Analyzer().can_prove_equal(*counts):
        return False
    try:
        return bool(relax.analysis.has_reshape_pattern(kernel))
    except tvm.error.InternalError:  # Sizes that are products are too much for its prover.
        return False
