"""Checks the sizes of inputs: those that are computed from them must not be negative, and must be
equal where the model relies on that.

A convolution of 5 taps without padding gives `n - 4` positions. For fewer than 4 TVM would allocate
memory of a negative size, which fails without a reason, or succeeds where two such sizes are
multiplied. A Reshape of `n` elements to `[-1, 4]` relies on `n // 4 * 4 == n`; TVM's passes take a
`match_cast` of a known shape for granted, and drop it. So functions that others may call check all
such sizes when they begin.
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
_EQUAL = "looplift.equal_sizes"
"""The attribute of a function with a kernel that fails unless certain sizes are equal."""
_ARGUMENTS = "looplift.equal_sizes_arguments"
"""What the kernel takes: pairs of the index of a parameter and an axis."""


def mark_equal_sizes(module: tvm.IRModule) -> tvm.IRModule:
    """The module whose public functions are marked with the sizes that have to be equal.

    These are what a `match_cast` outside of branches says of a computed shape. Requires a module
    before the passes that drop such checks.
    """
    for variable, function in list(module.functions_items()):
        if not isinstance(function, relax.Function) or not isinstance(function.body, relax.SeqExpr):
            continue
        places = _places_of_sizes(function)
        pairs = _equal_sizes(function, places) if "global_symbol" in (function.attrs or {}) else []
        if pairs:
            marked = function.with_attr(_EQUAL, _equality_check(pairs, list(places)))
            module[variable] = marked.with_attr(_ARGUMENTS, list(places.values()))
    return module


def _places_of_sizes(function: relax.Function) -> dict[Any, list[int]]:
    """The index of a parameter and the axis that have each size."""
    found: dict[Any, list[int]] = {}
    for index, param in enumerate(function.params):
        for axis, size in enumerate(_shape(param.ty)):
            if isinstance(size, ir.Var):
                found.setdefault(size, [index, axis])
    return found


def _equal_sizes(function: relax.Function, known: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Pairs of different expressions of known sizes that a `match_cast` takes for equal.

    TVM's passes keep the checks against numbers.
    """
    shapes: dict[Any, Any] = {}
    found: list[tuple[Any, Any]] = []
    for block in function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if not isinstance(binding, relax.MatchCast):
                shapes[binding.var] = value
                continue
            value = shapes.get(value, value)
            if isinstance(value, relax.ShapeExpr):
                found.extend(zip(value.values, _values(binding.ty), strict=False))
    return [
        (given, wanted)
        for given, wanted in found
        if tirx.analysis.undefined_vars(wanted)
        and all(v in known for e in (given, wanted) for v in tirx.analysis.undefined_vars(e))
        and not sym.Analyzer().can_prove_equal(given, wanted)
    ]


def check_sizes(module: tvm.IRModule) -> tvm.IRModule:
    """The module whose public functions raise a ValueError for inputs of sizes that do not fit.

    Requires a module without dataflow blocks. Sizes that are known only after a kernel has run are
    not checked.
    """
    builder = relax.BlockBuilder(module)
    for variable, function in list(module.functions_items()):
        if not isinstance(function, relax.Function) or not isinstance(function.body, relax.SeqExpr):
            continue
        attributes = function.attrs or {}
        sizes = _uncertain_sizes(function) if "global_symbol" in attributes else []
        checks = [(_check(sizes), sizes)] if sizes else []
        if _EQUAL in attributes:
            places = [(int(index), int(axis)) for index, axis in attributes[_ARGUMENTS]]
            given = [_shape(function.params[index].ty)[axis] for index, axis in places]
            checks.append((attributes[_EQUAL], given))
            function = function.without_attr(_EQUAL).without_attr(_ARGUMENTS)
        if not checks:
            continue
        nothing = relax.TupleType([])
        bindings = []
        for check, arguments in checks:
            kernel = builder.add_func(check, f"{variable.name_hint}_check_sizes")
            call = ir.Call(kernel, arguments, ret_ty=nothing)
            bindings.append(relax.VarBinding(relax.Var("_", nothing), call))
        blocks = [relax.BindingBlock(bindings), *function.body.blocks]
        body = with_body(function, relax.SeqExpr(blocks, function.body.body))
        builder.update_func(variable, body)
    return relax.transform.Normalize()(builder.get())


