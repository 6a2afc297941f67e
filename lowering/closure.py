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
from .values import Constant, Sizes, Value, flatten, fresh_dim, is_prim


class Closure:
    """Values of one function, seen from inside another.

    `params` and `args` correspond; `values` are the inner forms by name.
    """

    def __init__(self, captured: Mapping[str, Value]) -> None:
        self._sizes: dict[Any, Any] = {}
        self._variables: dict[Any, Any] = {}
        self.params: list[Any] = []
        self.args: list[Any] = []
        for leaf in flatten(list(captured.values())):
            self._add(leaf)
        self._add_sizes()
        self.values = {name: self._inner(value) for name, value in captured.items()}

    def outer_type(self, kind: Any) -> Any:
        """A type of the inner function in the symbols of the outer one.

        A symbol that exists only inside becomes a new one, equal to no other.
        """
        back = {inner: outer for outer, inner in self._sizes.items()}

        def translate(symbol: Any) -> Any:
            if symbol not in back:
                back[symbol] = fresh_dim(symbol.name)
            return back[symbol]

        return tvm_ffi.structural_map(kind, (ir.Var, translate), order="post")

    def _add(self, leaf: Value) -> None:
        if isinstance(leaf, EmptyOptional | Constant):
            return
        if isinstance(leaf, Sizes):
            for item in leaf.items:
                self._add(item)
            return
        for symbol in _symbols(leaf):
            if symbol not in self._sizes:
                self._sizes[symbol] = fresh_dim(symbol.name)
        if is_prim(leaf) or isinstance(leaf, relax.ShapeExpr) or leaf in self._variables:
            return
        # The name is kept: TVM's converters recognise a model's parameters by it.
        param = relax.Var(leaf.name, self._substitute(leaf.ty, self._sizes))
        self._variables[leaf] = param
        self.params.append(param)
        self.args.append(leaf)

    def _add_sizes(self) -> None:
        defined = set(_dimensions(self.params))
        missing = {outer: inner for outer, inner in self._sizes.items() if inner not in defined}
        if missing:
            self.params.append(relax.Var("sizes", relax.ShapeType(list(missing.values()))))
            self.args.append(relax.ShapeExpr(list(missing)))

    def _inner(self, value: Value) -> Value:
        if isinstance(value, EmptyOptional | Constant):
            return value
        if isinstance(value, Sizes):
            return replace(value, items=[self._inner(item) for item in value.items])
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
