"""Packs constant operands at compile time, in the layout that kernels ask for.

A schedule rule marks the block that packs a weight with `meta_schedule.layout_rewrite_preproc`.
TVM's `SplitLayoutRewritePreproc` takes it out of the kernel. `FoldConstant` would then compile and
load a library for each weight; here one library packs all of them (a network with 53 convolutions:
1 s instead of 6 s), and what packed them does not stay in the module.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx

_MARK = "meta_schedule.layout_rewrite_preproc"
_PACKER = "_weight_prepack"
"""What SplitLayoutRewritePreproc adds to a kernel's name for the function that packs its weight."""
_CALL_TIR = ir.Op.get("relax.call_tir")


def pack_constants(module: tvm.IRModule) -> tvm.IRModule:
    """The module with packed constants in place of those that its kernels pack themselves."""
    kernels = [item for item in module.functions_items() if isinstance(item[1], tirx.PrimFunc)]
    # SplitLayoutRewritePreproc in TVM 0.27 fails on kernels without blocks: it does not see them.
    hidden = {variable: kernel for variable, kernel in kernels if not _packs(kernel)}
    if len(hidden) == len(kernels):
        return module
    for variable in hidden:
        del module[variable]
    module = relax.transform.SplitLayoutRewritePreproc()(module)
    packers = {
        variable: function
        for variable, function in module.functions_items()
        if variable.name_hint.endswith(_PACKER)
    }
    for variable, kernel in hidden.items():
        module[variable] = kernel
    return _evaluated(module, packers)


def _packs(kernel: tirx.PrimFunc) -> bool:
    """Whether a block of a kernel is marked as packing a constant."""
    found: list[Any] = []

    def visit(block: Any) -> None:
        if _MARK in block.annotations:
            found.append(block)

    tvm_ffi.structural_walk(kernel.body, (s_tir.SBlock, visit))
    return bool(found)


def _evaluated(module: tvm.IRModule, packers: dict[Any, Any]) -> tvm.IRModule:
    """The module with the results of calls of packers, and without the packers."""
    library = tvm.compile(
        tvm.IRModule(
            {
                variable.name_hint: function.with_attr("global_symbol", variable.name_hint)
                for variable, function in packers.items()
            }
        ),
        tvm.target.Target("llvm"),
    )

    def evaluate(call: Any) -> Any:
        if not call.op.same_as(_CALL_TIR) or call.args[0] not in packers:
            return call
        result_type = call.ty_args[0]
        shape = [int(size) for size in result_type.shape]
        packed = tvm.runtime.empty(shape, str(result_type.dtype))
        library[call.args[0].name_hint](*(operand.value for operand in call.args[1]), packed)
        return relax.const(packed)

    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function):
            body = tvm_ffi.structural_map(function.body, (ir.Call, evaluate), order="post")
            if not body.same_as(function.body):
                module[variable] = relax.Function(
                    function.params,
                    body,
                    function.ret_ty,
                    function.is_pure,
                    attrs=function.attrs,
                )
    for variable in packers:
        del module[variable]
    return module
