"""Moves calls of small kernels to the earliest dataflow blocks that have their operands.

Blocks that define and check sizes lie between dataflow blocks, and only calls in one block can
become one kernel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, relax

from .small_calls import SmallKernels, is_dataflow, is_local, is_small_call, variables_in


def with_early_calls(blocks: list[Any], kernels: SmallKernels) -> list[Any]:
    """Blocks with calls of small kernels in the earliest dataflow blocks that have their operands,
    and there as early as possible.

    A check of sizes may be what keeps a later kernel from a division by 0, or from a read outside
    of a tensor: only kernels that cannot fail move.
    """
    defined: dict[Any, int] = {}
    """The block that defines a variable or the name of a size; what is not in it comes before."""
    found: list[list[Any]] = []
    moves: dict[Any, bool] = {}
    """Whether a variable is a result of a small kernel, or a field of one."""
    for number, block in enumerate(blocks):
        found.append([])
        for binding in block.bindings:
            home = number
            value = binding.value
            if isinstance(value, relax.TupleGetItem):
                moves[binding.var] = moves.get(value.tuple_value, False)
            else:
                moves[binding.var] = is_small_call(binding, kernels)
            if moves[binding.var] and _cannot_fail(value, kernels):
                home = max((defined.get(v, 0) for v in variables_in(value)), default=0)
                while not is_dataflow(blocks[home]) and home < number:
                    home += 1
            found[home].append(binding)
            defined[binding.var] = home
            if isinstance(binding, relax.MatchCast):
                sizes: list[Any] = []
                tvm_ffi.structural_walk(binding.ty, (ir.Var, sizes.append))
                for size in sizes:
                    defined.setdefault(size, home)
    visible = {
        v: relax.Var(v.name, v.ty)
        for number, bindings in enumerate(found)
        for binding in bindings
        for v in variables_in(binding.value)
        if is_local(v) and defined.get(v, number) != number
    }
    blocks = [
        type(block)(_with_early(bindings, moves) if is_dataflow(block) else bindings)
        for block, bindings in zip(blocks, found, strict=True)
        if bindings
    ]
    if not visible:
        return blocks
    renamed = (ir.Var, lambda variable: visible.get(variable, variable))
    return [tvm_ffi.structural_map(block, renamed, order="post") for block in blocks]


def _with_early(bindings: Sequence[Any], moves: Mapping[Any, bool]) -> list[Any]:
    """The bindings of a block, some of them as soon as they have their operands."""
    inside = {binding.var: binding for binding in bindings}
    readers: dict[Any, list[Any]] = {}
    missing: dict[Any, int] = {}
    for binding in bindings:
        operands = {v for v in variables_in(binding.value) if v in inside}
        missing[binding.var] = len(operands)
        for operand in operands:
            readers.setdefault(operand, []).append(binding)
    ordered: list[Any] = []
    done: set[Any] = set()

    def add(first: Any) -> None:
        ready = deque([first])
        while ready:
            binding = ready.popleft()
            ordered.append(binding)
            done.add(binding.var)
            for reader in readers.get(binding.var, ()):
                missing[reader.var] -= 1
                if not missing[reader.var] and moves[reader.var]:
                    ready.append(reader)

    for binding in bindings:
        if moves[binding.var] and not missing[binding.var] and binding.var not in done:
            add(binding)
    for binding in bindings:
        if binding.var not in done:
            add(binding)
    return ordered


def _cannot_fail(value: Any, kernels: SmallKernels) -> bool:
    """Whether a value is a field, or a call of a kernel that can run on any operands."""
    return isinstance(value, relax.TupleGetItem) or kernels.is_total(value.args[0])
