"""Small trip counts of outer loops become arguments, so that LLVM does not unroll these loops.

    def f(x, y):                                def f(x, y, trips):
        for i in range(11):                         for i in range(trips):
            for j in range(n): …        ->              for j in range(n): …

    call_tir(f, (x,))                           call_tir(f, (x, 11))

Eleven copies of an inner loop, each with one loop for vectors and others for the rest, are not
faster than one. A tenth of the lines that LLVM compiles for Kokoro were such copies.

MetaSchedule tunes kernels of known sizes only, so that tuned kernels stay as they are.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from .kernel_arguments import (
    CONSTANT_TRIPS,
    Arguments,
    called_kernels,
    with_numbers,
    with_other_kernels,
    with_parameters,
)

_MOST_TRIPS = 64
"""With longer loops as well, LLVM compiles as many lines: 1.7 % more for Kokoro, equally many for
VITS."""


def pass_trip_counts(module: tvm.IRModule) -> tvm.IRModule:
    """The module whose kernels get the trip counts of loops around loops of unknown trip count.

    Requires kernels with compact buffers: the size of a buffer may depend on a trip count.
    """
    kernels: dict[Any, tuple[tirx.PrimFunc, Arguments]] = {}
    for variable, arity in called_kernels(module).items():
        kernel, trips = _with_trip_counts(module[variable], arity)
        if trips:
            kernels[variable] = kernel, with_numbers(trips)
    return with_other_kernels(module, kernels)


def _with_trip_counts(kernel: tirx.PrimFunc, arity: int) -> tuple[tirx.PrimFunc, list[int]]:
    """The kernel with parameters for trip counts, and what they are."""
    params: dict[int, Any] = {}

    def replaced(loop: Any) -> Any:
        if not _may_be_unrolled(loop):
            return loop
        trips = params.setdefault(int(loop.extent), tirx.Var("trips", "int64"))
        return tirx.For(
            loop.loop_var, loop.min, trips, loop.kind, loop.body, annotations=loop.annotations
        )

    body = tvm_ffi.structural_map(kernel.body, (tirx.For, replaced), order="post")
    changed = with_parameters(kernel.with_body(body), arity, list(params.values()))
    return changed, list(params)


def _may_be_unrolled(loop: Any) -> bool:
    """Whether LLVM may unroll the loop, and so copy a loop of unknown trip count in it."""
    if loop.kind != tirx.ForKind.SERIAL or not isinstance(loop.extent, tirx.IntImm):
        return False
    if loop.step is not None or loop.extent.ty.dtype != "int64":
        return False
    if not 2 <= int(loop.extent) <= _MOST_TRIPS:
        return False
    inner: list[Any] = []
    tvm_ffi.structural_walk(loop.body, (tirx.For, inner.append))
    return any(
        each.kind not in CONSTANT_TRIPS and not isinstance(each.extent, tirx.IntImm)
        for each in inner
    )
