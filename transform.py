"""Passes over Relax modules: `looplift.transform`, as `tvm.relax.transform`. Needs TVM.

module = looplift.from_onnx(model)
with tvm.target.Target("llvm"):
    module = looplift.transform.FuseLoops()(module)
"""

from __future__ import annotations

from .lowering.transform import FuseLoops, InlineLoops, LowerRecurrent

__all__ = ["FuseLoops", "InlineLoops", "LowerRecurrent"]
