"""Checks that inputs are large enough: a size that is computed from theirs must not be negative.

A convolution of 5 taps without padding gives `n - 4` positions. For fewer than 4 TVM would allocate
memory of a negative size, which fails without a reason, or succeeds where two such sizes are
multiplied. So functions that others may call check all such sizes when they begin.
"""

from __future__ import annotations

import re
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, sym, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ...values import ANY_SIZE
from ..kernels.nests import substituted
from .dataflow import with_body

_ALLOCATION = ir.Op.get("relax.builtin.alloc_tensor")


def check_sizes(module: tvm.IRModule) -> tvm.IRModule:
    """The module whose public functions raise a ValueError for inputs that are too small.

    Requires a module without dataflow blocks. Sizes that are known only after a kernel has run are
    not checked.
    """
    builder = relax.BlockBuilder(module)
    for variable, function in list(module.functions_items()):
        if not isinstance(function, relax.Function) or not isinstance(function.body, relax.SeqExpr):
            continue
        sizes = _uncertain_sizes(function) if "global_symbol" in (function.attrs or {}) else []
        if not sizes:
            continue
        kernel = builder.add_func(_check(sizes), f"{variable.name_hint}_check_sizes")
        nothing = relax.TupleType([])
        check = relax.VarBinding(relax.Var("_", nothing), ir.Call(kernel, sizes, ret_ty=nothing))
        blocks = [relax.BindingBlock([check]), *function.body.blocks]
        body = with_body(function, relax.SeqExpr(blocks, function.body.body))
        builder.update_func(variable, body)
    return relax.transform.Normalize()(builder.get())


def _uncertain_sizes(function: relax.Function) -> list[Any]:
    """The sizes of allocated tensors that may be negative, in sizes of the parameters."""
    analyzer = sym.Analyzer()
    known: dict[Any, Any] = {}
    """By variable for a size, the size in sizes of the parameters."""
    for param in function.params:
        for size in _shape(param.ty):
            if isinstance(size, ir.Var):
                known[size] = size
                analyzer.bind(size, ANY_SIZE)
    shapes: dict[Any, Any] = {}
    found: list[Any] = []

    def in_known_sizes(size: Any) -> Any:
        free = tirx.analysis.undefined_vars(size)
        return substituted(size, known) if free and all(v in known for v in free) else None

    def visit(binding: Any) -> None:
        value = binding.value
        if isinstance(binding, relax.MatchCast):  # Of computed sizes, which get names.
            for name, size in zip(_values(binding.ty), shapes.get(value, ()), strict=False):
                if isinstance(name, ir.Var) and (given := in_known_sizes(size)) is not None:
                    known.setdefault(name, given)
            return
        shape = next(
            (a for a in getattr(value, "args", ()) if isinstance(a, relax.ShapeExpr)), None
        )
        if shape is None:
            return
        shapes[binding.var] = list(shape.values)
        if value.op.same_as(_ALLOCATION):
            sizes = (in_known_sizes(size) for size in shape.values)
            found.extend(size for size in sizes if size is not None)

    for block in function.body.blocks:  # Not those of branches, which may not run.
        for binding in block.bindings:
            visit(binding)
    distinct = {tvm_ffi.StructuralKey(size): size for size in found}  # type: ignore[call-arg]
    return [size for size in distinct.values() if not analyzer.can_prove(size >= 0)]


def _shape(kind: Any) -> list[Any]:
    """The sizes of a type of tensors; none where its shape is unknown."""
    shape = getattr(kind, "shape", None)
    return list(shape.values) if isinstance(shape, relax.ShapeExpr) else []


def _values(kind: Any) -> list[Any]:
    """The sizes of a type of shapes."""
    return list(getattr(kind, "values", None) or [])


def _check(sizes: list[Any]) -> tirx.PrimFunc:
    """A function that takes the sizes and fails if one is negative."""
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.is_scheduled": True})
        for place, size in enumerate(sizes):
            given = ib.arg(f"size{place}", ib.int64())
            shown = re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(size))
            message = f"An input is too small: a tensor would have the negative size {shown}"
            ib.add_to_parent(
                tirx.AssertStmt(given >= 0, ir.StringImm("ValueError"), [ir.StringImm(message)])
            )
    return builder.get()
