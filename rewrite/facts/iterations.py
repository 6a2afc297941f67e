"""What holds of numbers while an iteration of a Loop runs: its number is below the trip count."""

from __future__ import annotations

from collections.abc import Iterator

from .. import symbolic
from ..graph.ir import Graph
from ..graph.views import LoopView
from ..symbolic import Dim, Expr, Symbol
from .facts import Facts

_Meaning = tuple[Symbol, Dim, Symbol, Dim]
"""A symbol, what it is in terms of another one while an iteration runs, and that one likewise."""


def never_negative(facts: Facts, dim: Dim) -> bool:
    """Whether a number is at least 0 in every iteration that runs of the Loops around."""
    if symbolic.nonnegative(dim):
        return True
    for symbol, meaning, _, _ in _meanings(facts, dim):
        dim = symbolic.substitute(dim, {symbol: meaning})
    return symbolic.nonnegative(dim)


def settled(facts: Facts, dim: Dim) -> Dim:
    """The number without the minima and maxima that are decided in every iteration that runs:
    `max(n - 1 - i, -n)` is `n - 1 - i` for an iteration number i below n.
    """
    meanings = list(_meanings(facts, dim))
    for symbol, meaning, _, _ in meanings:
        dim = symbolic.substitute(dim, {symbol: meaning})
    for _, _, rest, back in reversed(meanings):
        dim = symbolic.substitute(dim, {rest: back})
    return dim


def _meanings(facts: Facts, dim: Dim) -> Iterator[_Meaning]:
    """One for each iteration number in the expression whose Loop has a known trip count."""
    replaced: set[Symbol] = set()
    for number in sorted(symbolic.symbols(dim), key=lambda s: (s.name, s.serial)):
        trips = _trips(facts, number)
        if trips is None:
            continue
        found = _in_terms_of_rest(number, trips)
        if found is not None and found[0] not in replaced:
            replaced.add(found[0])
            yield found


def _trips(facts: Facts, symbol: Symbol) -> Dim | None:
    """How many iterations the Loop runs at most whose iteration number the symbol is."""
    owner = facts.index.owner(symbol.scope) if isinstance(symbol.scope, Graph) else None
    if owner is None or owner.op != "Loop":
        return None
    view = LoopView(owner)
    number = facts.scalar(view.iteration)
    same = isinstance(number, Expr) and symbolic.single_symbol(number) == symbol
    return view.trips(facts) if same else None


def _in_terms_of_rest(number: Symbol, trips: Dim) -> _Meaning | None:
    """For `number` below `trips`: `trips` is `number + 1 + rest`, solved for one of its symbols."""
    iteration = symbolic.of(number)
    if isinstance(trips, int):
        bounded = _only(symbolic.fresh(number.name, 0, trips - 1)) if trips > 1 else None
        return None if bounded is None else (number, symbolic.of(bounded), bounded, iteration)
    rest = _only(symbolic.fresh("rest"))
    total = symbolic.add(symbolic.add(iteration, symbolic.of(rest)), 1)
    for symbol in sorted(symbolic.symbols(trips), key=lambda s: (s.name, s.serial)):
        others = symbolic.sub(trips, symbolic.of(symbol))
        if symbol not in symbolic.symbols(others):
            back = symbolic.sub(symbolic.sub(trips, iteration), 1)
            return symbol, symbolic.sub(total, others), rest, back
    return None


def _only(dim: Dim) -> Symbol:
    symbol = symbolic.single_symbol(dim)
    assert symbol is not None, "a fresh dim that can hold several values is a symbol"
    return symbol
