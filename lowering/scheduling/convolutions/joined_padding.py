"""Padding of computed amounts as a part of the convolution or the pooling that reads it.

    lv = call_tir(pad, (x, before, after))      ->      call_tir(conv2d, (x, w, before, after))
    call_tir(conv2d, (lv, w))

The importer pads apart from a convolution where only a run knows by how much, as for SAME with a
stride. The schedule rules take padding of any amount, and copy no padded image.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ..kernels.nests import inlined
from ..products.convolution_form import (
    convolution_of,
    is_padding,
    maximum_of,
    sum_of,
)
from ..relax.dataflow import with_body
from ..relax.joined_kernels import without_unused
from ..relax.joint_kernel import called_together
from ..relax.size_names import name_kernel_sizes

_CALL_TIR = ir.Op.get("relax.call_tir")


def join_padding(module: tvm.IRModule) -> tvm.IRModule:
    """The module with one kernel for a padding and the windows that alone read it."""
    kernels = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
    if not any(map(is_padding, kernels)):
        return module
    # TVM does not see that windows stay within a size that is computed.
    module = name_kernel_sizes(module)
    builder = relax.BlockBuilder(module)
    replaced: list[Any] = []

    def joined(block: Any) -> Any:
        bindings = list(block.bindings)
        reads = Counter(v for b in bindings for v in relax.analysis.free_vars(b.value))
        made: dict[Any, Any] = {}
        """The new binding of each window."""
        gone: set[Any] = set()
        for padding, window in _pairs(module, bindings, reads):
            if window.var in made:
                continue
            both = called_together(module, builder, [padding, window], [window.var], _is_window)
            if both is not None:
                replaced.extend(b.value.args[0] for b in (padding, window))
                made[window.var] = both
                gone.add(padding.var)
        if not made:
            return block
        return relax.DataflowBlock([made.get(b.var, b) for b in bindings if b.var not in gone])

    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function):
            body = tvm_ffi.structural_map(
                function.body, (relax.DataflowBlock, joined), order="post"
            )
            builder.update_func(variable, with_body(function, body))
    return without_unused(relax.transform.Normalize()(builder.get()), replaced)


def _pairs(
    module: tvm.IRModule, bindings: list[Any], reads: Counter[Any]
) -> Iterator[tuple[Any, Any]]:
    """The bindings of each padding, and of the kernel call that alone reads it."""
    paddings: dict[Any, Any] = {}
    for binding in bindings:
        call = binding.value
        if not isinstance(call, ir.Call) or not call.op.same_as(_CALL_TIR):
            continue
        if not isinstance(call.ty, relax.TensorType) or not isinstance(call.args[1], relax.Tuple):
            continue
        for argument in call.args[1].fields:
            if argument in paddings:
                yield paddings.pop(argument), binding
        is_read_once = isinstance(binding.var, relax.DataflowVar) and reads[binding.var] == 1
        kernel = module[call.args[0]]
        if is_read_once and isinstance(kernel, tirx.PrimFunc) and is_padding(kernel):
            paddings[binding.var] = binding


def _is_window(kernel: tirx.PrimFunc) -> bool:
    """Whether a schedule rule knows a kernel as a convolution or a pooling of padded data."""
    plain = inlined(kernel)
    found = convolution_of(plain) or maximum_of(plain) or sum_of(plain)
    return found is not None and found.is_padded
