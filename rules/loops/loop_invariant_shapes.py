"""Shapes of values in a loop that are known before the loop.

… Loop { … n = Shape(s) … }    ->   n = Shape(x)   … Loop { … }
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.symbolic import Dim

Size = tuple[Tensor | None, int]
"""The size of an axis of an outer value; or a number, with None for the value."""


@dataclass(frozen=True)
class InvariantShape:
    """A shape in a loop that consists of numbers and of sizes of outer values."""

    loop: Node
    sizes: list[Size]


class HoistLoopInvariantShape(Rule[InvariantShape]):
    """Computes the shape of a value in a loop before the loop, from sizes of outer values."""

    root = "Shape"
    fires = """g (float[N,3] x, int64 m) => (float[N,3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[N,3] s) => (bool co, float[N,3] so) {
        co = Identity(ci) h = Mul(s, s) n = Shape(h) v = CastLike(n, s) r = ReduceSum<keepdims=0>(v)
        so = Add(h, r) }> }"""
    spares = {
        "not in a loop": """g (float[N,3] x) => (int64[2] y) { h = Mul(x, x) y = Shape(h) }""",
        "is not the size of an outer value": """g (float[N,3] x, int64 m) => (float[P,3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[P,3] s) => (bool co, float[Q,3] so) {
        co = Identity(ci) n = Shape(s) v = CastLike(n, s) r = ReduceSum<keepdims=0>(v)
        h = Concat<axis=0>(s, s) so = Add(h, r) }> }""",
    }

    def match(self, m: Match) -> InvariantShape:
        x = m.node.inputs[0]
        loop = m.need(_innermost_loop(m), "it is not in a loop")
        home = m.index.home(x)
        inside = home is not None and m.index.encloses(loop.attrs["body"], home)
        m.need(inside, "{} is already an outer value", x)
        shape = m.need(m.facts.shape(x), "the rank of {} is not known", x, at=x)
        start, end = m.node.attrs.get("start", 0), m.node.attrs.get("end")
        sizes = [_need_outer_size(m, loop, dim, x) for dim in shape[start:end]]
        m.need(bool(sizes), "{} has no axes", x)
        return InvariantShape(loop, sizes)

    def apply(self, patch: Patch, found: InvariantShape) -> None:
        emit = patch.builder(patch.root.outputs[0], found.loop)
        parts = [
            _sizes_of(emit, tensor, [number for _, number in run])
            for tensor, run in groupby(found.sizes, key=lambda size: size[0])
        ]
        patch.replace_node(patch.root, [emit.concat(parts)])
        patch.toward_normal_form()


def _sizes_of(emit: Builder, tensor: Tensor | None, numbers: list[int]) -> Tensor:
    """The sizes of some axes of a value, or the numbers themselves, as a vector."""
    vector = emit.vector(*numbers)
    return vector if tensor is None else emit("Gather", emit("Shape", tensor), vector, axis=0)


def _innermost_loop(m: Match) -> Node | None:
    """The innermost loop in whose body, or in a branch there, the root stands; None if in none."""
    for graph in m.index.ancestors(m.graph()):
        owner = m.index.owner(graph)
        if owner is not None and owner.op in ("Loop", "Scan"):
            return owner
    return None


def _need_outer_size(m: Match, loop: Node, dim: Dim, x: Tensor) -> Size:
    """A size of `x` as a number, or as an axis of a value that exists before the loop.

    Raises Miss if it is neither.
    """
    if isinstance(dim, int):
        return None, dim
    sentence = "the size {} of {} is not the size of an outer value"
    origin = m.facts.origin(dim) or _axis_of_size(m, loop, dim)
    tensor, axis = m.need(origin, sentence, dim, x, at=x)
    home, producer = m.index.home(tensor), m.index.producer(tensor)
    outside = home is not None and m.index.encloses(home, m.index.graph_of(loop))
    early = producer is None or m.index.position(producer) < m.index.position(loop)
    m.need(outside and early, sentence, dim, x, at=x)
    return tensor, axis


def _axis_of_size(m: Match, loop: Node, dim: Dim) -> tuple[Tensor, int] | None:
    """An input of the loop, such as an initial value, with an axis of this size, and the axis."""
    for tensor in loop.inputs:
        for axis, size in enumerate(m.facts.shape(tensor) or ()):
            if size == dim:
                return tensor, axis
    return None
