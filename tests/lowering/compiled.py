"""Modules that are compiled by the pipeline of looplift; they take inputs by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.target.codegen import llvm_cpu_has_features, llvm_get_system_cpu

from looplift.lowering.emit import emit

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]

_HOST = {"kind": "llvm", "mcpu": llvm_get_system_cpu()}
_AVX2 = llvm_cpu_has_features("avx2", tvm.target.Target(_HOST))
UNOPTIMIZED = tvm.target.Target(
    {"kind": "llvm", "opt-level": 0, **({"mcpu": "haswell"} if _AVX2 else {})}
)
"""A target without LLVM's optimisations, which take a third of a compilation.

LLVM needs half as long for AVX2 as for SSE, whose registers are smaller, or for AVX-512.
"""

_OPTIMISATIONS = [
    "s_tir.CompactBufferAllocation",
    "s_tir.HoistIfThenElse",
    "s_tir.InsertHoistIfThenElse",
    "tirx.CommonSubexprElim",
    "tirx.RemoveNoOp",
]
"""Passes over kernels that leave the results as they are and take a third of what remains."""


def compile_quickly(module: Any, **options: Any) -> Any:
    """The executable of a module, as most tests need it; the tests of the pipeline optimise.

    `options` are those of `tvm.compile`.
    """
    with tvm.transform.PassContext(disabled_pass=_OPTIMISATIONS):
        return tvm.compile(module, UNOPTIMIZED, **options)


class Compiled:
    """A module for one model, compiled; `options` are those of `tvm.compile`."""

    def __init__(self, model: onnx.ModelProto, module: Any = None, **options: Any) -> None:
        module = emit(model) if module is None else module
        options.setdefault("relax_pipeline", "looplift")
        self.executable = compile_quickly(module, **options)
        self.machine = relax.VirtualMachine(self.executable, tvm.cpu())
        self.inputs = [i.name for i in model.graph.input]

    def __call__(self, feed: Feed) -> list[Array]:
        arguments = [tvm.runtime.tensor(feed[name]) for name in self.inputs]
        result = self.machine["main"](*arguments)
        results = [result] if hasattr(result, "numpy") else list(result)
        return [r.numpy() for r in results]
