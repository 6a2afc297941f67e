"""Merges kernels that differ only in numbers, which become arguments.

    call_tir(conv, (x, w))      # w: (64, 64, 3)        call_tir(conv, (x, w, 64, 3))
    call_tir(conv_1, (y, v))    # v: (32, 32, 7)  ->    call_tir(conv, (y, v, 32, 7))

The convolutions of a network differ in channels, taps and dilations, but a schedule rule writes the
same code for most of them: the inner loops are micro-kernels, which take these numbers as arguments
anyway. VITS has 239 kernels before and 185 after.

Kernels that no rule has written are not merged: they are fast because LLVM knows trip counts and
strides, or because they have been tuned.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx

from ..kernels.affine import int64
from ..kernels.emission import WRITTEN_BY_RULE
from .kernel_arguments import (
    CONSTANT_TRIPS,
    Arguments,
    called_kernels,
    with_numbers,
    with_other_kernels,
    with_parameters,
)

_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)
_STACK_BYTES = 1024
"""The size up to which TVM puts a buffer of constant size on the stack (kMaxStackAlloca)."""


def merge_kernels(module: tvm.IRModule) -> tvm.IRModule:
    """The module with one kernel for those that schedule rules wrote and that differ in numbers."""
    alike: dict[Any, list[_Kernel]] = {}
    for variable, arity in called_kernels(module).items():
        if WRITTEN_BY_RULE in (module[variable].attrs or {}):
            key, kernel = _kernel(variable, module[variable], arity)
            alike.setdefault(key, []).append(kernel)
    merged: dict[Any, tuple[tirx.PrimFunc, Arguments]] = {}
    for family in itertools.chain.from_iterable(map(_families, alike.values())):
        for kernel, *numbers in zip(family.kernels, *family.columns, strict=True):
            merged[kernel.variable] = family.merged, with_numbers(numbers)
    return with_other_kernels(module, merged)


@dataclass(frozen=True)
class _Kernel:
    """A kernel and the numbers in it, in the order of a traversal."""

    variable: Any
    function: tirx.PrimFunc
    arity: int
    """The number of parameters before those for results."""
    numbers: tuple[int, ...]


def _kernel(variable: Any, function: tirx.PrimFunc, arity: int) -> tuple[Any, _Kernel]:
    """A kernel, after a key that it shares with those that differ in numbers only."""
    numbers: list[int] = []

    def zero(number: Any) -> Any:
        numbers.append(int(number))
        return int64(0)

    form = tvm_ffi.convert([_with_numbers(function, zero), arity])
    key = tvm_ffi.StructuralKey(form)  # type: ignore[call-arg]
    return key, _Kernel(variable, function, arity, tuple(numbers))


def _with_numbers(function: tirx.PrimFunc, replace: Callable[[Any], Any]) -> tirx.PrimFunc:
    """The kernel with other 64-bit numbers in its parameters and its body."""

    def replaced(number: Any) -> Any:
        return replace(number) if number.ty.dtype == "int64" else number

    plain = tirx.PrimFunc(function.params, function.body, function.ret_type)
    plain = tvm_ffi.structural_map(plain, (tirx.IntImm, replaced), order="post")
    return tirx.PrimFunc(plain.params, plain.body, plain.ret_type, attrs=function.attrs)


class _Family:
    """Kernels that become one, and its new parameters."""

    def __init__(self, kernels: Sequence[_Kernel]) -> None:
        self.kernels = kernels
        rows = [kernel.numbers for kernel in kernels]
        columns = list(zip(*rows, strict=True))
        self.columns = list(dict.fromkeys(c for c in columns if len(set(c)) > 1))
        """For each new parameter, its value in each kernel."""
        params = [tirx.Var(f"number_{k}", "int64") for k in range(len(self.columns))]
        self._values = dict(zip(params, self.columns, strict=True))
        replacements = dict(zip(self.columns, params, strict=True))
        column = iter(columns)
        merged = _with_numbers(
            kernels[0].function, lambda number: replacements.get(next(column), number)
        )
        self.merged = with_parameters(merged, kernels[0].arity, params)

    def constant_columns(self) -> list[tuple[int, ...]]:
        """The columns that must stay constants: trip counts of vectors, divisors in the innermost
        loops, and sizes of buffers that a loop would otherwise allocate on the heap.
        """
        found: dict[tuple[int, ...], None] = {}

        def note(variable: Any) -> None:
            if variable in self._values:
                found[self._values[variable]] = None

        def note_all(expression: Any) -> None:
            tvm_ffi.structural_walk(expression, (ir.Var, note))

        def visit_loop(loop: Any) -> None:
            inner: list[Any] = []
            divisions: list[Any] = []
            callbacks = [
                (tirx.For, inner.append),
                (tirx.AllocBuffer, lambda allocation: visit_buffer(allocation.buffer)),
                (s_tir.SBlock, visit_block),
                (_DIVISIONS, divisions.append),
            ]
            tvm_ffi.structural_walk(loop.body, callbacks)
            if loop.kind in CONSTANT_TRIPS:
                note_all(loop.extent)
            elif all(each.kind in CONSTANT_TRIPS for each in inner):
                for division in divisions:
                    note_all(division.b)

        def visit_block(block: Any) -> None:
            for buffer in block.alloc_buffers:
                visit_buffer(buffer)

        def visit_buffer(buffer: Any) -> None:
            if self._is_small(buffer):
                note_all(list(buffer.shape))

        tvm_ffi.structural_walk(self.merged.body, (tirx.For, visit_loop))
        return list(found)

    def _is_small(self, buffer: Any) -> bool:
        """Whether TVM would put the buffer of one of the kernels on the stack."""
        smallest = tvm.DataType(str(buffer.dtype)).itemsize
        for size in buffer.shape:
            if isinstance(size, tirx.IntImm):
                smallest *= int(size)
            elif size in self._values:
                smallest *= min(self._values[size])
            else:
                return False
        return bool(smallest <= _STACK_BYTES)


def _families(kernels: Sequence[_Kernel]) -> Iterator[_Family]:
    """The kernels, which share a key, in families that agree in what must stay constant."""
    if len(kernels) < 2:
        return
    family = _Family(kernels)
    constants = family.constant_columns()
    if not constants:
        yield family
        return
    parts: dict[tuple[int, ...], list[_Kernel]] = {}
    for kernel, *numbers in zip(kernels, *constants, strict=True):
        parts.setdefault(tuple(numbers), []).append(kernel)
    for part in parts.values():
        yield from _families(part)
