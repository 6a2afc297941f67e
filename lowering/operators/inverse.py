"""Inverse of com.microsoft by Gauss-Jordan elimination with partial pivoting."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ..kernel_call import call_kernel
from ..values import Value
from .broadcasting import dims_of
from .determinant import square_matrices
from .registry import ConverterContext, converts


@converts("com.microsoft::Inverse")
def inverse(ctx: ConverterContext) -> Value:
    """Inverse of matrices [..., n, n]. Those of singular ones are infinite or NaN.

    A run with matrices that are not square fails. See
    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
    #com.microsoft.Inverse.
    """
    bb, dtype = ctx.bb, str(ctx.inputs[0].ty.dtype)
    matrices, outer = square_matrices(ctx)
    kind, (count, size, _) = str(matrices.ty.dtype), dims_of(matrices, "data")
    types = [relax.TensorType([count, size, size], kind), relax.TensorType([size, size], kind)]
    result, _ = call_kernel(bb, "inverse", _kernel(kind), [matrices], types)
    shape = relax.ShapeExpr([*outer, size, size])
    return ctx.cast(bb.emit(relax.op.reshape(result, shape)), dtype)


def _kernel(dtype: str) -> tirx.PrimFunc:
    """(matrices [b, n, n]) -> (inverses [b, n, n], scratch [n, n])."""
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        count, size = (ib.int64() for _ in range(2))

        def parameter(name: str, shape: list[Any]) -> Any:
            return ib.match_buffer(ib.arg(name, ib.handle()), shape, dtype)

        matrices = parameter("matrices", [count, size, size])
        result = parameter("result", [count, size, size])
        work = parameter("work", [size, size])
        zero, one = (tirx.const(number, dtype) for number in (0, 1))
        # Relax passes that inspect kernels expect a block around the whole body.
        with ib.sblock("root"), ib.serial(count) as entry:
            with ib.serial(size) as row, ib.serial(size) as column:
                ib.buffer_store(work, matrices[entry, row, column], [row, column])
                ib.buffer_store(result, tirx.Select(row == column, one, zero), [entry, row, column])
            with ib.serial(size) as step:
                _Step(result, work, entry, step, size).emit()
    return builder.get()


class _Step:
    """One step: the pivot of a column becomes 1, and all other elements of the column 0."""

    def __init__(self, result: Any, work: Any, entry: Any, step: Any, size: Any) -> None:
        self._step, self._size = step, size
        self._tables = ((work, ()), (result, (entry,)))
        """The matrix and its inverse, with the indices before the row."""
        self._work = work
        self._number = ib.alloc_buffer((1,), str(work.dtype), scope="local")

    def emit(self) -> None:
        """Emits the step."""
        work, step, size = self._work, self._step, self._size
        pivot = ib.alloc_buffer((1,), "int64", scope="local")
        ib.buffer_store(pivot, step, [0])
        with ib.serial(size - step) as below:
            row = step + below
            is_larger = tirx.abs(work[row, step]) > tirx.abs(work[pivot[0], step])
            with ib.If(is_larger), ib.Then():
                ib.buffer_store(pivot, row, [0])
        with ib.If(pivot[0] != step), ib.Then():
            self._swap(pivot[0])
        self._scale()
        with ib.serial(size) as row, ib.If(row != step), ib.Then():
            self._subtract(row)

    def _swap(self, row: Any) -> None:
        for table, outer in self._tables:
            with ib.serial(self._size) as column:
                first, second = ((*outer, at, column) for at in (self._step, row))
                ib.buffer_store(self._number, table[first], [0])
                ib.buffer_store(table, table[second], list(first))
                ib.buffer_store(table, self._number[0], list(second))

    def _scale(self) -> None:
        """Divides the row of the pivot by the pivot."""
        ib.buffer_store(self._number, self._work[self._step, self._step], [0])
        for table, outer in self._tables:
            with ib.serial(self._size) as column:
                place = (*outer, self._step, column)
                ib.buffer_store(table, table[place] / self._number[0], list(place))

    def _subtract(self, row: Any) -> None:
        """Subtracts a multiple of the row of the pivot from another row."""
        ib.buffer_store(self._number, self._work[row, self._step], [0])
        for table, outer in self._tables:
            with ib.serial(self._size) as column:
                place, source = ((*outer, at, column) for at in (row, self._step))
                value = table[place] - self._number[0] * table[source]
                ib.buffer_store(table, value, list(place))
