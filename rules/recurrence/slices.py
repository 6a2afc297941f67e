"""Single slices of a sequence, whatever operators take them out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Node, Tensor
from .cuts import one_axis_cut


@dataclass(frozen=True)
class Slice:
    """Element `number` along an axis of a sequence."""

    sequence: Tensor
    axis: int
    number: int
    keeps_axis: bool = False
    """Whether it has that axis, of size 1."""


def step_of(facts: Facts, tensor: Tensor) -> Slice | None:
    """The slice that a value is, with or without the axis."""
    node = facts.index.producer(tensor)
    kept = None if node is None or node.domain else _kept(facts, node, tensor)
    return slice_of(facts, tensor) if kept is None else replace(kept, keeps_axis=True)


def slice_of(facts: Facts, tensor: Tensor) -> Slice | None:
    """The slice without its axis that a value is: by Gather, or by Squeeze of a Slice, Split or Gather of size 1."""
    node = facts.index.producer(tensor)
    if node is None or node.domain:
        return None
    if node.op == "Gather":
        return _gathered(facts, node, 0)
    if node.op not in ("Squeeze", "Reshape"):
        return None
    inner = facts.index.producer(node.inputs[0])
    if inner is None or inner.domain:
        return None
    result = _kept(facts, inner, node.inputs[0])
    if result is None:
        return None
    whole, own = facts.shape(node.inputs[0]), facts.shape(tensor)
    if whole is None or own != whole[: result.axis] + whole[result.axis + 1 :]:
        return None
    return result


def _length(facts: Facts, sequence: Tensor, axis: int) -> tuple[int, int] | None:
    """The axis, not negative, and its length."""
    shape = facts.shape(sequence)
    if shape is None:
        return None
    size = shape[axis % len(shape)]
    return (axis % len(shape), size) if isinstance(size, int) else None


def _gathered(facts: Facts, node: Node, rank: int) -> Slice | None:
    index = facts.constant(node.inputs[1])
    there = _length(facts, node.inputs[0], int(node.attrs.get("axis", 0)))
    if index is None or index.ndim != rank or index.size != 1 or there is None:
        return None
    axis, length = there
    number = int(index.ravel()[0])
    return Slice(node.inputs[0], axis, number % length) if -length <= number < length else None


def _kept(facts: Facts, node: Node, tensor: Tensor) -> Slice | None:
    """The slice that a node takes out with its axis, of size 1."""
    if node.op == "Gather":
        return _gathered(facts, node, 1)
    if node.op == "Split":
        return _part(facts, node, tensor)
    cut = one_axis_cut(facts, node) if node.op == "Slice" else None
    if cut is None or cut.end != cut.start + 1:
        return None
    return Slice(node.inputs[0], cut.axis, cut.start)


def _part(facts: Facts, node: Node, tensor: Tensor) -> Slice | None:
    there = _length(facts, node.inputs[0], int(node.attrs.get("axis", 0)))
    if there is None:
        return None
    axis, _ = there
    sizes = []
    for output in node.outputs:
        shape = facts.shape(output)
        size = None if shape is None else shape[axis]
        if not isinstance(size, int):
            return None
        sizes.append(size)
    place = next(k for k, output in enumerate(node.outputs) if output is tensor)
    starts = [0, *accumulate(sizes)]
    return Slice(node.inputs[0], axis, starts[place]) if sizes[place] == 1 else None
