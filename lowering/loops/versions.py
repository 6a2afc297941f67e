"""A loop in two versions: one for runs in which sizes that meet in its body are equal.

Exporters name the batch of every input differently. Where the body adds a tensor of `n` rows to
one of `m`, either may have a single row that is broadcast, so the shapes are computed anew in each
iteration. The size that such a sum has is known where `n` and `m` are equal, which they mostly
are, so one test before the loop chooses between two functions. LLVM's LoopVersioning does the same
for pointers that may alias.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import Any

import tvm_ffi
from tvm import ir, relax, tirx

from ..closure import Closure
from ..emitter import Emitter
from ..kinds import Kind, join_kinds, kind_of
from ..scope import Scope
from ..tvm_onnx import EmptyOptional, building_function
from ..values import (
    Constant,
    ListValue,
    Sizes,
    Value,
    as_tensor,
    is_prim,
    match,
)

Pair = tuple[Any, Any]
"""Two symbols for sizes."""


class EqualSizes:
    """Sizes that are equal in one version of a loop."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._chosen: dict[Any, Any] = {}
        """For each symbol but one of a set, another of the set, without cycles."""
        for left, right in pairs:
            left, right = self._find(left), self._find(right)
            if not left.same_as(right):
                self._chosen[right] = left

    def _find(self, symbol: Any) -> Any:
        while symbol in self._chosen:
            symbol = self._chosen[symbol]
        return symbol

    def holds(self) -> Any:
        """Whether all of them are equal, as a prim expression."""
        return reduce(tirx.And, [tirx.EQ(*pair) for pair in self._chosen.items()])

    def replaced(self, bb: Any, value: Value) -> Value:
        """A value in one symbol for each set of equal sizes; a tensor is cast."""
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
        return tvm_ffi.structural_map(expression, (ir.Var, self._find), order="post")


Emit = Callable[[Scope, Mapping[Any, Value]], list[Value]]
"""Emits a loop into a function, given the values that it reads there; gives what it returns."""


@contextmanager
def chosen_version(
    emitter: Emitter,
    scope: Scope,
    pairs: Sequence[Pair],
    operands: Mapping[Any, Value],
    emit: Emit,
    otherwise: Any,
    kinds: Sequence[Kind],
) -> Iterator[tuple[Any, list[Kind]]]:
    """What `emit` emits if the sizes of each pair are equal, and the call `otherwise`, if not.

    `kinds` are those that the call returns. Yields the result and its kinds between two segments.
    """
    bb = emitter.bb
    condition = bb.emit(as_tensor(bb, EqualSizes(pairs).holds()))
    given = [condition, *otherwise.args, *operands.values()]
    with scope.between_segments(given) as (flag, *values):
        args, values = values[: len(otherwise.args)], values[len(otherwise.args) :]
        closure = Closure(dict(zip(operands, values, strict=True)))
        equal = EqualSizes([tuple(map(closure.inner_type, pair)) for pair in pairs])
        name = f"{otherwise.op.name_hint}_of_equal_sizes"
        with building_function(bb, name, closure.params, private=False):
            inside = Scope(bb, emitter.facts)
            seen = {key: equal.replaced(bb, value) for key, value in closure.values.items()}
            results = emit(inside, seen)
            own_kinds = [closure.outer_kind(kind_of(value)) for value in results]
            variable = inside.finish(inside.results(results))
        branches = relax.Call(variable, closure.args), relax.Call(otherwise.op, args)
        joined = [join_kinds(a, b) for a, b in zip(own_kinds, kinds, strict=True)]
        yield bb.emit(relax.If(flag, *branches)), joined
