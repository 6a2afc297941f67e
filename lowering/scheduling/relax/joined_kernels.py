"""Joins kernels that compute a few numbers each: one call computes them all.

    lv = call_tir(take, (starts, i))              gv = call_tir(joined_take_add, (starts, i, n))
    lv1 = call_tir(add, (lv, n))          ->      lv1 = gv[0]
    lv2 = call_tir(take, (ends, i))               lv2 = gv[1]

Models compute sizes, positions and conditions with small tensors. A kernel for one of them takes
the virtual machine longer to call, and to allocate a result for, than it takes to run; in the body
of a loop, that happens in each iteration. FuseOps joins elementwise operators only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax

from .dataflow import with_body
from .early_calls import with_early_calls
from .joint_kernel import CallGroup, JointKernel
from .small_calls import SmallKernels, is_dataflow, is_local, is_small_call

_CALL_IN_PLACE = ir.Op.get("relax.call_tir_inplace")
_MOST_KERNELS = 32
"""The most kernels that become one: the time to compile it grows with their number."""
_LONGEST_NAME = 64


def join_small_kernels(module: tvm.IRModule) -> tvm.IRModule:
    """The module with one call for several calls of small kernels.

    A small kernel moves to the earliest dataflow block that has its operands, and kernels between
    two of them that need none of their results run first.
    """
    builder = relax.BlockBuilder(module)
    kernels = SmallKernels(module)

    def joined(body: Any) -> Any:
        blocks = with_early_calls(list(body.blocks), kernels)
        reads = Counter(relax.analysis.free_vars(body.body))
        for block in blocks:
            for binding in block.bindings:
                reads.update(relax.analysis.free_vars(binding.value))
        for number, block in enumerate(blocks):
            if is_dataflow(block):
                blocks[number] = _Joining(module, builder, kernels, reads).block(block)
        return relax.SeqExpr(blocks, body.body)

    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function):
            body = tvm_ffi.structural_map(function.body, (relax.SeqExpr, joined), order="post")
            builder.update_func(variable, with_body(function, body))
    return without_unused(relax.transform.Normalize()(builder.get()), kernels.known())


class _Joining:
    """Joins the small kernels of a dataflow block."""

    def __init__(
        self,
        module: tvm.IRModule,
        builder: Any,
        kernels: SmallKernels,
        reads: Counter[Any],
    ) -> None:
        self._module = module
        self._builder = builder
        self._kernels = kernels
        self._reads = reads
        """How many bindings read each variable, in all blocks of the body."""
        self._whole: Counter[Any] = Counter()
        """How often the bindings of the block read each variable, other than for a field."""
        self._fields: dict[Any, list[Any]] = {}
        """The bindings of the fields of each tuple."""
        self._members: set[Any] = set()
        """The variables of the calls that are or were in a group."""
        self._group = CallGroup()
        self._bindings: list[Any] = []
        self._has_joined = False

    def block(self, block: Any) -> Any:
        """The block with joined kernels; the block itself if there are none."""
        reads = [relax.analysis.free_vars(binding.value) for binding in block.bindings]
        for binding, read in zip(block.bindings, reads, strict=True):
            if isinstance(binding.value, relax.TupleGetItem):
                self._fields.setdefault(binding.value.tuple_value, []).append(binding)
            else:
                self._whole.update(read)
        for binding, read in zip(block.bindings, reads, strict=True):
            if self._takes(binding):
                if len(self._group.calls) == _MOST_KERNELS:
                    self._flush()
                self._group.add(binding, self._fields.get(binding.var, ()))
                self._members.add(binding.var)
            elif not self._is_field_of_member(binding):
                if self._reads_group(read) or _writes_in_place(binding.value):
                    self._flush()
                self._bindings.append(binding)
        self._flush()
        return relax.DataflowBlock(self._bindings) if self._has_joined else block

    def _takes(self, binding: Any) -> bool:
        """Whether a binding is a call of a small kernel."""
        is_whole = self._whole[binding.var] > 0 or not is_local(binding.var)
        if isinstance(binding.value.ty, relax.TupleType) and is_whole:
            return False
        return is_small_call(binding, self._kernels)

    def _is_field_of_member(self, binding: Any) -> bool:
        """Whether a binding is of a field of a call in a group, which binds it."""
        value = binding.value
        return isinstance(value, relax.TupleGetItem) and value.tuple_value in self._members

    def _reads_group(self, read: Sequence[Any]) -> bool:
        return any(variable in self._group.results for variable in read)

    def _flush(self) -> None:
        """Ends the group."""
        group, self._group = self._group, CallGroup()
        if len(group.calls) < 2:
            self._bindings += [*group.calls, *group.fields]
            return
        kernel = JointKernel(self._module, group)
        inside: Counter[Any] = Counter()
        for binding in (*group.calls, *group.fields):
            inside.update(relax.analysis.free_vars(binding.value))
        needed = [v for v in kernel.computed() if self._reads[v] > inside[v]]
        self._has_joined = True
        if not needed:
            return
        hints = [binding.value.args[0].name_hint for binding in group.calls]
        name = "_".join(["joined", *hints])[:_LONGEST_NAME]
        function = self._builder.add_func(kernel.function(needed), name)
        kinds = [variable.ty for variable in needed]
        call = relax.op.call_tir(function, relax.Tuple(kernel.arguments), kinds)
        if len(needed) == 1:
            self._bindings.append(relax.VarBinding(needed[0], call))
            return
        results = relax.DataflowVar("joined", relax.TupleType(kinds))
        self._bindings.append(relax.VarBinding(results, call))
        for number, variable in enumerate(needed):
            item = relax.TupleGetItem(results, number)
            self._bindings.append(relax.VarBinding(variable, item))


def _writes_in_place(value: Any) -> bool:
    """Whether a call writes to one of its arguments; what stands before it may read that."""
    return isinstance(value, ir.Call) and value.op.same_as(_CALL_IN_PLACE)


def without_unused(module: tvm.IRModule, kernels: Sequence[Any]) -> tvm.IRModule:
    """The module without those of some kernels that no function calls."""
    used: set[Any] = set()
    for function in module.functions.values():
        tvm_ffi.structural_walk(function.body, (ir.GlobalVar, used.add))
    for variable in dict.fromkeys(kernels):
        if variable not in used and "global_symbol" not in (module[variable].attrs or {}):
            del module[variable]
    return module
