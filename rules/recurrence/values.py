"""Forms with the axes of the value they stand for, and what moving axes and elements does to them.

Every axis of a value is a batch axis, over which the body does the same everywhere, or a feature
axis, along which elements are told apart. The features of the form are the elements along all
feature axes in row-major order. An operator that only moves elements is carried out on the numbers
of the features, with numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...rewrite import symbolic
from ...rewrite.symbolic import Dim
from . import forms
from .coefficients import NotAffine
from .forms import Form
from .weights import Array, Weight


@dataclass(frozen=True)
class Batch:
    """An axis over which a body does the same everywhere."""

    size: Dim
    name: int | None = None
    """Tells axes of equal size apart where it matters."""


Axis = int | Batch
"""A number is the size of a feature axis; an axis of size 1 counts as one."""


@dataclass(frozen=True, eq=False)
class Value:
    """A value of a body."""

    form: Form
    axes: tuple[Axis, ...]

    @property
    def batch(self) -> tuple[Dim, ...]:
        return tuple(a.size for a in self.axes if isinstance(a, Batch))

    def numbers(self) -> Array:
        """The numbers of the features, in the shape of the value, with batch axes of size 1."""
        return np.arange(self.form.width).reshape([_size(a) for a in self.axes])

    @property
    def shape(self) -> tuple[Dim, ...]:
        return tuple(a.size if isinstance(a, Batch) else a for a in self.axes)

    def has_shape(self, shape: Sequence[Dim]) -> bool:
        """Whether the value surely has this shape."""
        return len(self.shape) == len(shape) and all(
            symbolic.eq(a, b) is True for a, b in zip(self.shape, shape)
        )

    def moved(self, numbers: Array, axes: tuple[Axis, ...]) -> Value:
        """The value made of the features with these numbers."""
        return Value(self.form.take(numbers.ravel()), axes)

    def with_form(self, form: Form) -> Value:
        return Value(form, self.axes)


def _size(axis: Axis) -> int:
    return 1 if isinstance(axis, Batch) else axis


def axes_of(shape: Sequence[Dim], features: Sequence[int]) -> tuple[Axis, ...]:
    """Axes of a shape; those in `features` have static sizes, the others are batch axes."""
    return tuple(
        int(n) if (k in features or n == 1) and isinstance(n, int) else Batch(n)
        for k, n in enumerate(shape)
    )


def one_batch(axes: tuple[Axis, ...], same: Sequence[Dim]) -> tuple[Axis, ...]:
    """The axes with the first of the sizes in `same` for all of them."""
    return tuple(Batch(same[0]) if isinstance(a, Batch) and a.size in same else a for a in axes)


def constant(array: Array) -> Value:
    """A constant: all its axes are feature axes."""
    return Value(forms.constant(array.ravel()), tuple(array.shape))


def transposed(value: Value, order: Sequence[int]) -> Value:
    axes = tuple(value.axes[k] for k in order)
    return value.moved(np.transpose(value.numbers(), order), axes)


def along(value: Value, axis: int, pick: Callable[[Array], Array]) -> Value:
    """What `pick` leaves of a feature axis, whose numbers 0, 1, … it is given."""
    size = value.axes[axis]
    if isinstance(size, Batch):
        raise NotAffine("it picks elements along a batch axis")
    left = pick(np.arange(size))
    numbers = np.take(value.numbers(), left, axis)
    # One number drops the axis, an array of them may add some.
    axes = (*value.axes[:axis], *left.shape, *value.axes[axis + 1 :])
    return value.moved(numbers, axes)


def reshaped(value: Value, shape: Sequence[Dim]) -> Value:
    """Reshape, where batch axes stay whole and in their places between the feature axes."""
    axes: list[Axis] = []
    ahead = [a for a in value.axes if a != 1]
    for size in shape:
        if size == 1:
            axes.append(1)
        elif ahead and isinstance(ahead[0], Batch):
            if symbolic.eq(ahead[0].size, size) is not True:
                raise NotAffine("it changes a batch axis")
            axes.append(ahead.pop(0))
        else:
            axes.append(_next_features(ahead, size))
    if ahead:
        raise NotAffine("it changes a batch axis")
    return Value(value.form, tuple(axes))


def _next_features(ahead: list[Axis], size: Dim) -> int:
    """Takes `size` features off the front of the axes ahead; the rest stays there."""
    if not isinstance(size, int):
        raise NotAffine("it mixes batch and feature axes")
    left = size
    while left > 1:
        if not ahead or isinstance(ahead[0], Batch):
            raise NotAffine("it mixes batch and feature axes")
        there = ahead.pop(0)
        assert isinstance(there, int)
        if there <= left and left % there == 0:
            left //= there
        elif there % left == 0:
            ahead.insert(0, there // left)
            left = 1
        else:
            raise NotAffine("it changes feature axes in a way that is not followed")
    return size


def expanded(value: Value, axes: tuple[Axis, ...]) -> Value:
    """The value broadcast to these axes; its own are aligned with the last ones."""
    numbers = value.numbers()
    shape = [_size(a) for a in axes]
    return value.moved(np.broadcast_to(numbers, shape), axes)


def aligned(values: Sequence[Value]) -> list[Value]:
    """Values broadcast against each other. Raises NotAffine where axes do not fit surely."""
    rank = max(len(v.axes) for v in values)
    padded = [(1,) * (rank - len(v.axes)) + v.axes for v in values]
    axes = tuple(_common([p[k] for p in padded]) for k in range(rank))
    return [expanded(v, axes) for v in values]


def _common(axes: list[Axis]) -> Axis:
    result: Axis = 1
    for axis in axes:
        if axis == 1 or axis == result:
            continue
        if result != 1:
            raise NotAffine("a batch axis meets another axis")
        result = axis
    return result


def joined(values: Sequence[Value], axis: int) -> Value:
    """Concat along a feature axis."""
    first = values[0]
    rank = len(first.axes)
    axis %= rank
    for value in values:
        others = [a for k, a in enumerate(value.axes) if k != axis]
        same = others == [a for k, a in enumerate(first.axes) if k != axis]
        if len(value.axes) != rank or isinstance(value.axes[axis], Batch) or not same:
            raise NotAffine("it joins values along a batch axis or of unlike axes")
    starts = np.cumsum([0, *(v.form.width for v in values[:-1])])
    numbers = np.concatenate([v.numbers() + s for v, s in zip(values, starts)], axis)
    whole = forms.joined([v.form for v in values])
    size = sum(a for v in values if isinstance(a := v.axes[axis], int))
    axes = (*first.axes[:axis], size, *first.axes[axis + 1 :])
    return Value(whole.take(numbers.ravel()), axes)


def contracted(value: Value, axis: int, matrix: Weight, behind: bool) -> Value:
    """A feature axis times a matrix (features in, features out), in the same place or last.

    Other feature axes are kept: the matrix is applied to each slice along them.
    """
    axis %= len(value.axes)
    size = value.axes[axis]
    if isinstance(size, Batch) or size != matrix.shape[0]:
        raise NotAffine("the matrix meets a batch axis")
    place = len(value.axes) - 1 if behind else axis
    rows = np.moveaxis(value.numbers(), axis, -1).reshape(-1, size)
    parts = [value.form.take(row).times(matrix) for row in rows]
    others = [a for k, a in enumerate(value.axes) if k != axis]
    result = Value(forms.joined(parts), (*others, matrix.shape[1]))
    order = list(range(len(others)))
    order.insert(place, len(others))
    return transposed(result, order) if place != len(others) else result
