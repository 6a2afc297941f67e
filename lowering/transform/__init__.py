"""Passes over Relax modules."""

from __future__ import annotations

from typing import Any

import tvm

from .fuse_loops import fuse_loops
from .inline_loops import inline_loops
from .lower_recurrent import lower_recurrent

__all__ = ["FuseLoops", "InlineLoops", "LowerRecurrent"]


def FuseLoops() -> Any:  # noqa: N802  (named like the passes of relax.transform)
    """Replaces loops by one kernel each, where the shapes in a body are the same in all iterations.

    A loop is a function with the attribute `looplift.loop`, as `looplift.from_onnx` emits
    them. The pass legalizes, fuses and schedules the body for the target in scope. It leaves loops
    that are no such kernel as they are, and all loops for targets that LLVM does not compile for.
    """
    return tvm.transform.module_pass(
        lambda module, _: fuse_loops(module)[0], opt_level=0, name="looplift.FuseLoops"
    )


def InlineLoops() -> Any:  # noqa: N802
    """Inlines the functions of loops where they are called, except those that run iterations.

    The operators around a loop that is a kernel can then be fused with each other and planned
    together, and an iteration of another loop costs two calls.
    """
    return tvm.transform.module_pass(
        lambda module, _: inline_loops(module), opt_level=0, name="looplift.InlineLoops"
    )


def LowerRecurrent() -> Any:  # noqa: N802
    """Replaces calls of functions that are marked as LSTM, GRU or RNN by calls of a kernel.

    A marked function has the attribute `looplift.recurrent` with the operator and its attributes;
    its body is the operator in plain Relax. The kernel is for the target in scope; the calls stay
    for one that LLVM does not compile for, such as a GPU.
    """
    return tvm.transform.module_pass(
        lambda module, _: lower_recurrent(module), opt_level=0, name="looplift.LowerRecurrent"
    )
