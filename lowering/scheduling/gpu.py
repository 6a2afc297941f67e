"""What TVM's rules and kernels for GPUs need to take any module.

Kernels that looplift writes itself, such as NonMaxSuppression and TopK, run on one thread of a GPU:
slowly, but without a copy to the host.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.dlight.base import ScheduleRule

from ...rewrite.errors import UnsupportedError
from .affine import static_size
from .math_functions import with_whole_domain

_SCHEDULED = "tirx.is_scheduled"
_MOST_LANES = 4
_THREADS = ("blockIdx.x", "threadIdx.x")
_SPATIAL = int(tirx.IterVar.DataPar)
_REDUCTION = int(tirx.IterVar.CommReduce)


class _Tried(ScheduleRule):  # type: ignore[misc]
    """A rule of dlight, passed over where it fails on a kernel that it took for one of its own.

    The matrix product of TVM 0.27 asserts that nothing but one chain of kernels reads its result,
    and the product with a vector that there is an axis which is not summed over. The latter keeps
    all of the vector in shared memory, even if its size is not known. Reductions by a reducer that
    TVM does not know are shared by threads, which cannot be lowered.
    """

    def __init__(self, rule: ScheduleRule) -> None:
        super().__init__()
        self._rule = rule

    def apply(
        self, func: tirx.PrimFunc, target: tvm.target.Target, tunable: bool
    ) -> s_tir.Schedule | list[s_tir.Schedule] | None:
        try:
            schedule = self._rule.apply(func, target, tunable)
            if isinstance(schedule, s_tir.Schedule) and not _has_static_memory(schedule.mod):
                return None
        except (AssertionError, ValueError, s_tir.ScheduleError):
            return None
        return schedule


_TO_ALLOCATIONS = tvm.transform.Sequential(
    [
        s_tir.transform.LowerCrossThreadReduction(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LiftThreadBinding(),
        s_tir.transform.CompactBufferAllocation(),
    ]
)
"""What of TVM's pipeline for kernels decides the sizes of buffers."""


def _has_static_memory(module: tvm.IRModule) -> bool:
    """Whether the sizes of all buffers in registers and in shared memory are constants.

    Raises ValueError if threads share a reduction by a reducer that TVM does not know.
    """
    sizes: list[Any] = []

    def visit(block: s_tir.SBlock) -> None:
        for buffer in block.alloc_buffers:
            if buffer.scope() != "global":
                sizes.extend(buffer.shape)

    for kernel in _TO_ALLOCATIONS(module).functions.values():
        tvm_ffi.structural_walk(kernel.body, (s_tir.SBlock, visit))
    return all(isinstance(size, tirx.IntImm) for size in sizes)


def schedule_for_gpu(target: tvm.target.Target) -> Any:
    """The pass that schedules kernels by the rules of dlight that TVM has for a GPU."""
    passes = relax.pipeline.legalize_passes(target)
    rules = next(one.rules for one in passes if isinstance(one, dlight.ApplyDefaultSchedule))
    return dlight.ApplyDefaultSchedule(*map(_Tried, rules))


@relax.expr_functor.mutator
class _LastAxisSums(relax.PyExprMutator):  # type: ignore[misc]
    """Makes cumulative sums of any axis inclusive ones of the last axis."""

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if not isinstance(call.op, ir.Op) or call.op.name != "relax.cumsum":
            return call
        data, axis = call.args[0], call.attrs.axis
        if axis is None or data.ty.shape is None:
            return call
        emit, rank = self.builder_.emit, data.ty.ndim
        order = [i for i in range(rank) if i != int(axis) % rank] + [int(axis) % rank]
        moved = emit(relax.op.permute_dims(data, order))
        if call.attrs.exclusive:
            moved = emit(self._one_place_later(moved))
        sums = emit(relax.op.cumsum(moved, rank - 1, call.attrs.dtype, exclusive=False))
        return relax.op.permute_dims(sums, [order.index(i) for i in range(rank)])

    def _one_place_later(self, data: Any) -> Any:
        """The data with a zero before, and without the last element, along the last axis."""
        *outer, size = data.ty.shape
        first = self.builder_.emit(relax.op.zeros([*outer, 1], data.ty.dtype))
        before = self.builder_.emit(relax.op.concat([first, data], axis=len(outer)))
        return relax.op.strided_slice(before, [len(outer)], [0], [size], assume_inbound=True)


def sum_along_last_axis(module: tvm.IRModule) -> tvm.IRModule:
    """Cumulative sums of a form for which TVM has a kernel for GPUs that takes any size.

    Its kernel for the others in TVM 0.27 does not compile where the size of the axis is a symbol.
    """
    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function):
            module[variable] = _LastAxisSums(module).visit_expr(function)
    return module


def drop_single_sums(module: tvm.IRModule) -> tvm.IRModule:
    """Kernels without the reductions of one element.

    Where the result of such a reduction is used at once, the schedules of TVM 0.27 do so twice:
    when the sum starts and when the element is added.
    """
    for variable, kernel in list(module.functions_items()):
        if isinstance(kernel, tirx.PrimFunc):
            body = tvm_ffi.structural_map(
                kernel.body, (s_tir.SBlock, _without_single_sum), order="post"
            )
            module[variable] = kernel.with_body(body)
    return module


def _without_single_sum(block: s_tir.SBlock) -> s_tir.SBlock:
    start, body = block.init, block.body
    is_sum = isinstance(start, tirx.BufferStore) and isinstance(body, tirx.BufferStore)
    reduced = [v for v in block.iter_vars if int(v.iter_type) == _REDUCTION]
    if not is_sum or any(static_size(v.dom.extent) != 1 for v in reduced):
        return block

    def replace(load: Any) -> Any:
        return start.value if load.source.same_as(start.buffer) else load

    value = tvm_ffi.structural_map(body.value, (ir.TensorLoad, replace), order="post")
    variables = [tirx.IterVar(v.dom, v.var, _SPATIAL, v.thread_tag) for v in block.iter_vars]
    store = tirx.BufferStore(body.buffer, value, body.indices)
    return s_tir.SBlock(
        variables, block.reads, block.writes, block.name_hint, store, None,
        block.alloc_buffers, block.match_buffers, block.annotations,
    )  # fmt: skip


def widen_domains(module: tvm.IRModule) -> tvm.IRModule:
    """Kernels with functions that are right for all arguments."""
    for variable, kernel in list(module.functions_items()):
        if isinstance(kernel, tirx.PrimFunc):
            module[variable] = with_whole_domain(kernel)
    return module


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
