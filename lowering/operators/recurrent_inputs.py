"""Bring the inputs of a recurrent operator to known shapes, and check what is known already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.sym import Analyzer

from ...rewrite.errors import ModelError, UnsupportedError
from ..constants import constant

Expr = Any
"""A Relax expression."""
Dim = Any
"""A dimension: int, or a tirx expression over symbolic sizes."""

_COMPUTATION_TYPES: Mapping[str, str] = {
    "bfloat16": "float32",
    "float16": "float32",
    "float32": "float32",
    "float64": "float64",
}


def computation_type(op: str, dtype: str) -> str:
    """The type to compute in for tensors of `dtype`. UnsupportedError if there is none."""
    if dtype not in _COMPUTATION_TYPES:
        raise UnsupportedError(
            f"{op} on {dtype or 'an unknown type'} is not supported",
            remedy=f"use one of {', '.join(_COMPUTATION_TYPES)}",
        )
    return _COMPUTATION_TYPES[dtype]


def last_dim(value: Expr) -> int | None:
    """The last dimension, if its size is known."""
    dims = _known_dims(value)
    return dims[-1] if dims and isinstance(dims[-1], int) else None


def dims(value: Expr) -> list[Dim]:
    """The dimensions of a value that came out of `shaped`."""
    found = _known_dims(value)
    assert found is not None
    return found


def shaped(
    bb: relax.BlockBuilder, name: str, value: Expr, wanted: Sequence[Dim | None], dtype: str
) -> Expr:
    """`value` with the dimensions `wanted` (None: any) and of type `dtype`.

    What is not known now is checked when the model runs. ModelError: a dimension or rank that is
    known to differ.
    """
    value = _cast(bb, value, dtype)
    known = _known_dims(value)
    if known is None:
        fresh = [tirx.Var(f"{name}_{i}", "int64") if d is None else d for i, d in enumerate(wanted)]
        return bb.match_cast(value, relax.TensorType(fresh, dtype))
    if len(known) != len(wanted) or any(map(_contradict, known, wanted)):
        sizes = [str(d) for d in known]
        expected = ["any" if d is None else str(d) for d in wanted]
        raise ModelError(
            f"{name} has shape [{', '.join(sizes)}], but [{', '.join(expected)}] is needed",
            remedy="correct the shape or the attributes of the node",
        )
    result = [have if want is None else want for have, want in zip(known, wanted, strict=True)]
    analyzer = Analyzer()
    if all(map(analyzer.can_prove_equal, map(_expr, known), map(_expr, result))):
        return value
    return bb.match_cast(value, relax.TensorType(result, dtype))


def _known_dims(value: Expr) -> list[Dim] | None:
    shape = value.ty.shape
    if not isinstance(shape, relax.ShapeExpr):
        return None
    return [int(d) if isinstance(d, tirx.IntImm) else d for d in shape.values]


def _cast(bb: relax.BlockBuilder, value: Expr, dtype: str) -> Expr:
    if str(value.ty.dtype) == dtype:
        return value
    if isinstance(value, tvm.ir.GenericConst):
        return constant(value.value.numpy().astype(dtype))
    return bb.emit(relax.op.astype(value, dtype))


def _contradict(have: Dim, want: Dim | None) -> bool:
    return isinstance(have, int) and isinstance(want, int) and have != want


def _expr(dim: Dim) -> Any:
    return tirx.IntImm("int64", dim) if isinstance(dim, int) else dim
