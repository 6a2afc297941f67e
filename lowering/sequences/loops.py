"""Loops over sequences whose length is known at run time: concatenation and split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ...rewrite.errors import UnsupportedError
from ..closure import Closure
from ..small_kernels import advance, begins, for_each, range_along, sizes_or_symbols
from ..tower import Store, as_size, emit_tower, new_list
from ..tvm_onnx import building_function
from ..values import Element, ListValue, Value, as_int, as_tensor, fresh_dim
from .lists import PURE_CALLS, get, length

_COUNT = relax.TensorType([], "int64")
_ITERATION = 0
"""The slot of the store that holds the number of the iteration."""

Iteration = Callable[[Store, Closure, Any], None]
"""Emits one iteration: (store, captured values, the iteration's number as a scalar)."""


def _repeat(
    bb: Any, name: str, count: Any, captured: dict[Any, Any], items: Sequence[Any], emit: Iteration
) -> Store:
    """Emits a counted loop over a store; returns the store.

    `items` are the initial values of the slots from 1 on. `count` is a prim expression; `captured`
    are values that the iterations read.
    """
    limit = bb.emit(as_tensor(bb, relax.prim_value(count)))
    closure = Closure({**captured, "limit": limit})
    first = 1 + len(items)
    inner = Store.parameter(bb)
    with building_function(bb, f"{name}_step", [inner.variable], private=True, pure=False):
        if closure.sizes:
            sizes = inner.read(first, relax.ShapeType(ndim=len(closure.sizes)))
            bb.match_cast(sizes, relax.ShapeType([symbol for _, symbol in closure.sizes]))
        for offset, (_, variable) in enumerate(closure.variables, 1):
            inner.read_into(variable, first + offset)
        iteration = inner.read(_ITERATION, _COUNT)
        emit(inner, closure, iteration)
        both = bb.emit(bb.call_te(advance, iteration, closure.values["limit"]))
        inner.write({_ITERATION: bb.emit(relax.TupleGetItem(both, 0))})
        function = bb.emit_func_output(bb.emit(relax.TupleGetItem(both, 1)))
    tower = emit_tower(bb, f"{name}_times", function, as_int(count))
    shape = relax.ShapeExpr([outer for outer, _ in closure.sizes])
    outer = [variable for variable, _ in closure.variables]
    store = Store.make(bb, [relax.const(0, "int64"), *items, shape, *outer])
    goes_on = bb.emit(bb.call_te(begins, limit))
    bb.emit(relax.If(goes_on, relax.Call(tower, [store.variable]), goes_on), "_")
    return store


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
    with building_function(bb, name, [variable], private=True, attributes=PURE_CALLS):
        function = bb.emit_func_output(concatenation.emit(ListValue(variable, element)))
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
        zero = relax.const(0, "int64")
        store = _repeat(bb, "sequence_fill", count, {0: sequence}, [zero, empty], self._fill)
        return store.read(2, whole)

    def _total(self, sequence: ListValue, count: Any) -> Any:
        """The size of the result along the axis."""
        size = (self._element.dims or ())[self._axis]
        if size is not None:
            return count * size
        zero = relax.const(0, "int64")
        store = _repeat(self._bb, "sequence_sum", count, {0: sequence}, [zero], self._add)
        return as_size(self._bb, store.read(1, _COUNT))

    def _add(self, store: Store, closure: Closure, iteration: Any) -> None:
        """An iteration of the loop that sums the sizes along the axis."""
        item = self._item(closure, iteration)
        total = self._plus(store.read(1, _COUNT), item.ty.shape.values[self._axis])
        store.write({1: total})

    def _fill(self, store: Store, closure: Closure, iteration: Any) -> None:
        """An iteration of the loop that copies the tensors into the result."""
        bb, axis = self._bb, self._axis
        item = self._item(closure, iteration)
        offset = store.read(1, _COUNT)
        dims = list(item.ty.shape.values)
        size = tirx.IntImm("int64", 1) if self._new_axis else dims.pop(axis)
        shape = [*dims[:axis], fresh_dim("total"), *dims[axis:]]
        whole = relax.TensorType(shape, self._element.dtype)
        untyped = relax.TensorType(None, self._element.dtype, ndim=len(shape))
        buffer = bb.match_cast(store.read(2, untyped), whole)
        kernel = bb.add_func(
            _copy_kernel([as_int(dim) for dim in dims], self._element.dtype, axis, self._new_axis),
            "fill_part",
        )
        args = [buffer, item, offset]
        store.renew(2, bb.emit(relax.op.call_tir_inplace(kernel, args, [0], whole)))
        store.write({1: self._plus(offset, size)})

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
    with building_function(
        bb, "sequence_split", closure.params, private=True, attributes=PURE_CALLS
    ):
        inner, part_size = closure.values["data"], closure.values["size"]
        count = tirx.floordiv(inner.ty.shape.values[axis] + part_size - 1, part_size)

        def append_part(store: Store, captured: Closure, iteration: Any) -> None:
            source, part_size = captured.values["data"], captured.values["size"]
            start = as_size(bb, iteration) * part_size
            rest = tirx.min(part_size, source.ty.shape.values[axis] - start)
            part = bb.call_te(
                range_along, source, start, rest, axis, squeeze, primfunc_name_hint="part"
            )
            store.append(1, bb.emit(part))

        items = [new_list(bb, [])]
        captured = {"data": inner, "size": part_size}
        store = _repeat(bb, "split_piece", count, captured, items, append_part)
        function = bb.emit_func_output(store.read(1, relax.ObjectType()))
    result = bb.emit(relax.Call(function, closure.args))
    fixed: list[int | None] = [as_int(dim) for dim in data.ty.shape.values]
    if squeeze:
        del fixed[axis]
    else:
        fixed[axis] = 1 if as_int(size) == 1 else None
    return ListValue(result, Element(str(data.ty.dtype), tuple(fixed)))
