"""Lambda lifting: what a body reads from outside becomes parameters of its function.

Symbols of sizes belong to one Relax function each. The lifted function gets symbols of its own,
and a last parameter, an `R.Shape`, for those that no tensor parameter has as a dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import tvm_ffi
from tvm import ir, relax, tirx

from .tvm_onnx import EmptyOptional
from .values import Constant, Element, ListValue, Sizes, Value, flatten, fresh_dim, is_prim


class Closure:
    """Values of one function, seen from inside another.

    `params` and `args` correspond; `values` are the inner forms by name. `symbols` are sizes that
    the inner function needs besides those of the values.
    """

    def __init__(self, captured: Mapping[Any, Value], symbols: Iterable[Any] = ()) -> None:
        self._sizes: dict[Any, Any] = {}
        self._variables: dict[Any, Any] = {}
        self._local: dict[Any, Any] = {}
        """Symbols that stand for no size of the outer function, by their outer forms."""
        for leaf in flatten(list(captured.values())):
            self._add(leaf)
        self._add_symbols(symbols)
        self.values = {name: self._inner(value) for name, value in captured.items()}

    @property
    def variables(self) -> list[tuple[Any, Any]]:
        """The captured variables: (outer, inner). The types of inner ones are in inner symbols."""
        return list(self._variables.items())

    @property
    def sizes(self) -> list[tuple[Any, Any]]:
        """The symbols of all that is captured: (outer, inner)."""
        return list(self._sizes.items())

    @property
    def params(self) -> list[Any]:
        """Variables, and last the sizes that none of them has as a dimension."""
        missing = [inner for _, inner in self._missing_sizes()]
        sizes = [relax.Var("sizes", relax.ShapeType(missing))] if missing else []
        return [*self._variables.values(), *sizes]

    @property
    def args(self) -> list[Any]:
        missing = [outer for outer, _ in self._missing_sizes()]
        sizes = [relax.ShapeExpr(missing)] if missing else []
        return [*self._variables, *sizes]

    def outer_type(self, kind: Any) -> Any:
        """A type of the inner function in the symbols of the outer one.

        A symbol that exists only inside becomes a new one, equal to no other.
        """
        back = {inner: outer for outer, inner in [*self._sizes.items(), *self._local.items()]}

        def translate(symbol: Any) -> Any:
            if symbol not in back:
                back[symbol] = fresh_dim(symbol.name)
                self._local[back[symbol]] = symbol
            return back[symbol]

        return tvm_ffi.structural_map(kind, (ir.Var, translate), order="post")

    def outer_kind(self, kind: Any) -> Any:
        """Likewise for the type of a tensor or the `Element` of a sequence."""
        return kind if isinstance(kind, Element) else self.outer_type(kind)

    def inner_type(self, kind: Any) -> Any:
        """A type of the outer function in the symbols of the inner one.

        A symbol that was not captured becomes a new one, which the inner function has to define.
        """

        def translate(symbol: Any) -> Any:
            if symbol in self._sizes:
                return self._sizes[symbol]
            if symbol not in self._local:
                self._local[symbol] = fresh_dim(symbol.name)
            return self._local[symbol]

        return tvm_ffi.structural_map(kind, (ir.Var, translate), order="post")

    def _add(self, leaf: Value) -> None:
        if isinstance(leaf, EmptyOptional | Constant):
            return
        if isinstance(leaf, Sizes):
            for item in leaf.items:
                self._add(item)
            return
        self._add_symbols(_symbols(leaf))
        if is_prim(leaf) or isinstance(leaf, relax.ShapeExpr) or leaf in self._variables:
            return
        # The name is kept: TVM's converters recognise a model's parameters by it.
        self._variables[leaf] = relax.Var(leaf.name, self._substitute(leaf.ty, self._sizes))

    def _add_symbols(self, symbols: Iterable[Any]) -> None:
        for symbol in symbols:
            if symbol not in self._sizes:
                self._sizes[symbol] = fresh_dim(symbol.name)

    def _missing_sizes(self) -> list[tuple[Any, Any]]:
        defined = set(_dimensions(self._variables.values()))
        return [(outer, inner) for outer, inner in self._sizes.items() if inner not in defined]

    def _inner(self, value: Value) -> Value:
        if isinstance(value, EmptyOptional | Constant):
            return value
        if isinstance(value, Sizes):
            return replace(value, items=[self._inner(item) for item in value.items])
        if isinstance(value, ListValue):
            return replace(value, variable=self._inner(value.variable))
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self._inner(field) for field in value.fields])
        if isinstance(value, relax.ShapeExpr):
            return relax.ShapeExpr([self._inner(size) for size in value.values])
        if is_prim(value):
            return self._substitute(value, self._sizes)
        return self._variables[value]

    @staticmethod
    def _substitute(item: Any, mapping: Mapping[Any, Any]) -> Any:
        replacement = (ir.Var, lambda var: mapping.get(var, var))
        return tvm_ffi.structural_map(item, replacement, order="post")


def _symbols(leaf: Value) -> Iterable[Any]:
    """The symbols of sizes in a value or its type."""
    if is_prim(leaf):
        return list(tirx.analysis.undefined_vars(leaf))
    return list(relax.analysis.tir_vars_in_type(leaf.ty))


def _dimensions(params: Iterable[Any]) -> Iterable[Any]:
    """The symbols that the types of parameters define by themselves."""
    for param in params:
        yield from relax.analysis.definable_tir_vars_in_type(param.ty)
