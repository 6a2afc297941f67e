"""Exact integer arithmetic over symbolic dims.

An `Expr` is a polynomial with integer coefficients over atoms: symbols (`batch`, `T`) and the
non-linear terms floor division, remainder, minimum and maximum. Polynomials are kept in a normal
form, so that two expressions that are equal by linear arithmetic are equal as Python objects.
Interval bounds decide what the normal form cannot. Every decision has three results: True, False,
and None for "not known".
"""

from .decisions import broadcastable, eq, equal_shapes, le, lt, nonnegative, nonzero, positive
from .expressions import (
    VARYING,
    Atom,
    Dim,
    Expr,
    Monomial,
    Symbol,
    Term,
    bounds,
    file_name,
    fresh,
    of,
    single_atom,
    single_symbol,
    size,
    symbol,
    symbols,
)
from .intervals import Bounds
from .nonlinear import ceildiv, floordiv, maximum, minimum, mod, substitute
from .polynomials import add, is_size, largest_factor, mul, neg, product, sub

__all__ = [
    "VARYING", "Atom", "Bounds", "Dim", "Expr", "Monomial", "Symbol", "Term",
    "add", "bounds", "broadcastable", "ceildiv", "eq", "equal_shapes", "file_name", "floordiv",
    "fresh", "is_size", "largest_factor", "le", "lt", "maximum", "minimum", "mod", "mul", "neg",
    "nonnegative", "nonzero", "of", "positive", "product", "single_atom", "single_symbol", "size",
    "sub", "substitute", "symbol", "symbols",
]  # fmt: skip
