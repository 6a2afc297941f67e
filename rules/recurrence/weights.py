"""Weights: arrays where they are constant, expressions where the model computes them.

A cell may take its weights from a graph input or from a computation outside the loop. What lifting
does to such a matrix (transpose it, take rows of it, add another, …) is then kept as an expression.
A backend evaluates the expression with numpy, for the probe, or adds it to the graph.
"""

from __future__ import annotations

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ...rewrite.engine.builder import Builder
from ...rewrite.graph.ir import Tensor

Array = npt.NDArray[Any]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ArrayExpression:
    """A vector or matrix whose elements are known at run time only."""

    op: str
    """`value` for a value of the graph, otherwise the ONNX operator that is applied to `args`."""
    args: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @cached_property
    def key(self) -> bytes:
        """Equal for equal expressions over the same values."""
        digest = hashlib.blake2b(self.op.encode(), digest_size=16)
        for arg in self.args:
            digest.update(_argument_key(arg))
        return digest.digest()

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


Weight = Array | ArrayExpression
"""A vector, or a matrix of shape (features in, features out)."""


# --- keys ---


def _argument_key(arg: Any) -> bytes:
    if isinstance(arg, ArrayExpression):
        return arg.key
    if isinstance(arg, np.ndarray):
        return _array_key(arg)
    if isinstance(arg, tuple):
        return b"(" + b",".join(_argument_key(a) for a in arg) + b")"
    return repr(arg if isinstance(arg, int) else id(arg)).encode()


def _array_key(array: Array) -> bytes:
    header = f"{array.dtype.str}{array.shape}".encode()
    # Adding 0 turns the -0 of floats into 0.
    content = array + array.dtype.type(0) if array.dtype.kind == "f" else array
    digest = hashlib.blake2b(header, digest_size=16)
    digest.update(np.ascontiguousarray(content).data)
    return digest.digest()


def weight_key(weight: Weight) -> bytes:
    """Equal for arrays of equal type, shape and content, and for equal expressions."""
    return weight.key if isinstance(weight, ArrayExpression) else _array_key(weight)


def equal(a: Weight, b: Weight) -> bool:
    """Whether two weights are known to be equal."""
    return weight_key(a) == weight_key(b)


def is_zero(weight: Weight) -> bool:
    """Whether all elements are known to be zero."""
    return isinstance(weight, np.ndarray) and not weight.any()


def is_filled(weight: Weight, number: float) -> bool:
    """Whether all elements are known to equal a number."""
    return isinstance(weight, np.ndarray) and bool(np.all(weight == number))


# --- operations ---


