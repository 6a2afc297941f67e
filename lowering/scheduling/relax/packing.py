"""Packs constant operands at compile time, in the layout that kernels ask for.

A schedule rule marks the block that packs a weight with `meta_schedule.layout_rewrite_preproc`.
TVM's `SplitLayoutRewritePreproc` takes it out of the kernel. `FoldConstant` would then compile and
load a library for each weight. Here NumPy packs those that are only copied (`constant_copies`), and
one library packs the others. What packed them does not stay in the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx
from tvm.tirx.script import builder as ib

from ...values import Constant
from ..kernels.affine import flat_index, int64, product
from .constant_copies import KNOWN_TO_NUMPY, constant_copy
from .dataflow import with_body

_MARK = "meta_schedule.layout_rewrite_preproc"
_PACKER = "_weight_prepack"
"""What SplitLayoutRewritePreproc adds to a kernel's name for the function that packs its weight."""
_CALL_TIR = ir.Op.get("relax.call_tir")


_CONSTANT_OPERANDS = "layout_free_buffers"
"""TVM's attribute for the positions of parameters whose layout a kernel may choose."""


def mark_constant_operands(module: tvm.IRModule) -> tvm.IRModule:
    """The module with `layout_free_buffers` on each kernel whose calls all pass constants there.

    TVM's AttachAttrLayoutFreeBuffers does the same for each call, on a copy of the kernel. In TVM
    0.27 the copy of a kernel from DispatchSortScan names sizes that it does not define.
    """
    for variable, positions in constant_operands(module).items():
        kernel = module[variable]
        if positions and isinstance(kernel, tirx.PrimFunc):
            module[variable] = kernel.with_attr(_CONSTANT_OPERANDS, sorted(positions))
    return module


def constant_operands(module: tvm.IRModule) -> dict[Any, set[int]]:
    """The positions of the parameters for which all calls of a kernel pass constants."""
    constant: dict[Any, set[int]] = {}

    def visit(call: Any) -> None:
        if not isinstance(call.op, ir.Op) or not call.args:
            return
        kernel = call.args[0]
        if isinstance(kernel, ir.GlobalVar):
            operands = call.args[1] if call.op.same_as(_CALL_TIR) else ()
            found = {k for k, value in enumerate(operands) if isinstance(value, Constant)}
            constant[kernel] = constant.get(kernel, found) & found

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            tvm_ffi.structural_walk(function.body, (ir.Call, visit))
    return constant


def is_constant_operand(kernel: tirx.PrimFunc, buffer: Any) -> bool:
    """Whether a parameter is marked as constant: the kernel may pack it at compile time."""
    places = (kernel.attrs or {}).get(_CONSTANT_OPERANDS) or []
    return any(kernel.params[int(place)].same_as(buffer) for place in places)


def pack_weights(
    kernel: tirx.PrimFunc,
    source: Any,
    shape: Sequence[Any],
    element: Callable[..., Any],
    dtype: str = "float32",
    room: int = 0,
) -> Any:
    """Emits a block that fills a new buffer; returns the buffer.

    `element` gives the value at some places in an expression that reads only `source`. Where that
    is a constant operand and the shape is static, the module is compiled with the packed constant.
    With `room`, the buffer is flat and has that many more elements. They are 0 in a packed
    constant, and undefined where the kernel packs at run time.
    """
    total = product(shape) + room
    packed = ib.sblock_alloc_buffer((total,) if room else tuple(shape), dtype)
    with ib.grid(*shape) as loops, ib.sblock("pack"):
        loops = loops if len(shape) > 1 else [loops]  # `grid` gives a list for several loops only
        places = [ib.axis.spatial(extent, loop) for extent, loop in zip(shape, loops, strict=True)]
        if is_constant_operand(kernel, source) and all(
            isinstance(size, tirx.IntImm) for size in shape
        ):
            ib.sblock_attr({_MARK: True})
        ib.reads([source[tuple(slice(int64(0), size) for size in source.shape)]])
        target = [flat_index(shape, places)] if room else places
        ib.writes([packed[tuple(target)]])
        ib.buffer_store(packed, element(*places), target)
    return packed


def or_zero(element: Any, index: Any, size: Any, tile: int) -> Any:
    """The element at an index below a size, and zero for the rest of the last tile."""
    if isinstance(size, tirx.IntImm) and int(size) % tile == 0:
        return element
    return tirx.if_then_else(index < size, element, tirx.const(0, element.ty.dtype))


def pack_constants(module: tvm.IRModule) -> tvm.IRModule:
    """The module with packed constants in place of those that its kernels pack themselves."""
    kernels = [item for item in module.functions_items() if isinstance(item[1], tirx.PrimFunc)]
    # SplitLayoutRewritePreproc in TVM 0.27 fails on kernels without blocks: it does not see them.
    hidden = {variable: kernel for variable, kernel in kernels if not _packs(kernel)}
    if len(hidden) == len(kernels):
        return module
    for variable in hidden:
        del module[variable]
    module = relax.transform.SplitLayoutRewritePreproc()(module)
    packers = {
        variable: function
        for variable, function in module.functions_items()
        if variable.name_hint.endswith(_PACKER)
    }
    for variable, kernel in hidden.items():
        module[variable] = kernel
    # SplitLayoutRewritePreproc leaves the kernels that it split.
    return relax.transform.DeadCodeElimination()(_evaluated(module, packers))


def _packs(kernel: tirx.PrimFunc) -> bool:
    """Whether a block of a kernel is marked as packing a constant."""
    found: list[Any] = []

    def visit(block: Any) -> None:
        if _MARK in block.annotations:
            found.append(block)

    tvm_ffi.structural_walk(kernel.body, (s_tir.SBlock, visit))
    return bool(found)


def _evaluated(module: tvm.IRModule, packers: dict[Any, Any]) -> tvm.IRModule:
    """The module with the results of calls of packers, and without the packers."""
    copies = {variable: constant_copy(packer) for variable, packer in packers.items()}
    others = [variable for variable, copy in copies.items() if copy is None]
    compiled = compiled_kernels(module, others) if others else {}

    def evaluate(call: Any) -> Any:
        if not call.op.same_as(_CALL_TIR) or call.args[0] not in packers:
            return call
        kernel, operands = call.args
        run = copies[kernel] or compiled[kernel]
        return result_of(run, operands, call.ty_args[0])

    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function):
            body = tvm_ffi.structural_map(function.body, (ir.Call, evaluate), order="post")
            module[variable] = with_body(function, body)
    for variable in packers:
        del module[variable]
    return module


def compiled_kernels(module: tvm.IRModule, kernels: Iterable[Any]) -> dict[Any, Any]:
    """The compiled kernels by their variables, for the processor this runs on.

    LLVM does not optimise them: most run once, for less time than optimising would take.
    """
    named = {
        variable.name_hint: module[variable].with_attr("global_symbol", variable.name_hint)
        for variable in kernels
    }
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    library = tvm.compile(tvm.IRModule(named), target)
    return {variable: library[variable.name_hint] for variable in kernels}


def result_of(kernel: Any, operands: Sequence[Any], result: Any) -> Any:
    """The result of a kernel on constants, as a constant of the type `result`."""
    value = tvm.runtime.empty([int(size) for size in result.shape], str(result.dtype))
    if str(result.dtype) in KNOWN_TO_NUMPY:  # What no kernel writes is 0.
        np.from_dlpack(value)[...] = 0
    kernel(*(operand.value for operand in operands), value)
    return relax.const(value)
