"""Index arithmetic: the element of an integer tensor at a symbolic coordinate.

Facts keep the elements of small tensors of static shape only. The indices of a scatter may be
larger or of dynamic shape, but are computed from ranges and numbers: the element at a coordinate
(j0, j1, …) is an expression in j0, j1, … and the symbols of the facts.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import onnx

from .. import symbolic
from ..graph.ir import Node, Tensor
from ..symbolic import Dim
from .axes import attribute_or_input
from .fact import INTEGERS, MOST_ATOMS, Element
from .facts import Facts
from .inference.elementwise import representable
from .slices import decode_slice

Coordinate = tuple[Dim, ...]
_DEEPEST = 64
"""The longest chain of nodes that is followed; index arithmetic is never deeper."""
_WIDE = frozenset({onnx.TensorProto.INT32, onnx.TensorProto.INT64})
_LONGEST = 64
"""The most elements of a vector that are derived one by one."""


def element(facts: Facts, tensor: Tensor, at: Coordinate) -> Dim | None:
    """The element of an integer tensor at a coordinate; None when it is not known.

    A symbol in a coordinate stands for any position on its axis.
    """
    return _ElementReader(facts).element(tensor, at)


def known_vector(facts: Facts, tensor: Tensor) -> list[Dim] | None:
    """All elements of a vector of known length; None when one is not known."""
    return _ElementReader(facts).known_vector(tensor)


def vector(facts: Facts, tensor: Tensor) -> list[Dim | None] | None:
    """The elements of a vector of known length, with None for those that are not known."""
    return _ElementReader(facts).vector(tensor)


class _ElementReader:
    """Follows elements through index arithmetic, with a cache."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._found: dict[tuple[Tensor, Coordinate], Dim | None] = {}
        self._depth = 0

    def element(self, tensor: Tensor, at: Coordinate) -> Dim | None:
        shape = self.facts.shape(tensor)
        if shape is None or len(shape) != len(at):
            return None
        at = tuple(0 if d == 1 else c for d, c in zip(shape, at))
        if (tensor, at) not in self._found:
            self._depth += 1
            found = self._derived(tensor, shape, at) if self._depth <= _DEEPEST else None
            self._depth -= 1
            small = found is not None and symbolic.size(found) <= MOST_ATOMS
            self._found[tensor, at] = found if small else None
        return self._found[tensor, at]

    def known_vector(self, tensor: Tensor) -> list[Dim] | None:
        found = self.vector(tensor)
        known = [number for number in found or () if number is not None]
        return known if found is not None and len(known) == len(found) else None

    def vector(self, tensor: Tensor) -> list[Dim | None] | None:
        shape = self.facts.shape(tensor)
        if shape is None or len(shape) != 1 or not isinstance(shape[0], int):
            return None
        if shape[0] > _LONGEST:
            return None
        return [self.element(tensor, (place,)) for place in range(shape[0])]

    def _derived(self, tensor: Tensor, shape: tuple[Dim, ...], at: Coordinate) -> Dim | None:
        values = self.facts.of(tensor).values
        if values is not None and (known := _stored(values, shape, at)) is not None:
            return known
        node = self.facts.index.producer(tensor)
        if node is None or node.domain or node.op not in _ELEMENT_OF:
            return None
        return _ELEMENT_OF[node.op](self, node, at)


ElementFunction = Callable[[_ElementReader, Node, Coordinate], Dim | None]
"""Returns the element of a node's result at a coordinate."""


def _stored(values: tuple[Element, ...], shape: Coordinate, at: Coordinate) -> Dim | None:
    """The element at a coordinate, given all elements; None if they do not form a linear sequence
    where the coordinate is symbolic.
    """
    place: Dim = 0
    for size, coordinate in zip(shape, at):
        place = symbolic.add(symbolic.mul(place, size), coordinate)
    if isinstance(place, int):
        return _number(values[place]) if 0 <= place < len(values) else None
    known = [number for value in values if (number := _number(value)) is not None]
    if not values or len(known) < len(values):
        return None
    step = symbolic.sub(known[1], known[0]) if len(known) > 1 else 0
    if any(b != symbolic.add(a, step) for a, b in pairwise(known)):
        return None
    return symbolic.add(known[0], symbolic.mul(step, place))


