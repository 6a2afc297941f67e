"""Modules that are compiled by the pipeline of looplift; they take inputs by name."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.target.codegen import llvm_cpu_has_features, llvm_get_system_cpu

from looplift.lowering.emit import emit

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]

NATIVE = tvm.target.Target({"kind": "llvm", "opt-level": 0, "mcpu": llvm_get_system_cpu()})
"""This processor, without LLVM's optimisations, which take a third of a compilation."""
UNOPTIMIZED = (
    tvm.target.Target({"kind": "llvm", "opt-level": 0, "mcpu": "haswell"})
    if llvm_cpu_has_features("avx2", NATIVE)
    else NATIVE
)
"""AVX2 where the processor has it: LLVM needs half as long as for SSE, whose registers are smaller, or for
AVX-512."""

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


def _link(output: str, objects: Sequence[str], **_: Any) -> None:
    subprocess.run(["ld", "-shared", "-o", output, *objects], check=True)


_link.output_format = "so"  # type: ignore[attr-defined]
_CAN_LINK = sys.platform == "linux" and shutil.which("ld") is not None


def virtual_machine(executable: Any) -> relax.VirtualMachine:
    """The virtual machine that runs an executable.

    Where there is a linker, it loads a library: TVM writes one at the optimisation level of the
    target. Its just-in-time compiler always optimises, and takes four times as long.
    """
    if not _CAN_LINK:
        return relax.VirtualMachine(executable, tvm.cpu())
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder) / "module.so")
        executable.export_library(library, fcompile=_link)
        return relax.VirtualMachine(tvm.runtime.load_module(library), tvm.cpu())


class Compiled:
    """A module for one model, compiled; `options` are those of `tvm.compile`."""

    def __init__(self, model: onnx.ModelProto, module: Any = None, **options: Any) -> None:
        module = emit(model) if module is None else module
        options.setdefault("relax_pipeline", "looplift")
        self.executable = compile_quickly(module, **options)
        self.machine = virtual_machine(self.executable)
        self.inputs = [i.name for i in model.graph.input]

    def __call__(self, feed: Feed) -> list[Array]:
        arguments = [tvm.runtime.tensor(feed[name]) for name in self.inputs]
        result = self.machine["main"](*arguments)
        results = [result] if hasattr(result, "numpy") else list(result)
        return [r.numpy() for r in results]
