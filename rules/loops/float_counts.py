"""Whole numbers that are computed as floats are computed as integers.

n = Cast(Ceil(Div(Cast(m), -1.0)))    ->    n = Neg(m)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from ...rewrite.facts import FLOATS, INT32, INT64, INTEGERS
from ...rewrite.ir import Node, Tensor
from ...rewrite.patch import Patch
from ...rewrite.rule import Match, Rule
from ..emit import Emit

_EXACT = ("Max", "Min", "Add", "Sub", "Mul", "Neg")
"""Operators that give the same on whole numbers as on floats, up to where floats are exact."""
_DEEPEST = 8


@dataclass(frozen=True)
class Whole:
    """A whole number: an integer value, a constant, or an operator on whole numbers."""

    value: Tensor | None = None
    number: int = 0
    op: str = ""
    operands: tuple[Whole, ...] = ()


class CountInIntegers(Rule):
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
        m.need(m.facts.dtype(source) in FLOATS, "it is not from a float")
        shape = m.facts.shape(result)
        small = shape is not None and all(d == 1 for d in shape)
        m.need(small, "`{}` is not a single number", result.name)
        m.need(m.facts.opset >= 13, "before opset 13 some operators take no integers")
        whole = _whole(m, source, 0)
        m.need(whole is not None, "`{}` is not a whole number for sure", source.name, at=source)
        assert whole is not None
        m.need(whole.op != "", "it is an integer already but for the casts")
        m.need(not m.options.strict, "strict: `{}` is computed as a float", result.name, at=source)
        return {"node": m.node, "whole": whole, "to": to}

    def apply(self, patch: Patch, node: Node, whole: Whole, to: int) -> None:
        result = node.outputs[0]
        patch.note(f"`{result.name}` is computed as a float: exact up to 2**24")
        patch.replace(result, _computed(Emit(patch, result), whole, to))
        patch.remove(node)
        patch.toward_normal_form()


def _whole(m: Match, tensor: Tensor, depth: int) -> Whole | None:
    """How a float comes from integers; None where it may have a fraction."""
    constant = m.facts.constant(tensor)
    if constant is not None:
        number = float(constant.reshape(-1)[0]) if constant.size == 1 else 0.5
        return Whole(number=int(number)) if number.is_integer() else None
    node = m.index.producer(tensor)
    if node is None or node.domain or depth > _DEEPEST:
        return None
    if node.op == "Cast":
        return Whole(value=node.inputs[0]) if m.facts.dtype(node.inputs[0]) in INTEGERS else None
    if node.op in ("Ceil", "Floor"):
        return _rounded(m, node, depth + 1)
    if node.op not in _EXACT:
        return None
    operands = [_whole(m, t, depth + 1) for t in node.inputs]
    known = tuple(o for o in operands if o is not None)
    return Whole(op=node.op, operands=known) if len(known) == len(operands) else None


def _rounded(m: Match, node: Node, depth: int) -> Whole | None:
    """Ceil or Floor of a whole number, or of one divided by a constant whole number."""
    division = m.producer(node.inputs[0], "Div")
    if division is None:
        return _whole(m, node.inputs[0], depth)
    above, below = (_whole(m, t, depth) for t in division.inputs)
    if above is None or below is None or below.value is not None or below.op or below.number == 0:
        return None
    if below.number < 0:
        above, below = Whole(op="Neg", operands=(above,)), Whole(number=-below.number)
    return above if below.number == 1 else Whole(op=node.op, operands=(above, below))


def _computed(emit: Emit, whole: Whole, to: int) -> Tensor:
    """The integer."""
    if whole.value is not None:
        return emit("Cast", whole.value, to=to)
    if not whole.op:
        return emit.array(np.array(whole.number, onnx.helper.tensor_dtype_to_np_dtype(to)))
    operands = [_computed(emit, operand, to) for operand in whole.operands]
    if whole.op not in ("Ceil", "Floor"):
        return emit(whole.op, *operands)
    # Div rounds towards zero; without its remainder a number is divided without one. Mod has the
    # sign of the divisor, which is positive.
    number, divisor = operands
    up = whole.op == "Ceil"
    rest = emit("Mod", emit("Neg", number) if up else number, divisor)
    return emit("Div", emit("Add" if up else "Sub", number, rest), divisor)
