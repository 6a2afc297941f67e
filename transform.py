"""Passes over Relax modules, `looplift.transform`, in the form of `tvm.relax.transform`:

    module = looplift.from_onnx(model)
    with tvm.target.Target("llvm"):
        module = looplift.transform.FuseLoops()(module)

`SCHEDULE_RULES` are the rules by which `looplift.compile` schedules kernels for CPUs, for
`tvm.s_tir.dlight.ApplyDefaultSchedule`. All of this needs TVM. Importing this module registers the
Relax pipeline `looplift`.
"""

from __future__ import annotations

from .lowering.scheduling.pipeline import RULES as SCHEDULE_RULES
from .lowering.transform import FuseLoops, InlineLoops, LowerRecurrent

__all__ = ["SCHEDULE_RULES", "FuseLoops", "InlineLoops", "LowerRecurrent"]
