"""Convolutions as they stand in a kernel: a sum of products over taps of a padded operand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from tvm import ir, sym, tirx

from ..kernels.affine import Affine, affine, int64, static_size
from ..kernels.nests import Nest, depends, nests_of, substituted
from ..kernels.stores import Store, epilogue_of
from .products import (
    SumOfProducts,
    maximum_of_windows,
    sum_of_products,
    sum_of_windows,
    without_unit_end,
)

_MOST_TAPS = 4096


@dataclass(frozen=True)
class SpatialAxis:
    """One axis of the image: output position o and tap t read `o * stride + t * dilation`."""

    column: Any
    """The variable of the output position; None for a single position."""
    tap: Any
    """The variable of the tap; None for a single tap."""
    size: Any
    """The number of output positions."""
    taps: int
    stride: int
    dilation: int
    low: Any
    """The elements of padding before the first element of the input."""
    high: Any
    """Where padding begins after the last."""
    is_spread: bool = field(default=False, kw_only=True)
    """Whether each tap has a phase of its own, because taps are far apart. (By keyword only:
    subclasses add fields without defaults.)"""
    is_interleaved: bool = field(default=False, kw_only=True)
    """Whether a plane keeps all phases of the stride, in the order of the input."""

    @property
    def step(self) -> int:
        """The distance in a plane between what neighbouring output positions read."""
        return self.stride if self.is_interleaved else 1

    @property
    def phases(self) -> int:
        """How many planes the phases of the stride that the taps read are copied into."""
        if self.is_interleaved:
            return 1
        if self.is_spread:
            return self.taps
        period = self.stride // math.gcd(self.stride, self.dilation)
        return min(self.taps, period)

    def residue(self, phase: Any) -> Any:
        """The first element of a phase."""
        first = phase * self.dilation
        return first if self.is_spread else tirx.floormod(first, int64(self.stride))

    def shift(self, tap: Any) -> Any:
        """How many elements of its phase lie before the first that a tap reads."""
        if self.is_interleaved:
            return tap * self.dilation
        return int64(0) if self.is_spread else tirx.floordiv(tap * self.dilation, self.stride)

    @property
    def reach(self) -> int:
        """How many positions the last tap reaches beyond the first in its phase."""
        return 0 if self.is_spread else (self.taps - 1) * self.dilation // self.stride

    @property
    def extent(self) -> Any:
        """The number of positions of a phase that are read."""
        return self.size + self.reach


@dataclass(frozen=True)
class Convolved:
    """A convolution by role, and the nests after it."""

    product: SumOfProducts
    store: Store
    source: Any
    """The input without padding."""
    source_indices: list[Any]
    """Its indices in the batch variables, the channel and the padded positions."""
    channel: Any
    """The reduced variable of input channels; None for one channel in a group."""
    axes: list[SpatialAxis]
    positions: list[Any]
    """The variables in `source_indices` that stand for padded positions, one for each axis."""
    fill: Any
    """The value of the padding; 0 where there is none."""
    is_padded: bool = False
    """Whether there is padding."""
    gives_channels_last: bool = False
    """Whether channels are the last axis of the output."""

    @property
    def has_zero_fill(self) -> bool:
        """Whether padding adds nothing to a sum."""
        return isinstance(self.fill, tirx.FloatImm) and float(self.fill.value) == 0

    @property
    def position(self) -> Affine:
        """Where an element of the padded input is, in the batch variables, its channel and its
        position.
        """
        variables = [*self.product.batch, *self.positions]
        if self.channel is not None:
            variables.append(self.channel)
        position = affine(list(self.source.shape), self.source_indices, variables)
        assert position is not None, "the padded operand is read at affine positions"
        return position

    @property
    def takes_channels_last(self) -> bool:
        """Whether neighbouring channels, and not neighbouring positions, are so in the input."""
        steps = [self.position.of(v) for v in (self.channel, self.positions[-1])]
        return static_size(steps[0]) == 1 and static_size(steps[1]) != 1


def windows_overlap(found: Convolved) -> bool:
    """Whether neighbouring windows share elements."""
    return any(axis.taps > axis.stride for axis in found.axes)


@lru_cache(maxsize=1)  # All rules ask for the same kernel, one after another.
def convolution_of(kernel: tirx.PrimFunc) -> Convolved | None:
    """The convolution that a kernel computes; None for another kernel."""
    return _windows_of(kernel, sum_of_products)


def maximum_of(kernel: tirx.PrimFunc) -> Convolved | None:
    """The maxima of windows that a kernel computes, as a convolution; the weights mean nothing."""
    return _windows_of(kernel, maximum_of_windows)


def sum_of(kernel: tirx.PrimFunc) -> Convolved | None:
    """The sums of windows that a kernel computes, as a convolution; the weights mean nothing."""
    return _windows_of(kernel, sum_of_windows)


@lru_cache(maxsize=1)
def convolution_with_channels_last(kernel: tirx.PrimFunc) -> Convolved | None:
    """The convolution that a kernel computes into an image with channels last."""
    return _windows_of(kernel, sum_of_products, channels_last=True)


def maximum_with_channels_last(kernel: tirx.PrimFunc) -> Convolved | None:
    """The maxima of windows that a kernel computes into an image with channels last."""
    return _windows_of(kernel, maximum_of_windows, channels_last=True)


def sum_with_channels_last(kernel: tirx.PrimFunc) -> Convolved | None:
    """The sums of windows that a kernel computes into an image with channels last."""
    return _windows_of(kernel, sum_of_windows, channels_last=True)


def _windows_of(
    kernel: tirx.PrimFunc,
    roles: Callable[..., SumOfProducts | None],
    *,
    channels_last: bool = False,
) -> Convolved | None:
    nests = nests_of(kernel)
    if not nests:
        return None
    padding = nests[0] if not nests[0].reduced else None
    rest = nests[1:] if padding is not None else nests
    if not rest:
        return None
    product_ = roles(rest[0], channels_last=channels_last)
    if product_ is not None and not channels_last:
        product_ = _with_batch(product_)
    if product_ is None or (padding is not None and not product_.b.buffer.same_as(padding.buffer)):
        return None
    epilogue = epilogue_of(rest[0], product_.c, rest[1:])
    if epilogue is None:
        return None
    variables = [*product_.batch, *product_.rows, *product_.columns]
    columns = product_.columns
    if channels_last:
        # The last axis is that of the rows, or of channels with windows of their own.
        columns = (product_.rows or product_.batch)[-1:]
        written = without_unit_end(product_.c, product_.nest.buffer)
        if not columns or not depends(written[-1], columns):
            return None
    store = Store(epilogue, variables, product_.extents, columns)
    if not store.is_storable:
        return None
    found = _by_axis(product_, store, padding, channels_last)
    return None if found is None else replace(found, gives_channels_last=channels_last)


def _with_batch(product_: SumOfProducts) -> SumOfProducts:
    """The product with the images of a batch apart from columns, if no output channel is between
    them because there is only one.
    """
    if product_.rows or len(product_.columns) < 2:
        return product_
    entry, *columns = product_.columns
    first, *others = product_.b.indices
    if not first.same_as(entry) or any(depends(index, [entry]) for index in others):
        return product_
    return replace(product_, batch=[*product_.batch, entry], columns=columns)


def _by_axis(
    product_: SumOfProducts, store: Store, padding: Nest | None, channels_last: bool
) -> Convolved | None:
    """Reads the axes of the image from the indices of the operand.

    With `channels_last`, an axis of channels may follow them.
    """
    indices = without_unit_end(product_.b.indices, product_.b.buffer)
    if not indices:
        return None
    summed = [v for v in product_.reduced if depends(indices[-1], [v])]
    is_last = channels_last and len(summed) == 1 and not depends(indices[-1], product_.columns)
    axes: list[SpatialAxis] = []
    channel = None
    first = None
    for place, index in enumerate(indices):
        columns = [v for v in product_.columns if depends(index, [v])]
        taps = [v for v in product_.reduced if depends(index, [v])]
        if not columns:
            may_be_channel = place == len(indices) - 1 if is_last else channel is None and not axes
            may_be_channel &= bool(product_.rows) or not channels_last
            if len(taps) == 1 and may_be_channel and _is_free_of(index, taps[0]):
                channel = taps[0]
                continue
            if not taps:
                continue
        if len(columns) > 1 or len(taps) > 1:
            return None
        first = place if first is None else first
        axis = _axis(product_, index, columns, taps)
        if axis is None or place != first + len(axes):
            return None
        axes.append(axis)
    if not axes or first is None:
        return None
    after = indices[first + len(axes) :]
    if len(after) > int(channels_last):
        return None
    if after and not depends(
        after[0], [*product_.batch[-1:], *([] if channel is None else [channel])]
    ):
        return None
    if axes[-1].column is None:
        # Lines of the output run along the last axis.
        return None
    if sum(axis.column is not None for axis in axes) != len(product_.columns):
        return None
    found = _with_padding(product_, store, padding, axes, channel, first)
    # More than two axes are supported only if their positions form one line.
    if found is not None and len(axes) > 2 and not _is_one_line(found):
        return None
    return found


def _is_one_line(found: Convolved) -> bool:
    """Whether all positions of the image follow each other in input and output."""
    return are_plain(found.axes) and found.store.is_even(found.product.columns)


def are_plain(axes: Sequence[SpatialAxis]) -> bool:
    """Whether each output position reads the input position of the same number only."""
    analyzer = sym.Analyzer()
    return all(
        axis.taps == 1 and axis.stride == 1 and static_size(axis.low) == 0
        and analyzer.can_prove_equal(axis.high, axis.size)
        for axis in axes
    )  # fmt: skip


def _is_free_of(index: Any, variable: Any) -> bool:
    found = sym.detect_linear_equation(index, [variable])
    return len(found) == 2 and static_size(found[0]) == 1


def _axis(
    product_: SumOfProducts, index: Any, columns: Sequence[Any], taps: Sequence[Any]
) -> SpatialAxis | None:
    found = sym.detect_linear_equation(index, [*columns, *taps])
    if len(found) != len(columns) + len(taps) + 1 or static_size(found[-1]) != 0:
        return None
    numbers = [static_size(coefficient) for coefficient in found[:-1]]
    if None in numbers:
        return None
    count = static_size(product_.extent(taps[0])) if taps else 1
    if count is None:
        return None
    stride = numbers[0] if columns else 1
    dilation = numbers[-1] if taps else 1
    size = product_.extent(columns[0]) if columns else int64(1)
    column, tap = (columns[0] if columns else None), (taps[0] if taps else None)
    if not stride or not dilation or stride < 1 or dilation < 1:
        return None
    return SpatialAxis(column, tap, size, count, stride, dilation, int64(0), None)


def _with_padding(
    product_: SumOfProducts,
    store: Store,
    padding: Nest | None,
    axes: list[SpatialAxis],
    channel: Any,
    first: int,
) -> Convolved | None:
    total = math.prod(axis.taps for axis in axes)
    if total > _MOST_TAPS:
        return None
    positions = [tirx.Var(f"position_{place}", "int64") for place in range(len(axes))]
    end = first + len(axes)
    indices = [*product_.b.indices[:first], *positions, *product_.b.indices[end:]]
    if padding is None:
        sizes = list(product_.b.buffer.shape)[first:end]
        plain = [replace(axis, high=size) for axis, size in zip(axes, sizes, strict=True)]
        zero = tirx.const(0.0, "float32")
        return Convolved(
            product_, store, product_.b.buffer, indices, channel, plain, positions, zero
        )
    found = _padded(padding)
    if found is None:
        return None
    load, bounds, fill = found
    values = dict(zip(padding.spatial, indices, strict=True))
    padded = []
    for axis, variable in zip(axes, padding.spatial[first:end], strict=True):
        low, high = bounds.get(variable, (int64(0), padding.extent(variable)))
        padded.append(replace(axis, low=low, high=high))
    if any(variable in bounds for variable in (*padding.spatial[:first], *padding.spatial[end:])):
        return None
    source_indices = [substituted(index, values) for index in load.indices]
    before = len(source_indices) - len(indices) + first
    if not all(map(_is_free_of, source_indices[before:], positions)):
        return None  # The positions of the input do not follow each other.
    return Convolved(
        product_, store, load.source, source_indices, channel, padded, positions, fill,
        is_padded=bool(bounds),
    )  # fmt: skip


def is_padding(kernel: tirx.PrimFunc) -> bool:
    """Whether a kernel pads its operand with a number, and does nothing else."""
    nests = nests_of(kernel)
    found = _padded(nests[0]) if nests is not None and len(nests) == 1 else None
    return found is not None and bool(found[1])


def _padded(nest: Nest) -> tuple[Any, dict[Any, tuple[Any, Any]], Any] | None:
    """The load of a padding nest, where each variable is inside, and the value outside."""
    zero = tirx.const(0.0, "float32")
    value = nest.value
    if isinstance(value, ir.TensorLoad):
        return value, {}, zero
    if getattr(getattr(value, "op", None), "name", "") != "prim.if_then_else":
        return None
    condition, load, fill = value.args
    if not isinstance(load, ir.TensorLoad) or not isinstance(fill, tirx.FloatImm):
        return None
    bounds = {v: (int64(0), nest.extent(v)) for v in nest.spatial}
    touched, sides = set(), set()
    for term in _terms(condition):
        limit = _limit(term, nest.spatial)
        if limit is None:
            return None
        variable, low, high = limit
        if (variable, low is None) in sides:
            return None  # Two bounds on one side: neither is known to be the tighter.
        sides.add((variable, low is None))
        before = bounds[variable]
        bounds[variable] = (before[0] if low is None else low, before[1] if high is None else high)
        touched.add(variable)
    return load, {v: b for v, b in bounds.items() if v in touched}, fill


def _terms(condition: Any) -> list[Any]:
    if isinstance(condition, tirx.And):
        return _terms(condition.a) + _terms(condition.b)
    return [condition]


def _limit(term: Any, variables: Sequence[Any]) -> tuple[Any, Any, Any] | None:
    """A comparison as (variable, first inside or None, first after or None)."""
    if not isinstance(term, (tirx.LE, tirx.LT)):
        return None
    excess = int(isinstance(term, tirx.LT))  # 0 <= b - a - excess
    found = sym.detect_linear_equation(term.b - term.a - excess, list(variables))
    if len(found) != len(variables) + 1:
        return None
    factors = {v: static_size(factor) for v, factor in zip(variables, found, strict=False)}
    used = {v: factor for v, factor in factors.items() if factor != 0}
    if len(used) != 1:
        return None
    ((variable, factor),) = used.items()
    simplify = sym.Analyzer().simplify
    if factor == 1:
        return variable, simplify(-found[-1]), None
    if factor == -1:
        return variable, None, simplify(found[-1] + 1)
    return None