def _number(value: Element) -> Dim | None:
    return None if isinstance(value, bool) else value


def _identity(reader: _ElementReader, node: Node, at: Coordinate) -> Dim | None:
    return reader.element(node.inputs[0], at)


def _cast(reader: _ElementReader, node: Node, at: Coordinate) -> Dim | None:
    """A cast between integer types that hold every size; narrower types wrap, floats round."""
    types = {reader.facts.dtype(node.inputs[0]), reader.facts.dtype(node.outputs[0])}
    found = _identity(reader, node, at) if types <= _WIDE else None
    # Sizes keep their value in any wide integer type; unbounded data may wrap around.
    if found is None or symbolic.bounds(found)[0] is None:
        return None
    return _if_representable(reader, node, found)


def _if_representable(reader: _ElementReader, node: Node, found: Dim) -> Dim | None:
    """An element that a node computes, unless it may wrap around in the type of the result."""
    dtype = reader.facts.dtype(node.outputs[0])
    return found if dtype in INTEGERS and representable([found], dtype) is not None else None


def _arithmetic(combine: Callable[[Dim, Dim], Dim]) -> ElementFunction:
    """Combines the elements of all operands, unless the result may wrap around."""
    exact = _fold(combine)

    def checked(reader: _ElementReader, node: Node, at: Coordinate) -> Dim | None:
        total = exact(reader, node, at)
        return None if total is None else _if_representable(reader, node, total)

    return checked


def _fold(combine: Callable[[Dim, Dim], Dim]) -> ElementFunction:
    """Combines the elements of all operands, as integers of unlimited size.

    Right for Min and Max, whose result is one of the operands and thus in the range of the type.
    """

    def combined(reader: _ElementReader, node: Node, at: Coordinate) -> Dim | None:
        operands = [_broadcast(reader, node, t, at) for t in node.inputs]
        total = operands[0]
        for operand in operands[1:]:
            if total is None or operand is None:
                return None
            total = combine(total, operand)
        return total

    return combined


def _broadcast(reader: _ElementReader, node: Node, operand: Tensor, at: Coordinate) -> Dim | None:
    """The element of an operand that broadcasting aligns with a coordinate of the result."""
    shape, whole = reader.facts.shape(operand), reader.facts.shape(node.outputs[0])
    if shape is None or whole is None or len(shape) > len(at):
        return None
    aligned = len(at) - len(shape)
    for size, result in zip(shape, whole[aligned:]):
        if size != 1 and symbolic.eq(size, result) is not True:
            return None
    return reader.element(operand, at[aligned:])


def _where(reader: _ElementReader, node: Node, at: Coordinate) -> Dim | None:
    """The element that a constant condition selects."""
    mask = reader.facts.constant(node.inputs[0])
    if mask is None or mask.ndim > len(at):
        return None
    aligned = at[len(at) - mask.ndim :]
    taken = mask[tuple(c if n > 1 and isinstance(c, int) else slice(None)
                       for n, c in zip(mask.shape, aligned))]  # fmt: skip
    if not taken.size or taken.min() != taken.max():
        return None
    return _broadcast(reader, node, node.inputs[1 if taken.all() else 2], at)


def _expand(reader: _ElementReader, node: Node, at: Coordinate) -> Dim | None:
    return _broadcast(reader, node, node.inputs[0], at)


def _range(reader: _ElementReader, node: Node, at: Coordinate) -> Dim | None:
    start, step = reader.facts.scalar(node.inputs[0]), reader.facts.scalar(node.inputs[2])
    if start is None or step is None or isinstance(start, bool) or isinstance(step, bool):
        return None
    return symbolic.add(start, symbolic.mul(step, at[0]))