def _uncertain_sizes(function: relax.Function) -> list[Any]:
    """The sizes of allocated tensors that may be negative, in sizes of the parameters."""
    known = sizes_of_parameters(function)
    analyzer = sym.Analyzer()
    for size in _places_of_sizes(function):
        analyzer.bind(size, ANY_SIZE)
    found: list[Any] = []
    for block in function.body.blocks:  # Not those of branches, which may not run.
        for binding in block.bindings:
            if not isinstance(binding, relax.MatchCast) and _calls(binding.value, _ALLOCATION):
                sizes = (_in_sizes(size, known) for size in _given_shape(binding.value).values)
                found.extend(size for size in sizes if size is not None)
    distinct = {tvm_ffi.StructuralKey(size): size for size in found}  # type: ignore[call-arg]
    return [size for size in distinct.values() if not analyzer.can_prove(size >= 0)]


def sizes_of_parameters(function: relax.Function) -> dict[Any, Any]:
    """By variable for a size that follows from the shapes of the parameters: the size in these."""
    known: dict[Any, Any] = {size: size for size in _places_of_sizes(function)}
    shapes: dict[Any, Any] = {}
    for block in function.body.blocks:
        for binding in block.bindings:
            if not isinstance(binding, relax.MatchCast):
                shape = _given_shape(binding.value)
                if shape is not None:
                    shapes[binding.var] = list(shape.values)
                continue
            # Computed sizes get names so.
            pairs = zip(_values(binding.ty), shapes.get(binding.value, ()), strict=False)
            for name, size in pairs:
                if isinstance(name, ir.Var) and (given := _in_sizes(size, known)) is not None:
                    known.setdefault(name, given)
    return known


def _in_sizes(size: Any, known: dict[Any, Any]) -> Any:
    """A size that depends on known ones, with what these are; None for another size."""
    free = tirx.analysis.undefined_vars(size)
    return substituted(size, known) if free and all(v in known for v in free) else None


def _given_shape(value: Any) -> Any:
    """The first shape among the arguments of a call; None if there is none."""
    arguments = getattr(value, "args", ())
    return next((a for a in arguments if isinstance(a, relax.ShapeExpr)), None)


def _calls(value: Any, operator: Any) -> bool:
    return isinstance(value, ir.Call) and bool(value.op.same_as(operator))


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
            message = f"An input is too small: a tensor would have the negative size {_shown(size)}"
            _assert(given >= 0, message)
    return builder.get()


def _equality_check(pairs: list[tuple[Any, Any]], sizes: list[Any]) -> tirx.PrimFunc:
    """A function that takes sizes and fails if the two of a pair are not equal."""
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.is_scheduled": True})
        given = {size: ib.arg(f"size{place}", ib.int64()) for place, size in enumerate(sizes)}
        for found, wanted in pairs:
            shown = f"{_shown(wanted)} must be equal to {_shown(found)}"
            message = f"The sizes of the inputs do not fit: {shown}"
            _assert(tirx.EQ(*(substituted(size, given) for size in (found, wanted))), message)
    return builder.get()


def _shown(size: Any) -> str:
    named: list[Any] = []
    tvm_ffi.structural_walk(size, (tirx.Let, named.append))
    if named:  # TVM's printer makes statements of them, and fails.
        return "a computed size"
    return re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(size))


def _assert(condition: Any, message: str) -> None:
    ib.add_to_parent(
        tirx.AssertStmt(condition, ir.StringImm("ValueError"), [ir.StringImm(message)])
    )
