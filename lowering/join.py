"""The type of a value that comes from one of two branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import relax, sym

from .values import fresh_dim


def join(left: Any, right: Any) -> Any:
    """The narrowest type that holds values of both types.

    Equal dimensions stay; others become new symbols. Values of different ranks have an unknown
    rank. What has no tensor type in common is an `Object`.
    """
    if isinstance(left, relax.TensorType) and isinstance(right, relax.TensorType):
        return _join_tensors(left, right)
    tuples = isinstance(left, relax.TupleType) and isinstance(right, relax.TupleType)
    if tuples and len(left.fields) == len(right.fields):
        fields = zip(left.fields, right.fields, strict=True)
        return relax.TupleType([join(a, b) for a, b in fields])
    return left if tvm_ffi.structural_equal(left, right) else relax.ObjectType()


def _join_tensors(left: Any, right: Any) -> Any:
    dtype = left.dtype if left.dtype == right.dtype else None
    if left.ndim != right.ndim or left.ndim < 0:
        return relax.TensorType(None, dtype, ndim=-1)
    analyzer = sym.Analyzer()
    pairs = zip(_dimensions(left), _dimensions(right), strict=True)
    return relax.TensorType([_join_dimensions(a, b, analyzer) for a, b in pairs], dtype)


def _dimensions(kind: Any) -> list[Any]:
    if isinstance(kind.shape, relax.ShapeExpr):
        return list(kind.shape.values)
    return [fresh_dim("d") for _ in range(kind.ndim)]


def _join_dimensions(left: Any, right: Any, analyzer: Any) -> Any:
    return left if analyzer.can_prove_equal(left, right) else fresh_dim("d")


def unpack(bb: Any, result: Any, kinds: Sequence[Any]) -> list[Any]:
    """The outputs of a call, cast to types that say more than that of the call."""
    if len(kinds) == 1:
        items = [result]
    else:
        items = [bb.emit(relax.TupleGetItem(result, index)) for index in range(len(kinds))]
    return [_cast(bb, item, kind) for item, kind in zip(items, kinds, strict=True)]


def _cast(bb: Any, item: Any, kind: Any) -> Any:
    if tvm_ffi.structural_equal(item.ty, kind):
        return item
    return bb.match_cast(item, kind)
