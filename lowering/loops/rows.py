"""Scan outputs: a row of every iteration, written in place into one buffer.

Where the trip count and the row's shape are known before the first iteration, so is the buffer.
Otherwise there is none at first; when an iteration finds it full, it moves to one of twice the
capacity, so that n rows take O(n) time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from ...rewrite.errors import ModelError
from ..closure import Closure
from ..small_kernels import copier, leading, writer
from ..tower import Store, as_size
from ..tvm_onnx import building_function
from ..values import Constant, as_int, fresh_dim
from .plan import Plan, Stacked

ITERATION, CAPACITY, FIRST_BUFFER = range(3)
"""Slots of the store: the number of the iteration, the rows the buffers have room for, buffers."""

_COUNT = relax.TensorType([], "int64")
_FIRST_CAPACITY = 16


@dataclass(frozen=True)
class Rows:
    """The scan outputs of a loop."""

    bb: Any
    plan: Plan
    kinds: Sequence[Any]
    """The types of the rows, in the symbols of the function that makes the buffers."""
    is_bounded: bool
    """Whether the trip count alone says how many iterations there are."""
    is_known: bool
    """Whether so, and the shapes of the rows are known before the first iteration."""

    # Inside an iteration.

    def write(self, store: Store, rows: Sequence[Any], limit: Any) -> None:
        """Write the rows of one iteration."""
        if not rows:
            return
        bb, iteration = self.bb, store.read(ITERATION, _COUNT)
        if not self.is_known:
            capacity = store.read(CAPACITY, _COUNT)
            is_full = bb.emit(relax.op.equal(iteration, capacity))
            values: dict[Any, Any] = {"limit": limit} if self.is_bounded else {}
            values.update(enumerate(rows))
            closure = Closure(values)
            grow = self._emit_grow(closure, len(rows))
            args = [store.variable, *closure.args]
            bb.emit(relax.If(is_full, relax.Call(grow, args), is_full), "_")
        for slot, (stacked, row) in enumerate(zip(self.plan.wanted, rows, strict=True)):
            self._write(store, FIRST_BUFFER + slot, stacked, row, iteration)

    def _write(self, store: Store, slot: int, stacked: Stacked, row: Any, iteration: Any) -> None:
        bb, kind = self.bb, row.ty
        axis = axis_of(stacked, kind)
        dims = list(kind.shape.values)
        whole = relax.TensorType([*dims[:axis], fresh_dim("room"), *dims[axis:]], kind.dtype)
        buffer = bb.match_cast(store.read(slot, _any_of(whole)), whole)
        sizes = [as_int(dim) for dim in dims]
        kernel = bb.add_func(writer(sizes, str(kind.dtype), axis, stacked.reverse), "write_row")
        args = [buffer, row, iteration]
        store.renew(slot, bb.emit(relax.op.call_tir_inplace(kernel, args, [0], whole)))

    def _emit_grow(self, closure: Closure, count: int) -> Any:
        """The function `(store, limit, rows) -> true` that moves all buffers to larger ones."""
        bb, store = self.bb, Store.parameter(self.bb)
        params = [store.variable, *closure.params]
        with building_function(bb, f"{self.plan.name}_grow", params, private=True, pure=False):
            if self.is_bounded:
                capacity = closure.values["limit"]
            else:
                capacity = bb.emit(bb.call_te(_larger, store.read(CAPACITY, _COUNT)))
            store.write({CAPACITY: capacity})
            room = as_size(bb, capacity)
            for index in range(count):
                self._move(store, index, closure.values[index].ty, room)
            return bb.emit_func_output(relax.const(True, "bool"))

    def _move(self, store: Store, index: int, row: Any, room: Any) -> None:
        bb, slot = self.bb, FIRST_BUFFER + index
        axis = axis_of(self.plan.wanted[index], row)
        dims = list(row.shape.values)
        whole = relax.TensorType([*dims[:axis], room, *dims[axis:]], row.dtype)
        new = bb.emit(relax.op.builtin.alloc_tensor(whole.shape, str(row.dtype), 0))
        old = _with_sizes(bb, store.read(slot, _any_of(whole)))
        kernel = bb.add_func(copier(len(dims) + 1, str(row.dtype)), "copy_rows")
        store.write({slot: bb.emit(relax.op.call_tir_inplace(kernel, [new, old], [0], whole))})

    # Before and after all iterations.

    def empty(self, limit: Any, condition: Any) -> list[Any]:
        """The buffers before the first iteration."""
        room: Any = tirx.IntImm("int64", 0)
        if self.is_known and self.kinds:
            room = self._room(limit, condition)
        buffers = []
        for stacked, kind in zip(self.plan.wanted, self.kinds, strict=True):
            axis = axis_of(stacked, kind)
            dims = self._first_dims(stacked, kind)
            shape = relax.ShapeExpr([*dims[:axis], room, *dims[axis:]])
            buffers.append(
                self.bb.emit(relax.op.builtin.alloc_tensor(shape, str(kind.dtype), 0), "rows")
            )
        return buffers

    def finished(self, store: Store, empty: Sequence[Any]) -> list[Any]:
        """The scan outputs after the last iteration."""
        results = []
        count = None
        for index, (stacked, kind) in enumerate(zip(self.plan.wanted, self.kinds, strict=True)):
            slot = FIRST_BUFFER + index
            if self.is_known:
                results.append(store.read(slot, empty[index].ty))
                continue
            whole = relax.TensorType(None, kind.dtype, ndim=kind.ndim + 1)
            buffer = _with_sizes(self.bb, store.read(slot, whole))
            if not self.is_bounded:
                if count is None:
                    count = as_size(self.bb, store.read(ITERATION, _COUNT))
                buffer = self._cut(buffer, axis_of(stacked, kind), count)
            results.append(buffer)
        return results

    def _room(self, limit: Any, condition: Any) -> Any:
        if isinstance(limit, Constant) and condition is None:
            return tirx.IntImm("int64", max(int(limit.value.numpy()), 0))
        given = [limit] if condition is None else [limit, condition]
        return as_size(self.bb, self.bb.emit(self.bb.call_te(_room, *given)))

    def _first_dims(self, stacked: Stacked, kind: Any) -> list[Any]:
        """The row's sizes; for those that only an iteration knows, what the body declares, or 0."""
        if self.is_known:
            return list(kind.shape.values)
        declared = self.plan.body.graph.output[stacked.row].type.tensor_type.shape.dim
        known = [dim.dim_value for dim in declared]
        if len(known) != kind.ndim:
            known = [0] * kind.ndim
        own = list(kind.shape.values) if isinstance(kind.shape, relax.ShapeExpr) else known
        return [known[i] if as_int(size) is None else size for i, size in enumerate(own)]

    def _cut(self, buffer: Any, axis: int, count: Any) -> Any:
        shape = list(buffer.ty.shape.values)
        shape[axis] = count
        return self.bb.emit(self.bb.call_te(leading, buffer, shape))


