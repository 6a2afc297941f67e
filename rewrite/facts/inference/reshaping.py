"""Operators that keep the elements and change the axes: Reshape, Squeeze, Expand …"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ... import symbolic
from ...symbolic import Dim
from ..fact import MOST_VALUES, AlwaysFails, Fact
from ..iteration_bounds import positive_in_body
from .broadcast import broadcast
from .registry import NodeContext, fact_like, register


@register("Squeeze")
def squeeze(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    axes = ctx.axes()
    if x.shape is None or axes is None:
        ranks = None
        if axes and x.ranks is not None:
            ranks = frozenset(r - len(axes) for r in x.ranks if r >= len(axes))
        return [Fact(x.dtype, None, ranks)]
    if not axes:  # onnxruntime treats an empty list of axes as an omitted one
        if any(symbolic.eq(d, 1) is None for d in x.shape):
            return [Fact(x.dtype)]
        axes = [i for i, d in enumerate(x.shape) if d == 1]
    drop = {ctx.axis(a, len(x.shape)) for a in axes}
    for axis in drop:
        if symbolic.eq(x.shape[axis], 1) is False:
            ctx.fail(f"axis {axis} has size {x.shape[axis]}, not 1")
    kept = tuple(d for axis, d in enumerate(x.shape) if axis not in drop)
    return [Fact(x.dtype, kept, None, x.values)]


@register("Unsqueeze")
def unsqueeze(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    axes = ctx.axes()
    if x.shape is None or axes is None:
        ranks = None
        if axes is not None and x.ranks is not None:
            ranks = frozenset(r + len(axes) for r in x.ranks)
        return [Fact(x.dtype, None, ranks)]
    rank = len(x.shape) + len(axes)
    added = {ctx.axis(a, rank) for a in axes}
    if len(added) < len(axes):
        raise AlwaysFails("an axis is given twice")
    rest = iter(x.shape)
    return [
        Fact(x.dtype, tuple(1 if i in added else next(rest) for i in range(rank)), None, x.values)
    ]


@register("Reshape")
def reshape(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    target = ctx.attr_or_dims("shape", 1)
    if target is None:
        count = ctx.shape(1)
        return [Fact(x.dtype, ctx.shape_of_length(count[0] if count else None))]
    keep_zero = bool(ctx.attr("allowzero", 0))
    dims = [_target_dim(ctx, x, target, axis, keep_zero) for axis in range(len(target))]
    return [fact_like(x, _fill_wildcard(ctx, x, dims), x.array())]


def _target_dim(ctx: NodeContext, x: Fact, target: list[Dim], axis: int, keep_zero: bool) -> Dim:
    """One dim of the result; -1 for the dim to infer from the number of elements."""
    dim = target[axis]
    if dim == -1 or (keep_zero and symbolic.nonnegative(dim)):
        return dim
    if positive_in_body(ctx.facts, ctx.node, dim):
        return dim
    if keep_zero:
        return ctx.fresh(axis)
    copied = x.shape[axis] if x.shape is not None and axis < len(x.shape) else None
    if dim == 0:
        if x.shape is not None and copied is None:
            ctx.fail(f"dim {axis} of the target copies an axis that the input lacks")
        return ctx.fresh(axis) if copied is None else copied
    if not symbolic.nonnegative(dim):
        return ctx.fresh(axis)
    # If the dim is 0 in a run, the axis of the input is copied: right only if that is 0, too.
    if copied == dim or _zero_would_fail(x, target, axis):
        return dim
    if copied is None:
        return ctx.fresh(axis)
    if _is_zero_with(copied, dim):
        return dim
    repeated = _repeated(copied, dim)
    return ctx.fresh(axis) if repeated is None else repeated


def _is_zero_with(copied: Dim, dim: Dim) -> bool:
    """Whether a size of the input is known to be 0 wherever a product of symbols is 0."""
    factors = _factors(dim)
    only_symbols = [atom for atom in factors if isinstance(atom, symbolic.Symbol)]
    if not factors or len(only_symbols) < len(factors):
        return False
    return all(symbolic.substitute(copied, {factor: 0}) == 0 for factor in only_symbols)


def _repeated(copied: Dim, dim: Dim) -> Dim | None:
    """(T, B, 4) reshaped to (T * B, -1) has T rows where B is 0: T * max(B, 1)."""
    repeats = _exact_quotient(dim, copied)
    if repeats is None or symbolic.mul(repeats, copied) != dim:
        return None
    is_size = symbolic.nonnegative(copied) and symbolic.nonnegative(repeats)
    return symbolic.mul(copied, symbolic.maximum(repeats, 1)) if is_size else None


def _factors(dim: Dim) -> Sequence[symbolic.Atom]:
    """The factors of a product without its number; () for other dims."""
    if not isinstance(dim, symbolic.Expr) or dim.constant or len(dim.terms) != 1:
        return ()
    ((monomial, _),) = dim.terms
    return monomial


def _exact_quotient(total: Dim, divisor: Dim) -> Dim | None:
    """total / divisor in the runs where the divisor is not 0; None where it may have a remainder.

    No factor of a product is 0 if the product is not.
    """
    positive: dict[symbolic.Symbol, Dim] = {}
    factors: dict[symbolic.Symbol, Dim] = {}
    for symbol in _factors(divisor):
        if isinstance(symbol, symbolic.Symbol) and symbol.low == 0 and symbol.high is None:
            twin = symbolic.Symbol.fresh(symbol.name, 1, None, symbol.scope)
            positive[symbol], factors[twin] = symbolic.of(twin), symbolic.of(symbol)
    total, divisor = (symbolic.substitute(dim, positive) for dim in (total, divisor))
    if not symbolic.nonzero(divisor):
        return None
    quotient = symbolic.floordiv(total, divisor)
    is_exact = symbolic.mul(quotient, divisor) == total
    return symbolic.substitute(quotient, factors) if is_exact else None


def _zero_would_fail(x: Fact, target: list[Dim], axis: int) -> bool:
    """Whether a 0 here, which copies a size of the input, always makes the Reshape fail."""
    symbol = symbolic.single_symbol(target[axis])
    if x.shape is None or symbol is None:
        return False
    if axis >= len(x.shape):
        return True
    at_zero: dict[symbolic.Symbol, Dim] = {symbol: 0}
    before = [d if isinstance(d, int) else symbolic.substitute(d, at_zero) for d in x.shape]
    after = [d if isinstance(d, int) else symbolic.substitute(d, at_zero) for d in target]
    copied = [before[k] if d == 0 and k < len(before) else d for k, d in enumerate(after)]
    total, wanted = symbolic.product(before), symbolic.product(copied)
    return -1 not in copied and symbolic.eq(total, wanted) is False


def _fill_wildcard(ctx: NodeContext, x: Fact, dims: list[Dim]) -> tuple[Dim, ...]:
    unknown = [axis for axis, dim in enumerate(dims) if dim == -1]
    if len(unknown) > 1:
        for axis in unknown:
            dims[axis] = ctx.fresh(axis)
        return tuple(dims)
    if x.shape is None:
        return tuple(ctx.fresh(a) if d == -1 else d for a, d in enumerate(dims))
    total = symbolic.product(x.shape)
    if not unknown:
        if symbolic.eq(total, symbolic.product(dims)) is False:
            ctx.fail(f"{total} elements cannot take the shape {dims}")
        return tuple(dims)
    rest = symbolic.product(d for d in dims if d != -1)
    dims[unknown[0]] = _quotient(ctx, unknown[0], total, rest)
    return tuple(dims)


def _quotient(ctx: NodeContext, axis: int, total: Dim, rest: Dim) -> Dim:
    if isinstance(total, int) and isinstance(rest, int):
        if rest == 0:
            return ctx.fresh(axis)
        if total % rest:
            ctx.fail(f"{total} elements cannot be divided by {rest}")
        return total // rest
    found = _cancel(ctx.shape(0) or (), rest)
    if ctx.attr("allowzero", 0) and not symbolic.nonzero(rest):
        # onnxruntime runs a target with 0 and -1, and leaves sizes of 0 out of the quotient.
        return found if found is not None and symbolic.nonzero(found) else ctx.fresh(axis)
    for quotient in (found, _exact_quotient(total, rest), _quotient_of_repeated(total, rest)):
        if quotient is not None:
            return quotient
    return ctx.fresh(axis)


def _quotient_of_repeated(total: Dim, rest: Dim) -> Dim | None:
    """4 * T * B / (T * max(B, 1)) is 4, and 0 where B is 0: 4 * min(B, 1)."""
    for atom in _factors(rest):
        if not isinstance(atom, symbolic.Term) or atom.op != "max" or atom.left != 1:
            continue
        others = _exact_quotient(rest, symbolic.of(atom))
        divisor = None if others is None else symbolic.mul(others, atom.right)
        quotient = None if divisor is None else _exact_quotient(total, divisor)
        # Where B is 0, so must the total be.
        if (
            divisor is not None
            and quotient is not None
            and symbolic.mul(quotient, divisor) == total
        ):
            return symbolic.mul(quotient, symbolic.minimum(atom.right, 1))
    return None


def _cancel(shape: tuple[Dim, ...], rest: Dim) -> Dim | None:
    """(N - 1, 4, H) reshaped to (N - 1, -1): N - 1 cancels even where it may be 0.

    If it is 0 the run fails, because the missing dim cannot be inferred. In all other runs the
    quotient is the product of the other dims.
    """
    for drop in range(len(shape)):
        if shape[drop] == rest:
            return symbolic.product(shape[:drop] + shape[drop + 1 :])
    return None


@register("Flatten")
def flatten(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    if x.shape is None:
        return [Fact(x.dtype, ctx.unknown_shape(2))]
    axis = ctx.attr("axis", 1)
    axis = axis + len(x.shape) if axis < 0 else axis
    pair = (symbolic.product(x.shape[:axis]), symbolic.product(x.shape[axis:]))
    return [Fact(x.dtype, pair)]


@register("Expand")
def expand(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    target = ctx.dims(1)
    if x.shape is None:
        return [Fact(x.dtype)]
    if target is None:
        target_shape = ctx.shape(1)
        length = target_shape[0] if target_shape else None
        if not isinstance(length, int):
            return [Fact(x.dtype)]
        return [Fact(x.dtype, ctx.shape_of_length(max(len(x.shape), length)))]
    ctx.check_sizes(target)
    result = broadcast(ctx, x.shape, tuple(target))
    array = x.array()
    if array is None or result is None or not all(isinstance(d, int) for d in result):
        return [Fact(x.dtype, result)]
    if symbolic.product(result) > MOST_VALUES:  # type: ignore[operator]
        return [Fact(x.dtype, result)]
    return [fact_like(x, result, np.broadcast_to(array, [int(d) for d in result]))]  # type: ignore[arg-type]


@register("Tile")
def tile(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    repeats = ctx.dims(1)
    if x.shape is None or repeats is None:
        return [Fact(x.dtype, None if x.shape is None else ctx.unknown_shape(len(x.shape)))]
    return [Fact(x.dtype, tuple(symbolic.mul(d, r) for d, r in zip(x.shape, repeats)))]


@register("DepthToSpace", "SpaceToDepth")
def blocks(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    if x.shape is None or len(x.shape) != 4:
        return [Fact(x.dtype)]
    n, c, h, w = x.shape
    b = int(ctx.attr("blocksize"))
    if ctx.node.op == "DepthToSpace":
        dims = (n, symbolic.floordiv(c, b * b), symbolic.mul(h, b), symbolic.mul(w, b))
    else:
        dims = (n, symbolic.mul(c, b * b), symbolic.floordiv(h, b), symbolic.floordiv(w, b))
    return [Fact(x.dtype, dims)]
