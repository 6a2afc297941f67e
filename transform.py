"""Passes over Relax modules, `looplift.transform`, in the form of `tvm.relax.transform`:

    module = looplift.from_onnx(model)
    with tvm.target.Target("llvm"):
        module = looplift.transform.FuseLoops()(module)

They need TVM.
"""

from __future__ import annotations

from .lowering.transform import FuseLoops, InlineLoops, LowerRecurrent

__all__ = ["FuseLoops", "InlineLoops", "LowerRecurrent"]
