"""Passes that let TVM's schedules for GPUs take any module.

Kernels that looplift writes itself, such as NonMaxSuppression and TopK, run on one thread of a GPU:
slowly, but without a copy to the host.
"""

from __future__ import annotations

import functools
import math
import struct
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.dlight.base import ScheduleRule

from ...rewrite.errors import UnsupportedError
from ..identifiers import identifier
from .kernels.affine import static_size
from .kernels.map_kernels import map_bodies, map_kernels
from .kernels.math_functions import with_exact_functions
from .kernels.nests import REDUCTION, SPATIAL

_THREADS = ("blockIdx.x", "threadIdx.x")


class _IfItSucceeds(ScheduleRule):  # type: ignore[misc]
    """A rule of dlight that declines a kernel on which it fails.

    The matrix product of TVM 0.27 asserts that nothing but one chain of kernels reads its result,
    and the product with a vector that there is an axis which is not summed over. The latter keeps
    all of the vector in shared memory, even if its size is not known. Reductions by a reducer that
    TVM does not know are shared by threads, which cannot be lowered. Steps of a schedule fail on a
    mean over all axes and on a transposed convolution of volumes. The next rule takes such a
    kernel; one that no rule takes runs on one thread.
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
        except (AssertionError, ValueError, tvm.error.InternalError, s_tir.ScheduleError):
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
"""The passes of TVM's pipeline for kernels that decide the sizes of buffers."""


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
    """The pass that schedules kernels by the rules of dlight that TVM has for the target."""
    passes = relax.pipeline.legalize_passes(target)
    scheduling = [one for one in passes if isinstance(one, dlight.ApplyDefaultSchedule)]
    rules = [_IfItSucceeds(rule) for one in scheduling for rule in one.rules]
    return dlight.ApplyDefaultSchedule(*rules)


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
        if order[-1] == rank - 1 and not call.attrs.exclusive:
            return call
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
    """The module with inclusive cumulative sums along the last axis only.

    On GPUs, TVM's kernel for these takes any size. Its kernel for others does not compile in TVM
    0.27 if the size of the axis is symbolic.
    """
    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function):
            module[variable] = _LastAxisSums(module).visit_expr(function)
    return module


def drop_unit_reductions(module: tvm.IRModule) -> tvm.IRModule:
    """The module without reductions over one element.

    If an operator is fused after such a reduction, the schedules of TVM 0.27 apply it twice: at the
    initialization and at the update.
    """
    return map_bodies(module, (s_tir.SBlock, _without_unit_reduction))


def _without_unit_reduction(block: s_tir.SBlock) -> s_tir.SBlock:
    start, body = block.init, block.body
    is_reduction = isinstance(start, tirx.BufferStore) and isinstance(body, tirx.BufferStore)
    reduced = [v for v in block.iter_vars if int(v.iter_type) == REDUCTION]
    if not is_reduction or any(static_size(v.dom.extent) != 1 for v in reduced):
        return block

    def replace(load: Any) -> Any:
        return start.value if load.source.same_as(start.buffer) else load

    value = tvm_ffi.structural_map(body.value, (ir.TensorLoad, replace), order="post")
    variables = [tirx.IterVar(v.dom, v.var, SPATIAL, v.thread_tag) for v in block.iter_vars]
    store = tirx.BufferStore(body.buffer, value, body.indices)
    return s_tir.SBlock(
        variables, block.reads, block.writes, block.name_hint, store, None,
        block.alloc_buffers, block.match_buffers, block.annotations,
    )  # fmt: skip


def replace_fast_intrinsics(module: tvm.IRModule) -> tvm.IRModule:
    """The module with arithmetic in place of functions that CUDA gets wrong for some arguments."""
    if tvm.target.Target.current().kind.name != "cuda":
        return module
    return map_kernels(module, with_exact_functions)


def branch_for_selects(module: tvm.IRModule) -> tvm.IRModule:
    """The module with `if_then_else` in place of `Select`, for CUDA.

    TVM 0.27 declares the condition of a vectorised Select with the type of its values, which the
    CUDA compiler refuses.
    """
    if tvm.target.Target.current().kind.name != "cuda":
        return module

    def branch(select: tirx.Select) -> Any:
        return tirx.if_then_else(select.condition, select.true_value, select.false_value)

    return map_bodies(module, (tirx.Select, branch))


def spell_out_arithmetic(module: tvm.IRModule) -> tvm.IRModule:
    """The module with arithmetic that C++ computes as Relax does.

    C++ promotes narrower integers to 32 bits, so that a sum of bytes does not wrap around before it
    is divided or compared. TVM 0.27 prints constants of float64 with 15 decimal places: 1e-16
    becomes 0.
    """
    wrapping = (tirx.Add, tirx.Sub, tirx.Mul, tirx.LShift, tirx.BitwiseNot)
    return map_bodies(module, (wrapping, _wrapped_around), (tirx.FloatImm, _exact_constant))


_IN_32_BITS = {"int8": "int32", "int16": "int32", "uint8": "uint32", "uint16": "uint32"}


