"""The Relax pipeline `looplift`: what TVM does by default, and what makes its kernels fast.

    tvm.compile(module, target="llvm", relax_pipeline="looplift")

TVM's default for CPUs neither fuses operators nor schedules the kernels it makes of them. This
pipeline does both, for kernels of static and of dynamic shape. For GPUs, it schedules kernels with
TVM's `dlight`, after passes that let these rules take any module (`gpu`). For other targets that
LLVM does not compile for, it is TVM's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, sym, tirx
from tvm.s_tir import dlight, meta_schedule
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ..processor import is_for_gpu, is_for_llvm
from ..transform import FuseLoops, InlineLoops, LowerRecurrent
from .codegen.argument_checks import (
    accept_any_alignment,
    drop_guaranteed_checks,
    mark_guaranteed_arguments,
    mark_size_functions,
)
from .codegen.compaction import COMPACTED, COMPACTION, compact_buffers
from .codegen.shared_bodies import share_loop_bodies
from .codegen.thread_pool import use_thread_pool
from .convolutions.channel_lanes import ChannelLanes
from .convolutions.channel_panels import ChannelPanels
from .convolutions.channels_last import ChannelsLast
from .convolutions.convolution import Convolution
from .convolutions.far_taps import FarTaps
from .convolutions.few_positions import FewPositions
from .convolutions.joined_padding import join_padding
from .convolutions.pointwise import Pointwise
from .convolutions.pooling import Pooling
from .convolutions.winograd import Winograd
from .functions.shared_functions import forbid_inlining
from .gpu import (
    bind_to_one_thread,
    branch_for_selects,
    drop_unit_reductions,
    name_parameters,
    replace_fast_intrinsics,
    schedule_for_gpu,
    skip_empty_grids,
    spell_out_arithmetic,
    sum_along_last_axis,
)
from .injective.concatenation import Concatenation
from .injective.elementwise import Elementwise
from .injective.interleaving import Interleaving
from .injective.ordered_copies import OrderedCopy
from .injective.tabulated_copies import TabulatedCopy
from .injective.transposition import Transposition
from .kernels.affine import static_size
from .kernels.emission import SCHEDULED
from .kernels.map_kernels import map_bodies, map_kernels
from .kernels.math_functions import FAST_MATH, expand_functions, outline_functions
from .kernels.schedule import schedule_kernel
from .layouts.image_layout import choose_image_layouts
from .legalization.batch_norm import decompose_batch_norms
from .legalization.cumulative import accumulate_rows
from .legalization.extremes import drop_second_extremes
from .legalization.legalize import legalize_operators
from .legalization.transposed_concatenations import keep_concatenations_apart
from .legalization.transposed_convolution import split_into_phases
from .legalization.transposed_operands import absorb_transpositions
from .legalization.unused_taps import drop_unused_taps
from .legalization.volume_convolution import split_volumes
from .legalization.volume_pooling import pool_by_planes
from .linking import link_micro_kernels
from .products.byte_products import ByteProduct
from .products.few_bits import multiply_packed_weights
from .products.matmul import MatrixProduct
from .reductions.column_sums import ColumnSums
from .reductions.reduction import RowReduction
from .relax.constant_folding import fold_constant_calls
from .relax.dataflow import split_blocks
from .relax.idle_calls import drop_idle_calls, inline_identities, read_sizes_once
from .relax.internal_calls import drop_proven_checks, inline_iterations, mark_proven_arguments
from .relax.joined_kernels import join_small_kernels
from .relax.kernel_merging import merge_kernels
from .relax.memory_plan import plan_memory
from .relax.packing import mark_constant_operands, pack_constants
from .relax.reshapes import restore_reshapes
from .relax.shared_shapes import share_shapes
from .relax.size_checks import check_sizes, mark_equal_sizes
from .relax.size_names import ELEMENTWISE, INJECTIVE, OPAQUE, name_kernel_sizes, name_sizes
from .relax.storage_sizes import limit_storage_sizes
from .relax.trip_counts import pass_trip_counts

_CALL_TIR = ir.Op.get("relax.call_tir")

NAME = "looplift"
RULES = (
    OrderedCopy(),
    FewPositions(),
    MatrixProduct(),
    ByteProduct(),
    Winograd(),
    ChannelLanes(),
    ChannelsLast(),
    Pooling(),
    Pointwise(),
    FarTaps(),
    ChannelPanels(),
    Convolution(),
    Interleaving(),
    Elementwise(),
    Concatenation(),
    Transposition(),
    TabulatedCopy(),
    ColumnSums(),
    RowReduction(),
)
"""The schedule rules for CPUs, in the order in which they are tried."""
_MOST_FUSED = "relax.FuseOps.max_depth"
"""The option of FuseOps for the most operators that become one kernel."""


def looplift_pipeline(*, fuse_loops: bool = True) -> Any:
    """The pipeline, a pass for the target in whose scope it runs; a CPU if there is none.

    Without `fuse_loops`, the virtual machine runs the iterations of every loop.
    """
    return tvm.transform.module_pass(
        lambda module, _: _run(module, fuse_loops), opt_level=0, name="looplift.pipeline"
    )


def lower_to_kernels(module: tvm.IRModule) -> tvm.IRModule:
    """The module with fused kernels that have no schedule yet, for the CPU target in scope. Only
    those that compute a few numbers have one.

    These are the kernels to tune: the pipeline takes what TVM's MetaSchedule finds for them from
    the database in whose scope it runs.

        with target:
            MetaScheduleTuneIRMod({}, folder, max_trials_global=64)(lower_to_kernels(module))
        with JSONDatabase(work_dir=folder):
            looplift.compile(module, target)
    """
    return _to_kernels()(_without_loops(module, fuse_loops=True))


def _run(module: tvm.IRModule, fuse_loops: bool) -> tvm.IRModule:
    target = tvm.target.Target.current(allow_none=True) or tvm.target.Target("llvm")
    with target:
        if is_for_llvm():
            module = _module_pass(mark_equal_sizes)(module)
        inference = _without_loops(module, fuse_loops)
        if is_for_llvm():
            return _for_cpu()(inference)
        if not is_for_gpu():  # such as C source
            return relax.get_pipeline("default")(inference)
        return _for_gpu(target)(inference)


def _without_loops(module: tvm.IRModule, fuse_loops: bool) -> tvm.IRModule:
    return tvm.transform.Sequential(
        [
            _module_pass(decompose_batch_norms),
            _module_pass(read_sizes_once),
            relax.transform.DecomposeOpsForInference(),
            LowerRecurrent(),
            *([FuseLoops()] if fuse_loops else []),
            InlineLoops(),
        ]
    )(module)


def _for_cpu() -> Any:
    passes = relax.transform
    return tvm.transform.Sequential(
        [
            _to_kernels(),
            _module_pass(_apply_database),
            _module_pass(_drop_empty_results),
            dlight.ApplyDefaultSchedule(*RULES),
            _module_pass(pack_constants),
            _module_pass(_schedule_kernels),
            _module_pass(merge_kernels),
            _module_pass(compact_buffers),
            _module_pass(pass_trip_counts),
            _module_pass(inline_iterations),
            _module_pass(mark_proven_arguments),
            _module_pass(mark_guaranteed_arguments),
            passes.ToNonDataflow(),
            passes.RemovePurityChecking(),
            passes.CallTIRRewrite(),
            _module_pass(_allocate_empty_constants),
            _module_pass(check_sizes),
            _module_pass(inline_identities),
            _module_pass(plan_memory),
            passes.LowerAllocTensor(),
            passes.KillAfterLastUse(),
            passes.LowerRuntimeBuiltin(),
            _module_pass(limit_storage_sizes),
            passes.ComputePrimValue(),
            _module_pass(share_shapes),
            passes.VMShapeLower(),
            _module_pass(mark_size_functions),
            _module_pass(drop_proven_checks),
            _module_pass(drop_idle_calls),
            passes.AttachGlobalSymbol(),
            _module_pass(link_micro_kernels),
            _module_pass(_keep_noalias),
        ]
    )


def _for_gpu(target: tvm.target.Target) -> Any:
    passes = relax.transform
    return tvm.transform.Sequential(
        [
            _module_pass(sum_along_last_axis),
            _to_kernels(),
            _module_pass(_apply_database),
            _module_pass(_drop_empty_results),
            _module_pass(name_parameters),
            _module_pass(drop_unit_reductions),
            schedule_for_gpu(target),
            _module_pass(bind_to_one_thread),
            _module_pass(replace_fast_intrinsics),
            _module_pass(branch_for_selects),
            _module_pass(spell_out_arithmetic),
            _module_pass(skip_empty_grids),
            passes.ToNonDataflow(),
            passes.RemovePurityChecking(),
            passes.CallTIRRewrite(),
            _module_pass(_allocate_empty_constants),
            *relax.pipeline.finalize_passes(target),
        ]
    )


def _to_kernels() -> Any:
    """The passes before schedules: operators become kernels, and kernels are fused."""
    passes = relax.transform
    return tvm.transform.Sequential(
        [
            relax.backend.DispatchSampling(),
            # Before the pass that makes TVM's kernels of cumulative operators.
            _module_pass(accumulate_rows),
            relax.backend.DispatchSortScan(),
            _module_pass(split_into_phases),
            _module_pass(drop_unused_taps),
            *([_module_pass(multiply_packed_weights)] if is_for_llvm() else []),
            _module_pass(split_volumes),
            _module_pass(pool_by_planes),
            _module_pass(absorb_transpositions),
            _module_pass(keep_concatenations_apart),
            _module_pass(drop_second_extremes),
            legalize_operators(),
            passes.AnnotateTIROpPattern(),
            _module_pass(fold_constant_calls),
            _module_pass(split_blocks),
            _module_pass(name_sizes),
            _module_pass(_keep_scalars_apart),
            _module_pass(_keep_sizes_apart),
            _module_pass(_mark_slices),
            tvm.transform.module_pass(_fuse_operators, opt_level=0, name="looplift.fuse_operators"),
            passes.FuseTIR(),
            _module_pass(_drop_scopes),
            *([_module_pass(join_padding)] if is_for_llvm() else []),
            _module_pass(choose_image_layouts),
            *([_module_pass(join_small_kernels)] if is_for_llvm() else []),
            # Before the schedule, which hides that a kernel only reshapes.
            _module_pass(restore_reshapes),
            # Fused kernels that differ in sizes only are compiled once.
            _module_pass(name_kernel_sizes),
            _module_pass(mark_constant_operands),
        ]
    )


def _fuse_operators(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
    """FuseOps with a limit, unless the caller has set one.

    The time to compile a kernel grows faster than the number of operators in it.
    """
    with _inner_context(context, config={_MOST_FUSED: 64, **dict(context.config)}):
        return relax.transform.FuseOps()(module)


def _inner_context(
    context: tvm.transform.PassContext, *, disabled: Sequence[str] = (), config: dict[str, Any]
) -> tvm.transform.PassContext:
    """A context within another one, without its instruments, which would end with it."""
    return tvm.transform.PassContext(
        context.opt_level, list(context.required_pass),
        [*context.disabled_pass, *disabled], [], config,
    )  # fmt: skip


def _apply_database(module: tvm.IRModule) -> tvm.IRModule:
    """Take the schedules that a tuning database in scope holds; no rule changes those kernels."""
    if not meta_schedule.Database.current():
        return module
    return relax.transform.MetaScheduleApplyDatabase()(module)


def _keep_scalars_apart(module: tvm.IRModule) -> tvm.IRModule:
    """Do not fuse kernels that take a scalar before a tensor, which make tensors of sizes.

    FuseTIR in TVM 0.27 fails where such a kernel meets one that takes sizes after the tensors.
    """

    def marked(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        return kernel.with_attr("op_pattern", OPAQUE) if _takes_scalar(kernel) else kernel

    return map_kernels(module, marked)


def _keep_sizes_apart(module: tvm.IRModule) -> tvm.IRModule:
    """Do not fuse a kernel if a caller passes two expressions for one of its sizes.

    FuseTIR in TVM 0.27 keeps both, and leaves a buffer undeclared.
    """
    apart: set[Any] = set()

    def visit(call: Any) -> None:
        if not call.op.same_as(_CALL_TIR) or not isinstance(call.args[1], relax.Tuple):
            return
        results = call.ty_args[0]
        results = list(results.fields) if isinstance(results, relax.TupleType) else [results]
        types = [*(field.ty for field in call.args[1].fields), *results]
        given: dict[Any, Any] = {}
        for param, kind in zip(module[call.args[0]].params, types, strict=False):
            sizes = getattr(getattr(kind, "shape", None), "values", None)
            if not _is_tensor(param) or sizes is None:
                continue
            for name, size in zip(param.shape, sizes, strict=True):
                if isinstance(name, ir.Var):
                    known = given.setdefault(name, size)
                    if not tvm_ffi.structural_equal(known, size):
                        apart.add(call.args[0])

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            tvm_ffi.structural_walk(function.body, (ir.Call, visit))
    for variable in apart:
        module[variable] = module[variable].with_attr("op_pattern", OPAQUE)
    return module


def _takes_scalar(kernel: tirx.PrimFunc) -> bool:
    """Whether a scalar stands before a tensor among the parameters."""
    is_tensor = [_is_tensor(param) for param in kernel.params]
    return any(not before and after for before, after in itertools.pairwise(is_tensor))


def _is_tensor(param: Any) -> bool:
    return hasattr(param, "shape")


def _mark_slices(module: tvm.IRModule) -> tvm.IRModule:
    """Keep FuseOps from fusing a slice after a product, which would be larger than its result.

    TVM takes a slice from the start for elementwise: it reads and writes the same indices.
    """

    def marked(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        return kernel.with_attr("op_pattern", INJECTIVE) if _may_slice(kernel) else kernel

    return map_kernels(module, marked)


def _may_slice(kernel: tirx.PrimFunc) -> bool:
    """Whether a kernel taken for elementwise may read a tensor larger than its result."""
    if not kernel.attrs or kernel.attrs.get("op_pattern") != ELEMENTWISE:
        return False
    *given, result = [list(param.shape) for param in kernel.params if _is_tensor(param)]
    equal = sym.Analyzer().can_prove_equal

    def differs(size: Any, of_result: Any) -> bool:
        return not equal(size, of_result) and not equal(size, 1)

    return any(len(shape) == len(result) and any(map(differs, shape, result)) for shape in given)


def _drop_scopes(module: tvm.IRModule) -> tvm.IRModule:
    """Remove `pragma_scope` from TVM's scatter kernels: its code generator warns of it."""

    def without(statement: Any) -> Any:
        return statement.body if statement.attr_key == "pragma_scope" else statement

    return map_bodies(module, (tirx.AttrStmt, without))


