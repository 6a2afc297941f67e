"""Replaces sequences of a known number of tensors by the tensors.

s = SplitToSequence(x, {2, 2})                   -> a, b = Split(x, {2, 2})
                                                    s = SequenceConstruct(a, b)
s = SequenceInsert(SequenceConstruct(a), b)      -> s = SequenceConstruct(a, b)
s = SequenceErase(SequenceConstruct(a, b), 0)    -> s = SequenceConstruct(b)
x = SequenceAt(SequenceConstruct(a, b), 0)       -> x = a
y = ConcatFromSequence(SequenceConstruct(a, b))  -> y = Concat(a, b)
s' = Loop(…, SequenceConstruct(a, b)) { … }      -> a', b' = Loop(…, a, b) { … }
                                                    s' = SequenceConstruct(a', b')
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper

from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Node, Tensor, Variable, optional
from ...rewrite.graph.views import CarriedValue

_MOST_ELEMENTS = 64
"""Longer sequences are left to the rules that read them as one tensor."""


def _need_constructed(m: Match, sequence: Tensor) -> list[Tensor]:
    """The elements of a sequence that SequenceConstruct makes. Raises Miss for another one."""
    made = m.need(
        m.producer(sequence, "SequenceConstruct"),
        "the sequence {} is not made of known tensors",
        sequence,
        at=sequence,
    )
    return list(made.inputs)


def _need_position(m: Match, node: Node, slot: int, omitted: int, length: int) -> int:
    """The position that an input of a node names, from 0; `omitted` where the input is omitted.

    A negative position counts from the end. Raises Miss if the position is not known, or is outside
    a sequence of this length.
    """
    at = optional(node.inputs, slot)
    if at is None:
        return omitted
    position = m.facts.scalar(at)
    if not isinstance(position, int):
        raise Miss("position {} is not known", at, at=at)
    inside = -length <= position < length
    m.need(inside, "position {} is outside a sequence of {} elements", position, length, at=at)
    return position % length


def _need_insert_position(m: Match, insert: Node, length: int) -> int:
    """Where a SequenceInsert inserts into a sequence of this length, by default at the end.

    Raises Miss if the position is not known.
    """
    at = optional(insert.inputs, 2)
    if at is None or m.facts.scalar(at) == length:
        return length
    return _need_position(m, insert, 2, length, length)


@dataclass(frozen=True)
class Elements:
    """The elements of a sequence after an operation."""

    tensors: list[Tensor]


@dataclass(frozen=True)
class Pieces:
    """The sizes of the pieces that a tensor is split into."""

    sizes: list[int]


class SplitToConstruct(Rule[Pieces]):
    """Replaces SplitToSequence into a few pieces of known sizes by Split and SequenceConstruct."""

    root = "SplitToSequence"
    fires = """g (float[B,5] x) => (float[B,2] y) <int64[2] sizes = {2, 3}, int64 zero = {0}> {
      s = SplitToSequence<axis=1>(x, sizes) y = SequenceAt(s, zero) }"""
    spares = {
        "single elements": """g (float[3,B] x, int64 n) => (float[1,B] y) {
      s = SplitToSequence<axis=0>(x) y = SequenceAt(s, n) }""",
        "sizes of the pieces": """g (float[T,B] x, int64[2] sizes, int64 n) => (float[K,B] y) {
      s = SplitToSequence<axis=0>(x, sizes) y = SequenceAt(s, n) }""",
    }

    def match(self, m: Match) -> Pieces:
        node = m.node
        m.need(
            len(node.inputs) > 1 and node.attrs.get("keepdims", 1),
            "it splits into single elements",
        )
        sizes = _piece_sizes(m, node)
        sizes = m.need(sizes, "the sizes of the pieces are not known, or there are too many")
        m.need(any(size != 1 for size in sizes), "it splits into single elements")
        return Pieces(sizes)

    def apply(self, patch: Patch, found: Pieces) -> None:
        node, (result,) = patch.root, patch.root.outputs
        axis = int(node.attrs.get("axis", 0))
        emit = patch.builder(result)
        pieces = emit.split(node.inputs[0], axis, found.sizes, [result] * len(found.sizes))
        patch.replace_node(node, [emit("SequenceConstruct", *pieces)])
        patch.toward_normal_form()


def _piece_sizes(m: Match, node: Node) -> list[int] | None:
    """The sizes of the pieces of a SplitToSequence; None if not known, or if there are too many.

    The node gives a size for each piece, or one for all pieces; then the last may be smaller.
    """
    given, shape = m.facts.constant(node.inputs[1]), m.facts.shape(node.inputs[0])
    if given is None or shape is None or given.size > _MOST_ELEMENTS or given.ndim > 1:
        return None
    if given.ndim == 1:
        return [int(n) for n in given]
    length, size = shape[int(node.attrs.get("axis", 0)) % len(shape)], int(given)
    if not isinstance(length, int) or size < 1 or length > _MOST_ELEMENTS * size:
        return None
    return [min(size, length - first) for first in range(0, length, size)]


class InsertsToConstruct(Rule[Elements]):
    """Replaces an insertion into a sequence of known tensors by a SequenceConstruct."""

    root = "SequenceInsert"
    fires = """g (float[3] x, float[3] z) => (seq(float[3]) y) {
      e = SequenceEmpty() s = SequenceInsert(e, x) y = SequenceInsert(s, z) }"""
    spares = {
        "not made of known tensors": """g (float[4,3] t, float[3] x) => (seq(float[3]) y) {
      s = SplitToSequence<axis=0, keepdims=0>(t) y = SequenceInsert(s, x) }""",
        "position": """g (float[3] x, float[3] z, int64 n) => (seq(float[3]) y) {
      s = SequenceConstruct(x, z) y = SequenceInsert(s, z, n) }""",
    }

    def match(self, m: Match) -> Elements:
        sequence, new = m.node.inputs[:2]
        made = m.producer(sequence, "SequenceConstruct", "SequenceEmpty")
        made = m.need(made, "the sequence {} is not made of known tensors", sequence, at=sequence)
        tensors = [t for t in made.inputs if t.name]
        tensors.insert(_need_insert_position(m, m.node, len(tensors)), new)
        return Elements(tensors)

    def apply(self, patch: Patch, found: Elements) -> None:
        emit = patch.builder(patch.root.outputs[0])
        patch.replace_node(patch.root, [emit("SequenceConstruct", *found.tensors)])
        patch.toward_normal_form()


class EraseToConstruct(Rule[Elements]):
    """Replaces an erasure from a sequence of known tensors by a SequenceConstruct."""

    root = "SequenceErase"
    fires = """g (float[3] x, float[3] z) => (seq(float[3]) y) {
      s = SequenceConstruct(x, z) y = SequenceErase(s) }"""
    spares = {
        "is not made of known tensors": """g (float[4,3] x) => (seq(float[3]) y) {
      s = SplitToSequence<axis=0, keepdims=0>(x) y = SequenceErase(s) }""",
        "position": """g (float[3] x, float[3] z, int64 n) => (seq(float[3]) y) {
      s = SequenceConstruct(x, z) y = SequenceErase(s, n) }""",
    }

    def match(self, m: Match) -> Elements:
        tensors = _need_constructed(m, m.node.inputs[0])
        del tensors[_need_position(m, m.node, 1, len(tensors) - 1, len(tensors))]
        return Elements(tensors)

    def apply(self, patch: Patch, found: Elements) -> None:
        node = patch.root
        emit = patch.builder(node.outputs[0])
        if found.tensors:
            result = emit("SequenceConstruct", *found.tensors)
        else:
            result = emit("SequenceEmpty", dtype=patch.facts.dtype(node.inputs[0]))
        patch.replace_node(node, [result])
        patch.toward_normal_form()


class ElementOfConstructedSequence(Rule[Tensor]):
    """Replaces an element of a sequence of known tensors by the tensor."""

    root = "SequenceAt"
    fires = """g (float[3] x, float[3] z) => (float[3] y) {
      one = Constant<value_int=1>() s = SequenceConstruct(x, z) e = SequenceAt(s, one) y = Neg(e) }"""
    spares = {
        "is not made of known tensors": """g (float[4,3] x, int64 n) => (float[3] y) {
      s = SplitToSequence<axis=0, keepdims=0>(x) y = SequenceAt(s, n) }""",
        "position": """g (float[3] x, float[3] z, int64 n) => (float[3] y) {
      s = SequenceConstruct(x, z) y = SequenceAt(s, n) }""",
    }

    def match(self, m: Match) -> Tensor:
        tensors = _need_constructed(m, m.node.inputs[0])
        return tensors[_need_position(m, m.node, 1, 0, len(tensors))]

    def apply(self, patch: Patch, found: Tensor) -> None:
        patch.replace_node(patch.root, [found])
        patch.toward_normal_form()


@dataclass(frozen=True)
class JoinedElements:
    """A ConcatFromSequence of known tensors."""

    tensors: list[Tensor]
    axis: int
    new_axis: bool


class ConcatOfConstructedSequence(Rule[JoinedElements]):
    """Turns a ConcatFromSequence of known tensors into a Concat."""

    root = "ConcatFromSequence"
    fires = """g (float[3] x, float[3] z) => (float[2,3] y) {
      s = SequenceConstruct(x, z) y = ConcatFromSequence<axis=0, new_axis=1>(s) }"""
    spares = {
        "is not made of known tensors": """g (float[4,3] x) => (float[K,3] y) { s = SplitToSequence<axis=0>(x) y = ConcatFromSequence<axis=0>(s) }""",
    }

    def match(self, m: Match) -> JoinedElements:
        tensors = _need_constructed(m, m.node.inputs[0])
        new_axis = bool(m.node.attrs.get("new_axis", 0))
        axis = int(m.node.attrs["axis"])
        if new_axis and axis < 0:
            rank = m.need(m.facts.rank(tensors[0]), "the rank of the elements is not known")
            axis %= rank + 1
        ranks = {m.facts.rank(tensor) for tensor in tensors} - {None}
        m.need(len(ranks) < 2, "the elements have different ranks")
        return JoinedElements(tensors, axis, new_axis)

    def apply(self, patch: Patch, found: JoinedElements) -> None:
        emit = patch.builder(patch.root.outputs[0])
        axes = [found.axis] if found.new_axis else []
        parts = [emit.unsqueeze(tensor, axes) for tensor in found.tensors]
        patch.replace_node(patch.root, [emit("Concat", *parts, axis=found.axis)])
        patch.toward_normal_form()


@dataclass(frozen=True)
class CarriedSequence:
    """A carried sequence that holds the same number of tensors in every iteration."""

    number: int
    """Its number among the carried values."""
    initial: list[Tensor]
    """Its elements before the first iteration."""
    updated: list[Tensor | int]
    """Its elements after an iteration: a new tensor, or the number of an unchanged element."""
    dtype: int
    shape: list[int | None] | None
    """The shape of each element, as far as it is known."""


class UnpackCarriedSequence(Rule[CarriedSequence]):
    """Carries each element of a sequence of fixed length as a value of its own."""

    root = "Loop"
    fires = """g (float[3] x, float[3] z, int64 m) => (float[3] y)
      <int64 zero = {0}, int64 one = {1}> {
      s0 = SequenceConstruct(x, z)
      s = Loop (m, , s0) <body = b (int64 i, bool ci, seq(float[3]) l) => (bool co, seq(float[3]) lo) {
        p = SequenceAt(l, zero) q = SequenceAt(l, one) r = Add(p, q)
        e = SequenceErase(l, zero) lo = SequenceInsert(e, r, zero) co = Identity(ci) }>
      y = SequenceAt(s, zero) }"""
    spares = {
        "no carried value is a sequence": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Sin(s) }> }""",
        "grows or shrinks": """g (float[3] x, float[3] z, int64 m) => (seq(float[3]) s) {
      s0 = SequenceConstruct(x, z)
      s = Loop (m, , s0) <body = b (int64 i, bool ci, seq(float[3]) l) => (bool co, seq(float[3]) lo) {
        lo = SequenceInsert(l, x) co = Identity(ci) }> }""",
        "position": """g (float[3] x, float[3] z, int64 m) => (seq(float[3]) s) {
      s0 = SequenceConstruct(x, z)
      s = Loop (m, , s0) <body = b (int64 i, bool ci, seq(float[3]) l) => (bool co, seq(float[3]) lo) {
        e = SequenceErase(l, i) lo = SequenceInsert(e, x) co = Identity(ci) }> }""",
    }

    def match(self, m: Match) -> CarriedSequence:
        carried = m.loop().carried

        def constructed(number: int) -> CarriedSequence | None:
            made = m.producer(carried[number].initial, "SequenceConstruct")
            if made is None:
                return None
            return _need_fixed_length(m, number, carried[number], list(made.inputs))

        none = "no carried value is a sequence of known tensors"
        return m.first(constructed, range(len(carried)), none)

    def apply(self, patch: Patch, found: CarriedSequence) -> None:
        loop = patch.loop(patch.root)
        carried = loop.carried[found.number]
        inner = [_element(carried, found) for _ in found.initial]
        updated = [inner[t] if isinstance(t, int) else t for t in found.updated]
        finals = _final_elements(patch, carried, found)
        body = patch.root.attrs["body"]
        whole = patch.node_first(body, "SequenceConstruct", inner, [carried.input])[0]
        patch.replace(carried.input, whole)
        new = [CarriedValue(*each) for each in zip(found.initial, inner, updated, finals)]
        loop.replace_carried(found.number, new)
        patch.toward_normal_form()


