"""Polynomials in a normal form: equal by linear arithmetic means equal as Python objects."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cached_property, reduce

from . import intervals
from .intervals import Bounds

_serial = itertools.count()


@dataclass(frozen=True)
class Symbol:
    """An unknown integer with known bounds, which is fixed during one run of its scope."""

    name: str
    low: int | None = 0
    high: int | None = None
    scope: object = field(default=None, compare=False)
    """The body in whose iterations the value may differ; None for the main graph."""
    serial: int = -1
    """Distinguishes symbols with the same name."""

    @staticmethod
    def fresh(
        name: str, low: int | None = 0, high: int | None = None, scope: object = None
    ) -> Symbol:
        """A symbol that differs from all others."""
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
        return f"{_operand(self.left)}{sign}{_operand(self.right)}"


def _operand(dim: Dim) -> str:
    text = str(dim)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def _product(monomial: Monomial, factor: int) -> str:
    """A monomial with its factor. Quotients and remainders are in brackets unless alone."""
    if factor == 1 and len(monomial) == 1:
        return str(monomial[0])
    texts = [
        f"({atom})" if isinstance(atom, Term) and atom.op in ("floordiv", "mod") else str(atom)
        for atom in monomial
    ]
    product = "*".join(texts)
    return product if factor == 1 else f"-{product}" if factor == -1 else f"{factor}*{product}"


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
        # Sorts by text, because a symbol's repr contains the whole body of its scope.
        terms = sorted(self.terms, key=lambda term: ("*".join(map(str, term[0])), term[1]))
        parts = [_product(monomial, factor) for monomial, factor in terms]
        if self.constant:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")

    __repr__ = __str__

    @cached_property
    def bounds(self) -> tuple[int | None, int | None]:
        """Smallest and largest possible value; None where unbounded."""
        total: Bounds = (self.constant, self.constant)
        for monomial, factor in self.terms:
            total = intervals.add(total, intervals.scale(_monomial_bounds(monomial), factor))
        return total

    @cached_property
    def size(self) -> int:
        """The number of atoms, including those inside terms."""
        return sum(_atom_size(atom) for monomial, _ in self.terms for atom in monomial)

    def symbols(self) -> set[Symbol]:
        """All symbols, including those inside terms."""
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


def symbol(name: str, low: int | None = 0, high: int | None = None) -> Dim:
    """The symbol with this name, or a number if the bounds allow only one value."""
    return of(Symbol(name, low, high))


def of(atom: Atom) -> Dim:
    """An atom as an expression, or as a number if its bounds allow only one value."""
    if isinstance(atom, Symbol) and atom.low is not None and atom.low == atom.high:
        return atom.low
    return Expr({(atom,): 1}, 0)


def fresh(name: str, low: int | None = 0, high: int | None = None, scope: object = None) -> Dim:
    """A dim that is not known to equal any other."""
    return of(Symbol.fresh(name, low, high, scope))


def size(dim: Dim) -> int:
    """The number of atoms in the expression; 0 for a number."""
    return dim.size if isinstance(dim, Expr) else 0


def symbols(dim: Dim) -> set[Symbol]:
    """All symbols of a dim."""
    return dim.symbols() if isinstance(dim, Expr) else set()


def bounds(dim: Dim) -> Bounds:
    """The smallest and largest possible value; None where unbounded."""
    return dim.bounds if isinstance(dim, Expr) else (dim, dim)


def _monomial_bounds(monomial: Monomial) -> Bounds:
    return reduce(intervals.multiply, map(_atom_bounds, monomial))


def _atom_bounds(atom: Atom) -> Bounds:
    if isinstance(atom, Symbol):
        return atom.low, atom.high
    return intervals.TERMS[atom.op](bounds(atom.left), bounds(atom.right))


def single_atom(dim: Dim) -> Atom | None:
    """The symbol or term that the dim consists of; None for other dims."""
    if not isinstance(dim, Expr) or dim.constant or len(dim.terms) != 1:
        return None
    ((monomial, factor),) = dim.terms
    return monomial[0] if factor == 1 and len(monomial) == 1 else None


def single_symbol(dim: Dim) -> Symbol | None:
    """The symbol that the dim consists of; None for other dims."""
    atom = single_atom(dim)
    return atom if isinstance(atom, Symbol) else None


def file_name(dim: Dim) -> str | None:
    """The name of a dim that the file names; None for other dims, and for symbols of looplift."""
    symbol = single_symbol(dim)
    return symbol.name if symbol is not None and symbol.serial < 0 else None


VARYING: Dim = Expr({(Symbol("varying", serial=next(_serial)),): 1}, 0)
"""The dim of a sequence's elements that may differ between them. A fresh dim must replace it before
it becomes the dim of a tensor."""
