"""Smaller dimensions: one size, and its multiples, becomes another everywhere in a model.

Whether a number that equals a size means it cannot be known; what comes of a wrong guess is no
model that shows what is looked for, and is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from ...rewrite.running.runtime import Array
from .edits import walk
from .types import Types

TARGETS = (1, 2, 3)
MULTIPLES = (1, 2, 3, 4, 6, 8)
"""Of a hidden size: the gates of a recurrence lie one behind the other."""
_FEW = 16
"""Elements up to which an integer tensor may hold sizes."""


@dataclass(frozen=True)
class Resizing:
    """One size for another."""

    old: int
    new: int
    multiples: tuple[int, ...] = MULTIPLES

    def __call__(self, model: onnx.ModelProto) -> None:
        for _, graph in walk(model.graph):
            for tensor in graph.initializer:
                tensor.CopyFrom(self._tensor(tensor))
            for node in graph.node:
                for attribute in node.attribute:
                    self._attribute(attribute)
            for info in (*graph.input, *graph.output):
                self._declaration(info)

    def types(self, types: Types) -> Types:
        """The declarations of values under the new size."""
        resized = {}
        for name, info in types.items():
            resized[name] = onnx.ValueInfoProto()
            resized[name].CopyFrom(info)
            self._declaration(resized[name])
        return resized

    def _factor(self, number: int) -> int:
        """How many times the old size a number is; 0 if it has nothing to do with it."""
        whole, rest = divmod(number, self.old)
        return whole if not rest and whole in self.multiples else 0

    def number(self, number: int) -> int:
        factor = self._factor(number)
        return factor * self.new if factor else number

    def _declaration(self, info: onnx.ValueInfoProto) -> None:
        for dim in info.type.tensor_type.shape.dim:
            if dim.HasField("dim_value"):
                dim.dim_value = self.number(dim.dim_value)

    def _attribute(self, attribute: onnx.AttributeProto) -> None:
        if attribute.type == onnx.AttributeProto.TENSOR:
            attribute.t.CopyFrom(self._tensor(attribute.t))
        elif attribute.type == onnx.AttributeProto.INT and attribute.name == "hidden_size":
            attribute.i = self.number(attribute.i)
        elif attribute.type == onnx.AttributeProto.INTS:
            numbers = [self.number(number) for number in attribute.ints]
            attribute.ClearField("ints")
            attribute.ints.extend(numbers)

    def _tensor(self, tensor: onnx.TensorProto) -> onnx.TensorProto:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            return tensor
        array = numpy_helper.to_array(tensor)
        if array.dtype.kind == "i" and 0 < array.size <= _FEW:
            array = _mapped(array, self)
        for axis, length in enumerate(array.shape):
            factor = self._factor(length)
            if factor:
                array = self._thinned(array, axis, factor)
        return numpy_helper.from_array(np.ascontiguousarray(array), tensor.name)

    def _thinned(self, array: Array, axis: int, factor: int) -> Array:
        """The first of each of the blocks that lie one behind the other along an axis."""
        shape = array.shape
        blocks = array.reshape(*shape[:axis], factor, self.old, *shape[axis + 1 :])
        kept: Array = np.take(blocks, range(min(self.new, self.old)), axis=axis + 1)
        return kept.reshape(*shape[:axis], factor * kept.shape[axis + 1], *shape[axis + 1 :])


def _mapped(array: Array, resizing: Resizing) -> Array:
    numbers = [resizing.number(int(n)) if n > 0 else int(n) for n in array.reshape(-1)]
    mapped: Array = np.array(numbers, array.dtype)
    return mapped.reshape(array.shape)


def resizings(model: onnx.ModelProto) -> Iterator[Resizing]:
    """What may be tried, the largest sizes first."""
    for old in sorted(_sizes(model), reverse=True):
        for new in TARGETS:
            if new < old:
                yield Resizing(old, new)
                yield Resizing(old, new, (1,))


def _sizes(model: onnx.ModelProto) -> set[int]:
    found: set[int] = set()
    for _, graph in walk(model.graph):
        for tensor in graph.initializer:
            found.update(tensor.dims)
        for info in graph.input:
            found.update(dim.dim_value for dim in info.type.tensor_type.shape.dim)
    return {size for size in found if size > 1}
