"""Loop versioning: a second function of a loop, for runs in which sizes are equal.

Exporters name the batch of every input differently. Where the body adds a tensor of `n` rows to
one of `m`, either may have a single row that is broadcast, so each iteration computes the shapes
anew. Where `n` and `m` are equal, which they mostly are, all shapes are known beforehand. One test
before the loop, the guard, chooses between the two functions, as LLVM's LoopVersioning does for
pointers that may alias. Only the outermost of nested loops is versioned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import tvm_ffi
from tvm import ir, relax, tirx

from ..closure import Closure
from ..emitter import Emitter
from ..kinds import Kind, kind_of
from ..operators.broadcasting import Pair
from ..scope import Scope
from ..tvm_onnx import EmptyOptional, building_function
from ..values import Constant, ListValue, Sizes, Value, is_prim, match


class EqualSizes:
    """Sizes that are equal in one version of a loop."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._parents: dict[Any, Any] = {}
        """Union-find: each symbol maps to an equal one; the last of a chain represents its set."""
        for left, right in pairs:
            left, right = self._representative(left), self._representative(right)
            if not left.same_as(right):
                self._parents[right] = left

    def _representative(self, symbol: Any) -> Any:
        while symbol in self._parents:
            symbol = self._parents[symbol]
        return symbol

    def guard(self) -> Any:
        """Whether all of them are equal, as a prim expression."""
        return reduce(tirx.And, [tirx.EQ(*pair) for pair in self._parents.items()])

    def replaced(self, bb: Any, value: Value) -> Value:
        """A value in the symbols that represent sets of equal sizes; a tensor is cast."""
        if isinstance(value, EmptyOptional | Constant | ListValue):
            return value
        if isinstance(value, Sizes):
            return replace(value, items=[self._expression(item) for item in value.items])
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self.replaced(bb, field) for field in value.fields])
        if isinstance(value, relax.ShapeExpr):
            return relax.ShapeExpr([self._expression(size) for size in value.values])
        if is_prim(value):
            return self._expression(value)
        kind = self._expression(value.ty)
        return value if tvm_ffi.structural_equal(kind, value.ty) else match(bb, value, kind)

    def _expression(self, expression: Any) -> Any:
        return tvm_ffi.structural_map(expression, (ir.Var, self._representative), order="post")


Emit = Callable[[Scope, Mapping[Any, Value]], list[Value]]
"""Emits a loop into a function from its operands there, and returns its results."""


def emit_version(
    emitter: Emitter,
    name: str,
    pairs: Sequence[Pair],
    operands: Mapping[Any, Value],
    emit: Emit,
) -> tuple[Any, list[Kind]]:
    """Emits a function with the loop for equal sizes of each pair: a call, and what it returns."""
    closure = Closure(operands)
    equal = EqualSizes([tuple(map(closure.inner_type, pair)) for pair in pairs])
    with building_function(emitter.bb, name, closure.params, private=False):
        scope = Scope(emitter.bb, emitter.facts)
        seen = {key: equal.replaced(emitter.bb, value) for key, value in closure.values.items()}
        results = emit(scope, seen)
        kinds = [closure.outer_kind(kind_of(value)) for value in results]
        variable = scope.finish(scope.results(results))
    return relax.Call(variable, closure.args), kinds
