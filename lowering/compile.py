"""Compile a Relax module with looplift's pipeline."""

from __future__ import annotations

import difflib
from typing import Any

import tvm
from tvm import relax

from ..rewrite.errors import LoopliftError, UnsupportedError, summary_line
from ..rewrite.garbage_collection import collector_paused
from .scheduling.pipeline import NAME

NATIVE = "native"
"""The target that stands for the processor this runs on, with all its instructions."""


CANNOT_COMPILE = "TVM cannot compile the module"


def compile_module(module: tvm.IRModule, target: str | dict[str, Any] | Any = "llvm") -> Any:
    """The module for a target, as an executable for `relax.VirtualMachine`.

    `target` is what TVM takes, or "native". Raises LoopliftError for something other than a module
    and for a target that TVM does not know, and UnsupportedError if TVM cannot compile the module.
    """
    if not isinstance(module, tvm.IRModule):
        raise LoopliftError(
            f"compile takes an IRModule, not {type(module).__name__}",
            remedy="Import a model with looplift.from_onnx first",
        )
    try:
        known = as_target(target)
    except Exception as error:  # TVM raises built-in errors of all kinds.
        raise LoopliftError(
            f"TVM does not know the target '{target}': "
            f"{summary_line(error).rstrip('. ').replace('..', '.')}",
            remedy='Give "native" or a target of TVM such as {"kind": "llvm", "mcpu": "haswell"}',
        ) from error
    _check_code_generator(known)
    _check_processor(known)
    try:
        with collector_paused():
            return tvm.compile(module, target=known, relax_pipeline=relax.get_pipeline(NAME))
    except UnsupportedError:
        raise
    except Exception as error:  # TVM raises built-in errors of all kinds.
        raise UnsupportedError(
            f"{CANNOT_COMPILE} for '{target}': {summary_line(error)}",
            remedy="Check that the target is what you mean; if it is, please report the model",
        ) from error


def _check_code_generator(target: tvm.target.Target) -> None:
    """Raises LoopliftError for a target that the installed TVM has been built without."""
    kind = target.kind.name
    if tvm.get_global_func(f"target.build.{kind}", allow_missing=True) is None:
        raise LoopliftError(
            f"The installed TVM has been built without a code generator for '{kind}'",
            where=f"target {target}",
            remedy="Choose another target, or install a TVM that has it",
        )


def _check_processor(target: tvm.target.Target) -> None:
    """Raises LoopliftError for a processor that LLVM would replace by a generic one."""
    name = str(target.attrs.get("mcpu") or "")
    if target.kind.name != "llvm" or not name:
        return
    names = [str(known) for known in tvm.target.codegen.llvm_get_cpu_archlist(target)]
    if names and name not in names:
        near = difflib.get_close_matches(name, names, 1)
        raise LoopliftError(
            f"LLVM does not know the processor '{name}'",
            where=f"target {target}",
            remedy=f"Perhaps '{near[0]}' is meant" if near else f"It knows {', '.join(names)}",
        )


def as_target(target: str | dict[str, Any] | Any) -> tvm.target.Target:
    """A TVM target from its name, its description, or itself."""
    return _native() if target == NATIVE else tvm.target.Target(target)


def _native() -> tvm.target.Target:
    """The target for the processor this runs on.

    At LLVM's highest level compiling takes longer, and the networks of `benchmarks/` do not run
    faster.
    """
    from tvm.target.codegen import llvm_get_cpu_features, llvm_get_system_cpu

    processor = {"kind": "llvm", "mcpu": llvm_get_system_cpu(), "opt-level": 2}
    target = tvm.target.Target(processor)
    if not target.attrs["mcpu"].startswith("znver"):
        return target
    # LLVM 22 models the loop buffers of AMD's Zen as so large that it unrolls every loop eight
    # times: a sixth more code, which is slower. A generic x86-64 processor with the same features
    # is modelled with a smaller one.
    wanted = set(llvm_get_cpu_features(target))
    level = "x86-64-v4" if "avx512f" in wanted else "x86-64-v3"
    generic = processor | {"mcpu": level}
    known = set(llvm_get_cpu_features(tvm.target.Target(generic)))
    more = [f"+{feature}" for feature in sorted(wanted - known)]
    fewer = [f"-{feature}" for feature in sorted(known - wanted)]
    return tvm.target.Target(generic | {"mattr": more + fewer})
