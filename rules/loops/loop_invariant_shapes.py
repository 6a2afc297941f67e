"""Sizes that every iteration finds again are known before the loop.

… Loop { … n = Shape(s) … }    ->   n = Shape(x)   … Loop { … }
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.symbolic import Dim


@dataclass(frozen=True)
class Sizes:
    """Neighbouring elements of a shape: numbers, or sizes of axes of one outer value."""

    tensor: Tensor | None
    values: tuple[int, ...]
    """The numbers, or the axes."""


class HoistLoopInvariantShape(Rule):
    """The shape of a value in a loop, where it is made of sizes of outer values."""

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

    def match(self, m: Match) -> dict[str, Any]:
        x = m.node.inputs[0]
        loop = m.need(_loop_around(m), "it is not in a loop")
        home = m.index.home(x)
        body = loop.attrs["body"]
        m.need(
            home is not None and m.index.encloses(body, home),
            "`{}` comes from outside already",
            x.name,
        )
        shape = m.need(m.facts.shape(x), "the rank of `{}` is not known", x.name, at=x)
        start, end = m.node.attrs.get("start", 0), m.node.attrs.get("end")
        sizes = [_origin(m, loop, dim, x) for dim in shape[start:end]]
        m.need(bool(sizes), "`{}` has no axes", x.name)
        return {"node": m.node, "loop": loop, "parts": _runs(sizes)}

    def apply(self, patch: Patch, node: Node, loop: Node, parts: list[Sizes]) -> None:
        old = node.outputs[0]
        emit = patch.builder(old, loop)
        patch.replace(old, emit.concat([_vector(emit, part) for part in parts]))
        patch.remove(node)
        patch.toward_normal_form()


def _vector(emit: Builder, part: Sizes) -> Tensor:
    """The sizes as a vector."""
    numbers = emit.vector(*part.values)
    return (
        numbers
        if part.tensor is None
        else emit("Gather", emit("Shape", part.tensor), numbers, axis=0)
    )


def _loop_around(m: Match) -> Node | None:
    """The innermost loop whose body, or a branch in it, the root stands in."""
    for graph in m.index.ancestors(m.graph()):
        owner = m.index.owner(graph)
        if owner is not None and owner.op in ("Loop", "Scan"):
            return owner
    return None


def _origin(m: Match, loop: Node, dim: Dim, x: Tensor) -> tuple[Tensor | None, int]:
    """A number, or an axis of a value that is there before the loop."""
    if isinstance(dim, int):
        return None, dim
    found = m.facts.origin(dim) or _given(m, loop, dim)
    sentence = "the size {} of `{}` is not the size of an outer value"
    found = m.need(found, sentence, dim, x.name, at=x)
    home, made_by = m.index.home(found[0]), m.index.producer(found[0])
    outside = home is not None and m.index.encloses(home, m.index.graph_of(loop))
    early = made_by is None or m.index.position(made_by) < m.index.position(loop)
    m.need(outside and early, sentence, dim, x.name, at=x)
    return found


def _given(m: Match, loop: Node, dim: Dim) -> tuple[Tensor, int] | None:
    """An input of the loop, such as the first value of a state, with an axis of that size."""
    for tensor in loop.inputs:
        for axis, size in enumerate(m.facts.shape(tensor) or ()):
            if size == dim:
                return tensor, axis
    return None


def _runs(sizes: list[tuple[Tensor | None, int]]) -> list[Sizes]:
    """Neighbours that come from the same value, together."""
    return [
        Sizes(tensor, tuple(number for _, number in run))
        for tensor, run in groupby(sizes, key=lambda size: size[0])
    ]
