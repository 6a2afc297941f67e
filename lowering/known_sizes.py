"""Gives the values of a Relax function the sizes that facts know, as expressions such as `2*n`.

A fact describes sizes by the rewriter's symbols, a Relax type by the symbols of its function. Each
value of a function relates the two: where the fact of a parameter says `T` and its type says `T_1`,
the symbol `T` is `T_1` in this function. Where Relax cannot infer the shape of a later value, its
type then says what the fact says. A match_cast checks the sizes when the module runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import tvm_ffi
from tvm import ir, relax, sym, tirx
from tvm.ir import is_prim_var

from ..rewrite import symbolic
from ..rewrite.facts.facts import Facts
from ..rewrite.graph.ir import Tensor
from ..rewrite.symbolic import Dim, Symbol
from .values import Value, is_tensor

_COMBINED = {
    "floordiv": tirx.floordiv,
    "mod": tirx.floormod,
    "min": tirx.min,
    "max": tirx.max,
}


class KnownSizes:
    """The size in one function of each symbol of facts; knows nothing without facts."""

    def __init__(self, facts: Facts | None) -> None:
        self._facts = facts
        self._sizes: dict[Symbol, Any] = {}
        self._present: set[Any] = set()
        """Symbols in the types of values that the function has already."""

    def learn(self, tensor: Tensor, value: Value) -> None:
        """Relates the fact of a tensor to the type of its value."""
        if self._facts is None or not is_tensor(value):
            return
        shape = self._shape(tensor, value.ty.ndim) or ()
        if all(isinstance(dim, int) for dim in shape):
            return
        if not isinstance(value.ty.shape, relax.ShapeExpr):
            return
        for dim, size in zip(shape, value.ty.shape.values, strict=True):
            self._present.update(tirx.analysis.undefined_vars(size))
            symbol = symbolic.single_symbol(dim)
            if symbol is not None and dim != symbolic.VARYING:
                self._sizes.setdefault(symbol, size)

    def refined(self, tensors: Sequence[Tensor | None], kinds: Sequence[Any]) -> list[Any]:
        """The types of new values, with the sizes that facts know instead of new symbols."""
        found: dict[Any, Any] = {}
        for tensor, kind in zip(tensors, kinds, strict=True):
            if isinstance(kind, relax.TensorType) and tensor is not None:
                found.update(self._expressions(tensor, kind))
        if not found:
            return list(kinds)

        def replaced(symbol: Any) -> Any:
            return found.get(symbol, symbol)

        return [
            tvm_ffi.structural_map(kind, (ir.Var, replaced), order="post")
            if isinstance(kind, relax.TensorType)
            else kind
            for kind in kinds
        ]

    def _expressions(self, tensor: Tensor, kind: Any) -> Mapping[Any, Any]:
        """What the fact of a tensor says about the symbols in its type."""
        shape = self._shape(tensor, kind.ndim)
        if shape is None or not isinstance(kind.shape, relax.ShapeExpr):
            return {}
        found = {}
        for dim, size in zip(shape, kind.shape.values, strict=True):
            if is_prim_var(size) and size not in self._present and self._is_known(dim):
                found[size] = _simplified(self._expression(dim))
        return found

    def _shape(self, tensor: Tensor, rank: int) -> tuple[Dim, ...] | None:
        """The shape that facts know of a tensor, if it has a rank."""
        fact = None if self._facts is None else self._facts.of(tensor)
        if fact is None or fact.kind != "tensor" or fact.rank != rank:
            return None
        return fact.shape

    def _is_known(self, dim: Dim) -> bool:
        return symbolic.symbols(dim) <= self._sizes.keys()

    def _expression(self, dim: Dim) -> Any:
        """A size in the symbols of the function."""
        if isinstance(dim, int):
            return tirx.IntImm("int64", dim)
        total = tirx.IntImm("int64", dim.constant)
        for monomial, factor in sorted(dim.terms, key=str):
            total += reduce(lambda a, b: a * b, map(self._atom, monomial)) * factor
        return total

    def _atom(self, atom: symbolic.Atom) -> Any:
        if isinstance(atom, Symbol):
            return self._sizes[atom]
        return _COMBINED[atom.op](self._expression(atom.left), self._expression(atom.right))


def _simplified(size: Any) -> Any:
    return sym.Analyzer().simplify(size)
