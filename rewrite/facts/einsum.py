"""The equation of an Einsum."""

from __future__ import annotations


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
