"""The sizes that the tensors of a function have, for integers that a model computes anew.

A convolution rounds `(n - 1) / 2` down, and ONNX's Div rounds it towards 0. Exporters compute the
sizes of its result with Div, so that they are the same unless n is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, relax, sym, tirx

from .values import Value, as_int, is_tensor

_MOST = tirx.IntImm("int64", 1 << 48)
ANY_SIZE = ir.Range(tirx.IntImm("int64", 0), _MOST)
"""More than any memory holds, and few enough that the sums of sizes do not overflow."""


@dataclass(frozen=True)
class _Quotient:
    """A quotient that the sizes of a tensor have."""

    normal: Any
    """The same for `n // 2` and `(n - 2) // 2`."""
    written: Any
    difference: int
    """`written - normal`."""
    least: int | None
    """The smallest value of `normal` for which the size is not negative, if that is known."""


class DerivedSizes:
    """The expressions that are sizes of tensors of a function, and the quotients in them."""

    def __init__(self) -> None:
        self._sizes: dict[int, list[Any]] = {}
        """By structural hash."""
        self._quotients: dict[int, list[_Quotient]] = {}
        """By the structural hash of the normal form."""

    def learn(self, value: Value) -> None:
        """Notes the sizes of a tensor."""
        if not is_tensor(value) or not isinstance(value.ty.shape, relax.ShapeExpr):
            return
        for size in value.ty.shape.values:
            if not isinstance(size, tirx.IntImm | ir.Var) and not self._is_known(size):
                self._sizes.setdefault(tvm_ffi.structural_hash(size), []).append(size)
                self._learn_quotients(size)

    def rounded_down(self, left: Any, right: Any) -> Any:
        """The quotient of two integers, rounded down, as a size of a tensor has it; else None."""
        normal, difference = _normal_form(tirx.floordiv(left, right))
        known = None if normal is None else self._quotient(normal)
        if known is None:
            return None
        return sym.Analyzer().simplify(known.written + (difference - known.difference))

    def is_nonnegative(self, item: Any) -> bool:
        """Whether an integer is known not to be negative, as the sizes of tensors are not."""
        if self._is_known(item):
            return True
        least: dict[Any, int] = {}

        def replace(quotient: Any) -> Any:
            normal, difference = _normal_form(quotient)
            known = None if normal is None else self._quotient(normal)
            if known is None or known.least is None:
                return quotient
            symbol = tirx.Var("quotient", "int64")
            least[symbol] = known.least
            return symbol + difference

        item = tvm_ffi.structural_map(item, (tirx.FloorDiv, replace), order="pre")
        return is_nonnegative(item, least)

    def _is_known(self, size: Any) -> bool:
        known = self._sizes.get(tvm_ffi.structural_hash(size), ())
        return any(tvm_ffi.structural_equal(size, other) for other in known)

    def _quotient(self, normal: Any) -> _Quotient | None:
        known = self._quotients.get(tvm_ffi.structural_hash(normal), ())
        return next((q for q in known if tvm_ffi.structural_equal(normal, q.normal)), None)

    def _learn_quotients(self, size: Any) -> None:
        def learn(quotient: Any) -> None:
            normal, difference = _normal_form(quotient)
            if normal is None:
                return
            least = _least(size, quotient)
            of_normal = None if least is None else least - difference
            known = self._quotients.setdefault(tvm_ffi.structural_hash(normal), [])
            known.insert(
                0 if of_normal is not None else len(known),
                _Quotient(normal, quotient, difference, of_normal),
            )

        tvm_ffi.structural_walk(size, (tirx.FloorDiv, learn))


def is_nonnegative(item: Any, least: Mapping[Any, int] | None = None) -> bool:
    """Whether an integer is known not to be negative.

    Symbols are sizes, so not negative, but for those that `least` gives the smallest value of.
    """
    number = as_int(item)
    if number is not None:
        return number >= 0
    analyzer = sym.Analyzer()
    for symbol in tirx.analysis.undefined_vars(item):
        first = (least or {}).get(symbol, 0)
        analyzer.bind(symbol, ir.Range(tirx.IntImm("int64", first), _MOST))
    return int(analyzer.const_int_bound(item).min_value) >= 0


def _least(size: Any, quotient: Any) -> int | None:
    """The smallest value of a quotient for which a size that is linear in it is not negative."""
    symbol = tirx.Var("quotient", "int64")

    def replace(part: Any) -> Any:
        return symbol if tvm_ffi.structural_equal(part, quotient) else part

    linear = tvm_ffi.structural_map(size, (tirx.FloorDiv, replace), order="pre")
    coefficients = sym.detect_linear_equation(linear, [symbol])
    slope, summand = map(as_int, coefficients) if len(coefficients) == 2 else (None, None)
    return None if not slope or slope < 0 or summand is None else -(summand // slope)


def _normal_form(quotient: Any) -> tuple[Any, int]:
    """A quotient by a number as `normal + difference`; None and 0 for one by another size.

    The normal form of `n // 2` is that of `(n - 2) // 2`.
    """
    quotient = sym.Analyzer().simplify(quotient)
    if not isinstance(quotient, tirx.FloorDiv):
        return None, 0
    divisor = as_int(quotient.b)
    if not divisor or divisor < 0:
        return None, 0
    summand = _constant(quotient.a)
    difference = summand // divisor
    rest = sym.Analyzer().simplify(quotient.a - difference * divisor)
    return tirx.floordiv(rest, quotient.b), difference


def _constant(expression: Any) -> int:
    """The number that a sum adds to other expressions."""
    if isinstance(expression, tirx.Add):
        return _constant(expression.a) + _constant(expression.b)
    if isinstance(expression, tirx.Sub):
        return _constant(expression.a) - _constant(expression.b)
    return as_int(expression) or 0
