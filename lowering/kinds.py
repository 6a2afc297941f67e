"""The types of loop-carried values: types that hold before and after every iteration.

They start as the types of the initial values. Where the body returns another size, the size becomes
a symbol that each iteration binds anew; where it returns another rank, the rank becomes unknown.
Sizes that are equal before and after an iteration share a symbol, because operators of the body may
require that they are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tvm_ffi
from tvm import relax, sym
from tvm.ir import is_prim_var

from ..rewrite.errors import ModelError, UnsupportedError
from .join import join
from .values import Element, ListValue, Value, fresh_dim

Kind = Any
"""The type of a tensor, or the `Element` of a sequence."""

_WIDEN_EQUAL_SIZES = 3
"""From this attempt on, a size that changes widens all sizes equal to it as well."""

_WIDEN_ALL_SIZES = 6
"""From this attempt on, every size becomes a symbol."""

_MOST_ATTEMPTS = 12
MAY_BE_EMPTY = "an optional that may be empty passes through a Loop or an If"
"""Why a model is refused: types of Relax do not say that a value may be absent."""


def kind_of(value: Value) -> Kind:
    """The kind of a tensor or a sequence."""
    if isinstance(value, ListValue):
        return value.element
    if isinstance(value, relax.Tuple):
        return element_of(value)
    return value.ty


def element_of(sequence: Value) -> Element:
    """The type that all tensors of a sequence share; the sequence is a tuple or a list."""
    if isinstance(sequence, ListValue):
        return sequence.element
    return element_of_type(relax.TupleType([field.ty for field in sequence.fields]))


def element_of_type(kind: Any) -> Element:
    """The type that all tensors share in a tuple of a type."""
    element = Element(None, is_empty=True)
    for field in kind.fields:
        element = element.join(_element(field))
    return element


def _element(kind: Any) -> Element:
    dtype = str(kind.dtype) if kind.dtype is not None else None
    if kind.ndim < 0:
        return Element(dtype)
    if not isinstance(kind.shape, relax.ShapeExpr):
        return Element(dtype, (None,) * kind.ndim)
    sizes = [getattr(size, "value", None) for size in kind.shape.values]
    return Element(dtype, tuple(sizes))


def join_kinds(left: Kind, right: Kind) -> Kind:
    """The kind of a value that comes from one of two branches."""
    kinds = (left, right)
    if not all(isinstance(kind, Element | relax.TupleType) for kind in kinds):
        return relax.ObjectType() if any(isinstance(k, Element) for k in kinds) else join(*kinds)
    tuples = [kind for kind in kinds if isinstance(kind, relax.TupleType)]
    if len(tuples) == len(kinds) and len(left.fields) == len(right.fields):
        return join(left, right)
    elements = [kind if isinstance(kind, Element) else element_of_type(kind) for kind in kinds]
    return elements[0].join(elements[1])


class Misfit(Exception):
    """The results of a body are of other kinds than it was emitted for."""

    def __init__(self, wider: list[Kind]) -> None:
        super().__init__()
        self.wider = wider


def check_fit(
    names: Sequence[str],
    kinds: Sequence[Kind],
    given: Sequence[Kind],
    invariant: Iterable[Any],
    attempt: int,
) -> None:
    """Raises Misfit with wider kinds unless the body's results have the kinds it was emitted for.

    `invariant` are the symbols that are the same in every iteration. Raises ModelError for results
    of another type, UnsupportedError if the kinds still change after many attempts.
    """
    for name, kind, result in zip(names, kinds, given, strict=True):
        _check_form(name, kind, result)
    widening = _Widening(kinds, given, invariant)
    wider = widening.kinds(attempt)
    if wider is None:
        return
    if attempt > _MOST_ATTEMPTS:
        raise UnsupportedError(
            f"the shapes of {', '.join(names)} change from iteration to iteration in too many ways"
        )
    raise Misfit(wider)


def _check_form(name: str, kind: Kind, result: Kind) -> None:
    sequences = isinstance(kind, Element), isinstance(result, Element)
    if sequences[0] != sequences[1]:
        forms = ["a sequence" if is_sequence else "a tensor" for is_sequence in sequences]
        raise ModelError(f"the carried value {name!r} starts as {forms[0]} and becomes {forms[1]}")
    if not sequences[0] and kind.dtype != result.dtype:
        raise ModelError(
            f"the carried value {name!r} starts as {kind.dtype} and becomes {result.dtype}"
        )


class _Widening:
    def __init__(
        self, kinds: Sequence[Kind], given: Sequence[Kind], invariant: Iterable[Any]
    ) -> None:
        self._invariant = set(invariant)
        self._after: dict[Any, Any] = {}
        """The size after an iteration, for each symbol that iterations bind anew."""
        self._pairs = list(zip(kinds, given, strict=True))
        self._analyzer = sym.Analyzer()
        self._shared: dict[Any, Any] = {}
        """The new symbol of sizes that are equal before and after an iteration."""
        self._broken: set[Any] = set()

    def kinds(self, attempt: int) -> list[Kind] | None:
        """The kinds widened as little as needed, or None if they fit."""
        if all(self._fits(kind, given) for kind, given in self._pairs):
            return None
        if attempt >= _WIDEN_ALL_SIZES:
            return [self._unknown_sizes(kind, given) for kind, given in self._pairs]
        wider = [self._widen(kind, given) for kind, given in self._pairs]
        if attempt >= _WIDEN_EQUAL_SIZES:
            wider = [self._spread(kind) for kind in wider]
        return wider

    def _fits(self, kind: Kind, given: Kind) -> bool:
        if isinstance(kind, Element):
            return kind.join(given) == kind
        if kind.ndim < 0 or kind.ndim != given.ndim:
            return bool(kind.ndim < 0)
        dims = zip(kind.shape.values, _dims(given), strict=True)
        return all(self._size_fits(a, b) for a, b in dims)

    def _size_fits(self, size: Any, given: Any) -> bool:
        if is_prim_var(size) and size not in self._invariant:
            # Any size fits, but every use of the symbol must have the same one.
            size = self._after.setdefault(size, given)
        return bool(self._analyzer.can_prove_equal(size, given))

    def _widen(self, kind: Kind, given: Kind) -> Kind:
        if self._fits(kind, given):
            return kind
        if isinstance(kind, Element):
            return kind.join(given)
        if kind.ndim != given.ndim:
            return relax.TensorType(None, kind.dtype)
        dims = zip(kind.shape.values, _dims(given), strict=True)
        return relax.TensorType([self._widen_size(a, b) for a, b in dims], kind.dtype)

    def _widen_size(self, size: Any, given: Any) -> Any:
        if self._size_fits(size, given):
            return size
        self._broken.add(self._key(size))
        key = self._key(size), self._key(given)
        if key not in self._shared:
            self._shared[key] = fresh_dim("d")
        return self._shared[key]

    def _spread(self, kind: Kind) -> Kind:
        if isinstance(kind, Element) or kind.ndim < 0:
            return kind
        dims = [fresh_dim("d") if self._key(d) in self._broken else d for d in kind.shape.values]
        return relax.TensorType(dims, kind.dtype)

    def _unknown_sizes(self, kind: Kind, given: Kind) -> Kind:
        wider = self._widen(kind, given)
        if isinstance(wider, Element) or wider.ndim < 0:
            return wider
        return relax.TensorType([fresh_dim("d") for _ in range(wider.ndim)], wider.dtype)

    def _key(self, size: Any) -> Any:
        return tvm_ffi.StructuralKey(self._analyzer.simplify(size))  # type: ignore[call-arg]


def _dims(kind: Any) -> list[Any]:
    if isinstance(kind.shape, relax.ShapeExpr):
        return list(kind.shape.values)
    return [fresh_dim("d") for _ in range(kind.ndim)]
