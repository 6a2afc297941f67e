"""Estimates of sizes that are known at run time only, for heuristics: no result depends on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tvm
from tvm import ir, relax, sym, tirx

from ..kernels.nests import substituted

_USUAL = 224
"""The estimate for a size that is not computed from others."""


def estimate(expression: Any, sizes: Mapping[Any, int]) -> float:
    """The value of an expression where sizes have these values, or a usual one."""
    if isinstance(expression, tirx.IntImm):
        return int(expression)
    if isinstance(expression, ir.Var):
        return sizes.get(expression, _USUAL)
    variables = tirx.analysis.undefined_vars(expression)
    values = {v: tirx.IntImm(v.ty.dtype, sizes.get(v, _USUAL)) for v in variables}
    try:
        known = sym.Analyzer().simplify(substituted(expression, values))
    except tvm.error.InternalError:  # A division by what is 0 here.
        return _USUAL
    return float(known.value) if isinstance(known, (tirx.IntImm, tirx.FloatImm)) else _USUAL


def estimated_elements(shape: Sequence[Any], sizes: Mapping[Any, int]) -> float:
    """The number of elements of a shape where sizes have these values, or a usual one."""
    total = 1.0
    for size in shape:
        total *= max(estimate(size, sizes), 0)
    return total


def usual_sizes(body: relax.SeqExpr) -> dict[Any, int]:
    """Estimates of the sizes that the outermost blocks of a function compute."""
    sizes: dict[Any, int] = {}
    computed: dict[int, Any] = {}
    for block in body.blocks:
        for binding in block.bindings:
            shape = _shape_in(binding.value)
            if shape is not None:
                computed[hash(binding.var)] = shape
            elif isinstance(binding, relax.MatchCast) and hash(binding.value) in computed:
                named = getattr(binding.ty, "values", None) or ()
                for name, size in zip(named, computed[hash(binding.value)].values, strict=False):
                    if isinstance(name, ir.Var):
                        sizes.setdefault(name, max(int(estimate(size, sizes)), 1))
    return sizes


def _shape_in(value: Any) -> Any:
    """The first shape among the arguments of a call; None if there is none."""
    arguments: Iterable[Any] = value.args if isinstance(value, ir.Call) else ()
    return next((a for a in arguments if isinstance(a, relax.ShapeExpr)), None)
