"""Non-linear operations: quotients, remainders, minima and maxima; substitution of symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .decisions import le, nonzero, positive
from .expressions import Atom, Dim, Expr, Monomial, Symbol, Term, bounds, of, symbols
from .polynomials import add, make, mul, neg, parts


def floordiv(a: Dim, b: Dim) -> Dim:
    """Division rounding down. Raises ZeroDivisionError for a divisor of 0."""
    if b == 0:
        raise ZeroDivisionError(f"{a} divided by 0")
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1:
        return a
    if a == b and positive(b):
        return 1
    if isinstance(b, int):
        return _floordiv_constant(a, b) if b > 0 else floordiv(neg(a), -b)
    return _exact_quotient(a, b) or of(Term("floordiv", a, b))


def _floordiv_constant(a: Dim, b: int) -> Dim:
    """Moves multiples of b out of the quotient: (6*n + 7) // 3 is 2*n + 2 + 1 // 3."""
    terms, constant = parts(a)
    whole = {m: f // b for m, f in terms.items() if f % b == 0}
    rest = {m: f for m, f in terms.items() if f % b}
    outside = make(whole, constant // b)
    inside = make(rest, constant % b)
    low, high = bounds(inside)
    if low is not None and high is not None and low // b == high // b:
        return add(outside, low // b)
    nested = _single_term(inside, "floordiv")
    if nested is not None and isinstance(nested.right, int) and nested.right > 0:
        return add(outside, floordiv(nested.left, nested.right * b))
    return add(outside, of(Term("floordiv", inside, b)))


def _single_term(dim: Dim, op: str) -> Term | None:
    """The term that the dim consists of, if it has this operation; None for other dims."""
    if not isinstance(dim, Expr) or dim.constant or len(dim.terms) != 1:
        return None
    ((monomial, factor),) = dim.terms
    atom = monomial[0]
    if factor == 1 and len(monomial) == 1 and isinstance(atom, Term) and atom.op == op:
        return atom
    return None


def _exact_quotient(a: Dim, b: Dim) -> Dim | None:
    """a / b where b is one monomial that divides every term of a and cannot be 0."""
    if not isinstance(a, Expr) or not isinstance(b, Expr) or a.constant or b.constant:
        return None
    if len(b.terms) != 1 or not nonzero(b):
        return None
    ((divisor, factor),) = b.terms
    terms: dict[Monomial, int] = {}
    constant = 0
    for monomial, coefficient in a.terms:
        rest = list(monomial)
        for atom in divisor:
            if atom not in rest:
                return None
            rest.remove(atom)
        if coefficient % factor:
            return None
        if rest:
            terms[tuple(rest)] = coefficient // factor
        else:
            constant = coefficient // factor
    return make(terms, constant)


def ceildiv(a: Dim, b: Dim) -> Dim:
    """Division rounding up. Raises ZeroDivisionError for a divisor of 0."""
    return neg(floordiv(neg(a), b))


def mod(a: Dim, b: Dim) -> Dim:
    """The remainder with the sign of the divisor, like Python's `%`.

    Raises ZeroDivisionError for a divisor of 0.
    """
    if b == 0:
        raise ZeroDivisionError(f"remainder of {a} by 0")
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if isinstance(b, int) and b > 0:
        terms, constant = parts(a)
        rest = make({m: f % b for m, f in terms.items()}, constant % b)
        low, high = bounds(rest)
        if low is not None and high is not None and low >= 0 and high < b:
            return rest
        return of(Term("mod", rest, b))
    return of(Term("mod", a, b))


def minimum(a: Dim, b: Dim) -> Dim:
    """The smaller of two dims."""
    return _extremum("min", a, b)


def maximum(a: Dim, b: Dim) -> Dim:
    """The larger of two dims."""
    return _extremum("max", a, b)


def _extremum(op: str, a: Dim, b: Dim) -> Dim:
    order = le(a, b) if op == "min" else le(b, a)
    if order:
        return a
    if le(b, a) if op == "min" else le(a, b):
        return b
    left, right = sorted((a, b), key=str)
    return of(Term(op, left, right))


def substitute(dim: Dim, values: Mapping[Symbol, Dim] | Mapping[Atom, Dim]) -> Dim:
    """The dim with symbols or terms replaced by other dims."""
    given: dict[Atom, Dim] = dict(values.items())
    return _substitute(dim, given, {name for atom in given for name in symbols(of(atom))})


def _substitute(dim: Dim, values: Mapping[Atom, Dim], names: set[Symbol]) -> Dim:
    if not isinstance(dim, Expr) or not (dim.symbols() & names):
        return dim
    result: Dim = dim.constant
    for monomial, factor in dim.terms:
        part: Dim = factor
        for atom in monomial:
            part = mul(part, _substitute_atom(atom, values, names))
        result = add(result, part)
    return result


def _substitute_atom(atom: Atom, values: Mapping[Atom, Dim], names: set[Symbol]) -> Dim:
    if atom in values or isinstance(atom, Symbol):
        return values.get(atom, of(atom))
    left, right = (_substitute(dim, values, names) for dim in (atom.left, atom.right))
    return _BUILD[atom.op](left, right)


_BUILD: dict[str, Callable[[Dim, Dim], Dim]] = {
    "floordiv": floordiv,
    "mod": mod,
    "min": minimum,
    "max": maximum,
}
