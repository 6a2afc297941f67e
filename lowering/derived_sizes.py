"""Collects the sizes of a function's tensors, to recognise them where the model recomputes them.

A convolution of `n` columns with stride 2 has `(n - 1) // 2 + 1`, rounded down. Exporters compute
that with ONNX's Div, which rounds towards 0: the two differ for n = 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import ir, relax, sym, tirx

from .values import ANY_SIZE, Sizes, Value, as_int, fresh_dim, is_prim, is_tensor, match

_LONGEST = 48
"""The most numbers and symbols in the expression of a size."""


@dataclass(frozen=True)
class _Quotient:
    """A quotient in the sizes of tensors."""

    canonical: Any
    """The same for `n // 2` and `(n - 2) // 2`."""
    expression: Any
    """The quotient as a size has it."""
    offset: int
    """`expression - canonical`."""
    least: int | None
    """What `canonical` is at least, as the sizes are not negative; None if that is not known."""
    is_of_windows: bool
    """Whether a convolution or a pooling has such a size."""


class DerivedSizes:
    """The expressions that are sizes of tensors of a function, and the quotients in them."""

    def __init__(self) -> None:
        self._sizes: dict[int, list[Any]] = {}
        """By structural hash."""
        self._quotients: dict[int, list[_Quotient]] = {}
        """By the structural hash of the canonical form, each once."""
        self._symbols: dict[int, list[tuple[Any, Any]]] = {}
        """Long expressions and their symbols, by structural hash."""

    def learn(self, value: Value, *, is_of_windows: bool = False) -> None:
        """Notes the sizes of a tensor, which may be the result of a convolution or pooling."""
        if not is_tensor(value) or not isinstance(value.ty.shape, relax.ShapeExpr):
            return
        for size in value.ty.shape.values:
            if isinstance(size, tirx.IntImm | ir.Var):
                continue
            is_known = self._is_known(size)
            if not is_known:
                self._sizes.setdefault(tvm_ffi.structural_hash(size), []).append(size)
            if is_of_windows or not is_known:
                self._learn_quotients(size, is_of_windows)

    def with_short_sizes(self, bb: Any, value: Value) -> Value:
        """The value, with a symbol in place of each size that is a long expression.

        Detectors add and compare the sizes of all levels of a pyramid, and other models compute
        sizes step by step: proofs about expressions of thousands of terms would take minutes.
        """
        if is_tensor(value):
            if not isinstance(value.ty.shape, relax.ShapeExpr):
                return value
            if not any(map(_is_long, value.ty.shape.values)):
                return value
            sizes = [self._shortened(size) for size in value.ty.shape.values]
            return match(bb, value, relax.TensorType(sizes, value.ty.dtype))
        items = _integers(value)
        if not any(map(_is_long, items)):
            return value
        items = [self._short_integer(bb, item) if _is_long(item) else item for item in items]
        if isinstance(value, Sizes):
            return replace(value, items=items)
        return relax.ShapeExpr(items) if isinstance(value, relax.ShapeExpr) else items[0]

    def _short_integer(self, bb: Any, item: Any) -> Any:
        """An integer in symbols instead of a long expression.

        Symbols are sizes: an integer that may be negative is the difference of two of them. A run
        in which one is too large for a size fails.
        """
        parts = [item] if self.is_nonnegative(item) else [tirx.max(item, 0), tirx.max(-item, 0)]
        symbols = [self._shortened(part) for part in parts]
        too_large = [tirx.floordiv(part, ANY_SIZE.extent) for part in parts]
        zeros = [tirx.IntImm("int64", 0)] * len(parts)
        match(bb, relax.ShapeExpr(too_large), relax.ShapeType(zeros))
        match(bb, relax.ShapeExpr(parts), relax.ShapeType(symbols))
        return symbols[0] - symbols[1] if len(symbols) > 1 else symbols[0]

    def _shortened(self, size: Any) -> Any:
        """The size, or if it is a long expression, a symbol: the same each time."""
        if not _is_long(size):
            return size
        named = self._symbols.setdefault(tvm_ffi.structural_hash(size), [])
        for known, symbol in named:
            if tvm_ffi.structural_equal(size, known):
                return symbol
        symbol = fresh_dim("size")
        named.append((size, symbol))
        return symbol

    def floor_quotient(self, left: Any, right: Any) -> Any:
        """`left // right` as a size of a convolution or pooling contains it; None if none does."""
        canonical, offset = _canonical(tirx.floordiv(left, right))
        known = None if canonical is None else self._quotient(canonical)
        if known is None or not known.is_of_windows or known.least is None:
            return None
        if known.least + 1 + offset < 0:
            return None  # It may be negative where the convolution has columns.
        return sym.Analyzer().simplify(known.expression + (offset - known.offset))

    def is_nonnegative(self, item: Any) -> bool:
        """Whether an integer is known not to be negative, as the sizes of tensors are not."""
        if self._is_known(item):
            return True
        least: dict[Any, int] = {}

        def bounded(quotient: Any) -> Any:
            canonical, offset = _canonical(quotient)
            known = None if canonical is None else self._quotient(canonical)
            if known is None or known.least is None:
                return quotient
            symbol = tirx.Var("quotient", "int64")
            least[symbol] = known.least
            return symbol + offset

        def nonnegative(minimum: Any) -> Any:
            for part in (minimum.a, minimum.b):
                if not (self._is_known(part) or is_nonnegative(part, least)):
                    return minimum
            symbol = tirx.Var("minimum", "int64")
            least[symbol] = 0
            return symbol

        item = tvm_ffi.structural_map(item, (tirx.FloorDiv, bounded), order="pre")
        item = tvm_ffi.structural_map(item, (tirx.Min, nonnegative), order="post")
        return is_nonnegative(item, least)

    def _is_known(self, size: Any) -> bool:
        known = self._sizes.get(tvm_ffi.structural_hash(size), ())
        return any(tvm_ffi.structural_equal(size, other) for other in known)

    def _quotient(self, canonical: Any) -> _Quotient | None:
        known = self._quotients.get(tvm_ffi.structural_hash(canonical), ())
        return next((q for q in known if tvm_ffi.structural_equal(canonical, q.canonical)), None)

    def _learn_quotients(self, size: Any, is_of_windows: bool) -> None:
        def learn(quotient: Any) -> None:
            canonical, offset = _canonical(quotient)
            if canonical is None:
                return
            bound = _least(size, quotient)
            least = None if bound is None else bound - offset
            entries = self._quotients.setdefault(tvm_ffi.structural_hash(canonical), [])
            known = self._quotient(canonical)
            if known is None:
                entries.append(_Quotient(canonical, quotient, offset, least, is_of_windows))
                return
            bounds = [each for each in (least, known.least) if each is not None]
            entries[entries.index(known)] = replace(
                known,
                least=max(bounds, default=None),
                is_of_windows=is_of_windows or known.is_of_windows,
            )

        tvm_ffi.structural_walk(size, (tirx.FloorDiv, learn))


def is_nonnegative(item: Any, least: Mapping[Any, int] | None = None) -> bool:
    """Whether an integer is known not to be negative.

    Symbols are sizes, so not negative, except those in `least`, with the smallest value of each.
    """
    number = as_int(item)
    if number is not None:
        return number >= 0
    analyzer = sym.Analyzer()
    for symbol in tirx.analysis.undefined_vars(item):
        first = tirx.IntImm("int64", (least or {}).get(symbol, 0))
        analyzer.bind(symbol, ir.Range(first, ANY_SIZE.extent))
    return int(analyzer.const_int_bound(item).min_value) >= 0


def _integers(value: Value) -> Sequence[Any]:
    """The integers that a value computes from sizes; none for other values."""
    if isinstance(value, Sizes):
        return value.items
    if isinstance(value, relax.ShapeExpr):
        return list(value.values)
    return [value] if is_prim(value) and str(value.ty) == "int64" else []


def _is_long(size: Any) -> bool:
    """Whether an expression has so many numbers and symbols that proofs about it take long."""
    if isinstance(size, tirx.IntImm | ir.Var):
        return False
    found: list[Any] = []
    tvm_ffi.structural_walk(size, ((tirx.IntImm, ir.Var), found.append))
    return len(found) > _LONGEST


def _least(size: Any, quotient: Any) -> int | None:
    """The smallest value of a quotient for which a size that is linear in it is not negative."""
    symbol = tirx.Var("quotient", "int64")

    def named(part: Any) -> Any:
        return symbol if tvm_ffi.structural_equal(part, quotient) else part

    linear = tvm_ffi.structural_map(size, (tirx.FloorDiv, named), order="pre")
    coefficients = sym.detect_linear_equation(linear, [symbol])
    slope, summand = map(as_int, coefficients) if len(coefficients) == 2 else (None, None)
    return None if not slope or slope < 0 or summand is None else -(summand // slope)


def _canonical(quotient: Any) -> tuple[Any, int]:
    """Splits a quotient by a positive number into a canonical quotient and an offset.

    None and 0 for another quotient.
    """
    quotient = sym.Analyzer().simplify(quotient)
    if not isinstance(quotient, tirx.FloorDiv):
        return None, 0
    divisor = as_int(quotient.b)
    if not divisor or divisor < 0:
        return None, 0
    offset = _constant_term(quotient.a) // divisor
    rest = sym.Analyzer().simplify(quotient.a - offset * divisor)
    return tirx.floordiv(rest, quotient.b), offset


def _constant_term(expression: Any) -> int:
    if isinstance(expression, tirx.Add):
        return _constant_term(expression.a) + _constant_term(expression.b)
    if isinstance(expression, tirx.Sub):
        return _constant_term(expression.a) - _constant_term(expression.b)
    return as_int(expression) or 0
