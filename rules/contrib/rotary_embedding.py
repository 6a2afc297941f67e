"""Decomposes RotaryEmbedding of com.microsoft into products with cosines and sines.

y = RotaryEmbedding(x, positions, cosines, sines)
 -> a, b = the halves of each head of x, or with `interleaved` its even and odd elements
    y = (a * cos - b * sin, b * cos + a * sin), with the rows of the positions
"""

from __future__ import annotations

from dataclasses import dataclass

from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Tensor
from .checks import need_last_size


@dataclass(frozen=True)
class Rotation:
    """Which elements of a head are rotated, and how they form pairs."""

    size: int
    """The number of elements of a head."""
    rotated: int
    """How many of them are rotated: the first ones."""
    interleaved: bool
    """Whether neighbours form pairs, and not an element of each half."""


@dataclass(frozen=True)
class RotaryEmbedding:
    """The layout of the operand and of the positions."""

    rotation: Rotation
    heads: int
    """The number of heads of an operand of shape [batch, length, heads * size]; 0 for one of shape
    [batch, heads, length, size]."""
    is_first: bool
    """Whether there is only the first position, from which the others count."""


class DecomposeRotaryEmbedding(Rule[RotaryEmbedding]):
    """Decomposes RotaryEmbedding into Gather, Mul, Sub, Add and changes of shape."""

    root = "com.microsoft.RotaryEmbedding"
    promise = Promise(
        rounds="products and sums may be rounded together",
        nonfinite="a product of 0 and an infinity",
        always_accepts="positions that count from the end",
    )
    fires = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[B,S,16] x, int64[B,S] places, float[9,4] c, float[9,4] s) => (float[B,S,16] y)
      <int64 zero = {0}> { first = Mul(places, zero)
      y = com.microsoft.RotaryEmbedding(x, first, c, s) }"""
    spares = {
        "is not known": """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[1,1,4,4] x, float[9,2] c, float[9,2] s) => (float[1,1,4,4] y) <int64[1] p = {0}> {
      h = com.microsoft.Inverse(x) y = com.microsoft.RotaryEmbedding(h, p, c, s) }""",
    }

    def match(self, m: Match) -> RotaryEmbedding:
        node = m.node
        x, positions, cosines = node.inputs[:3]
        m.need(not node.attrs.get("is_packed_batching", 0), "its batch is packed")
        m.need(node.attrs.get("scale", 1.0) in (0.0, 1.0), "it has a scale")
        shape = m.need(m.facts.shape(x), "the rank of {} is not known", x, at=x)
        m.need(len(shape) in (3, 4), "{} has {} axes, not 3 or 4", x, len(shape), at=x)
        count = 2 * need_last_size(m, cosines)
        width = need_last_size(m, x)
        partial = node.attrs.get("rotary_embedding_dim", 0)
        if len(shape) == 4:
            heads, size = 0, width
        else:
            heads = node.attrs.get("num_heads", 0) if partial else width // max(count, 1)
            m.need(heads > 0 and width % heads == 0, "{} does not consist of heads", x, at=x)
            size = width // heads
        m.need(0 < count <= size, "{} is wider than a head", cosines, at=cosines)
        m.need(count == (partial or size), "{} is narrower than a head", cosines, at=cosines)
        rank = m.need(
            m.facts.rank(positions), "the rank of {} is not known", positions, at=positions
        )
        rotation = Rotation(size, count, bool(node.attrs.get("interleaved", 0)))
        return RotaryEmbedding(rotation, heads, rank == 1)

    def apply(self, patch: Patch, found: RotaryEmbedding) -> None:
        node = patch.root
        emit = patch.builder(node.outputs[0])
        x, positions, *tables = node.inputs
        axis = 1  # of the length
        if found.heads:
            x = emit("Reshape", x, emit.vector(0, 0, found.heads, found.rotation.size))
        else:
            axis = 2
        if found.is_first:
            length = emit.squeeze(emit.shape(x, axis, axis + 1), [0])
            steps = emit("Range", emit.scalar(0), length, emit.scalar(1))
            positions = emit("Add", positions, steps)
        # [length or batch and length, pairs], with an axis for the heads
        place = 1 if found.is_first or not found.heads else 2
        rows = [emit("Gather", table, positions, axis=0) for table in tables]
        if found.heads or not found.is_first:
            rows = [emit.unsqueeze(row, [place]) for row in rows]
        y = rotated(emit, x, rows[0], rows[1], found.rotation)
        if found.heads:
            y = emit("Reshape", y, emit.vector(0, 0, found.heads * found.rotation.size))
        patch.replace_node(node, [y])
        patch.decompose_operator()


def rotated(emit: Builder, x: Tensor, cosines: Tensor, sines: Tensor, how: Rotation) -> Tensor:
    """A tensor of rank 4 with its heads, along the last axis, rotated.

    Cosines and sines broadcast to it, with one element for each pair.
    """
    pairs, rest = how.rotated // 2, how.size - how.rotated
    unrotated = []
    if rest:
        x, *unrotated = emit.split(x, 3, [how.rotated, rest], [x, x])
    if how.interleaved:
        x = emit("Reshape", x, emit.vector(0, 0, 0, pairs, 2))
        a, b = (emit.squeeze(part, [4]) for part in emit.split(x, 4, [1, 1], [x, x]))
    else:
        a, b = emit.split(x, 3, [pairs, pairs], [x, x])
    real = emit("Sub", emit("Mul", a, cosines), emit("Mul", b, sines))
    imaginary = emit("Add", emit("Mul", b, cosines), emit("Mul", a, sines))
    if how.interleaved:
        both = emit("Concat", *(emit.unsqueeze(part, [4]) for part in (real, imaginary)), axis=4)
        parts = [emit("Reshape", both, emit.vector(0, 0, 0, how.rotated))]
    else:
        parts = [real, imaginary]
    return emit("Concat", *parts, *unrotated, axis=3) if len(parts + unrotated) > 1 else parts[0]
