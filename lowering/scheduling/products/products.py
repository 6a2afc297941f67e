"""Sums of products by role: which variables run over batches, rows, columns and the reduced axis.

    c[batch, rows, columns] += a[batch, rows, reduced] * b[batch, reduced, columns]

Matrix products and convolutions have this form. Columns are the last axes of the output, so that
vectors of them are stored at once: the columns of a matrix product are those of its right operand,
the columns of a convolution are positions of the image, and its rows are output channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, sym, tirx

from ..functions.lane_kernels import LOWEST
from ..kernels.affine import Affine, affine, int64, static_size
from ..kernels.nests import Nest, depends, loads, substituted


@dataclass(frozen=True)
class Operand:
    """One factor of a sum of products."""

    buffer: Any
    indices: list[Any]
    position: Affine
    """The position of the element in the flat buffer."""


@dataclass(frozen=True)
class SumOfProducts:
    """A nest of the form above. Extents are by variable."""

    nest: Nest
    a: Operand
    b: Operand
    batch: list[Any]
    rows: list[Any]
    columns: list[Any]
    reduced: list[Any]
    extents: dict[Any, Any]
    c: list[Any]
    """The indices of the output in these variables."""

    def extent(self, variable: Any) -> Any:
        """The extent of a variable."""
        return self.extents[variable]

    def count(self, variables: Sequence[Any]) -> Any:
        """The number of values that variables take together."""
        total: Any = int64(1)
        for variable in variables:
            total = total * self.extents[variable]
        return sym.Analyzer().simplify(total)


def sum_of_products(nest: Nest, *, channels_last: bool = False) -> SumOfProducts | None:
    """The roles of a nest's variables; None for a nest of another form, or not of float32.

    With `channels_last`, the last axis of the output counts as the second one: the roles are those
    of the same product with channels first.
    """
    return _sum_of(nest, lambda x: x if _is_load(x, "float32") else None, channels_last)


def sum_of_byte_products(nest: Nest) -> SumOfProducts | None:
    """The same for products of an unsigned and a signed byte, as int32."""
    found = _sum_of(nest, _widened_byte)
    if found is None or {str(x.buffer.dtype) for x in (found.a, found.b)} != {"uint8", "int8"}:
        return None
    return found


def _widened_byte(factor: Any) -> Any:
    """The load of a byte that becomes an int32; None for another expression."""
    if not isinstance(factor, tirx.Cast) or str(factor.ty.dtype) != "int32":
        return None
    return factor.value if _is_load(factor.value, "uint8", "int8") else None


def _is_load(expression: Any, *dtypes: str) -> bool:
    return isinstance(expression, ir.TensorLoad) and str(expression.source.dtype) in dtypes


def _sum_of(
    nest: Nest, load_of: Callable[[Any], Any], channels_last: bool = False
) -> SumOfProducts | None:
    factors = _factors(nest, load_of)
    if factors is None or not nest.reduced:
        return None
    found = _places(nest, factors)
    return None if found is None else _by_role(nest, *found, channels_last)


def maximum_of_windows(nest: Nest, *, channels_last: bool = False) -> SumOfProducts | None:
    """The roles of a nest of `c[batch, columns] = max(b[batch, columns and reduced])`.

    `channels_last` is as for `sum_of_products`.
    """
    return _of_windows(nest, tirx.Max, channels_last)


def sum_of_windows(nest: Nest, *, channels_last: bool = False) -> SumOfProducts | None:
    """The roles of a nest of `c[batch, columns] = sum(b[batch, columns and reduced])`.

    `channels_last` is as for `sum_of_products`.
    """
    return _of_windows(nest, tirx.Add, channels_last)


def _of_windows(nest: Nest, kind: Any, channels_last: bool) -> SumOfProducts | None:
    """The roles of a nest that combines the elements of windows.

    Columns begin at the first axis along which windows have a stride or several elements. The
    factor `a` is `b`, at a fixed place.
    """
    value = nest.value
    if not isinstance(value, kind) or not nest.reduced or not _is_load_of(value.a, nest.buffer):
        return None
    starts = _starts_from_zero if kind is tirx.Add else _starts_from_lowest
    if not starts(nest):
        return None
    element = value.b
    if not isinstance(element, ir.TensorLoad) or element.source.same_as(nest.buffer):
        return None
    if str(element.source.dtype) != "float32":
        return None
    found = _places(nest, [element])
    if found is None:
        return None
    (place,), extents, indices, variables = found
    reduced = [v for v in variables if any(v.same_as(r) for r in nest.reduced)]
    order = _order(without_unit_end(indices, nest.buffer), variables, channels_last)
    windows = [i for i in place.indices if not any(i.same_as(v) for v in variables)]
    first = next((k for k, v in enumerate(order) if any(depends(w, [v]) for w in windows)), None)
    if first is None or len(order) + len(reduced) != len(variables):
        return None
    fixed = Operand(place.buffer, [], Affine(int64(0), {}))
    batch, columns = order[:first], order[first:]
    return SumOfProducts(nest, fixed, place, batch, [], columns, reduced, extents, indices)


def _places(
    nest: Nest, factors: Sequence[Any]
) -> tuple[list[Operand], dict[Any, Any], list[Any], list[Any]] | None:
    """The operands of a nest, the extents of its variables, its indices, and the variables.

    Variables of a single value are left out.
    """
    extents = dict(zip(nest.variables, nest.extents, strict=True))
    indices = nest.indices
    substitution = _split_group(nest, factors, extents)
    for variable, extent in list(extents.items()):
        if isinstance(extent, tirx.IntImm) and int(extent) == 1:
            substitution[variable] = int64(0)
            del extents[variable]
    indices = [substituted(index, substitution) for index in indices]
    variables = list(extents)
    analyzer = sym.Analyzer()
    for variable, extent in extents.items():
        analyzer.bind(variable, ir.Range(int64(0), extent))
    places = []
    for factor in factors:
        inner = [analyzer.simplify(substituted(i, substitution)) for i in factor.indices]
        position = affine(list(factor.source.shape), inner, variables)
        if position is None:
            return None
        places.append(Operand(factor.source, inner, position))
    return places, extents, indices, variables


def _by_role(
    nest: Nest,
    places: Sequence[Operand],
    extents: dict[Any, Any],
    indices: list[Any],
    variables: Sequence[Any],
    channels_last: bool,
) -> SumOfProducts | None:
    reduced = [v for v in variables if any(v.same_as(r) for r in nest.reduced)]
    spatial = [v for v in variables if not any(v.same_as(r) for r in reduced)]
    order = _order(without_unit_end(indices, nest.buffer), spatial, channels_last)
    used = [[v for v in spatial if v in place.position.coefficients] for place in places]
    if not order or any(v not in place.position.coefficients for v in reduced for place in places):
        return None
    last = next((v for v in reversed(order) if v in used[0] or v in used[1]), None)
    if last is None:
        return None
    which = 1 if last in used[1] and last not in used[0] else 0
    a, b = places[1 - which], places[which]
    in_a, in_b = used[1 - which], used[which]
    columns, rest = _suffix(order, lambda v: v in in_b and v not in in_a)
    rows, batch = _suffix(rest, lambda v: v in in_a and v not in in_b)
    if not columns:
        return None
    return SumOfProducts(nest, a, b, batch, rows, columns, reduced, extents, indices)


def _order(indices: Sequence[Any], variables: Sequence[Any], channels_last: bool) -> list[Any]:
    """The variables of the output in the order of its axes, or with the last axis second."""
    if channels_last and len(indices) > 2:
        indices = [indices[0], indices[-1], *indices[1:-1]]
    return [v for index in indices for v in variables if depends(index, [v])]


def without_unit_end(indices: Sequence[Any], buffer: Any) -> list[Any]:
    """The indices of an element of a buffer without those along axes of size 1 at the end.

    An image that is one element wide has such an axis. (A constant index does not say so: a single
    position may be read along a longer axis.)
    """
    count = len(indices)
    while count and static_size(buffer.shape[count - 1]) == 1:
        count -= 1
    return list(indices[:count])


def _suffix(items: Sequence[Any], fits: Any) -> tuple[list[Any], list[Any]]:
    """The longest end of a list whose items fit, and what is before it."""
    first = len(items)
    while first and fits(items[first - 1]):
        first -= 1
    return list(items[first:]), list(items[:first])


def _factors(nest: Nest, load_of: Callable[[Any], Any]) -> list[Any] | None:
    """The two loads whose product a nest adds up; `load_of` gives that of a factor, or None."""
    value = nest.value
    if not isinstance(value, tirx.Add) or not _starts_from_zero(nest):
        return None
    sums = [x for x in (value.a, value.b) if _is_load_of(x, nest.buffer)]
    products = [x for x in (value.a, value.b) if isinstance(x, tirx.Mul)]
    if len(sums) != 1 or len(products) != 1:
        return None
    factors = [load_of(products[0].a), load_of(products[0].b)]
    return factors if None not in factors and len(loads(products[0])) == 2 else None


def _starts_from_lowest(nest: Nest) -> bool:
    """Whether a maximum starts from no more than the least finite number."""
    value = getattr(nest.block.init, "value", None)
    return isinstance(value, tirx.FloatImm) and float(value) <= LOWEST


def _starts_from_zero(nest: Nest) -> bool:
    init = nest.block.init
    if init is None or not isinstance(init.value, (tirx.FloatImm, tirx.IntImm)):
        return False
    return float(init.value.value) == 0


def _is_load_of(expression: Any, buffer: Any) -> bool:
    return isinstance(expression, ir.TensorLoad) and expression.source.same_as(buffer)


def _split_group(nest: Nest, factors: Sequence[Any], extents: dict[Any, Any]) -> dict[Any, Any]:
    """Splits the channel of a grouped convolution, `f`, into a group and a channel of the group.

    TVM writes the input channel as `f // n * m + c`. Replaces f in `extents`.
    """
    for variable in nest.spatial:
        divisors: list[int] = []

        def visit(quotient: Any, variable: Any = variable, divisors: list[int] = divisors) -> None:
            if quotient.a.same_as(variable) and isinstance(quotient.b, tirx.IntImm):
                divisors.append(int(quotient.b))

        import tvm_ffi

        for factor in factors:
            for index in factor.indices:
                tvm_ffi.structural_walk(index, (tirx.FloorDiv, visit))
        extent = extents[variable]
        if len(set(divisors)) == 1 and isinstance(extent, tirx.IntImm):
            size = divisors[0]
            if int(extent) % size:
                continue
            group, inner = tirx.Var("group", "int64"), tirx.Var("channel", "int64")
            replaced = {}
            for key, value in extents.items():
                if key.same_as(variable):
                    replaced[group], replaced[inner] = int64(int(extent) // size), int64(size)
                else:
                    replaced[key] = value
            extents.clear()
            extents.update(replaced)
            return {variable: group * int64(size) + inner}
    return {}
