"""How operators that move elements act on forms (ONNX operator specification)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...rewrite import symbolic
from ...rewrite.graph.ir import Node
from . import values
from .coefficients import NotAffine
from .lifting import Lifter, lifts
from .values import Batch, Value
from .weights import Array


@lifts("Transpose")
def _transpose(lifter: Lifter, node: Node) -> list[Value]:
    value = lifter.operand(node, 0)
    order = node.attrs.get("perm") or list(range(len(value.axes)))[::-1]
    return [values.transposed(value, order)]


@lifts("Reshape", "Squeeze", "Unsqueeze", "Flatten")
def _reshape(lifter: Lifter, node: Node) -> list[Value]:
    return [values.reshaped(lifter.operand(node, 0), lifter.shape(node.outputs[0]))]


@lifts("Expand")
def _expand(lifter: Lifter, node: Node) -> list[Value]:
    value = lifter.operand(node, 0)
    shape = lifter.shape(node.outputs[0])
    padded: tuple[values.Axis, ...] = (1,) * (len(shape) - len(value.axes)) + value.axes
    axes: list[values.Axis] = []
    for axis, size in zip(padded, shape):
        there = axis.size if isinstance(axis, Batch) else axis
        if there != 1 and symbolic.eq(there, size) is not True:
            raise NotAffine("it may broadcast")
        if there == 1 and size != 1:
            axes.append(size if isinstance(size, int) else Batch(size))
        else:
            axes.append(axis)
    return [values.expanded(value, tuple(axes))]


@lifts("Concat")
def _concat(lifter: Lifter, node: Node) -> list[Value]:
    return [values.joined([lifter.value(t) for t in node.inputs], int(node.attrs["axis"]))]


@lifts("Split")
def _split(lifter: Lifter, node: Node) -> list[Value]:
    value = lifter.operand(node, 0)
    axis = int(node.attrs.get("axis", 0)) % len(value.axes)
    results, first = [], 0
    for tensor in node.outputs:
        size = lifter.shape(tensor)[axis]
        if not isinstance(size, int):
            raise NotAffine("it splits into parts of unknown size")
        results.append(values.along(value, axis, _within(first, size)))
        first += size
    return results


def _within(first: int, size: int) -> Callable[[Array], Array]:
    return lambda numbers: numbers[first : first + size]


@lifts("Gather")
def _gather(lifter: Lifter, node: Node) -> list[Value]:
    value = lifter.operand(node, 0)
    indices = lifter.numbers(node, 1)
    assert indices is not None
    axis = int(node.attrs.get("axis", 0)) % len(value.axes)
    size = value.axes[axis]
    if isinstance(size, int) and not bool(np.all((-size <= indices) & (indices < size))):
        raise NotAffine("it reads beyond the end")
    return [values.along(value, axis, lambda numbers: np.asarray(np.take(numbers, indices)))]


@lifts("Slice")
def _slice(lifter: Lifter, node: Node) -> list[Value]:
    value = lifter.operand(node, 0)
    starts = lifter.numbers(node, 1, "starts")
    ends = lifter.numbers(node, 2, "ends")
    if starts is None or ends is None:
        raise NotAffine("it has no bounds")
    axes, steps = lifter.numbers(node, 3, "axes"), lifter.numbers(node, 4)
    where: Array = np.arange(len(starts)) if axes is None else axes
    strides: Array = np.ones(len(starts), np.int64) if steps is None else steps
    for axis, start, end, step in zip(where, starts, ends, strides):
        value = _sliced(value, int(axis) % len(value.axes), int(start), int(end), int(step))
    return [value]


_ENDLESS = np.iinfo(np.int32).max
"""Exporters slice to the end with this number or a larger one."""


def _sliced(value: Value, axis: int, start: int, end: int, step: int) -> Value:
    there = value.axes[axis]
    if isinstance(there, Batch):
        last = there.size if isinstance(there.size, int) else _ENDLESS
        if start == 0 and step == 1 and end >= last:
            return value
        raise NotAffine("it picks elements along a batch axis")
    return values.along(value, axis, lambda numbers: numbers[start:end:step])
