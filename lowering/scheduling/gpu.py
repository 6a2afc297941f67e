"""Kernels that looplift wrote for a processor, on a GPU: on one of its threads.

That is slow, but right: a recurrence has no parallel loop that a schedule could distribute, and the
state of a layer stays in the memory of the GPU.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx

from ...rewrite.errors import UnsupportedError

_SCHEDULED = "tirx.is_scheduled"
_MOST_LANES = 4
_THREADS = ("blockIdx.x", "threadIdx.x")


def bind_scheduled_kernels(module: tvm.IRModule) -> tvm.IRModule:
    """Give every kernel that has a schedule, but for no threads, one thread.

    TVM would otherwise compile it for the host, which cannot read the memory of a GPU.

    UnsupportedError: the kernel was written for the vectors of a CPU.
    """
    for variable, kernel in list(module.functions_items()):
        if not isinstance(kernel, tirx.PrimFunc):
            continue
        if kernel.attrs and _SCHEDULED in kernel.attrs and not _has_threads(kernel):
            _check_vectors(variable.name_hint, kernel)
            module[variable] = _on_one_thread(kernel)
    return module


def _check_vectors(name: str, kernel: tirx.PrimFunc) -> None:
    lanes: list[Any] = [0]

    def visit(loop: Any) -> None:
        if loop.kind == tirx.ForKind.VECTORIZED:
            lanes.append(loop.extent)

    ramps = (tirx.Ramp, lambda ramp: lanes.append(ramp.lanes))
    tvm_ffi.structural_walk(kernel.body, [ramps, (tirx.For, visit)])
    if max(int(number) for number in lanes) > _MOST_LANES:
        raise UnsupportedError(
            f"a pass has made the kernel {name!r} for a CPU",
            remedy="Run the passes of looplift.transform with the GPU as the target",
        )


def _has_threads(kernel: tirx.PrimFunc) -> bool:
    found: list[Any] = []

    def visit(loop: Any) -> None:
        if loop.kind == tirx.ForKind.THREAD_BINDING:
            found.append(loop)

    tvm_ffi.structural_walk(kernel.body, (tirx.For, visit))
    return bool(found)


def _on_one_thread(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    realized = isinstance(kernel.body, s_tir.SBlockRealize)
    body = kernel.body.block.body if realized else kernel.body
    zero, one = tirx.const(0, "int32"), tirx.const(1, "int32")
    for thread in reversed(_THREADS):
        loop = tirx.Var(thread.replace(".", "_"), "int32")
        binding = tirx.IterVar(ir.Range(zero, one), loop, tirx.IterVar.ThreadIndex, thread)
        body = tirx.For(loop, zero, one, tirx.ForKind.THREAD_BINDING, body, binding)
    block = s_tir.SBlock([], [], [], "root", body)
    return kernel.with_body(s_tir.SBlockRealize([], True, block))
