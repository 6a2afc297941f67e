"""What is proven about one value, and what still holds where two control-flow paths join."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from .. import symbolic
from ..symbolic import Dim

Element = int | symbolic.Expr | bool | None
"""An element of an integer or bool tensor; None for a bool that is not known."""

BFLOAT16 = onnx.TensorProto.BFLOAT16
BOOL = onnx.TensorProto.BOOL
FLOAT = onnx.TensorProto.FLOAT
FLOAT_OR_DOUBLE = frozenset({FLOAT, onnx.TensorProto.DOUBLE})
INT32 = onnx.TensorProto.INT32
INT64 = onnx.TensorProto.INT64
INTEGERS = frozenset(
    {
        onnx.TensorProto.INT8,
        onnx.TensorProto.INT16,
        INT32,
        INT64,
        onnx.TensorProto.UINT8,
        onnx.TensorProto.UINT16,
        onnx.TensorProto.UINT32,
        onnx.TensorProto.UINT64,
    }
)
MOST_VALUES = 256
"""The most elements of a tensor whose elements are tracked. Shape arithmetic never needs more."""
MOST_ATOMS = 48
"""The most atoms of an expression. Arithmetic on larger ones takes long and decides nothing."""


class AlwaysFails(Exception):
    """Every run that reaches the node fails; the text says why."""


@dataclass(frozen=True)
class Fact:
    """What is proven about one value."""

    dtype: int = 0
    """onnx.TensorProto.DataType; 0 when not known. For a sequence, that of its elements."""
    shape: tuple[Dim, ...] | None = None
    """The symbolic shape; None when the rank is not known. For a sequence, that of its elements,
    with `symbolic.VARYING` where they may differ."""
    ranks: frozenset[int] | None = None
    """The only possible ranks, where the shape is None."""
    values: tuple[Element, ...] | None = None
    """The elements in row-major order, for small integer and bool tensors of static shape."""
    kind: str = "tensor"
    """`tensor`, `sequence`, `other` (optional, map, sparse) or `absent`."""
    length: Dim | None = None
    """The number of elements of a sequence."""

    @property
    def rank(self) -> int | None:
        """The number of axes; None when it is not known."""
        return None if self.shape is None else len(self.shape)

    def possible_ranks(self) -> frozenset[int] | None:
        """All ranks that the value may have; None when nothing is known of the rank."""
        return self.ranks if self.shape is None else frozenset({len(self.shape)})

    def array(self) -> np.ndarray | None:
        """The elements as an object array of the tensor's shape.

        None if they are not known. A tensor without elements may still have open sizes.
        """
        if self.values is None or self.shape is None:
            return None
        sizes = [d for d in self.shape if isinstance(d, int)]
        if len(sizes) < len(self.shape):
            return None
        flat = np.empty(len(self.values), dtype=object)
        flat[:] = self.values
        return flat.reshape(sizes)

    def scalar(self) -> Element:
        """The only element; None when there is not exactly one or it is not known."""
        return self.values[0] if self.values is not None and len(self.values) == 1 else None


UNKNOWN = Fact()
ABSENT = Fact(kind="absent")
"""The fact of an omitted optional input."""


def join(left: Fact, right: Fact, fresh: Mapping[int, Dim]) -> Fact:
    """What holds on both of two control-flow paths (the join of dataflow analysis).

    `fresh` has the dim for each axis whose sizes differ.
    """
    if left.kind != right.kind:
        return Fact(kind="other")
    dtype = left.dtype if left.dtype == right.dtype else 0
    length = left.length if left.length == right.length else None
    if left.shape is None or right.shape is None or len(left.shape) != len(right.shape):
        a, b = left.possible_ranks(), right.possible_ranks()
        ranks = None if a is None or b is None else a | b
        return Fact(dtype, None, ranks, None, left.kind, length)
    differs = dict.fromkeys(fresh, symbolic.VARYING) if left.kind == "sequence" else fresh
    shape = tuple(
        a if a == b else differs[axis] for axis, (a, b) in enumerate(zip(left.shape, right.shape))
    )
    values = _join_values(left, right) if left.shape == right.shape else None
    return Fact(dtype, shape, None, values, left.kind, length)


def _join_values(left: Fact, right: Fact) -> tuple[Element, ...] | None:
    if left.values is None or right.values is None or left.dtype != right.dtype:
        return None
    if left.dtype == BOOL:
        return tuple(a if a is b else None for a, b in zip(left.values, right.values))
    if left.values == right.values:
        return left.values
    return None
