"""The kernels of ScatterElements and ScatterND for CPUs: one update after the other, into a copy.

An update whose index is outside of the data is left out; TVM's kernels write to any memory. ONNX
allows no such index, and onnxruntime reports one, which a kernel has no way to do. TVM's kernel of
ScatterND also starts the elements of each row on all cores, which takes longer than a row, and its
buffers have offsets, with which it cannot stand in the kernel of a loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from tvm import ir, relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ..kernels.affine import int64, static_size
from ..kernels.emission import SCHEDULED, bound

_CALL_TIR = ir.Op.get("relax.call_tir")

_COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": tirx.min,
    "max": tirx.max,
}
"""What an element becomes, by the attribute `reduction`."""

SCATTERS = ("relax.scatter_elements", "relax.scatter_nd")
"""The operators that have a kernel here."""


def legalize_scatter(
    legalize: Callable[[relax.BlockBuilder, Any], Any], bb: relax.BlockBuilder, call: Any
) -> Any:
    """A call of a kernel for CPUs. The converters have checked that the sizes fit."""
    data, indices = (arg.ty for arg in call.args[:2])
    types, reduction = (str(data.dtype), str(indices.dtype)), str(call.attrs.reduction)
    if reduction not in _COMBINED:
        return legalize(bb, call)
    if str(call.op.name) == "relax.scatter_elements":
        axis = int(call.attrs.axis) % data.ndim
        kernel = _scatter_elements_kernel(*types, data.ndim, axis, reduction)
        variable = bb.add_func(kernel, "scatter_elements")
    else:
        are_known = all(isinstance(kind.shape, relax.ShapeExpr) for kind in (data, indices))
        depth = static_size(indices.shape.values[-1]) if are_known and indices.ndim else None
        if depth is None:
            return legalize(bb, call)
        kernel = _scatter_nd_kernel(*types, (data.ndim, indices.ndim), depth, reduction)
        variable = bb.add_func(kernel, "scatter_nd")
    fields = relax.Tuple(list(call.args))
    return ir.Call(_CALL_TIR, [variable, fields], None, [call.ty], ret_ty=call.ty)


@functools.cache
def _scatter_elements_kernel(
    dtype: str, index_dtype: str, rank: int, axis: int, reduction: str
) -> tirx.PrimFunc:
    """(data, indices, updates) -> data with combined updates."""
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True, SCHEDULED: True})
        dims, places, same, sizes = ([ib.int64() for _ in range(rank)] for _ in range(4))
        handles = [ib.arg(name, ib.handle()) for name in ("data", "indices", "updates", "result")]
        data = ib.match_buffer(handles[0], dims, dtype)
        indices = ib.match_buffer(handles[1], places, index_dtype)
        updates = ib.match_buffer(handles[2], same, dtype)
        result = ib.match_buffer(handles[3], sizes, dtype)
        with ib.sblock("root"):
            _copy(data, result, dims)
            with ExitStack() as loops:
                at = _loops(loops, places)
                place = _from_front(indices[at], dims[axis])
                target = [*at[:axis], place, *at[axis + 1 :]]
                loops.enter_context(ib.If(tirx.all(place >= 0, place < dims[axis])))
                loops.enter_context(ib.Then())
                value = _COMBINED[reduction](result[tuple(target)], updates[at])
                ib.buffer_store(result, value, target)
    return builder.get()


@functools.cache
def _scatter_nd_kernel(
    dtype: str, index_dtype: str, ranks: tuple[int, int], depth: int, reduction: str
) -> tirx.PrimFunc:
    """(data, indices [..., depth], updates) -> data with combined updates.

    `ranks` are those of data and indices. An index below 0 counts from the end of its axis.
    """
    data_rank, indices_rank = ranks
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True, SCHEDULED: True})
        dims = [ib.int64() for _ in range(data_rank)]
        rows = [ib.int64() for _ in range(indices_rank - 1)]
        # They are equal to other sizes, which the caller has checked.
        width = [ib.int64() for _ in range(data_rank - depth)]
        height = [ib.int64() for _ in range(indices_rank - 1)]
        handles = [ib.arg(name, ib.handle()) for name in ("data", "indices", "updates", "result")]
        sizes = [ib.int64() for _ in range(data_rank)]
        data = ib.match_buffer(handles[0], dims, dtype)
        indices = ib.match_buffer(handles[1], (*rows, int64(depth)), index_dtype)
        updates = ib.match_buffer(handles[2], (*height, *width), dtype)
        result = ib.match_buffer(handles[3], sizes, dtype)
        # Relax passes that inspect kernels expect a block around the whole body.
        with ib.sblock("root"):
            _copy(data, result, dims)
            with ExitStack() as loops:
                row = _loops(loops, rows)
                coordinates = [(*row, axis) for axis in range(depth)]
                pairs = zip(coordinates, dims, strict=False)
                places = [_from_front(indices[at], size) for at, size in pairs]
                limits = [place < size for place, size in zip(places, dims, strict=False)]
                loops.enter_context(ib.If(tirx.all(*[place >= 0 for place in places], *limits)))
                loops.enter_context(ib.Then())
                column = _loops(loops, dims[depth:])
                target = (*places, *column)
                source = (*row, *column)
                value = _COMBINED[reduction](result[target], updates[source])
                ib.buffer_store(result, value, list(target))
    return builder.get()


def _copy(data: Any, result: Any, dims: Sequence[Any]) -> None:
    with ExitStack() as loops:
        here = _loops(loops, dims)
        ib.buffer_store(result, data[here], list(here))


def _from_front(index: Any, size: Any) -> Any:
    """An index below 0 counts from the end of its axis."""
    place = tirx.Cast("int64", index)
    return bound(tirx.Select(place < 0, place + size, place))


def _loops(stack: ExitStack, sizes: Sequence[Any]) -> tuple[Any, ...]:
    """The variables of nested loops, the last one fastest."""
    return tuple(stack.enter_context(ib.serial(size)) for size in sizes)
