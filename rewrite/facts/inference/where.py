"""Values of a Where whose condition is not known: `n > 0 ? n : 0` is n for a size n.

Exporters compute trip counts so, for loops that may have no iteration.
"""

from __future__ import annotations

from collections.abc import Iterator

from ... import symbolic
from ...graph.ir import Tensor
from ...symbolic import Dim, Symbol
from ..fact import INTEGERS
from ..facts import Facts
from .registry import NodeContext

_DEEPEST = 4
_EXACT = 1 << 20
"""Integers up to this size compare in single precision as they do as integers."""


def value_of_where(ctx: NodeContext, yes: Dim, no: Dim) -> Dim | None:
    """The value of `Where(condition, yes, no)` if it is known without the condition.

    It is known where the result is the maximum or minimum of the compared numbers, and where the
    condition is `n > low` for a symbol n that is never below `low`: if it is false, n is `low`.
    """
    extreme = _extreme(ctx, yes, no)
    if extreme is not None:
        return extreme
    found = {
        _compared_with_lowest(ctx.facts, part) for part in _conjuncts(ctx, ctx.node.inputs[0], 0)
    }
    number = found.pop() if len(found) == 1 else None
    low = None if number is None else symbolic.bounds(symbolic.of(number))[0]
    if number is None or low is None:
        return None
    # Where the condition holds, n is low + 1 + beyond; in this form, bounds decide min and max.
    beyond = symbolic.fresh("beyond")
    rest = symbolic.single_symbol(beyond)
    assert rest is not None, "a fresh dim is a symbol"
    above = symbolic.substitute(yes, {number: symbolic.add(low + 1, beyond)})
    value = symbolic.substitute(above, {rest: symbolic.sub(symbolic.of(number), low + 1)})
    at_lowest = (symbolic.substitute(v, {number: low}) for v in (value, no))
    return value if symbolic.eq(*at_lowest) is True else None


def _extreme(ctx: NodeContext, yes: Dim, no: Dim) -> Dim | None:
    """`Where(a > b, a, b)`, which is how the maximum of integers is written before opset 12."""
    node = ctx.facts.index.producer(ctx.node.inputs[0])
    if node is None or node.domain or node.op not in ("Less", "Greater"):
        return None
    compared = [t for t in node.inputs if ctx.facts.dtype(t) in INTEGERS]
    sides = [ctx.facts.scalar(t) for t in compared]
    if sides not in ([yes, no], [no, yes]):
        return None
    larger = (sides == [yes, no]) == (node.op == "Greater")
    return symbolic.maximum(yes, no) if larger else symbolic.minimum(yes, no)


def _conjuncts(ctx: NodeContext, condition: Tensor, depth: int) -> Iterator[Tensor]:
    """The operands of nested Ands, or the condition itself."""
    node = ctx.facts.index.producer(condition)
    if node is not None and not node.domain and node.op == "And" and depth < _DEEPEST:
        for part in node.inputs:
            yield from _conjuncts(ctx, part, depth + 1)
    else:
        yield condition


def _compared_with_lowest(facts: Facts, condition: Tensor) -> Symbol | None:
    """The symbol n where the condition is `n > low` and `low` is the lower bound of n."""
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
