"""The equation of an Einsum."""

from __future__ import annotations

import re

_TERM = r"[A-Za-z]*(\.\.\.[A-Za-z]*)?"
_EQUATION = re.compile(rf"{_TERM}(,{_TERM})*(->{_TERM})?")


def is_equation(text: str, operands: int) -> bool:
    """Whether a text is an equation of so many operands, whose result has each of its letters once.

    Reading two ellipses in one operand, onnx does not end, and TVM reads past the letters of the
    operands for a letter that only the result has.
    """
    text = text.replace(" ", "")
    if _EQUATION.fullmatch(text) is None:
        return False
    terms, _, result = text.partition("->")
    letters = result.replace("...", "")
    is_chosen = len(set(letters)) == len(letters) and set(letters) <= set(terms)
    return is_chosen and terms.count(",") + 1 == operands


def einsum_letters(equation: str) -> tuple[list[str], str] | None:
    """The letters of each operand and of the result; None for an equation with an ellipsis.

    Without an arrow, the result has the letters that occur once, in alphabetical order (ONNX
    operator specification, Einsum).
    """
    equation = equation.replace(" ", "")
    if "." in equation:
        return None
    operands, arrow, result = equation.partition("->")
    if not arrow:
        result = "".join(sorted(c for c in set(operands) - {","} if operands.count(c) == 1))
    return operands.split(","), result