def of_tensor(tensor: Tensor, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ArrayExpression:
    """A value of the graph as a weight."""
    return ArrayExpression("value", (tensor,), shape, dtype)


def reshape(weight: Weight, shape: tuple[int, ...]) -> Weight:
    """The elements in another shape, in row-major order."""
    if isinstance(weight, np.ndarray):
        return weight.reshape(shape)
    if weight.shape == shape:
        return weight
    return ArrayExpression("Reshape", (weight, shape), shape, weight.dtype)


def transpose(weight: Weight) -> Weight:
    """A matrix with its two axes exchanged."""
    if isinstance(weight, np.ndarray):
        return np.asarray(weight.T)
    if weight.op == "Transpose":
        return weight.args[0]  # type: ignore[no-any-return]
    return ArrayExpression("Transpose", (weight,), weight.shape[::-1], weight.dtype)


def permute_axes(weight: Weight, order: Sequence[int]) -> Weight:
    """The axes in another order, as `numpy.transpose`."""
    if isinstance(weight, np.ndarray):
        return np.transpose(weight, order)
    numbers = np.arange(weight.size).reshape(weight.shape).transpose(order)
    flat = take(reshape(weight, (weight.size,)), numbers.ravel(), 0)
    return reshape(flat, numbers.shape)


def take(weight: Weight, indices: Array, axis: int) -> Weight:
    """Rows, columns or elements by number, as `numpy.take`."""
    count = weight.shape[axis]
    if len(indices) == count and np.array_equal(indices, np.arange(count)):
        return weight
    if isinstance(weight, np.ndarray):
        if len(indices) and np.array_equal(
            indices, np.arange(indices[0], indices[0] + len(indices))
        ):
            window = [slice(None)] * weight.ndim
            window[axis] = slice(int(indices[0]), int(indices[0]) + len(indices))
            return weight[tuple(window)]  # a view: most gates are contiguous
        return np.asarray(np.take(weight, indices, axis))
    shape = tuple(len(indices) if a == axis else n for a, n in enumerate(weight.shape))
    return ArrayExpression("Gather", (weight, indices, axis), shape, weight.dtype)


def split(vector: Weight, size: int) -> list[Weight]:
    """The pieces of this size that a vector consists of."""
    count = vector.shape[0] // size
    return [take(vector, np.arange(k * size, (k + 1) * size), 0) for k in range(count)]


def add(a: Weight, b: Weight) -> Weight:
    """The elementwise sum. Adding zeros changes at most the sign of a zero, so it is left out."""
    for zeros, other in ((a, b), (b, a)):
        is_as_wide = np.broadcast_shapes(zeros.shape, other.shape) == other.shape
        if is_zero(zeros) and is_as_wide and isinstance(other, ArrayExpression):
            return other
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.asarray(a + b)
    return ArrayExpression("Add", (a, b), np.broadcast_shapes(a.shape, b.shape), a.dtype)


def multiply(a: Weight, b: Weight) -> Weight:
    """The elementwise product; a vector scales the columns of a matrix."""
    for factor, other in ((a, b), (b, a)):
        if (
            isinstance(factor, np.ndarray)
            and np.broadcast_shapes(factor.shape, other.shape) == other.shape
            and np.all(factor == 1)
        ):
            return other
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.asarray(a * b)
    return ArrayExpression("Mul", (a, b), np.broadcast_shapes(a.shape, b.shape), a.dtype)


def matmul(a: Weight, b: Weight) -> Weight:
    """The matrix product. Products of constants are computed in double precision, rounded once."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        exact = np.matmul(a.astype(np.float64), b.astype(np.float64))
        return np.asarray(exact.astype(a.dtype))
    return ArrayExpression("MatMul", (a, b), (*a.shape[:-1], b.shape[-1]), a.dtype)


def concat(parts: Sequence[Weight], axis: int) -> Weight:
    """Weights side by side along an axis.

    The parts of one weight become one Gather, and transposed parts one Transpose.
    """
    parts = _joined([p for p in parts if p.shape[axis]] or parts[:1], axis)
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(p, np.ndarray) for p in parts):
        return np.concatenate([np.asarray(p) for p in parts], axis)
    if all(isinstance(p, np.ndarray) or p.op == "Transpose" for p in parts) and axis in (0, 1):
        return transpose(concat([transpose(p) for p in parts], 1 - axis))
    size = sum(p.shape[axis] for p in parts)
    shape = tuple(size if a == axis else n for a, n in enumerate(parts[0].shape))
    return ArrayExpression("Concat", (tuple(parts), axis), shape, parts[0].dtype)


def _joined(parts: Sequence[Weight], axis: int) -> list[Weight]:
    """The parts, where neighbours that are gathered from one weight are gathered at once."""
    joined: list[Weight] = []
    for source, run in itertools.groupby(parts, lambda part: _gathered_from(part, axis)):
        if source is None:
            joined += run
        else:
            first, *others = (part for part in run if isinstance(part, ArrayExpression))
            indices = [first.args[1], *(part.args[1] for part in others)]
            joined.append(take(first.args[0], np.concatenate(indices), axis))
    return joined


def _gathered_from(weight: Weight, axis: int) -> bytes | None:
    """The key of the weight that this one is gathered from along an axis; None for any other."""
    if isinstance(weight, np.ndarray) or weight.op != "Gather" or weight.args[2] != axis:
        return None
    return weight_key(weight.args[0])


# --- backends ---


class WeightBackend(ABC, Generic[T]):
    """Evaluates weights, or adds them to a graph; equal parts once."""

    def __init__(self) -> None:
        self._built: dict[bytes, T] = {}

    def build(self, weight: Weight) -> T:
        """The weight in the form of this backend."""
        if isinstance(weight, np.ndarray):
            return self.constant(weight)
        key = weight.key
        if key not in self._built:
            self._built[key] = self._apply(weight)
        return self._built[key]

    def _apply(self, weight: ArrayExpression) -> T:
        op, args = weight.op, weight.args
        if op == "value":
            return self.value(args[0])
        if op == "Concat":
            return self.apply(op, [self.build(part) for part in args[0]], {"axis": args[1]})
        first = self.build(args[0])
        if op == "Transpose":
            return self.apply(op, [first], {"perm": [1, 0]})
        if op == "Reshape":
            return self.apply(op, [first, self.constant(np.array(args[1], np.int64))], {})
        if op == "Gather":
            indices = self.constant(np.asarray(args[1], np.int64))
            return self.apply(op, [first, indices], {"axis": args[2]})
        return self.apply(op, [first, self.build(args[1])], {})

    @abstractmethod
    def value(self, tensor: Tensor) -> T:
        """A value of the graph."""

    @abstractmethod
    def constant(self, array: Array) -> T:
        """A constant."""

    @abstractmethod
    def apply(self, op: str, operands: Sequence[T], attrs: Mapping[str, Any]) -> T:
        """The result of an ONNX operator."""


class GraphBackend(WeightBackend[Tensor]):
    """Adds weights to the graph, as initializers and nodes."""

    def __init__(self, emit: Builder) -> None:
        super().__init__()
        self._emit = emit

    def value(self, tensor: Tensor) -> Tensor:
        return tensor

    def constant(self, array: Array) -> Tensor:
        return self._emit.constant(np.ascontiguousarray(array))

    def apply(self, op: str, operands: Sequence[Tensor], attrs: Mapping[str, Any]) -> Tensor:
        return self._emit(op, *operands, **attrs)


class NumpyBackend(WeightBackend[Array]):
    """Evaluates weights for given values of the graph."""

    def __init__(self, values: Mapping[Tensor, Array]) -> None:
        super().__init__()
        self._values = values

    def value(self, tensor: Tensor) -> Array:
        return self._values[tensor]

    def constant(self, array: Array) -> Array:
        return array

    def apply(self, op: str, operands: Sequence[Array], attrs: Mapping[str, Any]) -> Array:
        first, *rest = operands
        if op == "Concat":
            return np.concatenate(operands, attrs["axis"])
        if op == "Transpose":
            return np.transpose(first, attrs["perm"])
        if op == "Gather":
            return np.asarray(np.take(first, rest[0], attrs["axis"]))
        if op == "Reshape":
            return first.reshape(rest[0])
        functions = {"Add": np.add, "Mul": np.multiply, "MatMul": np.matmul}
        return np.asarray(functions[op](first, rest[0]))
