"""Addresses of loads and stores as affine functions of loop variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import mul
from typing import Any

from tvm import sym, tirx

from .nests import depends


# Kernels have the same few numbers thousands of times, and making one is a call into C++.
@lru_cache(maxsize=1024)
def int64(number: int) -> Any:
    """An int64 constant."""
    return tirx.IntImm("int64", number)


def static_size(expression: Any) -> int | None:
    """The number that a size is known to be; None if a run decides."""
    simple = sym.Analyzer().simplify(expression)
    return int(simple) if isinstance(simple, tirx.IntImm) else None


def static_product(sizes: Sequence[Any]) -> int | None:
    """The number that the product of sizes is known to be; None if a run decides."""
    known = [static_size(size) for size in sizes]
    return None if None in known else reduce(mul, (size for size in known if size is not None), 1)


def product(factors: Sequence[Any]) -> Any:
    """The product of sizes; 1 for none."""
    return reduce(mul, factors, int64(1))


@dataclass(frozen=True)
class Affine:
    """`base + sum(coefficient * variable)`, a position in a flat buffer, in elements."""

    base: Any
    """What does not depend on the variables."""
    coefficients: Mapping[Any, Any]
    """By variable; those of 0 are left out."""

    def of(self, variable: Any) -> Any:
        """The coefficient of a variable, 0 for one that it does not depend on."""
        return self.coefficients.get(variable, int64(0))

    def at(self, values: Mapping[Any, Any]) -> Any:
        """The position where variables have these values; 0 for the others."""
        position = self.base
        for variable, coefficient in self.coefficients.items():
            if variable in values:
                position = position + coefficient * values[variable]
        return position

    def evenly_spaced(
        self, variables: Sequence[Any], extent: Callable[[Any], Any]
    ) -> Sequence[Any]:
        """The longest end of `variables` that can be counted as one, the last variable fastest.

        The position moves by one step from each number to the next.
        """
        analyzer = sym.Analyzer()
        for start in range(len(variables) - 1, 0, -1):
            outer, inner = variables[start - 1], variables[start]
            step = self.of(inner) * extent(inner)
            if not analyzer.can_prove_equal(step, self.of(outer)):
                return variables[start:]
        return variables


def flat_index(shape: Sequence[Any], indices: Sequence[Any]) -> Any:
    """The position of an element of a compact row-major buffer."""
    position: Any = int64(0)
    for size, index in zip(shape, indices, strict=True):
        position = position * size + index
    return position


def affine(shape: Sequence[Any], indices: Sequence[Any], variables: Sequence[Any]) -> Affine | None:
    """The position of an element of a compact row-major buffer as an affine function of variables.

    None where an index is not linear in the variables.
    """
    analyzer = sym.Analyzer()
    base: Any = int64(0)
    coefficients: dict[Any, Any] = {}
    for axis, index in enumerate(indices):
        stride = product(list(shape)[axis + 1 :])
        used = [variable for variable in variables if depends(index, [variable])]
        found = sym.detect_linear_equation(index, used) if used else [index]
        if len(found) != len(used) + 1:
            return None
        base = base + found[-1] * stride
        for variable, coefficient in zip(used, found, strict=False):
            before = coefficients.get(variable, int64(0))
            coefficients[variable] = analyzer.simplify(before + coefficient * stride)
    return Affine(analyzer.simplify(base), coefficients)


def flat(buffer: Any) -> Any:
    """A flat view of a compact buffer; use it inside an IRBuilder frame only."""
    from tvm.tirx.script import builder as ib

    return ib.decl_buffer((product(list(buffer.shape)),), buffer.dtype, data=buffer.data)


def flat_views(buffers: Iterable[Any], known: Mapping[Any, Any] | None = None) -> dict[Any, Any]:
    """Flat views of buffers, those that are known already among them."""
    views = dict(known or {})
    for buffer in buffers:
        if buffer not in views:
            views[buffer] = flat(buffer)
    return views


def unflattened(
    variables: Sequence[Any], extent: Callable[[Any], Any], number: Any
) -> dict[Any, Any]:
    """The values of variables for a number counted over all of them, the last one fastest."""
    values: dict[Any, Any] = {}
    for position, variable in enumerate(reversed(variables)):
        is_outermost = position == len(variables) - 1
        values[variable] = number if is_outermost else tirx.floormod(number, extent(variable))
        number = tirx.floordiv(number, extent(variable))
    return values
