"""Scan outputs: each iteration writes one slice into a buffer, in place.

If the trip count and the shape of the slices are known before the first iteration, so is the size
of the buffer. Otherwise it starts empty, and an iteration that finds it full copies it to one of
twice the capacity, so that n slices take O(n) time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from ...rewrite.errors import ModelError
from ..closure import Closure
from ..identifiers import identifier
from ..scalars import as_size
from ..small_kernels import copier, leading, writer
from ..tvm_onnx import building_function
from ..values import Constant, as_int, fresh_dim
from .plan import Plan, ScanOutput

CAPACITY = "capacity"
"""The key of the number of slices that the buffers have room for."""

_FIRST_CAPACITY = 16


@dataclass(frozen=True)
class ScanOutputs:
    """The scan outputs of a loop. Buffers are carried values; their keys are ("buffer", n)."""

    bb: Any
    plan: Plan
    kinds: Sequence[Any]
    """The types of the slices, in the symbols of the function that makes the buffers."""
    is_bounded: bool
    """Whether the trip count alone determines the number of iterations."""
    is_known: bool
    """Whether so, and the shapes of the slices are known before the first iteration."""

    def before(self, limit: Any, condition: Any) -> dict[Any, Any]:
        """The carried values before the first iteration."""
        carried: dict[Any, Any] = {}
        room: Any = tirx.IntImm("int64", 0)
        if self.is_known and self.kinds:
            room = self._room(limit, condition)
        elif self.kinds:
            carried[CAPACITY] = relax.const(0, "int64")
        for number, (scan_output, kind) in enumerate(
            zip(self.plan.wanted, self.kinds, strict=True)
        ):
            shape = relax.ShapeExpr(
                _inserted(self._first_dims(scan_output, kind), scan_output, kind, room)
            )
            empty = relax.op.builtin.alloc_tensor(shape, str(kind.dtype), 0)
            carried["buffer", number] = self.bb.emit(empty, "buffer")
        return carried

    def written(
        self, carried: Mapping[Any, Any], slices: Sequence[Any], iteration: Any, limit: Any
    ) -> dict[Any, Any]:
        """The carried values after the slices of one iteration were written."""
        after: dict[Any, Any] = {}
        buffers = [carried["buffer", number] for number in range(len(slices))]
        if slices and not self.is_known:
            capacity, *buffers = self._with_room(
                carried[CAPACITY], buffers, slices, iteration, limit
            )
            after[CAPACITY] = capacity
        for number, (scan_output, part) in enumerate(zip(self.plan.wanted, slices, strict=True)):
            after["buffer", number] = self._write(buffers[number], scan_output, part, iteration)
        return after

    def finished(
        self, carried: Mapping[Any, Any], iteration: Any, types: Sequence[Any]
    ) -> list[Any]:
        """The scan outputs after the last iteration; `types` are those of the first buffers."""
        results = []
        count = None
        for number, (scan_output, kind) in enumerate(
            zip(self.plan.wanted, self.kinds, strict=True)
        ):
            buffer = carried["buffer", number]
            if self.is_known:
                results.append(self.bb.match_cast(buffer, types[number]))
                continue
            buffer = _with_sizes(self.bb, buffer)
            if not self.is_bounded:
                count = as_size(self.bb, iteration) if count is None else count
                shape = list(buffer.ty.shape.values)
                shape[axis_of(scan_output, kind)] = count
                buffer = self.bb.emit(self.bb.call_te(leading, buffer, shape))
            results.append(buffer)
        return results

    def _write(self, buffer: Any, scan_output: ScanOutput, part: Any, iteration: Any) -> Any:
        kind, axis = part.ty, axis_of(scan_output, part.ty)
        dims = list(kind.shape.values)
        whole = relax.TensorType(_inserted(dims, scan_output, kind, fresh_dim("room")), kind.dtype)
        buffer = self.bb.match_cast(buffer, whole)
        sizes = [as_int(dim) for dim in dims]
        kernel = writer(sizes, str(kind.dtype), axis, scan_output.reverse)
        args = [buffer, part, iteration]
        function = self.bb.add_func(kernel, "write_slice")
        return self.bb.emit(relax.op.call_tir_inplace(function, args, [0], whole))

    def _with_room(
        self, capacity: Any, buffers: list[Any], slices: Sequence[Any], iteration: Any, limit: Any
    ) -> list[Any]:
        """The capacity and the buffers, with room for one more slice."""
        bb = self.bb
        values: dict[Any, Any] = {CAPACITY: capacity}
        if self.is_bounded:
            values["limit"] = limit
        values.update((("slice", number), part) for number, part in enumerate(slices))
        values.update((("buffer", number), buffer) for number, buffer in enumerate(buffers))
        closure = Closure(values)
        grow = self._emit_grow(closure)
        is_full = bb.emit(relax.op.equal(iteration, capacity))
        unchanged = relax.Tuple([capacity, *buffers])
        either = bb.emit(relax.If(is_full, relax.Call(grow, closure.args), unchanged))
        return [bb.emit(relax.TupleGetItem(either, slot)) for slot in range(1 + len(buffers))]

    def _emit_grow(self, closure: Closure) -> Any:
        """The function that copies all buffers to larger ones, and returns capacity and buffers."""
        bb = self.bb
        name = f"{identifier(self.plan.name, 'f')}_grow"
        with building_function(bb, name, closure.params, private=False):
            if self.is_bounded:
                capacity = closure.values["limit"]
            else:
                capacity = bb.emit(bb.call_te(_larger, closure.values[CAPACITY]))
            room = as_size(bb, capacity)
            grown = [
                self._moved(
                    closure.values["buffer", n], closure.values["slice", n].ty, scan_output, room
                )
                for n, scan_output in enumerate(self.plan.wanted)
            ]
            return bb.emit_func_output(bb.emit(relax.Tuple([capacity, *grown])))

    def _moved(self, buffer: Any, kind: Any, scan_output: ScanOutput, room: Any) -> Any:
        bb = self.bb
        shape = _inserted(list(kind.shape.values), scan_output, kind, room)
        whole = relax.TensorType(shape, kind.dtype)
        new = bb.emit(relax.op.builtin.alloc_tensor(whole.shape, str(kind.dtype), 0))
        kernel = bb.add_func(copier(len(shape), str(kind.dtype)), "copy_slices")
        args = [new, _with_sizes(bb, buffer)]
        return bb.emit(relax.op.call_tir_inplace(kernel, args, [0], whole))

    def _room(self, limit: Any, condition: Any) -> Any:
        if isinstance(limit, Constant) and condition is None:
            return tirx.IntImm("int64", max(int(limit.value.numpy()), 0))
        given = [limit] if condition is None else [limit, condition]
        return as_size(self.bb, self.bb.emit(self.bb.call_te(_room, *given)))

    def _first_dims(self, scan_output: ScanOutput, kind: Any) -> list[Any]:
        """The sizes of a slice; the declared ones, or 0, where only an iteration knows them."""
        if self.is_known:
            return list(kind.shape.values)
        graph = self.plan.body.graph
        tensor = graph.outputs[scan_output.slice]
        declared = graph.output_info.get(tensor, tensor.info)
        dims = () if declared is None else declared.type.tensor_type.shape.dim
        known = [dim.dim_value for dim in dims]
        if len(known) != kind.ndim:
            known = [0] * kind.ndim
        own = list(kind.shape.values) if isinstance(kind.shape, relax.ShapeExpr) else known
        return [known[i] if as_int(size) is None else size for i, size in enumerate(own)]


def axis_of(scan_output: ScanOutput, kind: Any) -> int:
    """The axis along which slices of a type are stacked. Raises ModelError if there is none."""
    rank = int(kind.ndim) + 1
    if not -rank <= scan_output.axis < rank:
        raise ModelError(
            f"scan output {scan_output.output} has {rank} dimensions, "
            f"and none is number {scan_output.axis}"
        )
    return scan_output.axis % rank


def _inserted(dims: list[Any], scan_output: ScanOutput, kind: Any, size: Any) -> list[Any]:
    """The shape of stacked slices, `size` of them."""
    axis = axis_of(scan_output, kind)
    return [*dims[:axis], size, *dims[axis:]]


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


def _with_sizes(bb: Any, tensor: Any) -> Any:
    sizes = [fresh_dim(f"d{axis}") for axis in range(tensor.ty.ndim)]
    return bb.match_cast(tensor, relax.TensorType(sizes, tensor.ty.dtype))
