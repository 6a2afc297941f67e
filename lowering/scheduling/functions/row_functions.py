"""Functions that reduce rows to one element each, shared by all kernels of a module.

LLVM unrolls their loops and makes vectors of them: once for a module, not once for each kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ..kernels.affine import int64
from ..kernels.emission import bound
from .micro_kernels import call_function
from .shared_functions import ANY_SHAPE, function_frame, noinline


@dataclass(frozen=True)
class Combination:
    """How two elements are combined."""

    kind: Any
    """The class of expressions: Add, Max or Min."""
    keeps_nan: bool = True
    """Whether a maximum or minimum of elements with a NaN among them is NaN. It makes rows of a few
    hundred elements take half as long again."""

    def of(self, a: Any, b: Any) -> Any:
        """The expression that combines two elements."""
        if self.kind is tirx.Add or not self.keeps_nan:
            return self.kind(a, b)
        # TVM's own maximum of a NaN and b is b: it forgets all elements before.
        is_better = a > b if self.kind is tirx.Max else a < b
        return tirx.Select(tirx.any(is_better, tirx.isnan(a)), a, b)


REDUCE_ROWS = {
    Combination(tirx.Add): "looplift_row_sums",
    Combination(tirx.Max): "looplift_row_maxima",
    Combination(tirx.Min): "looplift_row_minima",
    Combination(tirx.Max, keeps_nan=False): "looplift_row_maxima_of_numbers",
    Combination(tirx.Min, keeps_nan=False): "looplift_row_minima_of_numbers",
}
"""The functions that reduce rows."""
_VECTORS = 4
"""Vectors of partial results: enough to hide the latency of an addition."""


class RowReducer:
    """Reduces rows of float32 in several vectors at once, whatever their length."""

    def __init__(self, combination: Combination, lanes: int, start: Any) -> None:
        """Emits the result for no elements, `start`."""
        self._combined, self._lanes = combination.of, lanes
        self._width = _VECTORS * lanes
        self._partial = ib.alloc_buffer((self._width,), "float32")
        self._result = ib.alloc_buffer((1,), "float32")
        with ib.vectorized(int64(self._width)) as lane:
            ib.buffer_store(self._partial, start, [lane])
        ib.buffer_store(self._result, start, [int64(0)])

    def add(self, length: Any, element: Callable[[Any], Any]) -> None:
        """Emits the reduction of a row; `element` takes a place on it, or those of a vector."""
        done: Any = int64(0)
        for step in (self._width, self._lanes):
            chunks = bound(tirx.floordiv(length - done, step))
            with ib.serial(chunks) as chunk, ib.vectorized(int64(step)) as lane:
                value = self._combined(self._partial[lane], element(done + chunk * step + lane))
                ib.buffer_store(self._partial, value, [lane])
            done = bound(done + chunks * step)
        with ib.serial(length - done) as rest:
            self._add_to_result(element(done + rest))

    def store(self, target: Any, place: Any) -> None:
        """Emits the store of the result."""
        size = self._width
        while size > 1:
            size //= 2
            with ib.vectorized(int64(size)) as lane:
                value = self._combined(self._partial[lane], self._partial[lane + size])
                ib.buffer_store(self._partial, value, [lane])
        self._add_to_result(self._partial[int64(0)])
        ib.buffer_store(target, self._result[int64(0)], [place])

    def _add_to_result(self, value: Any) -> None:
        ib.buffer_store(self._result, self._combined(self._result[int64(0)], value), [int64(0)])


SHORT_ROW = 64
"""The most elements of a row that is reduced without a loop over them, if the number is known."""


def reduce_short_row(
    combination: Combination, length: int, element: Callable[[Any], Any], start: Any
) -> Any:
    """Emits the reduction of a row of up to SHORT_ROW elements, at least one; returns the result.

    The row is cut into vectors of 2^k elements, the largest first. Each time the halves of the
    vector are combined, the piece of their size follows, if the row has one. `element` takes a
    place on the row, or those of a vector; `start` is the result for no elements.
    """
    size = done = 1 << (length.bit_length() - 1)
    partial = ib.alloc_buffer((size,), "float32")

    def combined(size: int, value: Callable[[Any], Any]) -> None:
        if size == 1:
            ib.buffer_store(partial, value(int64(0)), [int64(0)])
            return
        with ib.vectorized(int64(size)) as lane:
            ib.buffer_store(partial, value(lane), [lane])

    def fold(size: int, other: Callable[[Any], Any]) -> None:
        combined(size, lambda lane: combination.of(partial[lane], other(lane)))

    def shifted(read: Callable[[Any], Any], distance: int, lane: Any) -> Any:
        return read(distance + lane)

    combined(size, element)
    while size > 1:
        size //= 2
        fold(size, functools.partial(shifted, partial.__getitem__, size))
        if length & size:
            fold(size, functools.partial(shifted, element, done))
            done += size
    return combination.of(start, partial[int64(0)])


def call_reduce_rows(
    combination: Combination, target: Any, source: Any, rows: Any, length: Any,
    steps: tuple[Any, Any], start: Any,
) -> None:  # fmt: skip
    """Emits a call that reduces each of several rows, whose elements follow each other.

    `target` and `source` are addresses, and `steps` the distances of rows there. `start` is the
    result for no elements.
    """
    call_function(REDUCE_ROWS[combination], target, source, rows, length, *steps, start)


def reduce_rows_function(combination: Combination, lanes: int) -> tirx.PrimFunc:
    """What `call_reduce_rows` calls."""
    with IRBuilder() as builder, function_frame():
        pointers = [ib.arg(name, ib.handle("float32")) for name in ("target", "source")]
        names = ("rows", "length", "target_step", "source_step")
        rows, length, target_step, source_step = (ib.arg(name, ib.int64()) for name in names)
        start = ib.arg("start", ib.float32())
        target, source = (
            ib.decl_buffer(ANY_SHAPE, "float32", data=pointer) for pointer in pointers
        )
        with ib.serial(rows) as row:
            reducer = RowReducer(combination, lanes, start)
            reducer.add(length, lambda place: source[row * source_step + place])
            reducer.store(target, row * target_step)
    return noinline(builder.get())
