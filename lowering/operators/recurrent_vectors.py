"""Vector values in generated kernels.

Kernels are written in whole vectors rather than in vectorised loops, because a value that is used
more than once can then be named by storing it in a buffer of its own, which becomes a register.
Names made by binding would be substituted back by TVM's simplifier, and nested activations grow
without bound.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as ib

Expr = Any
"""A tirx expression, a vector unless said otherwise."""


def span(start: Expr | int, lanes: int) -> Expr:
    """The indices of `lanes` neighbours from the scalar `start` on."""
    return tirx.Ramp(start, 1, lanes)


def keep(value: Expr) -> Expr:
    """Name a value, so that using it twice does not compute it twice. Emits statements."""
    dtype = value.ty.dtype
    place = ib.alloc_buffer((dtype.lanes,), dtype.with_lanes(1), scope="local")
    ib.buffer_store(place, value, [span(0, dtype.lanes)])
    return place[span(0, dtype.lanes)]


def add_to(kept: Expr, value: Expr) -> None:
    """Add to a value that `keep` returned, in place. Emits a statement."""
    ib.buffer_store(kept.source, kept + value, kept.indices)


def constant(value: float, like: Expr) -> Expr:
    """`value` in every lane, in the type of `like`."""
    return tirx.const(value, like.ty.dtype)


def clamp(x: Expr, low: float, high: float) -> Expr:
    """x bounded to [low, high]; NaN stays NaN, unlike with min and max."""
    low_, high_ = constant(low, x), constant(high, x)
    return tirx.Select(x < low_, low_, tirx.Select(x > high_, high_, x))
