"""Whole numbers that are computed as floats are computed as integers.

n = Cast(Ceil(Div(Cast(m), -1.0)))    ->    n = Neg(m)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE, INT32, INT64, INTEGERS
from ...rewrite.graph.ir import Node, Tensor

_EXACT = ("Max", "Min", "Add", "Sub", "Mul", "Neg")
"""Operators that give the same on whole numbers as on floats, up to where floats are exact."""
_DEEPEST = 8
_MOST = 16
"""Elements: bounds of slices and sizes are no longer vectors."""
_EXACT_BITS = 24
"""Whole numbers of so many bits are exact in single precision, and what is computed from them."""
_FAR_BITS = 31
"""Bits of a constant that is only compared with, such as a bound that means "to the end"."""


@dataclass(frozen=True)
class Whole:
    """Whole numbers: integer values, constants, or an operator on whole numbers."""

    value: Tensor | None = None
    numbers: np.ndarray | None = None
    op: str = ""
    operands: tuple[Whole, ...] = ()


class FloatCounterToInteger(Rule):
    """A count that goes through floats only to be rounded stays an integer."""

    root = "Cast"
    fires = """g (float[N,3] x) => (int64 y) <float minus = {-1}> {
      zero = Constant<value_int=0>() s = Shape(x) n = Gather(s, zero) k = Neg(n)
      f = Cast<to=1>(k) d = Div(f, minus) c = Ceil(d) y = Cast<to=7>(c) }"""
    spares = {
        "not a whole number": """g (float[1] x) => (int64[1] y) { c = Ceil(x) y = Cast<to=7>(c) }""",
        "already": """g (int64 m) => (int64 y) { f = Cast<to=1>(m) y = Cast<to=7>(f) }""",
        "not from a float": """g (int64 m) => (int32 y) { y = Cast<to=6>(m) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        source, result = m.node.inputs[0], m.node.outputs[0]
        to = int(m.node.attrs["to"])
        m.need(to in (INT64, INT32), "it is not cast to int32 or int64")
        m.need(m.facts.dtype(source) in FLOAT_OR_DOUBLE, "it is not from a float")
        shape = m.facts.shape(result)
        count = None if shape is None else symbolic.product(shape)
        few = isinstance(count, int) and 0 < count <= _MOST
        m.need(few, "`{}` is not known to be a few numbers", result.name)
        whole = _whole(m, source, _FAR_BITS, 0)
        m.need(whole is not None, "`{}` is not a whole number for sure", source.name, at=source)
        assert whole is not None
        m.need(whole.op != "", "it is an integer already but for the casts")
        m.need(_bits(whole) < 63, "`{}` may be beyond int64", source.name, at=source)
        m.need(
            not m.options.strict, "--strict: `{}` is computed as a float", result.name, at=source
        )
        return {"node": m.node, "whole": whole, "to": to}

    def apply(self, patch: Patch, node: Node, whole: Whole, to: int) -> None:
        result = node.outputs[0]
        patch.note(f"`{result.name}` is computed as a float: exact up to 2**24")
        emit = patch.builder(result)
        # What is in between may be beyond the type of the result.
        number = _computed(emit, whole)
        patch.replace(result, number if to == INT64 else emit("Cast", number, to=to))
        patch.remove(node)
        patch.toward_normal_form()


def _whole(m: Match, tensor: Tensor, bits: int, depth: int) -> Whole | None:
    """How floats come from integers; None where one may have a fraction, or where a constant has
    more bits than this.
    """
    constant = m.facts.constant(tensor)
    if constant is not None:
        return _whole_constant(constant, bits)
    node = m.index.producer(tensor)
    if node is None or node.domain or depth > _DEEPEST:
        return None
    if node.op == "Cast":
        return Whole(value=node.inputs[0]) if m.facts.dtype(node.inputs[0]) in INTEGERS else None
    if node.op in ("Ceil", "Floor"):
        return _rounded(m, node, bits, depth + 1)
    if node.op not in _EXACT:
        return None
    bits = _EXACT_BITS if node.op in ("Add", "Sub", "Mul") else bits
    operands = [_whole(m, t, bits, depth + 1) for t in node.inputs]
    known = tuple(o for o in operands if o is not None)
    return Whole(op=node.op, operands=known) if len(known) == len(operands) else None


def _whole_constant(constant: np.ndarray, bits: int) -> Whole | None:
    floats = constant.astype(np.float64)
    fits = constant.size <= _MOST and np.all(np.abs(floats) < 2.0**bits)
    return Whole(numbers=floats.astype(np.int64)) if fits and not np.any(floats % 1) else None


def _rounded(m: Match, node: Node, bits: int, depth: int) -> Whole | None:
    """Ceil or Floor of whole numbers, or of ones divided by constant whole numbers of one sign."""
    division = m.producer(node.inputs[0], "Div")
    if division is None:
        return _whole(m, node.inputs[0], bits, depth)
    above, below = (_whole(m, t, _EXACT_BITS, depth) for t in division.inputs)
    if above is None or below is None or below.numbers is None:
        return None
    divisors = below.numbers
    if np.all(divisors < 0):
        above, divisors = Whole(op="Neg", operands=(above,)), -divisors
    if not np.all(divisors > 0):
        return None
    if divisors.ndim == 0 and divisors == 1:
        return above
    return Whole(op=node.op, operands=(above, Whole(numbers=divisors)))


def _bits(whole: Whole) -> int:
    """Bits that the numbers take where the values they come from are exact as floats."""
    if whole.value is not None:
        return _EXACT_BITS
    if whole.numbers is not None:
        return int(np.abs(whole.numbers).max(initial=0)).bit_length()
    sizes = [_bits(operand) for operand in whole.operands]
    return sum(sizes) if whole.op == "Mul" else max(sizes) + len(sizes) - 1


def _computed(emit: Builder, whole: Whole) -> Tensor:
    """The integers, int64."""
    if whole.value is not None:
        return emit("Cast", whole.value, to=INT64)
    if whole.numbers is not None:
        return emit.constant(whole.numbers)
    operands = [_computed(emit, operand) for operand in whole.operands]
    if whole.op in ("Max", "Min"):
        return reduce(emit.max if whole.op == "Max" else emit.min, operands)
    if whole.op not in ("Ceil", "Floor"):
        return emit(whole.op, *operands)
    # Div rounds towards zero; without its remainder a number is divided without one. Mod has the
    # sign of the divisor, which is positive.
    number, divisor = operands
    up = whole.op == "Ceil"
    rest = emit("Mod", emit("Neg", number) if up else number, divisor)
    return emit("Div", emit("Add" if up else "Sub", number, rest), divisor)
