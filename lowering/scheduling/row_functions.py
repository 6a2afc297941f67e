"""Functions that reduce rows to one element each, shared by all kernels of a module.

LLVM unrolls their loops and makes vectors of them: once for a module, not once for each kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from .affine import int64
from .emission import bound
from .micro_kernels import call_function
from .shared_functions import ANY_SHAPE, function_frame, outlined

REDUCE_ROWS = {
    tirx.Add: "looplift_row_sums",
    tirx.Max: "looplift_row_maxima",
    tirx.Min: "looplift_row_minima",
}
"""The function that reduces rows, by the class of expressions that combines two elements."""
_VECTORS = 4
"""Vectors of partial results: enough to hide the latency of an addition."""


class RowReducer:
    """Reduces rows of float32 in several vectors at once, whatever their length.

    A maximum or minimum of elements with a NaN among them is NaN.
    """

    def __init__(self, kind: Any, lanes: int, start: Any) -> None:
        """Emits the result for no elements, `start`. `kind` is a key of `REDUCE_ROWS`."""
        self._kind, self._lanes = kind, lanes
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

    def _combined(self, a: Any, b: Any) -> Any:
        if self._kind is tirx.Add:
            return a + b
        # TVM's own maximum of a NaN and b is b: it would forget all elements before.
        is_better = a > b if self._kind is tirx.Max else a < b
        return tirx.Select(tirx.any(is_better, tirx.isnan(a)), a, b)


def call_reduce_rows(
    kind: Any, target: Any, source: Any, rows: Any, length: Any, steps: tuple[Any, Any], start: Any
) -> None:
    """Emits a call that reduces each of several rows, whose elements follow each other.

    `target` and `source` are addresses, and `steps` the distances of rows there. `kind` and `start`
    are those of a `RowReducer`.
    """
    call_function(REDUCE_ROWS[kind], target, source, rows, length, *steps, start)


def reduce_rows_function(kind: Any, lanes: int) -> tirx.PrimFunc:
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
            reducer = RowReducer(kind, lanes, start)
            reducer.add(length, lambda place: source[row * source_step + place])
            reducer.store(target, row * target_step)
    return outlined(builder.get())
