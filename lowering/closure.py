"""Lambda lifting: what a body reads from outside becomes parameters of its function.

Symbols of sizes belong to one Relax function each. The lifted function gets symbols of its own,
and a last parameter, an `R.Shape`, for those that no tensor parameter has as a dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir import is_prim_var

from .tvm_onnx import EmptyOptional
from .values import Constant, Element, ListValue, Sizes, Value, flatten, fresh_dim, is_prim


class Closure:
    """Values of one function, seen from inside another.

    `params` and `args` correspond; `values` are the inner forms by name. `types` are those of
    further parameters, which come before `params` and define the sizes that are their dimensions.
    A size computed from symbols that are dimensions of nothing that is handed over, such as the
    2·n of a tensor where there is no n, becomes a symbol of its own.
    """

    def __init__(self, captured: Mapping[Any, Value], types: Iterable[Any] = ()) -> None:
        self._sizes: dict[Any, Any] = {}
        self._computed: list[tuple[Any, Any]] = []
        """Sizes of the outer function that are a symbol in the inner one."""
        self._variables: dict[Any, Any] = {}
        self._local: dict[Any, Any] = {}
        """Symbols that stand for no size of the outer function, by their outer forms."""
        leaves = [leaf for leaf in flatten(list(captured.values())) if not _is_nothing(leaf)]
        types = [*types, *(leaf.ty for leaf in leaves if _is_variable(leaf))]
        numbers = [leaf for leaf in leaves if not _is_variable(leaf)]
        self._add_sizes(types, {symbol for leaf in numbers for symbol in _symbols(leaf)})
        for leaf in leaves:
            if _is_variable(leaf) and leaf not in self._variables:
                # The name is kept: TVM's converters recognise a model's parameters by it.
                self._variables[leaf] = relax.Var(leaf.name, self.inner_type(leaf.ty))
        self._defined = set(_dimensions(map(self.inner_type, types)))
        self.values = {name: self._inner(value) for name, value in captured.items()}

    def _add_sizes(self, types: Sequence[Any], direct: Iterable[Any]) -> None:
        """Gives each symbol its inner form; `direct` are those of captured sizes."""
        dims = [dim for kind in types for dim in _dims(kind)]
        known = {*direct, *(dim for dim in dims if is_prim_var(dim))}
        for dim in dims:
            symbols = tirx.analysis.undefined_vars(dim)
            if not known.issuperset(symbols) and self._symbol_of(dim) is None:
                self._computed.append((dim, fresh_dim("size")))
        for symbol in (*direct, *(s for d in dims for s in tirx.analysis.undefined_vars(d))):
            if symbol in known and symbol not in self._sizes:
                self._sizes[symbol] = fresh_dim(symbol.name)

    def _symbol_of(self, dim: Any) -> Any:
        """The inner symbol of a computed size; None if it has none."""
        same = (inner for outer, inner in self._computed if tvm_ffi.structural_equal(outer, dim))
        return next(same, None)

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
        pairs = [*self._sizes.items(), *self._computed, *self._local.items()]
        back = {inner: outer for outer, inner in pairs}

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
        if isinstance(kind, relax.TupleType):
            return relax.TupleType([self.inner_type(field) for field in kind.fields])
        if isinstance(kind, relax.TensorType) and isinstance(kind.shape, relax.ShapeExpr):
            return relax.TensorType([self._inner_dim(dim) for dim in kind.shape.values], kind.dtype)
        return self._inner_dim(kind)

    def _inner_dim(self, dim: Any) -> Any:
        computed = self._symbol_of(dim) if self._computed and is_prim(dim) else None
        if computed is not None:
            return computed

        def translate(symbol: Any) -> Any:
            if symbol in self._sizes:
                return self._sizes[symbol]
            if symbol not in self._local:
                self._local[symbol] = fresh_dim(symbol.name)
            return self._local[symbol]

        return tvm_ffi.structural_map(dim, (ir.Var, translate), order="post")

    def _missing_sizes(self) -> list[tuple[Any, Any]]:
        pairs = self._sizes.items()
        return [(outer, inner) for outer, inner in pairs if inner not in self._defined]

    def _inner(self, value: Value) -> Value:
        if _is_nothing(value):
            return value
        if isinstance(value, Sizes):
            return replace(value, items=[self._inner(item) for item in value.items])
        if isinstance(value, ListValue):
            return replace(value, variable=self._inner(value.variable))
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self._inner(field) for field in value.fields])
        if isinstance(value, relax.ShapeExpr):
            return relax.ShapeExpr([self._inner_dim(size) for size in value.values])
        if is_prim(value):
            return self._inner_dim(value)
        return self._variables[value]


def _is_nothing(value: Value) -> bool:
    """Whether a value need not be handed over."""
    return isinstance(value, EmptyOptional | Constant)


def _is_variable(leaf: Value) -> bool:
    return not (is_prim(leaf) or isinstance(leaf, relax.ShapeExpr | Sizes))


def _symbols(leaf: Value) -> Iterable[Any]:
    """The symbols in sizes."""
    if isinstance(leaf, Sizes):
        return [symbol for item in leaf.items for symbol in _symbols(item)]
    items = leaf.values if isinstance(leaf, relax.ShapeExpr) else [leaf]
    return [symbol for item in items for symbol in tirx.analysis.undefined_vars(item)]


def _dims(kind: Any) -> list[Any]:
    """The sizes in a type."""
    if isinstance(kind, relax.TupleType):
        return [dim for field in kind.fields for dim in _dims(field)]
    shape = kind.shape if isinstance(kind, relax.TensorType) else None
    if isinstance(kind, relax.ShapeType):
        return list(kind.values or ())
    return list(shape.values) if isinstance(shape, relax.ShapeExpr) else []


def _dimensions(types: Iterable[Any]) -> Iterable[Any]:
    """The symbols that types of parameters define by themselves."""
    for kind in types:
        yield from relax.analysis.definable_tir_vars_in_type(kind)
