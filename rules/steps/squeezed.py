"""A Slice of which one axis is squeezed away takes one element of that axis: it is a Gather.

   y = Squeeze(Slice(x, [k, 0], [e, 9], [0, 1], [s, 1]), [0])   ->   y = Gather(x, k)

Wherever Squeeze succeeds: it fails unless one element is left, and that is the first one, whatever
end and step are. TensorFlow slices so, with an end and a step beyond all sizes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...rewrite import symbolic
from ...rewrite.elements import cuts
from ...rewrite.facts import INT64
from ...rewrite.ir import Node, Tensor
from ...rewrite.patch import Patch
from ...rewrite.rule import Match, Rule
from ...rewrite.slices import Cut
from ...rewrite.symbolic import Dim
from ..emit import OLDEST, Emit

_DEEPEST = 16


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
        found = m.need(cuts(m.facts, node), "its axes or steps are not known", at=node)
        own = m.need(next((c for c in found if c.axis == axis), None), "axis {} is not cut", axis)
        m.need(own.step > 0, "axis {} is cut backwards", axis)
        starts, ends = node.inputs[1:3]
        for other in found:
            if other is not own:
                whole = _is_whole(m, other, ends, shape[other.axis])
                m.need(whole, "axis {} is cut as well", other.axis)
        inside = own.start is not None and symbolic.nonnegative(own.start)
        return {
            "node": m.node, "source": node.inputs[0], "starts": starts, "place": own.place,
            "axis": axis, "inside": inside, "dtype": m.facts.dtype(starts),
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


def _is_whole(m: Match, cut: Cut, ends: Tensor, length: Dim) -> bool:
    """Whether all of an axis is taken; its end may be no known number but surely a large one."""
    if cut.is_whole(length):
        return True
    if cut.start != 0 or cut.step != 1 or cut.end is not None:
        return False
    low = _at_least(m, ends, cut.place, _DEEPEST)
    return low is not None and replace(cut, end=low).is_whole(length)


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
