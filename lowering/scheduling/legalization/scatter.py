"""The kernel of ScatterND for CPUs: rows of updates, one after the other, into a copy of the data.

TVM's kernel starts the elements of each row on all cores, which takes longer than a row, and its
buffers have offsets, with which it cannot stand in the kernel of a loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ..kernels.affine import int64
from ..kernels.emission import SCHEDULED, bound

_COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": tirx.min,
    "max": tirx.max,
}
"""What an element becomes, by the attribute `reduction`."""


@functools.cache
def scatter_nd_kernel(
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
            with ExitStack() as loops:
                here = _loops(loops, dims)
                ib.buffer_store(result, data[here], list(here))
            with ExitStack() as loops:
                row = _loops(loops, rows)
                places = []
                for axis in range(depth):
                    at = (*row, axis)
                    place = tirx.Cast("int64", indices[at])
                    places.append(bound(tirx.Select(place < 0, place + dims[axis], place)))
                column = _loops(loops, dims[depth:])
                target = (*places, *column)
                source = (*row, *column)
                value = _COMBINED[reduction](result[target], updates[source])
                ib.buffer_store(result, value, list(target))
    return builder.get()


def _loops(stack: ExitStack, sizes: Sequence[Any]) -> tuple[Any, ...]:
    """The variables of nested loops, the last one fastest."""
    return tuple(stack.enter_context(ib.serial(size)) for size in sizes)
