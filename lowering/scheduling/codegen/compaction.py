"""Buffers of generic kernels become as small as what is in use at a time; those of rules are.

TVM's CompactBufferAllocation finds the size of each buffer from all accesses to it, a sixth of the
time of a compilation. The kernels that a rule writes have hundreds of scalars, and no buffer that
could be smaller. So `compact_buffers` runs the pass for the others, which rely on it: the sums that
a schedule keeps in registers are an array of all results until then.
"""

from __future__ import annotations

import tvm
from tvm import s_tir, tirx

from ..kernels.emission import WRITTEN_BY_RULE

COMPACTION = "s_tir.CompactBufferAllocation"
COMPACTED = "looplift.compacted"
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
        return module.with_attr(COMPACTED, True)
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
    return module.with_attr(COMPACTED, True)
