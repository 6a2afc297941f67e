"""What a choice is whatever its condition: `n > 0 ? n : 0` is n where n is a size.

Loops that ask before the first iteration whether there is one are counted so.
"""

from __future__ import annotations

from collections.abc import Iterator

from ... import symbolic
from ...graph.ir import Tensor
from ...symbolic import Dim, Symbol
from ..facts import INTEGERS, Facts
from .registry import Site

_DEEPEST = 4
_EXACT = 1 << 20
"""Whole numbers up to here compare in single precision as they do as integers."""


def choice(site: Site, yes: Dim, no: Dim) -> Dim | None:
    """The value of `Where(condition, yes, no)`, where it is known without the condition.

    That is so where the choice is the larger or the smaller of what is compared, and where the
    condition is `n > low` for a symbol n that is never below `low`: without it n is `low`.
    """
    extreme = _extreme(site, yes, no)
    if extreme is not None:
        return extreme
    found = {_above_lowest(site.facts, part) for part in _conjuncts(site, site.node.inputs[0], 0)}
    number = found.pop() if len(found) == 1 else None
    low = None if number is None else symbolic.bounds(symbolic.of(number))[0]
    if number is None or low is None:
        return None
    # Above `low`, n is low + 1 + beyond: written so, bounds decide minima and maxima.
    beyond = symbolic.fresh("beyond")
    rest = symbolic.single_symbol(beyond)
    assert rest is not None, "a fresh dim is a symbol"
    above = symbolic.substitute(yes, {number: symbolic.add(low + 1, beyond)})
    value = symbolic.substitute(above, {rest: symbolic.sub(symbolic.of(number), low + 1)})
    at_lowest = (symbolic.substitute(v, {number: low}) for v in (value, no))
    return value if symbolic.eq(*at_lowest) is True else None


def _extreme(site: Site, yes: Dim, no: Dim) -> Dim | None:
    """`Where(a > b, a, b)` is how the larger of integers is spelled before opset 12."""
    node = site.facts.index.producer(site.node.inputs[0])
    if node is None or node.domain or node.op not in ("Less", "Greater"):
        return None
    compared = [t for t in node.inputs if site.facts.dtype(t) in INTEGERS]
    sides = [site.facts.scalar(t) for t in compared]
    if sides not in ([yes, no], [no, yes]):
        return None
    larger = (sides == [yes, no]) == (node.op == "Greater")
    return symbolic.maximum(yes, no) if larger else symbolic.minimum(yes, no)


def _conjuncts(site: Site, condition: Tensor, depth: int) -> Iterator[Tensor]:
    node = site.facts.index.producer(condition)
    if node is not None and not node.domain and node.op == "And" and depth < _DEEPEST:
        for part in node.inputs:
            yield from _conjuncts(site, part, depth + 1)
    else:
        yield condition


def _above_lowest(facts: Facts, condition: Tensor) -> Symbol | None:
    """The symbol of which a comparison asks whether it is more than the least it can be."""
    node = facts.index.producer(condition)
    if node is None or node.domain or node.op not in ("Less", "Greater"):
        return None
    below, above = node.inputs if node.op == "Less" else list(node.inputs)[::-1]
    number = facts.scalar(above)
    symbol = None if number is None or isinstance(number, bool) else symbolic.single_symbol(number)
    low = None if symbol is None else symbolic.bounds(symbolic.of(symbol))[0]
    array = facts.constant(below)
    if low is None or abs(low) > _EXACT or array is None or array.size != 1:
        return None
    return symbol if array.item() == low else None
