"""Multidirectional broadcasting over symbolic dims (onnx: docs/Broadcasting.md)."""

from __future__ import annotations

from ... import symbolic
from ...symbolic import Dim
from .registry import NodeContext


def broadcast(ctx: NodeContext, *shapes: tuple[Dim, ...] | None) -> tuple[Dim, ...] | None:
    """The shape of an element-wise result; None when a rank is not known."""
    known = [s for s in shapes if s is not None]
    if len(known) != len(shapes):
        return None
    if len(known) == 2 and known[0] == known[1]:
        return known[0]
    rank = max(map(len, known), default=0)
    padded = [(1,) * (rank - len(s)) + s for s in known]
    return tuple(_dim(ctx, axis, column) for axis, column in enumerate(zip(*padded)))


def _dim(ctx: NodeContext, axis: int, column: tuple[Dim, ...]) -> Dim:
    wide = [d for d in column if not isinstance(d, int) or d != 1]
    if not wide:
        return 1
    if len(wide) == 1:
        return wide[0]
    not_one = [d for d in wide if symbolic.eq(d, 1) is False]
    for dim in not_one[1:]:
        if symbolic.eq(dim, not_one[0]) is False:
            ctx.fail(f"dims {not_one[0]} and {dim} of axis {axis} cannot be broadcast")
    if not_one:
        numbers = [d for d in not_one if isinstance(d, int)]
        return numbers[0] if numbers else not_one[0]
    return wide[0] if all(d == wide[0] for d in wide) else ctx.fresh(axis)
