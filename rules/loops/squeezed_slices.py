"""A Slice of which one axis is squeezed away takes one element of that axis: it is a Gather.

   y = Squeeze(Slice(x, [k, 0], [e, 9], [0, 1], [s, 1]), [0])   ->   y = Gather(x, k)

Wherever Squeeze succeeds: it fails unless one element is left, and that is the first one, whatever
end and step are. TensorFlow slices so, with an end and a step beyond all sizes.
"""

from __future__ import annotations

from typing import Any

from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.axes import named_axes
from ...rewrite.facts.fact import INT64
from ...rewrite.facts.iteration_bounds import nonnegative_in_iteration
from ...rewrite.facts.reads import axis_slices
from ...rewrite.graph.ir import Node, Tensor
from .iteration_positions import takes_all


class SqueezedSliceToGather(Rule):
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
        cut = m.node.inputs[0]
        node = m.need(m.producer(cut, "Slice"), "{} is not a Slice", cut, at=cut)
        m.need(
            len(node.inputs) > 2, "before opset 10 the bounds of a Slice are attributes", at=node
        )
        shape = m.need(m.facts.shape(node.inputs[0]), "the rank of {} is not known", node.inputs[0])
        gone = named_axes(m.facts, m.node) or []
        m.need(len(gone) == 1, "it is not known to take away one axis")
        axis = gone[0]
        found = m.need(axis_slices(m.facts, node), "its axes or steps are not known", at=node)
        own = m.need(next((c for c in found if c.axis == axis), None), "axis {} is not cut", axis)
        m.need(own.step > 0, "axis {} is cut backwards", axis)
        for other in found:
            whole = other is own or takes_all(m, other, shape[other.axis])
            m.need(whole, "axis {} is cut as well", other.axis)
        starts = node.inputs[1]
        inside = own.start is not None and nonnegative_in_iteration(m.facts, own.start)
        return {
            "node": m.node, "source": node.inputs[0], "starts": starts, "place": own.number,
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
        emit = patch.builder(node.outputs[0])
        position = emit("Gather", starts, emit.scalar(place), axis=0)
        if not inside:
            # A Slice that begins before the axis begins with its first element.
            size = emit("Gather", emit("Shape", source), emit.scalar(axis), axis=0)
            if dtype != INT64:
                position = emit("Cast", position, to=INT64)
            position = emit.max(position, emit("Neg", size))
        patch.replace(node.outputs[0], emit("Gather", source, position, axis=axis))
        patch.remove(node)
        patch.toward_normal_form()
