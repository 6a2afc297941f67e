"""A Slice of which one axis is squeezed away takes one element of that axis: it is a Gather.

   y = Squeeze(Slice(x, [k, 0], [e, 9], [0, 1], [s, 1]), [0])   ->   y = Gather(x, k)

Wherever Squeeze succeeds: it fails unless one element is left, and that is the first one, whatever
end and step are. TensorFlow slices so, with an end and a step beyond all sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..rewrite import symbolic
from ..rewrite.facts import INT64
from ..rewrite.ir import Node, Tensor
from ..rewrite.patch import Patch
from ..rewrite.rule import Match, Rule
from ..rewrite.symbolic import Dim
from .step_emit import OLDEST, Emit

_DEEPEST = 16


@dataclass(frozen=True)
class Bounds:
    """The operands of a Slice; one number each for each axis that it cuts."""

    starts: Tensor
    ends: Tensor
    axes: list[int]
    steps: list[int]


class GatherSqueezedSlice(Rule):
    """A Slice that is squeezed to one element is a Gather."""

    root = "Squeeze"
    fires = """g (float[N,3] x, int64[1] k, int64[1] e) => (float[3] y) <int64[1] zero = {0}, int64[1] big = {99999}> {
      s = Slice(x, k, e, zero, big) y = Squeeze(s, zero) }"""
    spares = {
        "not a Slice": """g (float[1,3] x) => (float[3] y) <int64[1] zero = {0}> { s = Neg(x) y = Squeeze(s, zero) }""",
        "is cut as well": """g (float[4,3] x, int64[2] k, int64[2] e) => (float[M] y) <int64[1] zero = {0}, int64[2] axes = {0, 1}> {
      s = Slice(x, k, e, axes) y = Squeeze(s, zero) }""",
        "backwards": """g (float[4,3] x, int64[1] k) => (float[3] y) <int64[1] zero = {0}, int64[1] e = {-9}, int64[1] back = {-5}> {
      s = Slice(x, k, e, zero, back) y = Squeeze(s, zero) }""",
        "is not cut": """g (float[1,3] x, int64[1] k, int64[1] e) => (float[M] y) <int64[1] zero = {0}, int64[1] one = {1}> {
      s = Slice(x, k, e, one) y = Squeeze(s, zero) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        m.need(not m.options.strict, "--strict: an element is not read for Squeeze would fail")
        m.need(m.facts.opset >= OLDEST, "operators before opset {} take axes in other ways", OLDEST)
        cut = m.node.inputs[0]
        node = m.need(m.producer(cut, "Slice"), "{} is not a Slice", cut, at=cut)
        shape = m.need(m.facts.shape(node.inputs[0]), "the rank of {} is not known", node.inputs[0])
        gone = m.facts.constant(m.node.inputs[1]) if len(m.node.inputs) > 1 else None
        m.need(gone is not None and gone.size == 1, "it is not known to take away one axis")
        assert gone is not None
        axis = int(gone.reshape(-1)[0]) % len(shape)
        bounds = _bounds(m, node, len(shape))
        m.need(axis in bounds.axes, "axis {} is not cut", axis)
        place = bounds.axes.index(axis)
        m.need(bounds.steps[place] > 0, "axis {} is cut backwards", axis)
        for other in range(len(bounds.axes)):
            if other != place:
                whole = _is_whole(m, bounds, other, shape[bounds.axes[other]])
                m.need(whole, "axis {} is cut as well", bounds.axes[other])
        first = m.facts.of(bounds.starts).values
        start = None if first is None else first[place]
        inside = start is not None and not isinstance(start, bool) and symbolic.nonnegative(start)
        return {
            "node": m.node, "source": node.inputs[0], "starts": bounds.starts, "place": place,
            "axis": axis, "inside": inside, "dtype": m.facts.dtype(bounds.starts),
        }  # fmt: skip

    def apply(
        self,
        patch: Patch,
        node: Node,
        source: Tensor,
        starts: Tensor,
        place: int,
        axis: int,
        inside: bool,
        dtype: int,
    ) -> None:
        emit = Emit(patch, node.outputs[0])
        position = emit("Gather", starts, emit.number(place), axis=0)
        if not inside:
            # A Slice that begins before the axis begins with its first element.
            size = emit("Gather", emit("Shape", source), emit.number(axis), axis=0)
            if dtype != INT64:
                position = emit("Cast", position, to=INT64)
            position = emit("Max", position, emit("Neg", size))
        patch.replace(node.outputs[0], emit("Gather", source, position, axis=axis))
        patch.remove(node)
        patch.toward_normal_form()


def _bounds(m: Match, node: Node, rank: int) -> Bounds:
    starts, ends = node.inputs[1:3]
    shape = m.facts.shape(starts)
    size = None if shape is None or len(shape) != 1 else shape[0]
    m.need(isinstance(size, int), "it is not known how many axes are cut", at=node)
    assert isinstance(size, int)
    axes, steps = list(range(size)), [1] * size
    for slot, numbers in ((3, axes), (4, steps)):
        if slot < len(node.inputs) and node.inputs[slot].name:
            given = m.facts.constant(node.inputs[slot])
            m.need(given is not None, "{} is not a constant", node.inputs[slot], at=node)
            numbers[:] = [int(v) for v in np.asarray(given).reshape(-1)]
    return Bounds(starts, ends, [a % rank for a in axes], steps)


def _is_whole(m: Match, bounds: Bounds, place: int, size: Dim) -> bool:
    """Whether all of an axis is taken."""
    starts = m.facts.of(bounds.starts).values
    if starts is None or starts[place] != 0 or bounds.steps[place] != 1:
        return False
    known = m.facts.of(bounds.ends).values
    end: Dim | None = _at_least(m, bounds.ends, place, _DEEPEST)
    if known is not None and not isinstance(known[place], bool):
        end = known[place]
    return end is not None and symbolic.le(size, end) is True


def _at_least(m: Match, tensor: Tensor, place: int, depth: int) -> int | None:
    """A number that an element of a vector is never below, floats included."""
    array = m.facts.constant(tensor)
    if array is not None:
        flat = array.reshape(-1)
        return int(np.floor(flat[place if flat.size > 1 else 0]))
    node = m.producer(tensor, "Max", "Cast", "Where")
    if node is None or depth == 0:
        return None
    operands = list(node.inputs)
    if node.op == "Where":
        mask = m.facts.constant(operands[0])
        if mask is None:
            return None
        flat = mask.reshape(-1)
        operands = [operands[1 if flat[place if flat.size > 1 else 0] else 2]]
    found = [_at_least(m, t, place, depth - 1) for t in operands]
    return max((low for low in found if low is not None), default=None)
