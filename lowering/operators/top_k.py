"""The kernel of TopK: the best elements of each row, in a heap whose root is the worst of them.

Most elements of a row are compared with the root only, where sorting the row would compare each
with some ten others.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from .broadcasting import ZERO


def top_k_kernel(dtype: str, rank: int, largest: bool) -> tirx.PrimFunc:
    """(data [..., n]) -> (values [..., k], places [..., k]): the k best elements, best first.

    Among equal elements the first is the best. Requires k <= n.
    """
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        outer = [ib.int64() for _ in range(rank - 1)]
        n, k = ib.int64(), ib.int64()
        handles = [ib.arg(name, ib.handle()) for name in ("data", "values", "places")]
        data = ib.match_buffer(handles[0], (*outer, n), dtype)
        values = ib.match_buffer(handles[1], (*outer, k), dtype)
        places = ib.match_buffer(handles[2], (*outer, k), "int64")
        # Relax passes that inspect kernels expect a block around the whole body.
        with ib.sblock("root"), ExitStack() as loops:
            row = [loops.enter_context(ib.serial(size)) for size in outer]
            with ib.If(k > 0), ib.Then():
                _Heap(row, data, values, places, largest).emit(n, k)
    return builder.get()


class _Heap:
    """The heap of one row: the places of its elements are in the row of the result."""

    def __init__(
        self, row: Sequence[Any], data: Any, values: Any, places: Any, largest: bool
    ) -> None:
        self._row, self._largest = row, largest
        self._data, self._values, self._places = data, values, places
        self._node = ib.alloc_buffer((1,), "int64", scope="local")
        self._child = ib.alloc_buffer((1,), "int64", scope="local")

    def emit(self, n: Any, k: Any) -> None:
        """Emits the selection of k of n elements."""
        with ib.serial(k) as place:
            ib.buffer_store(self._places, place, [*self._row, place])
        with ib.serial(k // 2) as number:
            start = k // 2 - 1 - number
            self._sift(self._at(self._places, start), start, k)
        with ib.serial(n - k) as number:
            place = k + number
            # An equal element that comes later is worse.
            with ib.If(self._is_better(place, self._at(self._places, ZERO))), ib.Then():
                self._sift(place, ZERO, k)
        with ib.serial(k - 1) as number:
            last = k - 1 - number
            moved = ib.alloc_buffer((1,), "int64", scope="local")
            ib.buffer_store(moved, self._at(self._places, last), [0])
            ib.buffer_store(self._places, self._at(self._places, ZERO), [*self._row, last])
            self._sift(moved[0], ZERO, last)
        with ib.serial(k) as place:
            value = self._at(self._data, self._at(self._places, place))
            ib.buffer_store(self._values, value, [*self._row, place])

    def _at(self, buffer: Any, place: Any) -> Any:
        indices = (*self._row, place)
        return buffer[indices]

    def _is_better(self, place: Any, other: Any) -> Any:
        first, second = self._at(self._data, place), self._at(self._data, other)
        return first > second if self._largest else first < second

    def _is_worse(self, place: Any, other: Any) -> Any:
        same = self._at(self._data, place) == self._at(self._data, other)
        return tirx.any(self._is_better(other, place), tirx.all(same, place > other))

    def _sift(self, item: Any, start: Any, size: Any) -> None:
        """Emits that an item sinks from a node down to where its children are better."""
        node, child = self._node, self._child
        kept = ib.alloc_buffer((1,), "int64", scope="local")
        ib.buffer_store(kept, item, [0])
        ib.buffer_store(node, start, [0])
        with ib.While(node[0] * 2 + 1 < size):
            ib.buffer_store(child, node[0] * 2 + 1, [0])
            with ib.If(child[0] + 1 < size), ib.Then():
                pair = [self._at(self._places, child[0] + at) for at in (1, 0)]
                with ib.If(self._is_worse(*pair)), ib.Then():
                    ib.buffer_store(child, child[0] + 1, [0])
            below = self._at(self._places, child[0])
            with ib.If(self._is_worse(below, kept[0])):
                with ib.Then():
                    ib.buffer_store(self._places, below, [*self._row, node[0]])
                    ib.buffer_store(node, child[0], [0])
                with ib.Else():
                    ib.buffer_store(self._places, kept[0], [*self._row, node[0]])
                    ib.buffer_store(kept, tirx.IntImm("int64", -1), [0])
                    ib.buffer_store(node, size, [0])
        with ib.If(kept[0] >= 0), ib.Then():
            ib.buffer_store(self._places, kept[0], [*self._row, node[0]])
