"""Exact integer arithmetic over symbolic dims.

An `Expr` is a polynomial with integer coefficients over atoms: symbols (`batch`, `T`) and the
non-linear terms floor division, remainder, minimum and maximum. Polynomials are kept in one normal
form, so two expressions that are equal by linear arithmetic are equal as Python objects. What the
normal form cannot see is decided by interval bounds. Every decision has three answers: True, False
and None for "not known".
"""

from .decisions import eq, equal_shapes, le, lt, nonnegative, nonzero, positive, surely_broadcast
from .expressions import (
    VARYING,
    Atom,
    Dim,
    Expr,
    Monomial,
    Symbol,
    Term,
    bounds,
    fresh,
    of,
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
    "add", "bounds", "ceildiv", "eq", "equal_shapes", "floordiv", "fresh", "is_size",
    "largest_factor", "le", "lt", "maximum", "minimum", "mod", "mul", "neg", "nonnegative",
    "nonzero", "of", "positive", "product", "single_symbol", "size", "sub", "substitute",
    "surely_broadcast", "symbol", "symbols",
]  # fmt: skip
