"""Names of dims that are formulas over other names, as exporters write them: `2*n`, `(T - 1)//2`.

ONNX gives them no meaning: for onnxruntime, `2*n` is a name like any other. The facts of a rewrite
therefore must not rely on a formula, but a module of TVM may check it at run time.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
}


def evaluate_formula(text: str, sizes: Mapping[str, Any]) -> Any:
    """The value of a formula, by the precedence of Python; `/` rounds down.

    `sizes` has the values of all names in it: numbers, or expressions that overload the operators.
    Raises SyntaxError or ValueError for a text that is not a formula, and KeyError for a name that
    `sizes` lacks.
    """
    return _evaluate(ast.parse(text, mode="eval").body, sizes)


def is_formula(text: str, plain: Collection[str]) -> bool:
    """Whether a name is a formula over names that occur alone elsewhere, unlike `batch-size`."""
    try:
        evaluate_formula(text, dict.fromkeys(plain, 1))
        names = [node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
        return False
    return bool(names) and names != [text]


def _evaluate(node: ast.expr, sizes: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand, sizes)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        right = _evaluate(node.right, sizes)
        return _OPERATORS[type(node.op)](_evaluate(node.left, sizes), right)
    raise ValueError(ast.dump(node))