def _squeeze(reader: _ElementReader, node: Node, at: Coordinate) -> Dim | None:
    """Squeeze along known axes: they have size 1, or the run fails."""
    rank = reader.facts.rank(node.inputs[0])
    axes = attribute_or_input(node, "axes", 1, reader.known_vector)
    if axes is None or rank is None or not all(isinstance(a, int) for a in axes):
        return _reshape(reader, node, at)
    gone = {int(a) % rank for a in axes if isinstance(a, int)}
    rest = iter(at)
    before = tuple(0 if place in gone else next(rest) for place in range(rank))
    return reader.element(node.inputs[0], before)


def _reshape(reader: _ElementReader, node: Node, at: Coordinate) -> Dim | None:
    """A Reshape, Squeeze or Unsqueeze that only adds or removes axes of size 1."""
    old, new = reader.facts.shape(node.inputs[0]), reader.facts.shape(node.outputs[0])
    if old is None or new is None:
        return None
    kept = [(d, c) for d, c in zip(new, at) if d != 1]
    if [d for d, _ in kept] != [d for d in old if d != 1]:
        return None
    rest = iter(c for _, c in kept)
    return reader.element(node.inputs[0], tuple(0 if d == 1 else next(rest) for d in old))


def _transpose(reader: _ElementReader, node: Node, at: Coordinate) -> Dim | None:
    perm = node.attrs.get("perm") or list(range(len(at)))[::-1]
    before: list[Dim] = [0] * len(at)
    for axis, source in enumerate(perm):
        before[source] = at[axis]
    return reader.element(node.inputs[0], tuple(before))


def _concat(reader: _ElementReader, node: Node, at: Coordinate) -> Dim | None:
    axis = int(node.attrs["axis"]) % len(at)
    place = at[axis]
    for operand in node.inputs:
        shape = reader.facts.shape(operand)
        if shape is None or not isinstance(shape[axis], int) or not isinstance(place, int):
            return None
        extent = int(shape[axis])  # type: ignore[arg-type]
        if place < extent:
            return reader.element(operand, (*at[:axis], place, *at[axis + 1 :]))
        place -= extent
    return None


def _slice(reader: _ElementReader, node: Node, at: Coordinate) -> Dim | None:
    """A Slice with steps of 1 and starts that do not count from the end.

    A start beyond the end gives an empty result, which has no element to read.
    """
    found = decode_slice(node, len(at), reader.vector)
    if found is None:
        return None
    moved = list(at)
    for each in found:
        if each.step != 1 or each.start is None or not symbolic.nonnegative(each.start):
            return None
        moved[each.axis] = symbolic.add(moved[each.axis], each.start)
    return reader.element(node.inputs[0], tuple(moved))


def _gather(reader: _ElementReader, node: Node, at: Coordinate) -> Dim | None:
    """A Gather at a position that does not count from the end; a position beyond the end fails."""
    data, indices = node.inputs
    rank, width = reader.facts.rank(data), reader.facts.rank(indices)
    if rank is None or width is None:
        return None
    axis = int(node.attrs.get("axis", 0)) % rank
    place = reader.element(indices, at[axis : axis + width])
    if place is None or not symbolic.nonnegative(place):
        return None
    return reader.element(data, (*at[:axis], place, *at[axis + width :]))


_ELEMENT_OF: dict[str, ElementFunction] = {
    "Identity": _identity,
    "Cast": _cast,
    "Add": _arithmetic(symbolic.add),
    "Sub": _arithmetic(symbolic.sub),
    "Mul": _arithmetic(symbolic.mul),
    "Max": _fold(symbolic.maximum),
    "Min": _fold(symbolic.minimum),
    "Where": _where,
    "Expand": _expand,
    "Range": _range,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _reshape,
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
    "Gather": _gather,
}
