"""Buffers of generic kernels become as small as what is in use at a time; those of rules are.

TVM's CompactBufferAllocation finds the size of each buffer from all accesses to it, a sixth of the
time of a compilation. The kernels that a rule writes have hundreds of scalars, and no buffer that
could be smaller. So `compact_buffers` runs the pass for the others, which rely on it: the sums that
a schedule keeps in registers are an array of all results until then.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import tvm
from tvm import s_tir, tirx

from .emission import WRITTEN_BY_RULE

_COMPACTION = "s_tir.CompactBufferAllocation"


def compact_buffers(module: tvm.IRModule) -> tvm.IRModule:
    """The module with smaller buffers in the kernels that no rule has written."""
    passes = s_tir.transform
    generic = {
        variable: function
        for variable, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc) and WRITTEN_BY_RULE not in (function.attrs or {})
    }
    if not generic:
        return module
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
    return module


def without_compaction(target: tvm.target.Target) -> Any:
    """The pass context in scope, without the pass that `compact_buffers` replaces.

    It has the pass for targets other than CPUs, whose pipeline is TVM's. Instruments would end with
    the inner context, so a context that has some stays as it is.
    """
    current = tvm.transform.PassContext.current()
    if current.instruments or target.kind.name != "llvm":
        return nullcontext()
    return tvm.transform.PassContext(
        current.opt_level, list(current.required_pass),
        [*current.disabled_pass, _COMPACTION], [], dict(current.config),
    )  # fmt: skip