def _drop_empty_results(module: tvm.IRModule) -> tvm.IRModule:
    """Replace the bodies of kernels whose results are known to have no elements by nothing.

    No rule changes them then: TVM's simplifier fails on a division by a size that it knows to be 0.
    """

    def dropped(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        if SCHEDULED in (kernel.attrs or {}) or not _has_no_elements(kernel.params[-1]):
            return kernel
        nothing = tirx.Evaluate(tirx.const(0, "int32"))
        body = kernel.body if _writes_elements(kernel) else nothing
        return kernel.with_body(body).with_attr(SCHEDULED, True)

    return map_kernels(module, dropped)


def _writes_elements(kernel: tirx.PrimFunc) -> bool:
    """Whether the kernel writes a parameter that may have elements."""
    nonempty = [
        param for param in kernel.params if _is_tensor(param) and not _has_no_elements(param)
    ]
    found: list[Any] = []

    def visit(store: tirx.BufferStore) -> None:
        if any(store.buffer.same_as(param) for param in nonempty):
            found.append(store)

    tvm_ffi.structural_walk(kernel.body, (tirx.BufferStore, visit))
    return bool(found)


def _has_no_elements(param: Any) -> bool:
    return _is_tensor(param) and any(static_size(size) == 0 for size in param.shape)


def _schedule_kernels(module: tvm.IRModule) -> tvm.IRModule:
    """Schedule the kernels that have no schedule yet, for a CPU."""

    def scheduled(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        found = schedule_kernel(kernel)
        return kernel if found is kernel else found.with_attr(FAST_MATH, True)

    return map_kernels(module, scheduled)


def _allocate_empty_constants(module: tvm.IRModule) -> tvm.IRModule:
    """Allocate the constants without elements, which need no values.

    An executable of TVM 0.27 cannot be loaded from a file if the first size of one is not 0.
    """
    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function):
            module[variable] = _EmptyConstants(module).visit_expr(function)
    return module


@relax.expr_functor.mutator
class _EmptyConstants(relax.PyExprMutator):  # type: ignore[misc]
    """Replaces constants without elements by allocations."""

    def visit_generic_const_(self, constant: Any) -> Any:
        value = constant.value
        if not isinstance(value, tvm.runtime.Tensor) or 0 not in value.shape:
            return constant
        shape = relax.ShapeExpr(value.shape)
        return self.builder_.emit(relax.op.builtin.alloc_tensor(shape, str(value.dtype), 0))


def _keep_noalias(module: tvm.IRModule) -> tvm.IRModule:
    """Add an empty kernel, last by name, that promises not to get overlapping buffers.

    LLVM code generation in TVM 0.27 takes that promise from the kernel it declares last and
    applies it to all. With symbolic sizes that is one which makes none, and every kernel then
    reloads from memory what it has just written.
    """
    last = max((variable.name_hint for variable in module.get_global_vars()), default="")
    name = "zz_noalias" if last < "zz_noalias" else f"{last}_noalias"
    with IRBuilder() as builder, ib.prim_func(s_tir=True):
        ib.func_name(name)
        ib.func_attr({"global_symbol": name, "tirx.noalias": True, "tirx.is_scheduled": True})
        ib.evaluate(tirx.const(0, "int32"))
    module[name] = builder.get()
    return module


def _module_pass(function: Any) -> Any:
    """A pass of a function from module to module."""
    name = f"looplift.{function.__name__.strip('_')}"
    return tvm.transform.module_pass(lambda module, _: function(module), opt_level=0, name=name)


_LEFT_OUT = (
    # LLVM does the same.
    "tirx.RemoveNoOp",
    "s_tir.HoistIfThenElse",
    "s_tir.RenormalizeSplitPattern",
    # tirx.StmtSimplify follows, once vectors are made.
    "s_tir.StmtSimplify",
    # Indices keep the 64 bits of addresses.
    "tirx.NarrowDataType",
    # For GPUs and other accelerators.
    "s_tir.InjectPermutedLayout",
    "s_tir.InjectSoftwarePipeline",
    "s_tir.LiftThreadBinding",
    "s_tir.LowerAutoCopy",
    "s_tir.UnifyThreadBinding",
    "s_tir.TransformMmaBufferLayout",
    "s_tir.InjectVirtualThread",
    "s_tir.InjectDoubleBuffer",
    "s_tir.LowerVtcmAlloc",
    "s_tir.VerifyVTCMLimit",
    "s_tir.MergeSharedMemoryAllocations",
    "s_tir.ThreadSync",
    "s_tir.InferFragment",
    "s_tir.LowerThreadAllreduce",
)
"""TVM's passes that a CPU kernel does not need."""


def _kernel_pipeline() -> tuple[Any, Any, Any]:
    """TVM's pipeline for kernels, without what this pipeline has done or proven, and with functions
    written as arithmetic at the end.

    A module that `compact_buffers` returned is not compacted again. Instruments do not see the
    passes of such a module, because they would end with the inner context.
    """
    passes, for_host, for_device = _TVM_PIPELINE()

    def run(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        if COMPACTED not in (module.attrs or {}):
            return outline_functions(passes(_with_micro_kernels(module)))
        left_out = (COMPACTION, *_LEFT_OUT)
        with _inner_context(context, disabled=left_out, config=dict(context.config)):
            checked = drop_guaranteed_checks(passes(module))
            return outline_functions(accept_any_alignment(checked))

    name = "looplift.kernel_pipeline"
    finish = tvm.transform.Sequential(
        [
            for_host(),
            _module_pass(forbid_inlining),
            _module_pass(share_loop_bodies),
            _module_pass(use_thread_pool),
            _module_pass(expand_functions),
        ]
    )
    return tvm.transform.module_pass(run, opt_level=0, name=name), lambda: finish, for_device


def _with_micro_kernels(module: tvm.IRModule) -> tvm.IRModule:
    """The module with the micro-kernels that its kernels call, if another pipeline has scheduled
    these by looplift's rules.
    """
    kernels = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
    target = next((f.attrs["target"] for f in kernels if "target" in f.attrs), None)
    if target is None:
        return module
    known = set(module.get_global_vars())
    with target:
        module = link_micro_kernels(module)
    for variable, function in list(module.functions_items()):
        if variable not in known:
            module[variable] = function.with_attr("target", target)
    return module


relax.register_pipeline(NAME)(looplift_pipeline)
_TVM_PIPELINE = tirx.compilation_pipeline.PIPELINE_MAP["s_tir"]
# `tvm.compile` takes only pipelines for kernels that are registered, and this one by default.
tirx.register_tir_pipeline("s_tir", _kernel_pipeline)
