"""Compile a Relax module with looplift's pipeline."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..rewrite.errors import UnsupportedError, summary_line
from .scheduling.compaction import without_compaction
from .scheduling.pipeline import NAME

NATIVE = "native"
"""The target that stands for the processor this runs on, with all its instructions."""


def compile_module(module: tvm.IRModule, target: str | dict[str, Any] | Any = "llvm") -> Any:
    """The module for a target, as an executable for `relax.VirtualMachine`.

    `target` is what TVM takes, or "native". UnsupportedError: TVM cannot compile it.
    """
    try:
        chosen = as_target(target)
        with without_compaction(chosen):
            return tvm.compile(module, target=chosen, relax_pipeline=relax.get_pipeline(NAME))
    except UnsupportedError:
        raise
    except Exception as error:  # TVM raises built-in errors of all kinds.
        raise UnsupportedError(
            f"TVM cannot compile the module for '{target}': {summary_line(error)}",
            remedy="Check the target; if it is right, please report the model",
        ) from error


def as_target(target: str | dict[str, Any] | Any) -> tvm.target.Target:
    """A TVM target from its name, its description, or itself."""
    if target == NATIVE:
        from tvm.target.codegen import llvm_get_system_cpu

        return tvm.target.Target({"kind": "llvm", "mcpu": llvm_get_system_cpu()})
    return tvm.target.Target(target)
