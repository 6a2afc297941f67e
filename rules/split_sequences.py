"""Sequences that are a tensor in pieces: what is read from them is read from the tensor.

s = SplitToSequence(x)        x_t = SequenceAt(s, t)       ->   x_t = Gather(x, t)
s = SplitToSequence(x)        y = ConcatFromSequence(s)    ->   y = x
s = SequenceConstruct(a, b)   y = ConcatFromSequence(s)    ->   y = Concat(a, b)
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from ..rewrite.ir import Node, Tensor
from ..rewrite.patch import Patch
from ..rewrite.rule import Match, Rule


class Pieces:
    """A tensor cut into pieces of one element along an axis."""

    def __init__(self, tensor: Tensor, axis: int, rank: int, keeps_axis: bool) -> None:
        self.tensor = tensor
        self.axis = axis
        self.rank = rank
        self.keeps_axis = keeps_axis
        """Whether each piece still has the axis, with size 1."""


def need_pieces(m: Match, sequence: Tensor) -> Pieces:
    """What a sequence is cut from; declines where it is no tensor cut into single elements."""
    split = m.need(
        m.producer(sequence, "SplitToSequence"),
        "the sequence `{}` is not a tensor split into its elements",
        sequence.name,
        at=sequence,
    )
    x = split.inputs[0]
    rank = m.need(m.facts.rank(x), "the rank of `{}` is not known", x.name, at=x)
    element = m.facts.shape(sequence)
    m.need(element is not None, "the shape of its elements is not known", at=sequence)
    assert element is not None
    axis = split.attrs.get("axis", 0) % rank
    keeps = len(element) == rank
    m.need(
        not keeps or element[axis] == 1,
        "`{}` is split into pieces of {} along axis {}",
        x.name,
        element[axis] if keeps else 1,
        axis,
        at=split,
    )
    return Pieces(x, axis, rank, keeps)


class ReadFromSplit(Rule):
    """An element of a split tensor is gathered from the tensor."""

    root = "SequenceAt"
    fires = """g (float[T,3] x, int64 n) => (float[3] y) {
      s = SplitToSequence<axis=0, keepdims=0>(x) y = SequenceAt(s, n) }"""
    spares = {
        "pieces of": """g (float[4,3] x, int64 n) => (float[2,3] y) {
      two = Constant<value_int=2>() s = SplitToSequence<axis=0>(x, two) y = SequenceAt(s, n) }""",
        "is not a tensor split": """g (float[3] x, int64 n) => (float[3] y) { s = SequenceConstruct(x, x) y = SequenceAt(s, n) }""",
        "is no scalar": """g (float[T,3] x) => (float[3] y) <int64[1] n = {0}> {
      s = SplitToSequence<axis=0, keepdims=0>(x) y = SequenceAt(s, n) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        place = m.node.inputs[1]
        pieces = need_pieces(m, m.node.inputs[0])
        # onnxruntime takes a vector of one number as well, of which Gather would keep the axis.
        m.need(m.facts.shape(place) == (), "position `{}` is no scalar", place.name, at=place)
        return {"node": m.node, "pieces": pieces}

    def apply(self, patch: Patch, node: Node, pieces: Pieces) -> None:
        old, attrs = node.outputs[0], {"axis": pieces.axis}
        read = patch.node("Gather", [pieces.tensor, node.inputs[1]], [old], attrs)[0]
        if pieces.keeps_axis:
            read = patch.unsqueeze(read, pieces.axis, old)
        patch.replace(old, read)
        patch.remove(node)
        patch.toward_normal_form()


class CountFromSplit(Rule):
    """The length of a split tensor is the size of its axis."""

    root = "SequenceLength"
    fires = """g (float[T,3] x) => (int64 n) {
      s = SplitToSequence<axis=0, keepdims=0>(x) n = SequenceLength(s) }"""
    spares = {
        "is not a tensor split": """g (float[3] x) => (int64 n) { s = SequenceConstruct(x, x) n = SequenceLength(s) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        return {"node": m.node, "pieces": need_pieces(m, m.node.inputs[0])}

    def apply(self, patch: Patch, node: Node, pieces: Pieces) -> None:
        old = node.outputs[0]
        shape = patch.node("Shape", [pieces.tensor], [old])[0]
        axis = patch.constant(np.array(pieces.axis, np.int64), like=old)
        patch.replace(old, patch.node("Gather", [shape, axis], [old], {"axis": 0})[0])
        patch.remove(node)
        patch.toward_normal_form()


class JoinSplit(Rule):
    """The elements of a split tensor side by side are the tensor, its axes in another order."""

    root = "ConcatFromSequence"
    fires = """g (float[T,3] x) => (float[3,U] y) {
      s = SplitToSequence<axis=0, keepdims=0>(x) y = ConcatFromSequence<axis=1, new_axis=1>(s) }"""
    spares = {
        "is not a tensor split": """g (float[3] x) => (float[K] y) { s = SequenceConstruct(x, x) y = ConcatFromSequence<axis=0>(s) }""",
        "before opset 14": """<ir_version: 8, opset_import: ["" : 13]>
    g (float[T,2,3] x) => (float[K,3] y) {
      s = SplitToSequence<axis=0, keepdims=0>(x) y = ConcatFromSequence<axis=0>(s) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        pieces = need_pieces(m, m.node.inputs[0])
        stack = bool(m.node.attrs.get("new_axis", 0))
        rank = pieces.rank - (not pieces.keeps_axis) + stack
        axis = int(m.node.attrs["axis"]) % rank
        m.need(
            not pieces.keeps_axis or (axis == pieces.axis and not stack),
            "the pieces keep axis {}, and are joined along axis {}",
            pieces.axis,
            axis,
        )
        m.need(
            m.facts.opset >= 14 or stack or pieces.keeps_axis,
            "before opset 14 no Reshape can be told of sizes that may be 0",
        )
        return {"node": m.node, "pieces": pieces, "axis": axis, "stack": stack}

    def apply(self, patch: Patch, node: Node, pieces: Pieces, axis: int, stack: bool) -> None:
        old, x = node.outputs[0], pieces.tensor
        if not pieces.keeps_axis:
            x = _moved(patch, x, pieces.axis, axis, pieces.rank, old)
            if not stack:
                x = _merged(patch, x, axis, pieces.rank, old)
        patch.replace(old, x)
        patch.remove(node)
        patch.toward_normal_form()


def _moved(patch: Patch, x: Tensor, axis: int, to: int, rank: int, like: Tensor) -> Tensor:
    """The value with one axis moved."""
    if axis == to:
        return x
    others = [a for a in range(rank) if a != axis]
    perm = [*others[:to], axis, *others[to:]]
    return patch.node("Transpose", [x], [like], {"perm": perm})[0]


def _merged(patch: Patch, x: Tensor, axis: int, rank: int, like: Tensor) -> Tensor:
    """The value with two neighbouring axes, `axis` and the next, as one."""

    def numbers(*values: int) -> Tensor:
        return patch.constant(np.array(values, np.int64), like=like)

    shape = patch.node("Shape", [x], [like])[0]
    bounds = numbers(0), numbers(axis), numbers(axis + 2), numbers(rank)
    parts = [patch.node("Slice", [shape, start, end], [like])[0] for start, end in pairwise(bounds)]
    parts[1] = patch.node("ReduceProd", [parts[1]], [like], {"keepdims": 1})[0]
    target = patch.node("Concat", parts, [like], {"axis": 0})[0]
    return patch.node("Reshape", [x, target], [like], {"allowzero": 1})[0]


class JoinConstructed(Rule):
    """Tensors that are made a sequence and joined are concatenated."""

    root = "ConcatFromSequence"
    fires = """g (float[3] x, float[3] z) => (float[2,3] y) {
      s = SequenceConstruct(x, z) y = ConcatFromSequence<axis=0, new_axis=1>(s) }"""
    spares = {
        "is not made of tensors": """g (float[4,3] x) => (float[K,3] y) { s = SplitToSequence<axis=0>(x) y = ConcatFromSequence<axis=0>(s) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        made = need_constructed(m, m.node.inputs[0])
        stack = bool(m.node.attrs.get("new_axis", 0))
        axis = int(m.node.attrs["axis"])
        if stack and axis < 0:
            rank = m.need(m.facts.rank(made.inputs[0]), "the rank of the elements is not known")
            axis %= rank + 1
        return {"node": m.node, "parts": list(made.inputs), "axis": axis, "stack": stack}

    def apply(self, patch: Patch, node: Node, parts: list[Tensor], axis: int, stack: bool) -> None:
        old = node.outputs[0]
        if stack:
            parts = [patch.unsqueeze(part, axis, old) for part in parts]
        patch.replace(old, patch.node("Concat", parts, [old], {"axis": axis})[0])
        patch.remove(node)
        patch.toward_normal_form()


def need_constructed(m: Match, sequence: Tensor) -> Node:
    """The node that makes a sequence of single tensors."""
    return m.need(
        m.producer(sequence, "SequenceConstruct"),
        "the sequence `{}` is not made of tensors that are known",
        sequence.name,
        at=sequence,
    )


class ReadConstructed(Rule):
    """An element of a sequence of single tensors is that tensor."""

    root = "SequenceAt"
    fires = """g (float[3] x, float[3] z) => (float[3] y) {
      one = Constant<value_int=1>() s = SequenceConstruct(x, z) e = SequenceAt(s, one) y = Neg(e) }"""
    spares = {
        "is not made of tensors": """g (float[4,3] x, int64 n) => (float[3] y) {
      s = SplitToSequence<axis=0, keepdims=0>(x) y = SequenceAt(s, n) }""",
        "position": """g (float[3] x, float[3] z, int64 n) => (float[3] y) {
      s = SequenceConstruct(x, z) y = SequenceAt(s, n) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        made = need_constructed(m, m.node.inputs[0])
        place, count = m.facts.scalar(m.node.inputs[1]), len(made.inputs)
        known = isinstance(place, int) and -count <= place < count
        m.need(known, "position {} is not one of the {} known", place, count, at=m.node.inputs[1])
        assert isinstance(place, int)
        return {"node": m.node, "element": made.inputs[place]}

    def apply(self, patch: Patch, node: Node, element: Tensor) -> None:
        patch.replace(node.outputs[0], element)
        patch.remove(node)
        patch.toward_normal_form()


class ConstructFromInserts(Rule):
    """A tensor added to a sequence of single tensors makes a longer such sequence."""

    root = "SequenceInsert"
    fires = """g (float[3] x, float[3] z) => (seq(float[3]) y) {
      e = SequenceEmpty() s = SequenceInsert(e, x) y = SequenceInsert(s, z) }"""
    spares = {
        "not made of single tensors": """g (float[4,3] t, float[3] x) => (seq(float[3]) y) {
      s = SplitToSequence<axis=0, keepdims=0>(t) y = SequenceInsert(s, x) }""",
        "position": """g (float[3] x, float[3] z, int64 n) => (seq(float[3]) y) {
      s = SequenceConstruct(x, z) y = SequenceInsert(s, z, n) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        sequence, new = m.node.inputs[:2]
        made = m.producer(sequence, "SequenceConstruct", "SequenceEmpty")
        m.need(made, "`{}` is not made of single tensors", sequence.name, at=sequence)
        assert made is not None
        parts = [t for t in made.inputs if t.name]
        place: object = len(parts)
        if len(m.node.inputs) > 2 and m.node.inputs[2].name:
            place = m.facts.scalar(m.node.inputs[2])
        known = isinstance(place, int) and -len(parts) <= place <= len(parts)
        m.need(known, "position {} is not known", place)
        assert isinstance(place, int)
        place = place if place >= 0 else place + len(parts)
        return {"node": m.node, "parts": [*parts[:place], new, *parts[place:]]}

    def apply(self, patch: Patch, node: Node, parts: list[Tensor]) -> None:
        old = node.outputs[0]
        patch.replace(old, patch.node("SequenceConstruct", parts, [old])[0])
        patch.remove(node)
        patch.toward_normal_form()
