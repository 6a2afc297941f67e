"""Simplifies numbers inside an iteration, where the iteration number is below the trip count."""

from __future__ import annotations

from collections.abc import Iterator

from .. import symbolic
from ..graph.ir import Graph
from ..graph.views import LoopView
from ..symbolic import Dim, Expr, Symbol
from .facts import Facts

_Rewriting = tuple[Symbol, Dim, Symbol, Dim]
"""A symbol, its value inside an iteration in terms of a second symbol, that second symbol, and its
value in terms of the first."""


def nonnegative_in_iteration(facts: Facts, dim: Dim) -> bool:
    """Whether a number is never negative inside an iteration of the Loops around it."""
    if symbolic.nonnegative(dim):
        return True
    for symbol, value, _, _ in _rewritings(facts, dim):
        dim = symbolic.substitute(dim, {symbol: value})
    return symbolic.nonnegative(dim)


def simplify_in_iteration(facts: Facts, dim: Dim) -> Dim:
    """The number without the minima and maxima that are decided inside an iteration.

    `max(n - 1 - i, -n)` becomes `n - 1 - i` for an iteration number i below n.
    """
    rewritings = list(_rewritings(facts, dim))
    for symbol, value, _, _ in rewritings:
        dim = symbolic.substitute(dim, {symbol: value})
    for _, _, rest, back in reversed(rewritings):
        dim = symbolic.substitute(dim, {rest: back})
    return dim


def _rewritings(facts: Facts, dim: Dim) -> Iterator[_Rewriting]:
    """One for each iteration number in the expression whose Loop has a known trip count."""
    replaced: set[Symbol] = set()
    for number in sorted(symbolic.symbols(dim), key=lambda s: (s.name, s.serial)):
        trips = _trips(facts, number)
        if trips is None:
            continue
        found = _remaining(number, trips)
        if found is not None and found[0] not in replaced:
            replaced.add(found[0])
            yield found


def _trips(facts: Facts, symbol: Symbol) -> Dim | None:
    """The trip count of the Loop whose iteration number the symbol is; None for other symbols."""
    owner = facts.index.owner(symbol.scope) if isinstance(symbol.scope, Graph) else None
    if owner is None or owner.op != "Loop":
        return None
    view = LoopView(owner)
    number = facts.scalar(view.iteration)
    same = isinstance(number, Expr) and symbolic.single_symbol(number) == symbol
    return view.trips(facts) if same else None


def _remaining(number: Symbol, trips: Dim) -> _Rewriting | None:
    """Solves `trips = number + 1 + rest` for a symbol of `trips`; `rest` is never negative.

    Bounds `number` instead where `trips` is a constant.
    """
    iteration = symbolic.of(number)
    if isinstance(trips, int):
        bounded = _as_symbol(symbolic.fresh(number.name, 0, trips - 1)) if trips > 1 else None
        return None if bounded is None else (number, symbolic.of(bounded), bounded, iteration)
    rest = _as_symbol(symbolic.fresh("rest"))
    total = symbolic.add(symbolic.add(iteration, symbolic.of(rest)), 1)
    for symbol in sorted(symbolic.symbols(trips), key=lambda s: (s.name, s.serial)):
        others = symbolic.sub(trips, symbolic.of(symbol))
        if symbol not in symbolic.symbols(others):
            back = symbolic.sub(symbolic.sub(trips, iteration), 1)
            return symbol, symbolic.sub(total, others), rest, back
    return None


def _as_symbol(dim: Dim) -> Symbol:
    symbol = symbolic.single_symbol(dim)
    assert symbol is not None, "a fresh dim with more than one possible value is a symbol"
    return symbol
