"""Makes dims smaller: replaces one size, and its multiples, by another everywhere in a model.

A number that equals a size need not mean that size. A wrong guess gives a model that does not show
the finding, which the search drops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from ...rewrite.running.runtime import Array
from .edits import Types, walk

TARGETS = (1, 2, 3)
MULTIPLES = (1, 2, 3, 4, 6, 8)
"""The multiples of a hidden size: the gates of a recurrence are consecutive blocks of an axis."""
_FEW = 16
"""The most elements of an integer tensor that may hold sizes."""


@dataclass(frozen=True)
class Resizing:
    """Replaces one size by another."""

    old: int
    new: int
    multiples: tuple[int, ...] = MULTIPLES

    def __call__(self, model: onnx.ModelProto) -> None:
        for _, graph in walk(model.graph):
            for tensor in graph.initializer:
                tensor.CopyFrom(self._resized(tensor))
            for node in graph.node:
                for attribute in node.attribute:
                    self._resize_attribute(attribute)
            for info in (*graph.input, *graph.output):
                self._resize_declaration(info)

    def types(self, types: Types) -> Types:
        """The declarations of values with the new size."""
        resized = {}
        for name, info in types.items():
            resized[name] = onnx.ValueInfoProto()
            resized[name].CopyFrom(info)
            self._resize_declaration(resized[name])
        return resized

    def _factor(self, number: int) -> int:
        """The factor by which a number is a multiple of the old size; 0 if it is not one."""
        factor, rest = divmod(number, self.old)
        return factor if not rest and factor in self.multiples else 0

    def _number(self, number: int) -> int:
        factor = self._factor(number)
        return factor * self.new if factor else number

    def _resize_declaration(self, info: onnx.ValueInfoProto) -> None:
        for dim in info.type.tensor_type.shape.dim:
            if dim.HasField("dim_value"):
                dim.dim_value = self._number(dim.dim_value)

    def _resize_attribute(self, attribute: onnx.AttributeProto) -> None:
        if attribute.type == onnx.AttributeProto.TENSOR:
            attribute.t.CopyFrom(self._resized(attribute.t))
        elif attribute.type == onnx.AttributeProto.INT and attribute.name == "hidden_size":
            attribute.i = self._number(attribute.i)
        elif attribute.type == onnx.AttributeProto.INTS:
            numbers = [self._number(number) for number in attribute.ints]
            attribute.ClearField("ints")
            attribute.ints.extend(numbers)

    def _resized(self, tensor: onnx.TensorProto) -> onnx.TensorProto:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            return tensor
        array = numpy_helper.to_array(tensor)
        if array.dtype.kind == "i" and 0 < array.size <= _FEW:
            numbers = [self._number(int(n)) if n > 0 else int(n) for n in array.reshape(-1)]
            array = np.array(numbers, array.dtype).reshape(array.shape)
        for axis, length in enumerate(array.shape):
            factor = self._factor(length)
            if factor:
                array = self._cut(array, axis, factor)
        return numpy_helper.from_array(np.ascontiguousarray(array), tensor.name)

    def _cut(self, array: Array, axis: int, factor: int) -> Array:
        """The first elements of each of `factor` blocks along an axis."""
        shape = array.shape
        blocks = array.reshape(*shape[:axis], factor, self.old, *shape[axis + 1 :])
        kept: Array = np.take(blocks, range(min(self.new, self.old)), axis=axis + 1)
        return kept.reshape(*shape[:axis], factor * kept.shape[axis + 1], *shape[axis + 1 :])


def resizings(model: onnx.ModelProto) -> Iterator[Resizing]:
    """The resizings to try, the largest sizes first."""
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
