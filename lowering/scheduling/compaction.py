"""Buffers of generic kernels become as small as what is in use at a time; those of rules are.

TVM's CompactBufferAllocation finds the size of each buffer from all accesses to it, a sixth of the
time of a compilation. The kernels that a rule writes have hundreds of scalars, and no buffer that
could be smaller. So `compact_buffers` runs the pass for the others, which rely on it: the sums that
a schedule keeps in registers are an array of all results until then.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx

from .emission import WRITTEN_BY_RULE

_COMPACTION = "s_tir.CompactBufferAllocation"
_COMPACTED = "looplift.compacted"
"""The attribute of a module whose kernels have small buffers."""


def compact_buffers(module: tvm.IRModule) -> tvm.IRModule:
    """The module with smaller buffers in the kernels that no rule has written.

    The module is marked, so that TVM's pipeline for kernels leaves out the pass.
    """
    passes = s_tir.transform
    generic = {
        variable: function
        for variable, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc) and WRITTEN_BY_RULE not in (function.attrs or {})
    }
    if not generic:
        return module.with_attr(_COMPACTED, True)
    compacted = tvm.transform.Sequential(
        [
            passes.CanonicalizeLoop(),
            passes.LowerInitBlock(),
            passes.PlanAndUpdateBufferAllocationLocation(),
            passes.ConvertBlocksToOpaque(),
            passes.CompactBufferAllocation(),
        ]
    )(tvm.IRModule(generic))
    for variable in generic:
        module[variable] = compacted[variable.name_hint]
    return module.with_attr(_COMPACTED, True)


def _kernel_pipeline() -> tuple[Any, Any, Any]:
    """TVM's pipeline for kernels, without compaction for a module that `compact_buffers` returned.

    Not only to save time: TVM 0.27's CompactBufferAllocation fails where an index of a buffer is a
    vector. Instruments do not see the passes of such a module, because they would end with the
    inner context.
    """
    passes, for_host, for_device = _TVM_PIPELINE()

    def run(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        if _COMPACTED not in (module.attrs or {}):
            return passes(module)
        with tvm.transform.PassContext(
            context.opt_level, list(context.required_pass),
            [*context.disabled_pass, _COMPACTION], [], dict(context.config),
        ):  # fmt: skip
            return passes(module)

    name = "looplift.kernel_pipeline"
    return tvm.transform.module_pass(run, opt_level=0, name=name), for_host, for_device


_TVM_PIPELINE = tirx.compilation_pipeline.PIPELINE_MAP["s_tir"]
# `tvm.compile` takes only pipelines for kernels that are registered, and this one by default.
tirx.register_tir_pipeline("s_tir", _kernel_pipeline)
