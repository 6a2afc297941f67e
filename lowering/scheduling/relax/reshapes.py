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

from ..injective.ordered_copies import KEEPS_ORDER
from .dataflow import with_body

_CALL_TIR = ir.Op.get("relax.call_tir")
_EXAMPLE = 1009
"""The value of a variable in an example: large, so that sizes such as `n // 8 - 1` are positive."""


def restore_reshapes(module: tvm.IRModule) -> tvm.IRModule:
    """The module with `relax.reshape` for calls of kernels that reshape their one tensor.

    Results that may leave the function stay copies: a caller may write to them. Their kernels get
    the attribute `KEEPS_ORDER`.
    """
    known: dict[Any, bool] = {}
    kept: set[Any] = set()

    def is_reshape(kernel: Any) -> bool:
        if kernel not in known:
            function = module[kernel]
            known[kernel] = isinstance(function, tirx.PrimFunc) and reshapes(function)
        return known[kernel]

    def restored(function: relax.Function) -> Any:
        escaping = _escaping(function)

        def restore(binding: Any) -> Any:
            call = binding.value
            if not _calls_kernel(call) or not is_reshape(call.args[0]):
                return binding
            if not isinstance(binding.var, relax.DataflowVar) and binding.var in escaping:
                kept.add(call.args[0])
                return binding
            return relax.VarBinding(binding.var, relax.op.reshape(call.args[1][0], call.ty.shape))

        return tvm_ffi.structural_map(function.body, (relax.VarBinding, restore), order="post")

    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function):
            module[variable] = with_body(function, restored(function))
    for variable in kept:
        module[variable] = module[variable].with_attr(KEEPS_ORDER, True)
    return relax.transform.Normalize()(module)


def _calls_kernel(value: Any) -> bool:
    return isinstance(value, ir.Call) and value.op.same_as(_CALL_TIR)


def _escaping(function: relax.Function) -> set[Any]:
    """The variables that anything other than a kernel reads."""
    found: set[Any] = set()

    def visit_binding(binding: Any) -> None:
        if not _calls_kernel(binding.value):
            found.update(relax.analysis.free_vars(binding.value))

    def visit_block(block: Any) -> None:
        found.update(relax.analysis.free_vars(block.body))

    tvm_ffi.structural_walk(
        function.body, [(relax.Binding, visit_binding), (relax.SeqExpr, visit_block)]
    )
    return found


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
    if kernel.attrs and KEEPS_ORDER in kernel.attrs:
        return True
    return _keeps_order(kernel)


def _keeps_order(kernel: tirx.PrimFunc) -> bool:
    buffers = (kernel.params[0], kernel.params[-1])
    counts = [reduce(mul, buffer.shape, tirx.IntImm("int64", 1)) for buffer in buffers]
    if not sym.Analyzer().can_prove_equal(*counts):
        return False
    try:
        return bool(relax.analysis.has_reshape_pattern(kernel))
    except tvm.error.InternalError:  # Sizes that are products are too much for its prover.
        return False
