"""Exact integer arithmetic over symbolic dims.

An `Expr` is a polynomial with integer coefficients over atoms: symbols (`batch`, `T`) and the
non-linear terms floor division, remainder, minimum and maximum. Polynomials are kept in one normal
form, so two expressions that are equal by linear arithmetic are equal as Python objects. What the
normal form cannot see is decided by interval bounds. Every decision has three answers: True, False
and None for "not known".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

_serial = itertools.count()


@dataclass(frozen=True)
class Symbol:
    """An integer that is fixed during one run of its scope, with known bounds."""

    name: str
    low: int | None = 0
    high: int | None = None
    scope: object = field(default=None, compare=False)
    """The body graph whose every execution may give another value; None for the main graph."""
    serial: int = -1
    """Tells apart symbols that happen to have one name."""

    @staticmethod
    def fresh(
        name: str, low: int | None = 0, high: int | None = None, scope: object = None
    ) -> Symbol:
        return Symbol(name, low, high, scope, next(_serial))

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Term:
    """A non-linear atom: `floordiv`, `mod`, `min` or `max` of two dims."""

    op: str
    left: Dim
    right: Dim

    def __str__(self) -> str:
        if self.op in ("min", "max"):
            return f"{self.op}({self.left}, {self.right})"
        sign = "//" if self.op == "floordiv" else "%"
        return f"({self.left}){sign}{self.right}"


Atom = Symbol | Term
Monomial = tuple[Atom, ...]


class Expr:
    """A polynomial: `constant + sum(coefficient * monomial)`; never a plain number."""

    __slots__ = ("__dict__", "constant", "terms")

    def __init__(self, terms: dict[Monomial, int], constant: int) -> None:
        self.terms = frozenset(terms.items())
        self.constant = constant

    @cached_property
    def _key(self) -> int:
        return hash((self.terms, self.constant))

    def __hash__(self) -> int:
        return self._key

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Expr)
            and self.constant == other.constant
            and self.terms == other.terms
        )

    def __str__(self) -> str:
        parts = []
        for monomial, factor in sorted(self.terms, key=lambda t: str(t[0])):
            text = "*".join(str(a) for a in monomial)
            parts.append(text if factor == 1 else f"{factor}*{text}")
        if self.constant:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")

    __repr__ = __str__

    @cached_property
    def bounds(self) -> tuple[int | None, int | None]:
        """Smallest and largest possible value; None where unbounded."""
        total: Bounds = (self.constant, self.constant)
        for monomial, factor in self.terms:
            total = _add_bounds(total, _scale(_monomial_bounds(monomial), factor))
        return total

    @cached_property
    def size(self) -> int:
        """Number of atoms, those inside terms included."""
        return sum(_atom_size(atom) for monomial, _ in self.terms for atom in monomial)

    def symbols(self) -> set[Symbol]:
        found: set[Symbol] = set()
        for monomial, _ in self.terms:
            for atom in monomial:
                if isinstance(atom, Symbol):
                    found.add(atom)
                else:
                    found |= symbols(atom.left) | symbols(atom.right)
        return found


def _atom_size(atom: Atom) -> int:
    return 1 if isinstance(atom, Symbol) else 1 + size(atom.left) + size(atom.right)


Dim = int | Expr
Bounds = tuple[int | None, int | None]


def symbol(name: str, low: int | None = 0, high: int | None = None) -> Dim:
    """The dim with this name; one that can hold a single value only is that number."""
    return of(Symbol(name, low, high))


def of(atom: Atom) -> Dim:
    if isinstance(atom, Symbol) and atom.low is not None and atom.low == atom.high:
        return atom.low
    return Expr({(atom,): 1}, 0)


def fresh(name: str, low: int | None = 0, high: int | None = None, scope: object = None) -> Dim:
    """A dim nothing else is known to equal."""
    return of(Symbol.fresh(name, low, high, scope))


def size(dim: Dim) -> int:
    """How large the expression is; 0 for a number."""
    return dim.size if isinstance(dim, Expr) else 0


def symbols(dim: Dim) -> set[Symbol]:
    return dim.symbols() if isinstance(dim, Expr) else set()


def bounds(dim: Dim) -> Bounds:
    return dim.bounds if isinstance(dim, Expr) else (dim, dim)


VARYING: Dim = Expr({(Symbol("varying", serial=next(_serial)),): 1}, 0)
"""Stands for a dim of a sequence's elements that may differ from element to element. It must be
replaced by a fresh dim before it becomes the dim of a tensor."""


# --- arithmetic ----------------------------------------------------------------------------------


def _parts(dim: Dim) -> tuple[dict[Monomial, int], int]:
    return (dict(dim.terms), dim.constant) if isinstance(dim, Expr) else ({}, dim)


def _make(terms: dict[Monomial, int], constant: int) -> Dim:
    terms = {m: f for m, f in terms.items() if f}
    return Expr(terms, constant) if terms else constant


def add(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    terms, constant = _parts(a)
    more, extra = _parts(b)
    for monomial, factor in more.items():
        terms[monomial] = terms.get(monomial, 0) + factor
    return _make(terms, constant + extra)


def neg(a: Dim) -> Dim:
    return mul(a, -1)


def sub(a: Dim, b: Dim) -> Dim:
    return add(a, neg(b))


def mul(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    left, left_constant = _parts(a)
    right, right_constant = _parts(b)
    terms: dict[Monomial, int] = {}
    for m1, f1 in [*left.items(), ((), left_constant)]:
        for m2, f2 in [*right.items(), ((), right_constant)]:
            monomial = tuple(sorted(m1 + m2, key=_atom_order))
            terms[monomial] = terms.get(monomial, 0) + f1 * f2
    constant = terms.pop((), 0)
    return _make(terms, constant)


def _atom_order(atom: Atom) -> tuple[str, int]:
    return (str(atom), atom.serial if isinstance(atom, Symbol) else -1)


def product(dims: Iterable[Dim]) -> Dim:
    result: Dim = 1
    for dim in dims:
        result = mul(result, dim)
    return result


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
    if isinstance(b, int) and b > 0:
        return _floordiv_constant(a, b)
    return _exact_quotient(a, b) or of(Term("floordiv", a, b))


def _floordiv_constant(a: Dim, b: int) -> Dim:
    """Takes the multiples of b out: (6*n + 7) // 3 is 2*n + 2 + 1 // 3."""
    terms, constant = _parts(a)
    whole = {m: f // b for m, f in terms.items() if f % b == 0}
    rest = {m: f for m, f in terms.items() if f % b}
    outside = _make(whole, constant // b)
    inside = _make(rest, constant % b)
    low, high = bounds(inside)
    if low is not None and high is not None and low // b == high // b:
        return add(outside, low // b)
    nested = _single_term(inside, "floordiv")
    if nested is not None and isinstance(nested.right, int) and nested.right > 0:
        return add(outside, floordiv(nested.left, nested.right * b))
    return add(outside, of(Term("floordiv", inside, b)))


def _single_term(dim: Dim, op: str) -> Term | None:
    """The atom, when the dim is nothing but one term of this kind."""
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
    return _make(terms, constant)


def ceildiv(a: Dim, b: Dim) -> Dim:
    return neg(floordiv(neg(a), b))


def mod(a: Dim, b: Dim) -> Dim:
    """Remainder with the sign of the divisor, as Python's `%`."""
    if b == 0:
        raise ZeroDivisionError(f"remainder of {a} by 0")
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if isinstance(b, int) and b > 0:
        terms, constant = _parts(a)
        rest = _make({m: f % b for m, f in terms.items()}, constant % b)
        low, high = bounds(rest)
        if low is not None and high is not None and low >= 0 and high < b:
            return rest
        return of(Term("mod", rest, b))
    return of(Term("mod", a, b))


def minimum(a: Dim, b: Dim) -> Dim:
    return _extremum("min", a, b)


def maximum(a: Dim, b: Dim) -> Dim:
    return _extremum("max", a, b)


def _extremum(op: str, a: Dim, b: Dim) -> Dim:
    order = le(a, b) if op == "min" else le(b, a)
    if order:
        return a
    if le(b, a) if op == "min" else le(a, b):
        return b
    left, right = sorted((a, b), key=str)
    return of(Term(op, left, right))


# --- bounds --------------------------------------------------------------------------------------


def _add_bounds(a: Bounds, b: Bounds) -> Bounds:
    low = None if a[0] is None or b[0] is None else a[0] + b[0]
    high = None if a[1] is None or b[1] is None else a[1] + b[1]
    return low, high


def _scale(a: Bounds, factor: int) -> Bounds:
    low = None if a[0] is None else a[0] * factor
    high = None if a[1] is None else a[1] * factor
    return (low, high) if factor >= 0 else (high, low)


def _monomial_bounds(monomial: Monomial) -> Bounds:
    result: Bounds = (1, 1)
    for atom in monomial:
        result = _multiply_bounds(result, _atom_bounds(atom))
    return result


def _multiply_bounds(a: Bounds, b: Bounds) -> Bounds:
    if a[0] is not None and b[0] is not None and a[0] >= 0 and b[0] >= 0:
        high = None if a[1] is None or b[1] is None else a[1] * b[1]
        return a[0] * b[0], high
    if None in a or None in b:
        return None, None
    corners = [x * y for x in a for y in b]  # type: ignore[operator]
    return min(corners), max(corners)


def _atom_bounds(atom: Atom) -> Bounds:
    if isinstance(atom, Symbol):
        return atom.low, atom.high
    return _TERM_BOUNDS[atom.op](bounds(atom.left), bounds(atom.right))


def _floordiv_bounds(a: Bounds, b: Bounds) -> Bounds:
    if b[0] is None or b[0] <= 0:
        return None, None
    if b[0] == b[1]:
        return tuple(None if x is None else x // b[0] for x in a)  # type: ignore[return-value]
    if a[0] is not None and a[0] >= 0:
        return 0, None if a[1] is None else a[1] // b[0]
    return None, None


def _mod_bounds(a: Bounds, b: Bounds) -> Bounds:
    if b[0] is None or b[0] <= 0:
        return None, None
    return 0, None if b[1] is None else b[1] - 1


def _known(pick: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else pick(a, b)


def _either(pick: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return pick(a, b)


_TERM_BOUNDS: dict[str, Callable[[Bounds, Bounds], Bounds]] = {
    "floordiv": _floordiv_bounds,
    "mod": _mod_bounds,
    "min": lambda a, b: (_known(min, a[0], b[0]), _either(min, a[1], b[1])),
    "max": lambda a, b: (_either(max, a[0], b[0]), _known(max, a[1], b[1])),
}


# --- decisions -----------------------------------------------------------------------------------


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


def _indivisible(difference: Dim) -> bool:
    """`4*n + 2` is never 0: all factors share a divisor that the constant has not."""
    if not isinstance(difference, Expr) or not difference.constant:
        return False
    common = 0
    for _, factor in difference.terms:
        common = _gcd(common, abs(factor))
    return common > 1 and difference.constant % common != 0


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


def lt(a: Dim, b: Dim) -> bool | None:
    return le(add(a, 1), b)


def le(a: Dim, b: Dim) -> bool | None:
    low, high = bounds(sub(b, a))
    if low is not None and low >= 0:
        return True
    if high is not None and high < 0:
        return False
    return None


def positive(a: Dim) -> bool:
    return lt(0, a) is True


def nonnegative(a: Dim) -> bool:
    return le(0, a) is True


def nonzero(a: Dim) -> bool:
    return eq(a, 0) is False


def single_symbol(dim: Dim) -> Symbol | None:
    """The symbol, when the dim is nothing but one."""
    if not isinstance(dim, Expr) or dim.constant or len(dim.terms) != 1:
        return None
    ((monomial, factor),) = dim.terms
    atom = monomial[0]
    return atom if factor == 1 and len(monomial) == 1 and isinstance(atom, Symbol) else None


def is_size(dim: Dim) -> bool:
    """Whether the dim is computed from sizes alone: symbols that are never negative."""
    return all(s.low is not None and s.low >= 0 for s in symbols(dim))


def largest_factor(dim: Dim) -> int:
    """The largest coefficient or constant of the polynomial."""
    if not isinstance(dim, Expr):
        return abs(dim)
    return max([abs(dim.constant), *(abs(factor) for _, factor in dim.terms)])


def substitute(dim: Dim, values: dict[Symbol, Dim]) -> Dim:
    """The dim with symbols replaced."""
    if not isinstance(dim, Expr) or not (dim.symbols() & values.keys()):
        return dim
    result: Dim = dim.constant
    for monomial, factor in dim.terms:
        part: Dim = factor
        for atom in monomial:
            part = mul(part, _substitute_atom(atom, values))
        result = add(result, part)
    return result


def _substitute_atom(atom: Atom, values: dict[Symbol, Dim]) -> Dim:
    if isinstance(atom, Symbol):
        return values.get(atom, of(atom))
    left, right = substitute(atom.left, values), substitute(atom.right, values)
    return _BUILD[atom.op](left, right)


_BUILD: dict[str, Callable[[Dim, Dim], Dim]] = {
    "floordiv": floordiv,
    "mod": mod,
    "min": minimum,
    "max": maximum,
}
