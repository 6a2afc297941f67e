"""The Relax pipeline `looplift`: what TVM does by default, and what makes its kernels fast.

    tvm.compile(module, target="llvm", relax_pipeline="looplift")

TVM's default for CPUs neither fuses operators nor schedules the kernels it makes of them. This
pipeline does both, for kernels of static and of dynamic shape. For GPUs, and for targets that LLVM
does not compile, it is TVM's own.
"""

from __future__ import annotations

import itertools
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ..transform import FuseLoops, InlineLoops, LowerRecurrent
from .dataflow import split_blocks
from .gpu import bind_scheduled_kernels
from .internal_calls import drop_proven_checks, inline_iterations, mark_proven_arguments
from .math_functions import with_fast_math
from .schedule import schedule_kernel

NAME = "looplift"


def looplift_pipeline(*, fuse_loops: bool = True) -> Any:
    """The pipeline, a pass for the target in whose scope it runs; a CPU if there is none.

    Without `fuse_loops`, the virtual machine runs the iterations of every loop.
    """
    return tvm.transform.module_pass(
        lambda module, _: _run(module, fuse_loops), opt_level=0, name="looplift.pipeline"
    )


def _run(module: tvm.IRModule, fuse_loops: bool) -> tvm.IRModule:
    target = tvm.target.Target.current(allow_none=True) or tvm.target.Target("llvm")
    with target:
        loops = tvm.transform.Sequential(
            [
                relax.transform.DecomposeOpsForInference(),
                LowerRecurrent(),
                *([FuseLoops()] if fuse_loops else []),
                InlineLoops(),
            ]
        )
        inference = loops(module)
        if target.kind.name == "llvm":
            return _for_cpu()(inference)
        if "gpu" not in target.keys:  # such as C source
            return relax.get_pipeline("default")(inference)
        return relax.get_default_pipeline(target)(bind_scheduled_kernels(inference))


def _for_cpu() -> Any:
    passes = relax.transform
    return tvm.transform.Sequential(
        [
            relax.backend.DispatchSampling(),
            relax.backend.DispatchSortScan(),
            passes.LegalizeOps(),
            passes.AnnotateTIROpPattern(),
            _module_pass(_keep_scalars_apart),
            passes.FoldConstant(),
            _module_pass(split_blocks),
            passes.FuseOps(),
            passes.FuseTIR(),
            # Before the schedule, which hides that a kernel only reshapes.
            passes.RewriteDataflowReshape(),
            _module_pass(_schedule_kernels),
            _module_pass(inline_iterations),
            _module_pass(mark_proven_arguments),
            passes.ToNonDataflow(),
            passes.RemovePurityChecking(),
            passes.CallTIRRewrite(),
            passes.StaticPlanBlockMemory(),
            passes.LowerAllocTensor(),
            passes.KillAfterLastUse(),
            passes.LowerRuntimeBuiltin(),
            passes.ComputePrimValue(),
            passes.VMShapeLower(),
            _module_pass(drop_proven_checks),
            passes.AttachGlobalSymbol(),
            _module_pass(_keep_noalias),
        ]
    )


_OPAQUE = 8
"""The pattern of kernels that FuseOps leaves alone."""


def _keep_scalars_apart(module: tvm.IRModule) -> tvm.IRModule:
    """Do not fuse kernels that take a scalar before a tensor, which make tensors of sizes.

    FuseTIR in TVM 0.27 fails where such a kernel meets one that takes sizes after the tensors.
    """
    for variable, kernel in list(module.functions_items()):
        if isinstance(kernel, tirx.PrimFunc) and _takes_scalar(kernel):
            module[variable] = kernel.with_attr("op_pattern", _OPAQUE)
    return module


def _takes_scalar(kernel: tirx.PrimFunc) -> bool:
    """Whether a scalar stands before a tensor among the parameters."""
    is_tensor = [hasattr(param.ty, "shape") for param in kernel.params]
    return any(not before and after for before, after in itertools.pairwise(is_tensor))


def _schedule_kernels(module: tvm.IRModule) -> tvm.IRModule:
    """Schedule the kernels that have no schedule yet, for a CPU."""
    for variable, kernel in list(module.functions_items()):
        if isinstance(kernel, tirx.PrimFunc):
            scheduled = schedule_kernel(kernel)
            if scheduled is not kernel:
                module[variable] = with_fast_math(scheduled)
    return module


def _keep_noalias(module: tvm.IRModule) -> tvm.IRModule:
    """Add an empty kernel, last by name, that promises not to get overlapping buffers.

    LLVM code generation in TVM 0.27 takes that promise from the kernel it declares last and
    applies it to all. With symbolic sizes that is one which makes none, and every kernel then
    reloads from memory what it has just written.
    """
    last = max((variable.name_hint for variable in module.get_global_vars()), default="")
    name = "zz_noalias" if last < "zz_noalias" else f"{last}_noalias"
    with IRBuilder() as builder, ib.prim_func(s_tir=True):
        ib.func_name(name)
        ib.func_attr({"global_symbol": name, "tirx.noalias": True, "tirx.is_scheduled": True})
        ib.evaluate(tirx.const(0, "int32"))
    module[name] = builder.get()
    return module


def _module_pass(function: Any) -> Any:
    """A pass of a function from module to module."""
    name = f"looplift.{function.__name__.strip('_')}"
    return tvm.transform.module_pass(lambda module, _: function(module), opt_level=0, name=name)


relax.register_pipeline(NAME)(looplift_pipeline)
