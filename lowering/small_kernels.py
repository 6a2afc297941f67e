"""The small kernels that generated loops need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib


def advance(iteration: Any, limit: Any = None, condition: Any = None) -> list[Any]:
    """Scalars: the number of the next iteration, and whether there is one.

    `limit` is the number of iterations, `condition` what the body says. Either may be None; a loop
    with neither does not end.
    """
    following = te.compute((), lambda: iteration() + 1, name="following")
    reasons = [tirx.const(True, "bool")]
    if limit is not None:
        reasons.append(iteration() + 1 < limit())
    if condition is not None:
        reasons.append(condition())
    goes_on = te.compute((), lambda: tirx.all(*reasons), name="goes_on")
    return [following, goes_on]


def begins(limit: Any = None, condition: Any = None) -> Any:
    """Whether there is a first iteration, as a scalar."""
    reasons = []
    if limit is not None:
        reasons.append(limit() > 0)
    if condition is not None:
        reasons.append(condition())
    return te.compute((), lambda: tirx.all(*reasons), name="begins")


def slice_at(data: Any, position: Any, axis: int, reverse: bool) -> Any:
    """One slice of a tensor along an axis, which the result lacks.

    `position` is a scalar, counted from the end if `reverse`.
    """
    place = data.shape[axis] - 1 - position() if reverse else position()
    shape = [size for other, size in enumerate(data.shape) if other != axis]

    def element(*indices: Any) -> Any:
        return data(*indices[:axis], place, *indices[axis:])

    return te.compute(shape, element, name="slice")


def range_along(data: Any, start: Any, size: Any, axis: int, squeeze: bool = False) -> Any:
    """`size` elements of a tensor along an axis from `start` on.

    `squeeze` removes the axis; the size must then be 1.
    """
    shape = list(data.shape)
    shape[axis : axis + 1] = [] if squeeze else [size]

    def element(*indices: Any) -> Any:
        if squeeze:
            return data(*indices[:axis], start, *indices[axis:])
        return data(*indices[:axis], start + indices[axis], *indices[axis + 1 :])

    return te.compute(shape, element, name="part")


def leading(data: Any, shape: Sequence[Any]) -> Any:
    """The part of a tensor that has a smaller shape and starts at its first element."""
    return te.compute(list(shape), lambda *indices: data(*indices), name="leading")


def writer(dims: Sequence[int | None], dtype: str, axis: int, reverse: bool) -> tirx.PrimFunc:
    """The kernel `(buffer, row, position)` that makes a row one slice of a buffer, in place.

    `dims` are the sizes of the row, None where they are known at run time only. The position is a
    scalar, counted from the end if `reverse`.
    """
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True})
        handles = [ib.arg(name, ib.handle()) for name in ("buffer", "row", "position")]
        capacity = ib.int64()
        sizes = sizes_or_symbols(dims)
        shape = [*sizes[:axis], capacity, *sizes[axis:]]
        buffer = ib.match_buffer(handles[0], shape, dtype)
        row = ib.match_buffer(handles[1], sizes, dtype)
        position = ib.match_buffer(handles[2], (), "int64")
        place = capacity - 1 - position[()] if reverse else position[()]

        def store(indices: Sequence[Any]) -> None:
            target = [*indices[:axis], place, *indices[axis:]]
            ib.buffer_store(buffer, row[tuple(indices)], target)

        for_each(sizes, "write", store)
    return builder.get()


def copier(rank: int, dtype: str) -> tirx.PrimFunc:
    """The kernel `(target, source)` that copies a tensor to the start of a larger one, in place."""
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True})
        handles = [ib.arg(name, ib.handle()) for name in ("target", "source")]
        target = ib.match_buffer(handles[0], sizes_or_symbols([None] * rank), dtype)
        sizes = sizes_or_symbols([None] * rank)
        source = ib.match_buffer(handles[1], sizes, dtype)
        for_each(
            sizes,
            "copy",
            lambda indices: ib.buffer_store(target, source[tuple(indices)], list(indices)),
        )
    return builder.get()


def sizes_or_symbols(dims: Sequence[int | None]) -> list[Any]:
    """Sizes for `match_buffer`: new variables where they are known at run time only."""
    return [ib.int64() if dim is None else tirx.IntImm("int64", dim) for dim in dims]


def for_each(sizes: Sequence[Any], name: str, do: Any) -> None:
    """Emit a loop nest over all elements that schedules may transform."""
    if not sizes:
        with ib.sblock(name):
            unit = ib.axis.spatial(1, tirx.IntImm("int64", 0))
            del unit
            do([])
        return
    with ib.grid(*sizes) as loops:
        loops = list(loops) if len(sizes) > 1 else [loops]
        with ib.sblock(name):
            indices = [ib.axis.spatial(size, loop) for size, loop in zip(sizes, loops, strict=True)]
            do(indices)
