"""Computes integers that pass through floats as integers.

n = Cast(Ceil(Div(Cast(m), -1.0)))    ->    n = Neg(m)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE, INT32, INT64, INTEGERS
from ...rewrite.graph.ir import Node, Tensor

_EXACT_OPERATORS = ("Max", "Min", "Add", "Sub", "Mul", "Neg")
"""Operators that give the same result on integers as on floats, as long as floats are exact."""
_DEEPEST = 8
"""The most operators from the Cast back to an integer."""
_MOST_ELEMENTS = 16
"""Counts, bounds of slices and sizes are not larger."""
_EXACT_BITS = 24
"""Integers of up to this many bits are exact in single precision."""
_BOUND_BITS = 31
"""The bits of a constant that is only compared with, such as a bound that means "to the end"."""


@dataclass(frozen=True)
class IntegerExpression:
    """Integers: a value of an integer type, constants, or an operator on integers."""

    value: Tensor | None = None
    constant: np.ndarray | None = None
    op: str = ""
    operands: tuple[IntegerExpression, ...] = ()


class FloatCounterToInteger(Rule[IntegerExpression]):
    """Computes integers that pass through floats with integer operators."""

    root = "Cast"
    promise = Promise(
        assumes="counts below 2**24, which a float holds exactly",
    )
    fires = """g (float[N,3] x) => (int64 y) <float minus = {-1}> {
      zero = Constant<value_int=0>() s = Shape(x) n = Gather(s, zero) k = Neg(n)
      f = Cast<to=1>(k) d = Div(f, minus) c = Ceil(d) y = Cast<to=7>(c) }"""
    spares = {
        "is not known to be an integer": """g (float[1] x) => (int64[1] y) { c = Ceil(x) y = Cast<to=7>(c) }""",
        "only casts": """g (int64 m) => (int64 y) { f = Cast<to=1>(m) y = Cast<to=7>(f) }""",
        "is not a float": """g (int64 m) => (int32 y) { y = Cast<to=6>(m) }""",
    }

    def match(self, m: Match) -> IntegerExpression:
        source, result = m.node.inputs[0], m.node.outputs[0]
        m.need(int(m.node.attrs["to"]) in (INT64, INT32), "it is not a cast to int32 or int64")
        m.need(m.facts.dtype(source) in FLOAT_OR_DOUBLE, "{} is not a float", source)
        shape = m.facts.shape(result)
        count = None if shape is None else symbolic.product(shape)
        few = isinstance(count, int) and 0 < count <= _MOST_ELEMENTS
        m.need(few, "{} is not known to be {} numbers or fewer", result, _MOST_ELEMENTS)
        found = _integers(m, source, _BOUND_BITS, 0)
        found = m.need(found, "{} is not known to be an integer", source, at=source)
        m.need(found.op != "", "only casts separate it from an integer")
        m.need(_bits(found) < 63, "{} may not fit int64", source, at=source)
        m.need(not m.options.strict, "--strict: {} is computed as a float", result, at=source)
        return found

    def apply(self, patch: Patch, found: IntegerExpression) -> None:
        result, to = patch.root.outputs[0], int(patch.root.attrs["to"])
        patch.note(f"`{result.name}` is computed as a float: exact up to 2**24; --strict keeps it")
        emit = patch.builder(result)
        # Intermediate results may be beyond the type of the result.
        number = _emit_int64(emit, found)
        patch.replace_node(patch.root, [number if to == INT64 else emit("Cast", number, to=to)])
        patch.toward_normal_form()


def _integers(m: Match, tensor: Tensor, bits: int, depth: int) -> IntegerExpression | None:
    """How floats follow from integers; None where one may have a fraction.

    Also None where a constant takes more bits than `bits`.
    """
    constant = m.facts.constant(tensor)
    if constant is not None:
        return _integer_constant(constant, bits)
    node = m.index.producer(tensor)
    if node is None or node.domain or depth > _DEEPEST:
        return None
    if node.op == "Cast":
        source = node.inputs[0]
        return IntegerExpression(value=source) if m.facts.dtype(source) in INTEGERS else None
    if node.op in ("Ceil", "Floor"):
        return _rounded(m, node, bits, depth + 1)
    if node.op not in _EXACT_OPERATORS:
        return None
    bits = _EXACT_BITS if node.op in ("Add", "Sub", "Mul") else bits
    operands = [_integers(m, t, bits, depth + 1) for t in node.inputs]
    known = tuple(operand for operand in operands if operand is not None)
    if len(known) < len(operands):
        return None
    return IntegerExpression(op=node.op, operands=known)


def _integer_constant(constant: np.ndarray, bits: int) -> IntegerExpression | None:
    floats = constant.astype(np.float64)
    fits = constant.size <= _MOST_ELEMENTS and np.all(np.abs(floats) < 2.0**bits)
    if not fits or np.any(floats % 1):
        return None
    return IntegerExpression(constant=floats.astype(np.int64))


def _rounded(m: Match, node: Node, bits: int, depth: int) -> IntegerExpression | None:
    """Ceil or Floor of integers, or of integers divided by constant integers of one sign."""
    division = m.producer(node.inputs[0], "Div")
    if division is None:
        return _integers(m, node.inputs[0], bits, depth)
    numerator, denominator = (_integers(m, t, _EXACT_BITS, depth) for t in division.inputs)
    if numerator is None or denominator is None or denominator.constant is None:
        return None
    divisors = denominator.constant
    if np.all(divisors < 0):
        numerator, divisors = IntegerExpression(op="Neg", operands=(numerator,)), -divisors
    if not np.all(divisors > 0):
        return None
    if divisors.ndim == 0 and divisors == 1:
        return numerator
    return IntegerExpression(op=node.op, operands=(numerator, IntegerExpression(constant=divisors)))


def _bits(found: IntegerExpression) -> int:
    """The bits that the integers take if those they are computed from are exact as floats."""
    if found.value is not None:
        return _EXACT_BITS
    if found.constant is not None:
        return int(np.abs(found.constant).max(initial=0)).bit_length()
    sizes = [_bits(operand) for operand in found.operands]
    return sum(sizes) if found.op == "Mul" else max(sizes) + len(sizes) - 1


def _emit_int64(emit: Builder, found: IntegerExpression) -> Tensor:
    """Computes the integers as int64."""
    if found.value is not None:
        return emit("Cast", found.value, to=INT64)
    if found.constant is not None:
        return emit.constant(found.constant)
    operands = [_emit_int64(emit, operand) for operand in found.operands]
    if found.op in ("Max", "Min"):
        return reduce(emit.max if found.op == "Max" else emit.min, operands)
    if found.op not in ("Ceil", "Floor"):
        return emit(found.op, *operands)
    # Div rounds toward zero, so the remainder is subtracted before the division. Mod has the sign
    # of the divisor, which is positive.
    number, divisor = operands
    up = found.op == "Ceil"
    rest = emit("Mod", emit("Neg", number) if up else number, divisor)
    return emit("Div", emit("Add" if up else "Sub", number, rest), divisor)
