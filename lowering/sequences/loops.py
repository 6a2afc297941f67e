"""Loops over sequences whose length is known at run time: concatenation and split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ...rewrite.errors import UnsupportedError
from ..closure import Closure
from ..loops.repeat import emit_counted
from ..scalars import as_size
from ..small_kernels import for_each, range_along, sizes_or_symbols
from ..tvm_onnx import building_function
from ..values import Element, ListValue, Value, as_int, as_tensor, fresh_dim
from .list_functions import new_list
from .lists import append_in_place, get, length


def concatenate(bb: Any, sequence: ListValue, axis: int, *, new_axis: bool) -> Value:
    """The tensors of a list joined along an axis, which is new if `new_axis`.

    A run fails for an empty list, or if other axes differ. Raises UnsupportedError if the rank or
    the type of the tensors is not known.
    """
    element = sequence.element
    if element.dims is None or element.dtype is None:
        raise UnsupportedError("the rank of the tensors in the sequence is not known")
    rank = len(element.dims) + (1 if new_axis else 0)
    concatenation = _Concatenation(bb, element, axis % rank, new_axis)
    variable = relax.Var("sequence", relax.ObjectType())
    name = "sequence_stack" if new_axis else "sequence_concat"
    with building_function(bb, name, [variable], private=False):
        with bb.dataflow():
            joined = bb.emit_output(concatenation.emit(ListValue(variable, element)))
        function = bb.emit_func_output(joined)
    result = bb.emit(relax.Call(function, [sequence.variable]))
    dims: list[Any] = [fresh_dim("d") if size is None else size for size in element.dims]
    if new_axis:
        dims.insert(axis % rank, fresh_dim("length"))
    else:
        dims[axis % rank] = fresh_dim("total")
    return bb.match_cast(result, relax.TensorType(dims, element.dtype))


class _Concatenation:
    """Emits the function `sequence -> tensor`.

    It allocates the result, and copies one tensor into it in each iteration.
    """

    def __init__(self, bb: Any, element: Element, axis: int, new_axis: bool) -> None:
        self._bb = bb
        self._element = element
        self._axis = axis
        self._new_axis = new_axis

    def emit(self, sequence: ListValue) -> Value:
        bb, axis = self._bb, self._axis
        count = length(bb, sequence)
        total = count if self._new_axis else self._total(sequence, count)
        # The first tensor decides the other sizes; the kernel asserts that all tensors agree.
        dims = list(get(bb, sequence, tirx.IntImm("int64", 0)).ty.shape.values)
        if not self._new_axis:
            del dims[axis]
        whole = relax.TensorType([*dims[:axis], total, *dims[axis:]], self._element.dtype)
        empty = bb.emit(relax.op.builtin.alloc_tensor(whole.shape, self._element.dtype, 0))
        initial = {"offset": relax.const(0, "int64"), "buffer": empty}
        final = emit_counted(bb, "sequence_fill", count, {0: sequence}, initial, self._fill)
        return bb.match_cast(final["buffer"], whole)

    def _total(self, sequence: ListValue, count: Any) -> Any:
        """The size of the result along the axis."""
        size = (self._element.dims or ())[self._axis]
        if size is not None:
            return count * size
        initial = {"total": relax.const(0, "int64")}
        final = emit_counted(self._bb, "sequence_sum", count, {0: sequence}, initial, self._add)
        return as_size(self._bb, final["total"])

    def _add(self, given: Mapping[str, Any], closure: Closure, iteration: Any) -> dict[str, Any]:
        """An iteration of the loop that sums the sizes along the axis."""
        item = self._item(closure, iteration)
        return {"total": self._plus(given["total"], item.ty.shape.values[self._axis])}

    def _fill(self, given: Mapping[str, Any], closure: Closure, iteration: Any) -> dict[str, Any]:
        """An iteration of the loop that copies the tensors into the result."""
        bb, axis = self._bb, self._axis
        item = self._item(closure, iteration)
        dims = list(item.ty.shape.values)
        size = tirx.IntImm("int64", 1) if self._new_axis else dims.pop(axis)
        shape = [*dims[:axis], fresh_dim("total"), *dims[axis:]]
        whole = relax.TensorType(shape, self._element.dtype)
        buffer = bb.match_cast(given["buffer"], whole)
        kernel = bb.add_func(
            _copy_kernel([as_int(dim) for dim in dims], self._element.dtype, axis, self._new_axis),
            "fill_part",
        )
        args = [buffer, item, given["offset"]]
        filled = bb.emit(relax.op.call_tir_inplace(kernel, args, [0], whole))
        return {"offset": self._plus(given["offset"], size), "buffer": filled}

    def _item(self, closure: Closure, iteration: Any) -> Value:
        return get(self._bb, closure.values[0], as_size(self._bb, iteration))

    def _plus(self, scalar: Any, size: Any) -> Any:
        number = as_tensor(self._bb, relax.prim_value(size))
        return self._bb.emit(relax.op.add(scalar, number))


def _copy_kernel(
    dims: Sequence[int | None], dtype: Any, axis: int, new_axis: bool
) -> tirx.PrimFunc:
    """The kernel `(buffer, item, offset)` that copies an item into a part of a buffer, in place.

    `dims` are the item's sizes except the one along the axis.
    """
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True})
        handles = [ib.arg(name, ib.handle()) for name in ("buffer", "item", "offset")]
        total, size = ib.int64(), tirx.IntImm("int64", 1) if new_axis else ib.int64()
        others = sizes_or_symbols(dims)
        own = others if new_axis else [*others[:axis], size, *others[axis:]]
        buffer = ib.match_buffer(handles[0], [*others[:axis], total, *others[axis:]], dtype)
        item = ib.match_buffer(handles[1], own, dtype)
        offset = ib.match_buffer(handles[2], (), "int64")

        def store(indices: Sequence[Any]) -> None:
            after = axis if new_axis else axis + 1
            place = offset[()] if new_axis else offset[()] + indices[axis]
            target = [*indices[:axis], place, *indices[after:]]
            ib.buffer_store(buffer, item[tuple(indices)], target)

        for_each(own, "fill", store)
    return builder.get()


def split(bb: Any, data: Value, axis: int, size: Any, *, squeeze: bool) -> ListValue:
    """A tensor split along an axis into a list of parts of one size; the last may be smaller.

    `size` is a prim expression. `squeeze` removes the axis; the size must then be 1.
    """
    data = data if isinstance(data, relax.Var) else bb.emit(data)
    closure = Closure({"data": data, "size": relax.prim_value(size)})
    with building_function(bb, "sequence_split", closure.params, private=False):
        inner, part_size = closure.values["data"], closure.values["size"]
        count = tirx.floordiv(inner.ty.shape.values[axis] + part_size - 1, part_size)

        def append_part(
            given: Mapping[str, Any], captured: Closure, iteration: Any
        ) -> dict[str, Any]:
            source, part_size = captured.values["data"], captured.values["size"]
            start = as_size(bb, iteration) * part_size
            rest = tirx.min(part_size, source.ty.shape.values[axis] - start)
            part = bb.call_te(
                range_along, source, start, rest, axis, squeeze, primfunc_name_hint="part"
            )
            return {"parts": append_in_place(bb, given["parts"], bb.emit(part))}

        with bb.dataflow():
            initial = {"parts": new_list(bb, [])}
            captured = {"data": inner, "size": part_size}
            final = emit_counted(bb, "split_part", count, captured, initial, append_part)
            result = bb.emit_output(final["parts"])
        function = bb.emit_func_output(result)
    result = bb.emit(relax.Call(function, closure.args))
    fixed: list[int | None] = [as_int(dim) for dim in data.ty.shape.values]
    if squeeze:
        del fixed[axis]
    else:
        fixed[axis] = 1 if as_int(size) == 1 else None
    return ListValue(result, Element(str(data.ty.dtype), tuple(fixed)))
