"""Weight matrices as arrays where they are constants, and as what to compute where they are not.

A cell may take its weights from a graph input or from a computation in front of the loop. What the
lifting does to a matrix (transpose, pick rows, add, …) is then kept as an expression, to be put
into the graph, and evaluated on random numbers for the probe.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...rewrite.graph.ir import Tensor

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Computed:
    """A vector or matrix known only at run time: an operation on others, or a value of the graph."""

    op: str
    """`value`, or one of the functions of this module."""
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


Weight = Array | Computed
"""One or two axes; two are (features in, features out)."""


class Builder(Protocol):
    """Puts operations into a graph, or carries them out."""

    def value(self, tensor: Tensor) -> Any: ...

    def constant(self, array: Array) -> Any: ...

    def apply(self, op: str, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any: ...


def _argument_key(arg: Any) -> bytes:
    if isinstance(arg, Computed):
        return arg.key
    if isinstance(arg, np.ndarray):
        return array_key(arg)
    if isinstance(arg, tuple):
        return b"(" + b",".join(_argument_key(a) for a in arg) + b")"
    return repr(arg if isinstance(arg, int) else id(arg)).encode()


def array_key(array: Array) -> bytes:
    """Equal for arrays of equal type, shape and content."""
    header = f"{array.dtype.str}{array.shape}".encode()
    # Adding 0 makes the two zeros of floats one.
    content = array + array.dtype.type(0) if array.dtype.kind == "f" else array
    digest = hashlib.blake2b(header, digest_size=16)
    digest.update(np.ascontiguousarray(content).data)
    return digest.digest()


def weight_key(weight: Weight) -> bytes:
    return weight.key if isinstance(weight, Computed) else array_key(weight)


def value(tensor: Tensor, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Computed:
    """A value of the graph as a weight."""
    return Computed("value", (tensor,), shape, dtype)


def _computed(op: str, args: tuple[Any, ...], shape: tuple[int, ...], like: Weight) -> Computed:
    return Computed(op, args, shape, like.dtype)


def reshaped(weight: Weight, shape: tuple[int, ...]) -> Weight:
    if isinstance(weight, np.ndarray):
        return weight.reshape(shape)
    return weight if weight.shape == shape else _computed("reshape", (weight, shape), shape, weight)


def transposed(weight: Weight) -> Weight:
    if isinstance(weight, np.ndarray):
        return np.asarray(weight.T)
    return _computed("transpose", (weight,), weight.shape[::-1], weight)


def rearranged(weight: Weight, order: Sequence[int]) -> Weight:
    """The axes in another order, as numpy's `transpose`."""
    if isinstance(weight, np.ndarray):
        return np.transpose(weight, order)
    numbers = np.arange(weight.size).reshape(weight.shape).transpose(order)
    flat = take(reshaped(weight, (weight.size,)), numbers.ravel(), 0)
    return reshaped(flat, numbers.shape)


def take(weight: Weight, indices: Array, axis: int) -> Weight:
    """Rows, columns or elements by number, as numpy's `take`."""
    count = weight.shape[axis]
    if len(indices) == count and np.array_equal(indices, np.arange(count)):
        return weight
    if isinstance(weight, np.ndarray):
        if len(indices) and np.array_equal(
            indices, np.arange(indices[0], indices[0] + len(indices))
        ):
            window = [slice(None)] * weight.ndim
            window[axis] = slice(int(indices[0]), int(indices[0]) + len(indices))
            return weight[tuple(window)]  # a view: gates are mostly neighbours
        return np.asarray(np.take(weight, indices, axis))
    shape = tuple(len(indices) if a == axis else n for a, n in enumerate(weight.shape))
    return _computed("take", (weight, indices, axis), shape, weight)


def cut(vector: Weight, size: int) -> list[Weight]:
    """A vector in pieces of one size."""
    count = vector.shape[0] // size
    return [take(vector, np.arange(k * size, (k + 1) * size), 0) for k in range(count)]


def add(a: Weight, b: Weight) -> Weight:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.asarray(a + b)
    return _computed("add", (a, b), np.broadcast_shapes(a.shape, b.shape), a)


def multiply(a: Weight, b: Weight) -> Weight:
    """Elementwise; a vector scales the columns of a matrix."""
    for factor, other in ((a, b), (b, a)):
        if (
            isinstance(factor, np.ndarray)
            and np.all(factor == 1)
            and factor.ndim <= len(other.shape)
        ):
            return other
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.asarray(a * b)
    return _computed("multiply", (a, b), np.broadcast_shapes(a.shape, b.shape), a)


def matmul(a: Weight, b: Weight) -> Weight:
    """Products of constants are computed in double precision and rounded once."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        exact = np.matmul(a.astype(np.float64), b.astype(np.float64))
        return np.asarray(exact.astype(a.dtype))
    return _computed("matmul", (a, b), (*a.shape[:-1], b.shape[-1]), a)


def concat(parts: Sequence[Weight], axis: int) -> Weight:
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(p, np.ndarray) for p in parts):
        return np.concatenate([np.asarray(p) for p in parts], axis)
    size = sum(p.shape[axis] for p in parts)
    shape = tuple(size if a == axis else n for a, n in enumerate(parts[0].shape))
    return _computed("concat", (tuple(parts), axis), shape, parts[0])


def zeros(width: int, dtype: np.dtype[Any]) -> Weight:
    return np.zeros(width, dtype)


def equal(a: Weight, b: Weight) -> bool:
    """Whether two weights are surely the same."""
    return weight_key(a) == weight_key(b)


def is_zero(weight: Weight) -> bool:
    return isinstance(weight, np.ndarray) and not weight.any()


def build(weight: Weight, builder: Builder, done: dict[bytes, Any]) -> Any:
    """Carries an expression out with a builder; `done` keeps what equal parts gave."""
    if isinstance(weight, np.ndarray):
        return builder.constant(weight)
    key = weight.key
    if key not in done:
        done[key] = _build(weight, builder, done)
    return done[key]


def _build(weight: Computed, builder: Builder, done: dict[bytes, Any]) -> Any:
    op, args = weight.op, weight.args
    if op == "value":
        return builder.value(args[0])
    if op == "concat":
        parts = [build(p, builder, done) for p in args[0]]
        return builder.apply("Concat", parts, {"axis": args[1]})
    first = build(args[0], builder, done)
    if op == "transpose":
        return builder.apply("Transpose", [first], {"perm": [1, 0]})
    if op == "reshape":
        return builder.apply("Reshape", [first, builder.constant(np.array(args[1], np.int64))], {})
    if op == "take":
        indices = builder.constant(np.asarray(args[1], np.int64))
        return builder.apply("Gather", [first, indices], {"axis": args[2]})
    second = build(args[1], builder, done)
    return builder.apply(
        {"add": "Add", "multiply": "Mul", "matmul": "MatMul"}[op], [first, second], {}
    )
