"""Sequences that hold the slices of a tensor: their readers read the tensor instead.

s = SplitToSequence(x)        x_t = SequenceAt(s, t)       ->   x_t = Gather(x, t)
s = SplitToSequence(x)        n = SequenceLength(s)        ->   n = Shape(x)[0]
s = SplitToSequence(x)        y = ConcatFromSequence(s)    ->   y = x
"""

from __future__ import annotations

from dataclasses import dataclass

from ...rewrite import symbolic
from ...rewrite.engine.builder import EMPTY_RESHAPES, NO_EMPTY_RESHAPES
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Tensor


@dataclass(frozen=True)
class SplitTensor:
    """A tensor that is split into pieces of one element along an axis."""

    tensor: Tensor
    axis: int
    rank: int
    keeps_axis: bool
    """Whether each piece still has the axis, with size 1."""


def need_split(m: Match, sequence: Tensor) -> SplitTensor:
    """The tensor whose single elements a sequence holds. Raises Miss for another sequence."""
    split = m.need(
        m.producer(sequence, "SplitToSequence"),
        "the sequence {} is not a tensor split into its elements",
        sequence,
        at=sequence,
    )
    x = split.inputs[0]
    rank = m.need(m.facts.rank(x), "the rank of {} is not known", x, at=x)
    element = m.need(m.facts.shape(sequence), "the shape of its elements is not known", at=sequence)
    axis = split.attrs.get("axis", 0) % rank
    lengths = split.inputs[1] if len(split.inputs) > 1 else None
    if m.options.strict and lengths is not None and m.facts.rank(lengths) != 0:
        count, length = m.facts.shape(lengths), m.facts.known_shape(x)[axis]
        equal = count is not None and symbolic.eq(count[0], length) is True
        m.need(equal, "--strict: SplitToSequence fails unless {} fits {}", lengths, x, at=split)
    keeps_axis = len(element) == rank
    m.need(
        not keeps_axis or element[axis] == 1,
        "{} is split into pieces of {} along axis {}",
        x,
        element[axis] if keeps_axis else 1,
        axis,
        at=split,
    )
    return SplitTensor(x, axis, rank, keeps_axis)


class GatherFromSplitSequence(Rule[SplitTensor]):
    """Replaces an element of a split tensor by a Gather from the tensor."""

    root = "SequenceAt"
    promise = Promise(
        accepts="those in which SplitToSequence fails on its lengths",
    )
    fires = """g (float[T,3] x, int64 n) => (float[3] y) {
      s = SplitToSequence<axis=0, keepdims=0>(x) y = SequenceAt(s, n) }"""
    spares = {
        "pieces of": """g (float[4,3] x, int64 n) => (float[2,3] y) {
      two = Constant<value_int=2>() s = SplitToSequence<axis=0>(x, two) y = SequenceAt(s, n) }""",
        "is not a tensor split": """g (float[3] x, int64 n) => (float[3] y) { s = SequenceConstruct(x, x) y = SequenceAt(s, n) }""",
        "is not a single number": """g (float[T,3] x) => (float[3] y) <int64[2] n = {0, 0}> {
      s = SplitToSequence<axis=0, keepdims=0>(x) y = SequenceAt(s, n) }""",
    }

    def match(self, m: Match) -> SplitTensor:
        sequence, position = m.node.inputs
        split = need_split(m, sequence)
        # onnxruntime also takes a vector of one number.
        single = m.facts.shape(position) in ((), (1,))
        m.need(single, "position {} is not a single number", position, at=position)
        return split

    def apply(self, patch: Patch, found: SplitTensor) -> None:
        node = patch.root
        emit = patch.builder(node.outputs[0])
        position = emit.squeeze(node.inputs[1], range(patch.facts.rank(node.inputs[1]) or 0))
        read = emit("Gather", found.tensor, position, axis=found.axis)
        axes = [found.axis] if found.keeps_axis else []
        patch.replace_node(node, [emit.unsqueeze(read, axes)])
        patch.toward_normal_form()


class LengthOfSplitSequence(Rule[SplitTensor]):
    """Replaces the length of a split tensor by the size of its axis."""

    root = "SequenceLength"
    promise = Promise(
        accepts="those in which SplitToSequence fails on its lengths",
    )
    fires = """g (float[T,3] x) => (int64 n) {
      s = SplitToSequence<axis=0, keepdims=0>(x) n = SequenceLength(s) }"""
    spares = {
        "is not a tensor split": """g (float[3] x) => (int64 n) { s = SequenceConstruct(x, x) n = SequenceLength(s) }""",
    }

    def match(self, m: Match) -> SplitTensor:
        return need_split(m, m.node.inputs[0])

    def apply(self, patch: Patch, found: SplitTensor) -> None:
        emit = patch.builder(patch.root.outputs[0])
        shape = emit("Shape", found.tensor)
        patch.replace_node(patch.root, [emit("Gather", shape, emit.scalar(found.axis), axis=0)])
        patch.toward_normal_form()


@dataclass(frozen=True)
class JoinedSplit:
    """A ConcatFromSequence of all elements of a split tensor."""

    split: SplitTensor
    axis: int
    new_axis: bool


class ConcatOfSplitSequence(Rule[JoinedSplit]):
    """Replaces a concatenation of all elements of a split tensor by the tensor, transposed."""

    root = "ConcatFromSequence"
    promise = Promise(
        accepts="those that concatenate an empty sequence",
    )
    fires = """g (float[T,3] x) => (float[3,U] y) {
      s = SplitToSequence<axis=0, keepdims=0>(x) y = ConcatFromSequence<axis=1, new_axis=1>(s) }"""
    spares = {
        "is not a tensor split": """g (float[3] x) => (float[K] y) { s = SequenceConstruct(x, x) y = ConcatFromSequence<axis=0>(s) }""",
        "before opset 14": """<ir_version: 8, opset_import: ["" : 13]>
    g (float[T,2,3] x) => (float[K,3] y) {
      s = SplitToSequence<axis=0, keepdims=0>(x) y = ConcatFromSequence<axis=0>(s) }""",
    }

    def match(self, m: Match) -> JoinedSplit:
        split = need_split(m, m.node.inputs[0])
        new_axis = bool(m.node.attrs.get("new_axis", 0))
        rank = split.rank - (not split.keeps_axis) + new_axis
        axis = int(m.node.attrs["axis"]) % rank
        m.need(
            not split.keeps_axis or (axis == split.axis and not new_axis),
            "the pieces keep axis {}, and are concatenated along axis {}",
            split.axis,
            axis,
        )
        merges_axes = not new_axis and not split.keeps_axis
        m.need(not merges_axes or m.facts.opset >= EMPTY_RESHAPES, NO_EMPTY_RESHAPES)
        length = m.facts.known_shape(split.tensor)[split.axis]
        m.need(
            not m.options.strict or symbolic.positive(length),
            "--strict: ConcatFromSequence fails on an empty sequence, and {} may be empty",
            split.tensor,
            at=split.tensor,
        )
        return JoinedSplit(split, axis, new_axis)

    def apply(self, patch: Patch, found: JoinedSplit) -> None:
        split, result = found.split, found.split.tensor
        if not split.keeps_axis:
            emit = patch.builder(patch.root.outputs[0])
            result = emit.move_axis(result, split.axis, found.axis, split.rank)
            if not found.new_axis:
                result = emit.merge_axes(result, found.axis, split.rank)
        patch.replace_node(patch.root, [result])
        patch.toward_normal_form()