def _need_fixed_length(
    m: Match, number: int, carried: CarriedValue, initial: list[Tensor]
) -> CarriedSequence:
    """A carried sequence with these initial elements. Raises Miss if its length may change."""
    updated = _updated_elements(m, carried, len(initial))
    m.need(
        len(updated) == len(initial),
        "the sequence {}, with {} elements at first, grows or shrinks",
        carried.input,
        len(initial),
        at=carried.output,
    )
    dtype = m.facts.dtype(carried.input)
    m.need(dtype != 0, "the type of the elements is not known", at=carried.input)
    shape = m.facts.shape(carried.input)
    sizes = None if shape is None else [n if isinstance(n, int) else None for n in shape]
    return CarriedSequence(number, initial, updated, dtype, sizes)


def _updated_elements(m: Match, carried: CarriedValue, length: int) -> list[Tensor | int]:
    """The elements of a carried sequence after an iteration, as in `CarriedSequence.updated`.

    Raises Miss if the body does not make the sequence by inserting and erasing elements.
    """
    edits: list[Node] = []
    elements: list[Tensor | int] = list(range(length))
    tensor = carried.output
    while tensor is not carried.input:
        made = m.producer(tensor, "SequenceErase", "SequenceInsert", "SequenceConstruct")
        if made is None or m.index.graph_of(made) is not m.node.attrs["body"]:
            sentence = "the body replaces the sequence {} by one that is not made from it"
            raise Miss(sentence, carried.input, at=tensor)
        if made.op == "SequenceConstruct":
            elements = list(made.inputs)
            break
        edits.append(made)
        tensor = made.inputs[0]
    for edit in reversed(edits):
        if edit.op == "SequenceErase":
            del elements[_need_position(m, edit, 1, len(elements) - 1, len(elements))]
        else:
            elements.insert(_need_insert_position(m, edit, len(elements)), edit.inputs[1])
    return elements


def _element(carried: CarriedValue, found: CarriedSequence) -> Variable:
    """A new value for an element at the start of an iteration.

    Its rank is declared: onnx infers nothing about sequences of tensors without one.
    """
    dtype: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(found.dtype)
    shape = None if found.shape is None else list[int | str | None](found.shape)
    return Variable(carried.input.name, dtype, shape)


def _final_elements(
    patch: Patch, carried: CarriedValue, found: CarriedSequence
) -> list[Variable] | list[None]:
    """New outputs of the loop for the elements; None if nothing reads the final sequence.

    A SequenceConstruct after the loop makes them the sequence again.
    """
    final = carried.final
    if final is None or not patch.index.use_count(final):
        return [None for _ in found.initial]
    outputs = [Variable(final.name) for _ in found.initial]
    patch.replace(final, patch.builder_after(final)("SequenceConstruct", *outputs))
    return outputs
