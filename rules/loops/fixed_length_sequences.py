"""Sequences of a known number of tensors are followed tensor by tensor.

s = SplitToSequence(x, {2, 2})               -> a, b = Split(x, {2, 2})   s = SequenceConstruct(a, b)
s = SequenceErase(SequenceConstruct(a, b), 0) -> s = SequenceConstruct(b)
s' = Loop(…, SequenceConstruct(a, b)) { … }  -> a', b' = Loop(…, a, b) { … }
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
from ...rewrite.graph.ir import Node, Tensor, Variable
from ...rewrite.graph.views import CarriedValue
from .split_sequences import need_constructed

_MOST = 64
"""Longer sequences are left to the rules that read them as one tensor."""


class SplitToConstruct(Rule):
    """A tensor split into a few pieces of known sizes is a sequence of those pieces."""

    root = "SplitToSequence"
    fires = """g (float[B,5] x) => (float[B,2] y) <int64[2] sizes = {2, 3}, int64 zero = {0}> {
      s = SplitToSequence<axis=1>(x, sizes) y = SequenceAt(s, zero) }"""
    spares = {
        "single elements": """g (float[3,B] x, int64 n) => (float[1,B] y) {
      s = SplitToSequence<axis=0>(x) y = SequenceAt(s, n) }""",
        "sizes of its pieces": """g (float[T,B] x, int64[2] sizes, int64 n) => (float[K,B] y) {
      s = SplitToSequence<axis=0>(x, sizes) y = SequenceAt(s, n) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        node = m.node
        m.need(
            len(node.inputs) > 1 and node.attrs.get("keepdims", 1),
            "it is split into single elements",
        )
        sizes = m.need(
            _sizes(m, node), "the sizes of its pieces are not known, or they are too many"
        )
        m.need(any(n != 1 for n in sizes), "it is split into single elements")
        return {"node": node, "sizes": sizes}

    def apply(self, patch: Patch, node: Node, sizes: list[int]) -> None:
        (old,) = node.outputs
        axis = int(node.attrs.get("axis", 0))
        parts = patch.builder(old).split(node.inputs[0], axis, sizes, [old] * len(sizes))
        patch.replace(old, patch.node("SequenceConstruct", parts, [old])[0])
        patch.remove(node)
        patch.toward_normal_form()


def _sizes(m: Match, node: Node) -> list[int] | None:
    """The sizes of all pieces: given one by one, or as one size for all but a smaller last one."""
    given, shape = m.facts.constant(node.inputs[1]), m.facts.shape(node.inputs[0])
    if given is None or shape is None or given.size > _MOST:
        return None
    if given.ndim == 1:
        return [int(n) for n in given]
    length, size = shape[int(node.attrs.get("axis", 0)) % len(shape)], int(given)
    if not isinstance(length, int) or size < 1 or length > _MOST * size:
        return None
    return [min(size, length - first) for first in range(0, length, size)]


class EraseToConstruct(Rule):
    """A sequence of single tensors without one of them is the sequence of the others."""

    root = "SequenceErase"
    fires = """g (float[3] x, float[3] z) => (seq(float[3]) y) {
      s = SequenceConstruct(x, z) y = SequenceErase(s) }"""
    spares = {
        "is not made of tensors": """g (float[4,3] x) => (seq(float[3]) y) {
      s = SplitToSequence<axis=0, keepdims=0>(x) y = SequenceErase(s) }""",
        "position": """g (float[3] x, float[3] z, int64 n) => (seq(float[3]) y) {
      s = SequenceConstruct(x, z) y = SequenceErase(s, n) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        parts = list(need_constructed(m, m.node.inputs[0]).inputs)
        place = _place(m, m.node, 1, len(parts) - 1, len(parts))
        return {"node": m.node, "parts": [*parts[:place], *parts[place + 1 :]],
                "dtype": m.facts.dtype(parts[0])}  # fmt: skip

    def apply(self, patch: Patch, node: Node, parts: list[Tensor], dtype: int) -> None:
        (old,) = node.outputs
        op, attrs = ("SequenceConstruct", {}) if parts else ("SequenceEmpty", {"dtype": dtype})
        patch.replace(old, patch.node(op, parts, [old], attrs)[0])
        patch.remove(node)
        patch.toward_normal_form()


def _place(m: Match, node: Node, slot: int, absent: int, count: int) -> int:
    """The position that an input names among `count`; declines where it is not known."""
    if slot >= len(node.inputs) or not node.inputs[slot].name:
        return absent
    place = m.facts.scalar(node.inputs[slot])
    if not isinstance(place, int) or not -count <= place < count:
        raise Miss("position {} is not one of the {} known", place, count, at=node.inputs[slot])
    return place % count


@dataclass(frozen=True)
class ListState:
    """A state that is a sequence of as many tensors in every iteration."""

    number: int
    state: CarriedValue
    initial: list[Tensor]
    after: list[Tensor | int]
    """What the iteration leaves: a new tensor, or the element with this number as it was."""
    dtype: np.dtype[Any]
    shape: list[int | str | None] | None
    """Of each element, as far as it is known."""

    def element(self) -> Variable:
        """A new value for an element. Its rank is declared: onnx infers nothing of sequences of
        tensors without one.
        """
        return Variable(self.state.input.name, self.dtype, self.shape)


class UnpackCarriedSequence(Rule):
    """A state that is a list of fixed length is one state for each element."""

    root = "Loop"
    fires = """g (float[3] x, float[3] z, int64 m) => (float[3] y)
      <int64 zero = {0}, int64 one = {1}> {
      s0 = SequenceConstruct(x, z)
      s = Loop (m, , s0) <body = b (int64 i, bool ci, seq(float[3]) l) => (bool co, seq(float[3]) lo) {
        p = SequenceAt(l, zero) q = SequenceAt(l, one) r = Add(p, q)
        e = SequenceErase(l, zero) lo = SequenceInsert(e, r, zero) co = Identity(ci) }>
      y = SequenceAt(s, zero) }"""
    spares = {
        "no state is a list": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Sin(s) }> }""",
        "grows": """g (float[3] x, float[3] z, int64 m) => (seq(float[3]) s) {
      s0 = SequenceConstruct(x, z)
      s = Loop (m, , s0) <body = b (int64 i, bool ci, seq(float[3]) l) => (bool co, seq(float[3]) lo) {
        lo = SequenceInsert(l, x) co = Identity(ci) }> }""",
        "position": """g (float[3] x, float[3] z, int64 m) => (seq(float[3]) s) {
      s0 = SequenceConstruct(x, z)
      s = Loop (m, , s0) <body = b (int64 i, bool ci, seq(float[3]) l) => (bool co, seq(float[3]) lo) {
        e = SequenceErase(l, i) lo = SequenceInsert(e, x) co = Identity(ci) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        first: Miss | None = None
        for number, state in enumerate(m.loop().carried):
            try:
                return {"node": m.node, "found": _list_state(m, number, state)}
            except Miss as miss:
                first = first or miss
        raise first or Miss("it carries no state", at=m.node)

    def apply(self, patch: Patch, node: Node, found: ListState) -> None:
        state, body = found.state, node.attrs["body"]
        inner: list[Tensor] = [found.element() for _ in found.initial]
        after = [inner[t] if isinstance(t, int) else t for t in found.after]
        finals = _finals(patch, found)
        whole = patch.node_first(body, "SequenceConstruct", inner, [state.input])[0]
        patch.replace(state.input, whole)
        new = [CarriedValue(*each) for each in zip(found.initial, inner, after, finals)]
        patch.loop(node).replace_carried(found.number, new)
        patch.toward_normal_form()


def _list_state(m: Match, number: int, state: CarriedValue) -> ListState:
    made = m.producer(state.initial, "SequenceConstruct")
    m.need(made, "no state is a list of known tensors", at=state.initial)
    assert made is not None
    after = _elements(m, state, len(made.inputs))
    m.need(
        len(after) == len(made.inputs),
        "the list {} of {} grows or shrinks",
        state.input,
        len(made.inputs),
        at=state.output,
    )
    m.need(m.facts.dtype(state.input), "the type of the elements is not known", at=state.input)
    dtype = helper.tensor_dtype_to_np_dtype(m.facts.dtype(state.input))
    shape = m.facts.shape(state.input)
    sizes: list[int | str | None] | None = None
    if shape is not None:
        sizes = [n if isinstance(n, int) else None for n in shape]
    return ListState(number, state, list(made.inputs), after, dtype, sizes)


def _elements(m: Match, state: CarriedValue, count: int) -> list[Tensor | int]:
    """What the list holds after an iteration: its own elements by number, and new tensors."""
    edits: list[Node] = []
    tensor = state.output
    while tensor is not state.input:
        made = m.producer(tensor, "SequenceErase", "SequenceInsert", "SequenceConstruct")
        if made is None or m.index.graph_of(made) is not m.node.attrs["body"]:
            raise Miss("the list {} becomes one that is not made from it", state.input, at=tensor)
        if made.op == "SequenceConstruct":
            break
        edits.append(made)
        tensor = made.inputs[0]
    elements: list[Tensor | int] = list(range(count))
    if tensor is not state.input:
        assert made is not None
        elements = list(made.inputs)
    for edit in reversed(edits):
        if edit.op == "SequenceErase":
            del elements[_place(m, edit, 1, len(elements) - 1, len(elements))]
        else:
            elements.insert(_insert_place(m, edit, len(elements)), edit.inputs[1])
    return elements


def _insert_place(m: Match, edit: Node, count: int) -> int:
    """Where a SequenceInsert puts its tensor: behind the last, unless it says otherwise."""
    if len(edit.inputs) < 3 or m.facts.scalar(edit.inputs[2]) == count:
        return count
    return _place(m, edit, 2, count, count)


def _finals(patch: Patch, found: ListState) -> list[Tensor]:
    """The outputs of the loop for the elements, made a list again where the state is read."""
    final = found.state.final
    if final is None or not patch.index.use_count(final):
        return [Variable("") for _ in found.initial]
    outputs: list[Tensor] = [Variable(final.name) for _ in found.initial]
    patch.replace(final, patch.builder_after(final)("SequenceConstruct", *outputs))
    return outputs
