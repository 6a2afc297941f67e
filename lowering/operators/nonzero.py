"""NonZero: the positions of elements, in a number that the data decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ..kernel_call import call_kernel
from ..small_kernels import sizes_or_symbols
from ..values import Value
from .broadcasting import ONE, ZERO
from .registry import ConverterContext, converts
from .sizes import sizes_of


@converts("NonZero")
def nonzero(ctx: ConverterContext) -> Value:
    """NonZero, see https://onnx.ai/onnx/operators/onnx__NonZero.html.

    One kernel counts the elements, so that another can write as many positions. TVM's converter
    calls a function of the runtime, which takes several times as long.
    """
    data = ctx.inputs[0]
    rank = int(data.ty.ndim)
    if rank < 1:
        return ctx.by_tvm()
    dtype = str(data.ty.dtype)
    counts = [relax.TensorType([ONE], "int64")]
    (count,) = call_kernel(ctx.bb, "count_nonzero", _counter(rank, dtype), [data], counts)
    positions = [relax.TensorType([tirx.IntImm("int64", rank), *sizes_of(ctx.bb, count)], "int64")]
    (found,) = call_kernel(ctx.bb, "nonzero", _finder(rank, dtype), [data], positions)
    return found


def _counter(rank: int, dtype: str) -> tirx.PrimFunc:
    """The kernel `(data, count)`."""

    def emit(data: Any, count: Any) -> None:
        ib.buffer_store(count, ZERO, [ZERO])

        def add(places: Sequence[Any]) -> None:
            one = tirx.Select(_is_nonzero(data[tuple(places)]), ONE, ZERO)
            ib.buffer_store(count, count[ZERO] + one, [ZERO])

        _for_each(data, add)

    return _kernel(rank, dtype, [1], emit)


def _finder(rank: int, dtype: str) -> tirx.PrimFunc:
    """The kernel `(data, positions)`, whose results are `[axis, element]`."""

    def emit(data: Any, positions: Any) -> None:
        found = ib.alloc_buffer((1,), "int64", scope="local")
        ib.buffer_store(found, ZERO, [ZERO])

        def write(places: Sequence[Any]) -> None:
            with ib.If(_is_nonzero(data[tuple(places)])), ib.Then():
                for axis, place in enumerate(places):
                    ib.buffer_store(positions, place, [tirx.IntImm("int64", axis), found[ZERO]])
                ib.buffer_store(found, found[ZERO] + 1, [ZERO])

        _for_each(data, write)

    return _kernel(rank, dtype, [rank, None], emit)


def _kernel(
    rank: int, dtype: str, shape: Sequence[int | None], emit: Callable[[Any, Any], None]
) -> tirx.PrimFunc:
    """A kernel from a tensor to an int64 tensor of a shape with known sizes, or None for others."""
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        handles = [ib.arg(name, ib.handle()) for name in ("data", "result")]
        data = ib.match_buffer(handles[0], sizes_or_symbols([None] * rank), dtype)
        result = ib.match_buffer(handles[1], sizes_or_symbols(shape), "int64")
        # Relax passes that inspect kernels expect a block around the whole body.
        with ib.sblock("root"):
            emit(data, result)
    return builder.get()


def _for_each(data: Any, do: Callable[[Sequence[Any]], None]) -> None:
    if len(data.shape) == 1:
        with ib.serial(data.shape[0]) as place:
            do([place])
        return
    with ib.grid(*data.shape) as places:
        do(list(places))


def _is_nonzero(element: Any) -> Any:
    dtype = element.ty.dtype
    if str(dtype) == "bool":
        return element
    if not str(dtype).startswith("float"):
        return element != tirx.const(0, dtype)
    # NaN is not zero, but TVM's `!=` is false for it. Without the sign, the bits of zero are 0.
    bits = tirx.reinterpret(f"uint{dtype.bits}", element)
    return (bits << 1) != tirx.const(0, bits.ty.dtype)
