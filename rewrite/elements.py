"""Integer tensors element by element: what `Range`, `Expand` and the like put at a coordinate.

Facts keep the elements of small tensors of static shape. The indices of a scatter may be larger or
of dynamic shape, but are made of ranges and numbers: at a coordinate (j0, j1, …) they hold an
expression in j0, j1, … and the symbols of the facts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import symbolic
from .facts import Facts, Value
from .ir import Node, Tensor
from .symbolic import Dim

Coordinate = tuple[Dim, ...]
_DEEPEST = 64
"""Nodes followed towards the inputs; index arithmetic is never deeper."""


def element(facts: Facts, tensor: Tensor, at: Coordinate, depth: int = 0) -> Dim | None:
    """The element of an integer tensor at a coordinate; None when it is not known.

    A coordinate may contain symbols, each for any position of its axis.
    """
    fact = facts.of(tensor)
    shape = fact.shape
    if shape is None or len(shape) != len(at) or depth > _DEEPEST:
        return None
    at = tuple(0 if d == 1 else c for d, c in zip(shape, at))
    if fact.values is not None:
        places = [int(c) for c in at if isinstance(c, int)]
        if len(places) == len(at):
            return _number(fact.array()[tuple(places)])  # type: ignore[index]
        if len(set(fact.values)) == 1:
            return _number(fact.values[0])
    node = facts.index.producer(tensor)
    if node is None or node.domain or node.op not in _FOLLOW:
        return None
    return _FOLLOW[node.op](facts, node, at, depth + 1)


def _number(value: Value) -> Dim | None:
    return None if isinstance(value, bool) else value


def _same(facts: Facts, node: Node, at: Coordinate, depth: int) -> Dim | None:
    return element(facts, node.inputs[0], at, depth)


def _combined(
    combine: Callable[[Dim, Dim], Dim],
) -> Callable[[Facts, Node, Coordinate, int], Dim | None]:
    def follow(facts: Facts, node: Node, at: Coordinate, depth: int) -> Dim | None:
        operands = [_broadcast(facts, t, at, depth) for t in node.inputs]
        total = operands[0]
        for operand in operands[1:]:
            if total is None or operand is None:
                return None
            total = combine(total, operand)
        return total

    return follow


def _broadcast(facts: Facts, operand: Tensor, at: Coordinate, depth: int) -> Dim | None:
    """The element of an operand that meets a coordinate of the result."""
    rank = facts.rank(operand)
    if rank is None or rank > len(at):
        return None
    return element(facts, operand, at[len(at) - rank :], depth)


def _expand(facts: Facts, node: Node, at: Coordinate, depth: int) -> Dim | None:
    return _broadcast(facts, node.inputs[0], at, depth)


def _range(facts: Facts, node: Node, at: Coordinate, depth: int) -> Dim | None:
    start, step = facts.scalar(node.inputs[0]), facts.scalar(node.inputs[2])
    if start is None or step is None or isinstance(start, bool) or isinstance(step, bool):
        return None
    return symbolic.add(start, symbolic.mul(step, at[0]))


def _reshaped(facts: Facts, node: Node, at: Coordinate, depth: int) -> Dim | None:
    """Reshape, Squeeze and Unsqueeze that only add or remove axes of size 1."""
    old, new = facts.shape(node.inputs[0]), facts.shape(node.outputs[0])
    if old is None or new is None:
        return None
    kept = [(d, c) for d, c in zip(new, at) if d != 1]
    if [d for d, _ in kept] != [d for d in old if d != 1]:
        return None
    rest = iter(c for _, c in kept)
    return element(facts, node.inputs[0], tuple(0 if d == 1 else next(rest) for d in old), depth)


def _transposed(facts: Facts, node: Node, at: Coordinate, depth: int) -> Dim | None:
    perm = node.attrs.get("perm") or list(range(len(at)))[::-1]
    before: list[Dim] = [0] * len(at)
    for axis, source in enumerate(perm):
        before[source] = at[axis]
    return element(facts, node.inputs[0], tuple(before), depth)


def _concatenated(facts: Facts, node: Node, at: Coordinate, depth: int) -> Dim | None:
    axis = int(node.attrs["axis"]) % len(at)
    place = at[axis]
    for operand in node.inputs:
        shape = facts.shape(operand)
        if shape is None or not isinstance(shape[axis], int) or not isinstance(place, int):
            return None
        extent = int(shape[axis])  # type: ignore[arg-type]
        if place < extent:
            return element(facts, operand, (*at[:axis], place, *at[axis + 1 :]), depth)
        place -= extent
    return None


def _sliced(facts: Facts, node: Node, at: Coordinate, depth: int) -> Dim | None:
    """A Slice that begins at a known place of each axis, in steps of 1."""
    if len(node.inputs) < 3:
        return None
    starts = facts.constant(node.inputs[1])
    slots: Sequence[Tensor] = [t for t in node.inputs[3:5] if t.name]
    axes = facts.constant(node.inputs[3]) if len(slots) > 0 else None
    steps = facts.constant(node.inputs[4]) if len(slots) > 1 else None
    if starts is None or (steps is not None and (steps != 1).any()) or (starts < 0).any():
        return None
    places = range(len(starts)) if axes is None else [int(a) % len(at) for a in axes]
    moved = list(at)
    for axis, start in zip(places, starts):
        moved[axis] = symbolic.add(moved[axis], int(start))
    return element(facts, node.inputs[0], tuple(moved), depth)


_FOLLOW: dict[str, Callable[[Facts, Node, Coordinate, int], Dim | None]] = {
    "Identity": _same,
    "Cast": _same,
    "Add": _combined(symbolic.add),
    "Sub": _combined(symbolic.sub),
    "Mul": _combined(symbolic.mul),
    "Max": _combined(symbolic.maximum),
    "Min": _combined(symbolic.minimum),
    "Expand": _expand,
    "Range": _range,
    "Reshape": _reshaped,
    "Squeeze": _reshaped,
    "Unsqueeze": _reshaped,
    "Transpose": _transposed,
    "Concat": _concatenated,
    "Slice": _sliced,
}
