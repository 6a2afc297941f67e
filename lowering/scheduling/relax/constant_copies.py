"""Kernels that copy the elements of a constant to other places, evaluated by NumPy.

Compiling such a kernel takes longer than running it. NumPy copies between two views with strides:

    packed[p, k, j] = B[p * 32 + j, k]       B of (64, 512): strides (32 * 512, 1, 512)

A test that the index of the source is below a limit cuts the views.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from ..kernels.affine import affine, flat_index, static_size
from ..kernels.nests import is_if_then_else

Array = np.ndarray[Any, Any]

_BITS = {"float": (16, 32, 64), "int": (8, 16, 32, 64), "uint": (8, 16, 32, 64)}
KNOWN_TO_NUMPY = frozenset(f"{kind}{bits}" for kind, sizes in _BITS.items() for bits in sizes)
"""The types of elements that NumPy reads from a tensor of TVM."""


@dataclass(frozen=True)
class View:
    """`base + sum(stride * place)`: positions in a flat buffer, or numbers to test."""

    base: int
    strides: tuple[int, ...]

    def after(self, axis: int, place: int) -> View:
        """The view from a place of an axis on."""
        return View(self.base + self.strides[axis] * place, self.strides)

    def of(self, buffer: Array, extents: Sequence[int]) -> Array:
        """The elements in a flat array."""
        size = buffer.itemsize
        strides = [stride * size for stride in self.strides]
        return np.lib.stride_tricks.as_strided(buffer[self.base :], extents, strides)


@dataclass(frozen=True)
class ConstantCopy:
    """A copy of elements of one buffer to another, whose other elements stay as they are."""

    extents: tuple[int, ...]
    """The number of places along each axis."""
    source: View
    target: View
    tested: View
    """The number that decides whether a place is copied."""
    limit: int
    """A place is copied if its number is below this one."""

    def __call__(self, source: tvm.runtime.Tensor, target: tvm.runtime.Tensor) -> None:
        """Runs the kernel; the target is zero before."""
        read, written = (np.from_dlpack(tensor).reshape(-1) for tensor in (source, target))
        self._copy(read, written, self.extents, self.source, self.target, self.tested)

    def _copy(
        self, source: Array, target: Array, extents: tuple[int, ...],
        read: View, written: View, tested: View,
    ) -> None:  # fmt: skip
        """Copies all places if all have numbers below the limit; otherwise cuts the axis with the
        largest stride.
        """
        if 0 in extents or tested.base >= self.limit:
            return
        steps = tested.strides
        axis = max(range(len(extents)), key=lambda k: steps[k] * (extents[k] > 1), default=0)
        others = sum(steps[k] * (extent - 1) for k, extent in enumerate(extents) if k != axis)
        last = tested.base + others + steps[axis] * (extents[axis] - 1) if extents else 0
        if last < self.limit:
            np.copyto(written.of(target, extents), read.of(source, extents))
            return
        whole = max((self.limit - 1 - tested.base - others) // steps[axis] + 1, 0)
        if whole:
            some = _with_extent(extents, axis, whole)
            self._copy(source, target, some, read, written, tested)
        for place in range(whole, extents[axis]):
            views = (view.after(axis, place) for view in (read, written, tested))
            self._copy(source, target, _with_extent(extents, axis, 1), *views)


def _with_extent(extents: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    return (*extents[:axis], extent, *extents[axis + 1 :])


def constant_copy(kernel: tirx.PrimFunc) -> ConstantCopy | None:
    """What a kernel with the parameters (source, target) copies; None if it does anything else."""
    nests: list[Any] = []
    loops: list[Any] = []

    def note_block(realize: Any) -> None:
        if realize.block.iter_vars:  # not the root block
            nests.append(realize)

    callbacks = [(s_tir.SBlockRealize, note_block), (tirx.For, loops.append)]
    tvm_ffi.structural_walk(kernel.body, callbacks, order="pre")
    if len(nests) != 1 or len(kernel.params) != 2:
        return None
    (realize,) = nests
    block, store = realize.block, realize.block.body
    extents = [static_size(variable.dom.extent) for variable in block.iter_vars]
    is_nest = len(loops) == len(extents) and all(
        value.same_as(loop.loop_var) and static_size(loop.extent) == extent
        for value, loop, extent in zip(realize.iter_values, loops, extents, strict=True)
    )
    starts = [loop.min for loop in loops] + [variable.dom.min for variable in block.iter_vars]
    is_nest &= all(static_size(start) == 0 for start in starts)
    if (
        not is_nest
        or static_size(realize.predicate) != 1
        or not isinstance(store, tirx.BufferStore)
        or None in extents
    ):
        return None
    return _copy_of(kernel, [v.var for v in block.iter_vars], extents, store)


def _copy_of(
    kernel: tirx.PrimFunc, places: Sequence[Any], extents: Sequence[Any], store: tirx.BufferStore
) -> ConstantCopy | None:
    source, target = kernel.params
    analyzer = sym.Analyzer()
    for place, extent in zip(places, extents, strict=True):
        analyzer.bind(place, ir.Range(0, extent))

    def view(position: Any) -> View | None:
        found = affine([position], [analyzer.simplify(position)], places)
        if found is None:
            return None
        terms = [found.base, *(found.of(place) for place in places)]
        numbers = [size for size in map(static_size, terms) if size is not None and size >= 0]
        if len(numbers) < len(terms):
            return None
        base, *strides = numbers
        return View(base, tuple(strides))

    value: Any = analyzer.simplify(store.value)
    tested: View | None = View(0, (0,) * len(places))
    limit: int | None = 1
    if is_if_then_else(value):
        test, value, otherwise = value.args
        if not isinstance(test, tirx.LT) or not _is_zero(otherwise):
            return None
        tested, limit = view(test.a), static_size(test.b)
    if not isinstance(value, ir.TensorLoad) or not value.source.same_as(source):
        return None
    dtypes = {str(source.dtype), str(target.dtype)}
    if not store.buffer.same_as(target) or len(dtypes) > 1 or not dtypes <= KNOWN_TO_NUMPY:
        return None
    read = view(flat_index(source.shape, value.indices))
    written = view(flat_index(target.shape, store.indices))
    if read is None or written is None or tested is None or limit is None:
        return None
    return ConstantCopy(tuple(extents), read, written, tested, limit)


def _is_zero(value: Any) -> bool:
    """Whether all bits are 0, unlike those of -0.0."""
    is_number = isinstance(value, tirx.IntImm | tirx.FloatImm) and value.value == 0
    return is_number and math.copysign(1, value.value) > 0