def axis_of(stacked: Stacked, row: Any) -> int:
    """The axis along which rows of a type are stacked. Raises ModelError if there is none."""
    rank = int(row.ndim) + 1
    if not -rank <= stacked.axis < rank:
        raise ModelError(
            f"scan output {stacked.output} has {rank} dimensions, and none is number {stacked.axis}"
        )
    return stacked.axis % rank


def _room(limit: Any, condition: Any = None) -> Any:
    """The number of iterations, as a scalar."""
    zero = tirx.IntImm("int64", 0)

    def count() -> Any:
        trips = tirx.max(limit(), zero)
        return trips if condition is None else tirx.Select(condition(), trips, zero)

    return te.compute((), count, name="room")


def _larger(capacity: Any) -> Any:
    first = tirx.IntImm("int64", _FIRST_CAPACITY)
    return te.compute((), lambda: tirx.max(capacity() * 2, first), name="larger")


def _any_of(kind: Any) -> Any:
    return relax.TensorType(None, kind.dtype, ndim=kind.ndim)


def _with_sizes(bb: Any, tensor: Any) -> Any:
    sizes = [fresh_dim(f"d{axis}") for axis in range(tensor.ty.ndim)]
    return bb.match_cast(tensor, relax.TensorType(sizes, tensor.ty.dtype))
