"""Sizes of memory that cannot overflow, for tensors whose shapes a run computes.

A tensor with the shape [2^31, 2^31] of float32 has 2^64 bytes. As an int64 that is 0: TVM allocates
nothing, and the kernel writes to memory that belongs to others. Here the run asks for more than any
memory holds, and fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from .dataflow import with_body
from .size_checks import sizes_of_parameters

_STORAGE = ir.Op.get("relax.vm.alloc_storage")
_MOST = 1 << 60
"""More bytes than any memory holds."""


def limit_storage_sizes(module: tvm.IRModule) -> tvm.IRModule:
    """The module that allocates at least `_MOST` bytes for a size that may overflow.

    Requires a module after LowerRuntimeBuiltin. The sizes of parameters are those of tensors, and
    their products are taken to fit.
    """
    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
            change = _limiting(sizes_of_parameters(function))
            body = tvm_ffi.structural_map(function.body, (ir.Call, change), order="post")
            if not body.same_as(function.body):
                module[variable] = with_body(function, body)
    return module


def _limiting(known: dict[Any, Any]) -> Callable[[Any], Any]:
    """What replaces a call, for sizes that are known to be those of parameters."""

    def limited(call: Any) -> Any:
        if not call.op.same_as(_STORAGE) or not isinstance(call.args[0], relax.ShapeExpr):
            return call
        (size,) = call.args[0].values
        factors = _factors(size)
        if len(factors) < 2 or all(v in known for v in tirx.analysis.undefined_vars(size)):
            return call
        product = tirx.const(1.0, "float64")
        for factor in factors:
            product = product * tirx.Cast("float64", factor)
        most = tirx.IntImm("int64", _MOST)
        size = tirx.Select(product < tirx.Cast("float64", most), size, most)
        arguments = [relax.ShapeExpr([size]), *call.args[1:]]
        return ir.Call(call.op, arguments, call.attrs, call.ty_args, ret_ty=call.ty)

    return limited


def _factors(size: Any) -> list[Any]:
    """What a size is the product of."""
    if isinstance(size, tirx.Mul):
        return [*_factors(size.a), *_factors(size.b)]
    return [size]
