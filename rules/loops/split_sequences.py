"""Sequences that are a tensor in pieces: what is read from them is read from the tensor.

s = SplitToSequence(x)        x_t = SequenceAt(s, t)       ->   x_t = Gather(x, t)
s = SplitToSequence(x)        y = ConcatFromSequence(s)    ->   y = x
s = SequenceConstruct(a, b)   y = ConcatFromSequence(s)    ->   y = Concat(a, b)
"""

from __future__ import annotations

from typing import Any

from ...rewrite import symbolic
from ...rewrite.engine.builder import EMPTY_RESHAPES, NO_EMPTY_RESHAPES
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Node, Tensor


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


class GatherFromSplitSequence(Rule):
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
        emit = patch.builder(node.outputs[0])
        read = emit("Gather", pieces.tensor, node.inputs[1], axis=pieces.axis)
        if pieces.keeps_axis:
            read = emit.unsqueeze(read, [pieces.axis])
        patch.replace(node.outputs[0], read)
        patch.remove(node)
        patch.toward_normal_form()


class LengthOfSplitSequence(Rule):
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
        emit = patch.builder(node.outputs[0])
        shape = emit("Shape", pieces.tensor)
        patch.replace(node.outputs[0], emit("Gather", shape, emit.scalar(pieces.axis), axis=0))
        patch.remove(node)
        patch.toward_normal_form()


class ConcatOfSplitSequence(Rule):
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
            m.facts.opset >= EMPTY_RESHAPES or stack or pieces.keeps_axis,
            NO_EMPTY_RESHAPES,
        )
        length = m.need(m.facts.shape(pieces.tensor), "its rank is not known")[pieces.axis]
        m.need(
            not m.options.strict or symbolic.positive(length),
            "--strict: it fails on no pieces, and `{}` may be empty",
            pieces.tensor.name,
            at=pieces.tensor,
        )
        return {"node": m.node, "pieces": pieces, "axis": axis, "stack": stack}

    def apply(self, patch: Patch, node: Node, pieces: Pieces, axis: int, stack: bool) -> None:
        old, x = node.outputs[0], pieces.tensor
        if not pieces.keeps_axis:
            emit = patch.builder(old)
            x = emit.move_axis(x, pieces.axis, axis, pieces.rank)
            if not stack:
                x = emit.merge_axes(x, axis, pieces.rank)
        patch.replace(old, x)
        patch.remove(node)
        patch.toward_normal_form()


class ConcatOfConstructedSequence(Rule):
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
        emit = patch.builder(old)
        if stack:
            parts = [emit.unsqueeze(part, [axis]) for part in parts]
        patch.replace(old, emit("Concat", *parts, axis=axis))
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


class ElementOfConstructedSequence(Rule):
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


class InsertsToConstruct(Rule):
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