def _wrapped_around(operation: Any) -> Any:
    """The operation in 32 bits, converted to its own type."""
    wide = _IN_32_BITS.get(str(operation.ty.dtype))
    if wide is None:
        return operation
    operands = [tirx.Cast(wide, operation.a)]
    if not isinstance(operation, tirx.BitwiseNot):
        operands.append(tirx.Cast(wide, operation.b))
    return tirx.Cast(operation.ty.dtype, type(operation)(*operands))


def _exact_constant(constant: tirx.FloatImm) -> Any:
    """The constant, from its bits if its 15 decimal places would change it."""
    value = float(constant.value)
    is_printed_exactly = not math.isfinite(value) or float(f"{value:.15f}") == value
    if str(constant.ty.dtype) != "float64" or is_printed_exactly:
        return constant
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return tirx.reinterpret("float64", tirx.const(bits, "int64"))


def name_parameters(module: tvm.IRModule) -> tvm.IRModule:
    """The module with identifiers as the names of its kernels' parameters.

    A parameter is named after its argument, such as a weight `113`. The C++ code of TVM 0.27
    declares it by that name.
    """

    def renamed(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        new = {p: _named(p) for p in kernel.params if p.name != identifier(p.name, "v")}
        if not new:
            return kernel
        return tvm_ffi.structural_map(kernel, (ir.Var, lambda v: new.get(v, v)), order="post")

    return map_kernels(module, renamed)


def _named(parameter: Any) -> Any:
    return type(parameter)(identifier(parameter.name, "v"), parameter.ty)


def skip_empty_grids(module: tvm.IRModule) -> tvm.IRModule:
    """The module without launches of kernels whose grid has no blocks.

    TVM's runtime would launch one block, which accesses memory outside the empty tensor. The launch
    is in a loop of at most one iteration, because TVM inserts no barriers below a condition.
    """

    def skipping(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        inner = [loop for grid in _block_loops(kernel.body) for loop in _block_loops(grid.body)]

        def launch(loop: tirx.For) -> tirx.For:
            is_launch = _is_block_loop(loop) and not any(loop.same_as(other) for other in inner)
            return _unless_empty(loop) if is_launch else loop

        body = tvm_ffi.structural_map(kernel.body, (tirx.For, launch), order="post")
        return kernel.with_body(body)

    return map_kernels(module, skipping)


def _unless_empty(grid: tirx.For) -> tirx.For:
    """A launch that happens only if the grid has blocks."""
    sizes = [
        loop.extent for loop in [grid, *_block_loops(grid.body)] if static_size(loop.extent) is None
    ]
    if not sizes:
        return grid
    zero, one = tirx.const(0, "int64"), tirx.const(1, "int64")
    count = functools.reduce(tirx.min, [tirx.Cast("int64", size) for size in sizes], one)
    return tirx.For(tirx.Var("launch", "int64"), zero, count, tirx.ForKind.SERIAL, grid)


def _block_loops(body: Any) -> list[tirx.For]:
    """The loops bound to `blockIdx`, one for each axis of a grid."""
    found: list[tirx.For] = []

    def visit(loop: tirx.For) -> None:
        if _is_block_loop(loop):
            found.append(loop)

    tvm_ffi.structural_walk(body, (tirx.For, visit))
    return found


def _is_block_loop(loop: tirx.For) -> bool:
    is_bound = loop.kind == tirx.ForKind.THREAD_BINDING
    return is_bound and str(loop.thread_binding.thread_tag).startswith("blockIdx")


def bind_to_one_thread(module: tvm.IRModule) -> tvm.IRModule:
    """Give every kernel without threads one: those that looplift writes, and those of no rule.

    TVM would otherwise compile it for the host, which cannot read the memory of a GPU.

    UnsupportedError: the kernel was written for the vectors of a CPU.
    """
    for variable, kernel in list(module.functions_items()):
        if isinstance(kernel, tirx.PrimFunc) and not _has_threads(kernel):
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
    if max(int(number) for number in lanes) > 1:
        raise UnsupportedError(
            f"a pass has made the kernel {name!r} for a CPU",
            remedy="Run the passes of looplift.transform with the GPU as the target",
        )


def _has_threads(kernel: tirx.PrimFunc) -> bool:
    found: list[Any] = []

    def visit(loop: Any) -> None:
        if loop.kind == tirx.ForKind.THREAD_BINDING:
            found.append(loop)

    def visit_attribute(statement: Any) -> None:
        if statement.attr_key == "thread_extent":  # in kernels that TVM builds without schedules
            found.append(statement)

    callbacks = [(tirx.For, visit), (tirx.AttrStmt, visit_attribute)]
    tvm_ffi.structural_walk(kernel.body, callbacks)
    return bool(found)


def _on_one_thread(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    realized = isinstance(kernel.body, s_tir.SBlockRealize)
    body = kernel.body.block.body if realized else kernel.body
    buffers = kernel.body.block.alloc_buffers if realized else []
    zero, one = tirx.const(0, "int32"), tirx.const(1, "int32")
    for thread in reversed(_THREADS):
        loop = tirx.Var(thread.replace(".", "_"), "int32")
        binding = tirx.IterVar(ir.Range(zero, one), loop, tirx.IterVar.ThreadIndex, thread)
        body = tirx.For(loop, zero, one, tirx.ForKind.THREAD_BINDING, body, binding)
    block = s_tir.SBlock([], [], [], "root", body, None, buffers)
    return kernel.with_body(s_tir.SBlockRealize([], True, block))
