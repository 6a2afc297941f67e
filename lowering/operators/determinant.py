"""Det by Gaussian elimination with partial pivoting."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ..kernel_call import call_kernel
from ..values import Value
from .broadcasting import dims_of, require_size
from .registry import ConverterContext, converts


@converts("Det")
def determinant(ctx: ConverterContext) -> Value:
    """Det, see https://onnx.ai/onnx/operators/onnx__Det.html: [..., n, n] -> [...].

    A run with matrices that are not square fails.
    """
    bb, dtype = ctx.bb, str(ctx.inputs[0].ty.dtype)
    matrices, outer = square_matrices(ctx)
    kind, (count, size, _) = str(matrices.ty.dtype), dims_of(matrices, "data")
    types = [relax.TensorType([count], kind), relax.TensorType([size, size], kind)]
    result, _ = call_kernel(bb, "determinant", _kernel(kind), [matrices], types)
    return ctx.cast(bb.emit(relax.op.reshape(result, relax.ShapeExpr(outer))), dtype)


def square_matrices(ctx: ConverterContext) -> tuple[Value, list[Any]]:
    """The matrices [..., n, n] as [b, n, n] of float32 or float64, and the sizes before n.

    A run with matrices that are not square fails.
    """
    data = ctx.inputs[0]
    *outer, size, _ = dims_of(data, "data")
    data = require_size(ctx.bb, data, len(outer) + 1, size)
    is_double = str(data.ty.dtype) == "float64"
    wide = ctx.cast(data, "float64" if is_double else "float32")
    return ctx.bb.emit(relax.op.reshape(wide, [-1, size, size])), outer


def _kernel(dtype: str) -> tirx.PrimFunc:
    """(matrices [b, n, n]) -> (determinants [b], scratch [n, n])."""
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        count, size = (ib.int64() for _ in range(2))

        def parameter(name: str, shape: list[Any]) -> Any:
            return ib.match_buffer(ib.arg(name, ib.handle()), shape, dtype)

        matrices = parameter("matrices", [count, size, size])
        result = parameter("result", [count])
        work = parameter("work", [size, size])
        # Relax passes that inspect kernels expect a block around the whole body.
        with ib.sblock("root"), ib.serial(count) as entry:
            ib.buffer_store(result, tirx.const(1, dtype), [entry])
            with ib.serial(size) as row, ib.serial(size) as column:
                ib.buffer_store(work, matrices[entry, row, column], [row, column])
            with ib.serial(size) as step:
                _eliminate(result, work, entry, step, size)
    return builder.get()


def _eliminate(result: Any, work: Any, entry: Any, step: Any, size: Any) -> None:
    """Emits one step: the pivot multiplies the result, and its column becomes zero below it."""
    dtype = str(work.dtype)
    pivot = ib.alloc_buffer((1,), "int64", scope="local")
    swapped = ib.alloc_buffer((1,), dtype, scope="local")
    factor = ib.alloc_buffer((1,), dtype, scope="local")
    ib.buffer_store(pivot, step, [0])
    with ib.serial(size - step) as below:
        row = step + below
        is_larger = tirx.abs(work[row, step]) > tirx.abs(work[pivot[0], step])
        with ib.If(is_larger), ib.Then():
            ib.buffer_store(pivot, row, [0])
    with ib.If(pivot[0] != step), ib.Then():
        ib.buffer_store(result, -result[entry], [entry])
        with ib.serial(size) as column:
            ib.buffer_store(swapped, work[step, column], [0])
            ib.buffer_store(work, work[pivot[0], column], [step, column])
            ib.buffer_store(work, swapped[0], [pivot[0], column])
    ib.buffer_store(result, result[entry] * work[step, step], [entry])
    is_regular = work[step, step] != tirx.const(0, dtype)
    with ib.If(is_regular), ib.Then(), ib.serial(size - step - 1) as below:
        row = step + 1 + below
        ib.buffer_store(factor, work[row, step] / work[step, step], [0])
        with ib.serial(size - step) as beside:
            column = step + beside
            value = work[row, column] - factor[0] * work[step, column]
            ib.buffer_store(work, value, [row, column])
