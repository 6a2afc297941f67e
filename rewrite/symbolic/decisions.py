"""Decisions with three results: True or False where all runs agree, None for "not known"."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from .expressions import Dim, Expr, Term, bounds, of
from .polynomials import add, mul, sub


def eq(a: Dim, b: Dim) -> bool | None:
    """Whether a equals b in every run (True), in no run (False), or neither is known (None)."""
    if a == b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return False
    difference = sub(a, b)
    low, high = bounds(difference)
    if (low is not None and low > 0) or (high is not None and high < 0):
        return False
    if _indivisible(difference):
        return False
    return None


def equal_shapes(a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> bool:
    """Whether two shapes are known to be equal; False if one of them is not known."""
    if a is None or b is None or len(a) != len(b):
        return False
    return all(eq(x, y) is True for x, y in zip(a, b))


def broadcastable(shapes: Sequence[Sequence[Dim]]) -> bool:
    """Whether shapes are known to broadcast: along each axis, all sizes other than 1 are equal."""
    rank = max(map(len, shapes), default=0)
    for axis in range(1, rank + 1):
        sizes = [shape[-axis] for shape in shapes if len(shape) >= axis and shape[-axis] != 1]
        if any(eq(sizes[0], size) is not True for size in sizes[1:]):
            return False
    return True


def _indivisible(difference: Dim) -> bool:
    """Whether all factors share a divisor that the constant lacks: `4*n + 2` is never 0."""
    if not isinstance(difference, Expr) or not difference.constant:
        return False
    common = 0
    for _, factor in difference.terms:
        common = gcd(common, factor)
    return common > 1 and difference.constant % common != 0


def lt(a: Dim, b: Dim) -> bool | None:
    """Whether a is less than b."""
    return le(add(a, 1), b)


def le(a: Dim, b: Dim) -> bool | None:
    """Whether a is less than or equal to b."""
    if isinstance(a, int) and isinstance(b, int):
        return a <= b
    difference = sub(b, a)
    known = _sign(difference)
    return known if known is not None else _sign(_without_quotients(difference))


def _sign(difference: Dim) -> bool | None:
    """Whether a difference is never negative (True) or always negative (False)."""
    low, high = bounds(difference)
    if low is not None and low >= 0:
        return True
    if high is not None and high < 0:
        return False
    return None


def _without_quotients(dim: Dim) -> Dim:
    """Rewrites `n - 4 * (n // 4)` as `n % 4`, whose bounds are known."""
    if not isinstance(dim, Expr):
        return dim
    result: Dim = dim
    for monomial, factor in dim.terms:
        atom = monomial[0]
        if len(monomial) > 1 or not isinstance(atom, Term) or atom.op != "floordiv":
            continue
        divisor = atom.right
        if isinstance(divisor, int) and divisor > 0 and factor % divisor == 0:
            multiple = sub(atom.left, of(Term("mod", atom.left, divisor)))
            change = sub(mul(factor // divisor, multiple), mul(factor, of(atom)))
            result = add(result, change)
    return result


def positive(a: Dim) -> bool:
    """Whether a is known to be greater than 0."""
    return lt(0, a) is True


def nonnegative(a: Dim) -> bool:
    """Whether a is known to be at least 0."""
    return le(0, a) is True


def nonzero(a: Dim) -> bool:
    """Whether a is known to differ from 0."""
    return eq(a, 0) is False
