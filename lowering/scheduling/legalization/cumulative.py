"""Cumulative sums and products on CPUs: rows along the axes after it are added up in vectors.

    y[o, k, i] = Σ_{m ≤ k} x[o, m, i]

TVM's kernel follows one element of a row along the axis at a time, and reads the first even where
the axis has no elements.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ...processor import is_for_llvm
from ..functions.micro_kernels import native_tile
from ..kernels.affine import flat, int64, product, static_size
from ..kernels.emission import SCHEDULED, bound, compute_block, for_items, pieces
from ..relax.dataflow import rewritten_functions
from ..relax.size_names import OPAQUE

_CALL_TIR = ir.Op.get("relax.call_tir")

GUARDS_EMPTY_AXIS = "looplift.guards_empty_axis"
"""The attribute of kernels that give an axis without elements one, and that take it away again,
around a cumulative operator. Where kernels of this module compute that, they are left out."""
_COLUMNS = 256
"""The most elements of a row that an item of work takes."""
_OPERATORS: dict[str, tuple[Callable[[Any, Any], Any], float]] = {
    "relax.cumprod": (lambda total, element: total * element, 1),
    "relax.cumsum": (lambda total, element: total + element, 0),
}
"""What combines elements, and what leaves them as they are."""


def accumulate_rows(module: tvm.IRModule) -> tvm.IRModule:
    """The module with kernels of this one for cumulative operators, if it is for a CPU.

    Those whose sizes are not expressions stay, and those of all elements as one axis.
    """
    return rewritten_functions(_Accumulations(module), module) if is_for_llvm() else module


@mutator
class _Accumulations(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op.same_as(_CALL_TIR):
            kernel = self.builder_.get()[call.args[0]]
            is_guard = GUARDS_EMPTY_AXIS in (kernel.attrs or {})
            return call.args[1].fields[0] if is_guard else call
        if getattr(call.op, "name", "") not in _OPERATORS or call.attrs.axis is None:
            return call
        (data,), result = call.args, call.ty
        if not isinstance(data.ty.shape, relax.ShapeExpr):
            return call
        kernel = _kernel(
            call.op.name, (str(data.ty.dtype), str(result.dtype)),
            tuple(map(static_size, data.ty.shape.values)), int(call.attrs.axis) % data.ty.ndim,
            is_exclusive=bool(call.attrs.exclusive), lanes=native_tile().lanes,
        )  # fmt: skip
        variable = self.builder_.add_func(kernel, call.op.name.removeprefix("relax."))
        return relax.op.call_tir(variable, [data], relax.TensorType(data.ty.shape, result.dtype))


@functools.cache
def _kernel(
    operator: str, types: tuple[str, str], sizes: Sequence[int | None], axis: int, *,
    is_exclusive: bool, lanes: int,
) -> tirx.PrimFunc:  # fmt: skip
    """The kernel `(data, result)` for data of some sizes, None for those known at run time only.

    It computes `lanes` elements of a row at once.
    """
    combine, neutral = _OPERATORS[operator]
    if neutral == 0 and not is_exclusive and "float" in types[1]:
        neutral = -0.0  # The sum of this and -0.0 is -0.0.
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True, SCHEDULED: True, "op_pattern": OPAQUE})
        dims = [ib.int64() if size is None else int64(size) for size in sizes]
        data, result = (
            ib.match_buffer(ib.arg(name, ib.handle()), dims, dtype)
            for name, dtype in zip(("data", "result"), types, strict=True)
        )
        with ib.sblock("root"), compute_block("accumulate"):
            source, target = flat(data), flat(result)
            outer, size, inner = (
                bound(product(part)) for part in (dims[:axis], [dims[axis]], dims[axis + 1 :])
            )
            known = static_size(inner)
            columns = _COLUMNS if known is None else max(min(known, _COLUMNS), 1)
            parts = bound(pieces(inner, int64(columns)))

            def item(number: Any) -> None:
                first = bound(tirx.floormod(number, parts) * columns)
                count = bound(tirx.min(inner - first, int64(columns)))
                origin = bound(tirx.floordiv(number, parts) * (size * inner) + first)
                whole = bound(tirx.floordiv(count, lanes))
                totals = ib.alloc_buffer((int64(columns),), types[1])
                with ib.serial(int64(columns)) as k:
                    ib.buffer_store(totals, tirx.const(neutral, types[1]), [k])

                def accumulate(row: Any, column: Any) -> None:
                    element = source[row + column]
                    if types[0] != types[1]:
                        element = tirx.Cast(types[1], element)
                    total = combine(totals[column], element)
                    if is_exclusive:
                        ib.buffer_store(target, totals[column], [row + column])
                        ib.buffer_store(totals, total, [column])
                    else:
                        ib.buffer_store(totals, total, [column])
                        ib.buffer_store(target, totals[column], [row + column])

                with ib.serial(size) as place:
                    row = bound(origin + place * inner)
                    if columns >= lanes:
                        with ib.serial(whole) as vector, ib.vectorized(int64(lanes)) as lane:
                            accumulate(row, vector * lanes + lane)
                    with ib.serial(count - whole * lanes) as k:
                        accumulate(row, whole * lanes + k)

            for_items(outer * parts, outer * inner * size, item)
    return builder.get()
