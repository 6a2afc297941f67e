"""Sums and products of dims, which are exact in the normal form."""

from __future__ import annotations

from collections.abc import Iterable

from .expressions import Atom, Dim, Expr, Monomial, Symbol, symbols


def parts(dim: Dim) -> tuple[dict[Monomial, int], int]:
    """The factors of a polynomial by monomial, and its constant."""
    return (dict(dim.terms), dim.constant) if isinstance(dim, Expr) else ({}, dim)


def make(terms: dict[Monomial, int], constant: int) -> Dim:
    """The inverse of `parts`; drops factors of 0."""
    terms = {m: f for m, f in terms.items() if f}
    return Expr(terms, constant) if terms else constant


def add(a: Dim, b: Dim) -> Dim:
    """a + b."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if b == 0:
        return a
    terms, constant = parts(a)
    more, extra = parts(b)
    for monomial, factor in more.items():
        terms[monomial] = terms.get(monomial, 0) + factor
    return make(terms, constant + extra)


def neg(a: Dim) -> Dim:
    """-a."""
    if isinstance(a, int):
        return -a
    return Expr({monomial: -factor for monomial, factor in a.terms}, -a.constant)


def sub(a: Dim, b: Dim) -> Dim:
    """a - b."""
    if isinstance(b, int):
        return add(a, -b)
    terms, constant = parts(a)
    for monomial, factor in b.terms:
        terms[monomial] = terms.get(monomial, 0) - factor
    return make(terms, constant - b.constant)


def mul(a: Dim, b: Dim) -> Dim:
    """a * b."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if a == 1 or b == 1:
        return b if a == 1 else a
    left, left_constant = parts(a)
    right, right_constant = parts(b)
    terms: dict[Monomial, int] = {}
    for m1, f1 in [*left.items(), ((), left_constant)]:
        for m2, f2 in [*right.items(), ((), right_constant)]:
            monomial = tuple(sorted(m1 + m2, key=_atom_order))
            terms[monomial] = terms.get(monomial, 0) + f1 * f2
    constant = terms.pop((), 0)
    return make(terms, constant)


def _atom_order(atom: Atom) -> tuple[str, int]:
    return (str(atom), atom.serial if isinstance(atom, Symbol) else -1)


def product(dims: Iterable[Dim]) -> Dim:
    """The product of all dims; 1 for none."""
    result: Dim = 1
    for dim in dims:
        result = mul(result, dim)
    return result


def is_size(dim: Dim) -> bool:
    """Whether the dim is computed only from sizes: symbols that are never negative."""
    return all(s.low is not None and s.low >= 0 for s in symbols(dim))


def largest_factor(dim: Dim) -> int:
    """The largest absolute value of the polynomial's coefficients and constant."""
    if not isinstance(dim, Expr):
        return abs(dim)
    return max([abs(dim.constant), *(abs(factor) for _, factor in dim.terms)])
