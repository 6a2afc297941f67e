"""Carried values that hold the states of several cells side by side.

   h' = Loop(…, h) { a = h[0:1]  b = h[1:2]  …  return Concat(a', b') }
-> a', b' = Loop(…, h[0:1], h[1:2]) { … return a', b' }   h' = Concat(a', b')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import counted_loop
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.reads import axis_range
from ...rewrite.graph.ir import Graph, Node, Tensor, Variable
from ...rewrite.graph.views import CarriedValue


class PartRead(NamedTuple):
    """A value that the body slices out of the carried value."""

    value: Tensor
    part: int
    """The number of the part that it is."""
    lacks_axis: bool
    """Whether the value lacks the axis along which the parts are concatenated."""


@dataclass(frozen=True)
class ConcatenatedCarriedValue:
    """A carried value that each iteration splits, and concatenates from new parts."""

    number: int
    carried: CarriedValue
    axis: int
    sizes: list[int]
    """The sizes of the parts."""
    parts: list[Tensor]
    """The parts at the end of an iteration (inside)."""
    reads: list[PartRead]


class SplitCarriedValue(Rule[ConcatenatedCarriedValue]):
    """Splits a carried value that each iteration splits and concatenates again."""

    root = ("Loop", "Scan")
    fires = """g (float[2,3] s0, int64 m) => (float[2,3] y)
      <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}> {
      y = Loop (m, , s0) <body = b (int64 i, bool ci, float[2,3] s) => (bool co, float[2,3] so) {
        p = Slice(s, zero, one, zero) q = Slice(s, one, two, zero)
        u = Sin(p) v = Add(q, u) co = Identity(ci) so = Concat<axis=0>(u, v) }> }"""
    spares = {
        "is not a Concat": """g (float[2,3] s0, int64 m) => (float[2,3] y) {
      y = Loop (m, , s0) <body = b (int64 i, bool ci, float[2,3] s) => (bool co, float[2,3] so) {
        co = Identity(ci) so = Sin(s) }> }""",
        "other parts": """g (float[3] s0, float[1] x, int64 m) => (float[3] y)
      <int64[1] zero = {0}, int64[1] two = {2}> {
      y = Loop (m, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        p = Slice(s, zero, two, zero) co = Identity(ci) so = Concat<axis=0>(x, p) }> }""",
    }

    def match(self, m: Match) -> ConcatenatedCarriedValue:
        carried = m.carried()
        return m.first(
            lambda number: _concatenated_value(m, number, carried[number]),
            range(len(carried)),
            "it carries no value",
        )

    def apply(self, patch: Patch, found: ConcatenatedCarriedValue) -> None:
        carried = found.carried
        loop = counted_loop(patch.facts, patch.root)
        if loop is not None:
            patch.loop(patch.root).declare_scan_outputs(loop)
        inputs: list[Tensor] = [Variable(part.name) for part in found.parts]
        emit = patch.builder(carried.initial)
        like = [carried.initial] * len(inputs)
        initial = emit.split(carried.initial, found.axis, found.sizes, like)
        finals = _final_parts(patch, found)
        replaced = _read_parts(patch, found, inputs)
        outputs = [replaced.get(part, part) for part in found.parts]
        new = [CarriedValue(*each) for each in zip(initial, inputs, outputs, finals)]
        patch.loop(patch.root).replace_carried(found.number, new)
        patch.toward_normal_form()


def _concatenated_value(m: Match, number: int, carried: CarriedValue) -> ConcatenatedCarriedValue:
    """How each iteration splits and concatenates a carried value. Raises Miss if it does not."""
    body: Graph = m.node.attrs["body"]
    concat = m.producer(carried.output, "Concat")
    if concat is None or m.index.graph_of(concat) is not body:
        raise Miss("the new value of {} is not a Concat in the body", carried.input)
    shape = m.need(
        m.facts.shape(carried.input), "the rank of {} is not known", carried.input, at=carried.input
    )
    axis = int(concat.attrs["axis"]) % len(shape)
    sizes = [n for part in concat.inputs if (n := _size(m.facts, part, axis)) is not None]
    m.need(
        len(sizes) == len(concat.inputs) > 1 and sum(sizes) == shape[axis],
        "the sizes of the parts of {} are not known",
        carried.output,
        at=concat,
    )
    reads: list[PartRead] = []
    for use in m.index.uses(carried.input):
        if not isinstance(use.reader, Node):
            raise Miss("the body also returns all of {}", carried.input, at=concat)
        reads += m.need(
            _parts_read(m.facts, use.reader, axis, sizes),
            "{} reads other parts of {} than those that are concatenated",
            use.reader,
            carried.input,
            at=concat,
        )
    return ConcatenatedCarriedValue(number, carried, axis, sizes, list(concat.inputs), reads)


def _size(facts: Facts, part: Tensor, axis: int) -> int | None:
    shape = facts.shape(part)
    size = None if shape is None else shape[axis]
    return size if isinstance(size, int) else None


def _parts_read(facts: Facts, node: Node, axis: int, sizes: Sequence[int]) -> list[PartRead] | None:
    """The parts that a node slices out of the carried value; None if it does anything else."""
    bounds = list(pairwise([0, *accumulate(sizes)]))
    reads = []
    for output in node.outputs:
        found = axis_range(facts, output)
        if found is None or found.axis != axis or (found.start, found.end) not in bounds:
            return None
        part = bounds.index((found.start, found.end))
        reads.append(PartRead(output, part, not found.keeps_axis))
    return reads


def _read_parts(
    patch: Patch, found: ConcatenatedCarriedValue, inputs: Sequence[Tensor]
) -> dict[Tensor, Tensor]:
    """Makes the body read the new carried values. Returns the replacement of each slice."""
    body: Graph = patch.root.attrs["body"]
    replaced: dict[Tensor, Tensor] = {}
    for read in found.reads:
        part = inputs[read.part]
        if read.lacks_axis:
            part = patch.builder(read.value, patch.start(body)).squeeze(part, [found.axis])
        patch.replace(read.value, part)
        replaced[read.value] = part
    for reader in patch.index.consumers(found.carried.input):
        patch.remove(reader)
    return replaced


def _final_parts(patch: Patch, found: ConcatenatedCarriedValue) -> list[Tensor]:
    """The final values of the parts, concatenated after the loop for readers of the old one.

    They have names even if nothing reads them: onnxruntime refuses a Scan that omits one.
    """
    final = found.carried.final
    name = found.carried.initial.name if final is None else final.name
    outputs: list[Tensor] = [Variable(name) for _ in found.parts]
    if final is not None and patch.index.use_count(final):
        emit = patch.builder_after(final)
        patch.replace(final, emit("Concat", *outputs, axis=found.axis))
    return outputs
