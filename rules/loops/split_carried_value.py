"""Carried values that hold the states of several cells side by side.

   h' = Loop(…, h) { a = h[0:1]  b = h[1:2]  …  return Concat(a', b') }
-> a', b' = Loop(…, h[0:1], h[1:2]) { … return a', b' }   h' = Concat(a', b')

Instead of the Concat, the body may write the parts one by one: ScatterND(ScatterND(h, [[0]], a'),
[[1]], b'), as `h[0] = …` and `h.at[0].set(…)` do.
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
from ...rewrite.graph.index import Use
from ...rewrite.graph.ir import Graph, Node, Tensor, Variable
from ...rewrite.graph.views import CarriedValue
from ...rewrite.symbolic import Dim

_MOST_ROWS = 64
"""The most rows of a carried value that are carried on their own."""


class PartRead(NamedTuple):
    """A value that the body slices out of the carried value."""

    value: Tensor
    part: int
    """The number of the part that it is."""
    lacks_axis: bool
    """Whether the value lacks the axis along which the parts are concatenated."""
    written: Tensor | None = None
    """The new part, if the iteration writes it before the read."""


@dataclass(frozen=True)
class CarriedParts:
    """A carried value that each iteration splits, and makes of new parts."""

    number: int
    carried: CarriedValue
    axis: int
    sizes: list[int]
    """The sizes of the parts."""
    parts: list[Tensor | None]
    """The parts at the end of an iteration (inside); None for one that it does not write."""
    reads: list[PartRead]
    writes: list[Node]
    """The ScatterNDs that write the parts, the last one first; none for a Concat."""


class SplitCarriedValue(Rule[CarriedParts]):
    """Splits a carried value that each iteration splits and concatenates again."""

    root = ("Loop", "Scan")
    fires = """g (float[2,3] s0, int64 m) => (float[2,3] y)
      <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}> {
      y = Loop (m, , s0) <body = b (int64 i, bool ci, float[2,3] s) => (bool co, float[2,3] so) {
        p = Slice(s, zero, one, zero) q = Slice(s, one, two, zero)
        u = Sin(p) v = Add(q, u) co = Identity(ci) so = Concat<axis=0>(u, v) }> }"""
    spares = {
        "is not made of parts": """g (float[2,3] s0, int64 m) => (float[2,3] y) {
      y = Loop (m, , s0) <body = b (int64 i, bool ci, float[2,3] s) => (bool co, float[2,3] so) {
        co = Identity(ci) so = Sin(s) }> }""",
        "other parts": """g (float[3] s0, float[1] x, int64 m) => (float[3] y)
      <int64[1] zero = {0}, int64[1] two = {2}> {
      y = Loop (m, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        p = Slice(s, zero, two, zero) co = Identity(ci) so = Concat<axis=0>(x, p) }> }""",
    }

    def match(self, m: Match) -> CarriedParts:
        carried = m.carried()
        return m.first(
            lambda number: _parts_of(m, number, carried[number]),
            range(len(carried)),
            "it carries no value",
        )

    def apply(self, patch: Patch, found: CarriedParts) -> None:
        carried = found.carried
        loop = counted_loop(patch.facts, patch.root)
        if loop is not None:
            patch.loop(patch.root).declare_scan_outputs(loop)
        inputs: list[Tensor] = [
            Variable((carried.input if part is None else part).name) for part in found.parts
        ]
        emit = patch.builder(carried.initial)
        like = [carried.initial] * len(inputs)
        initial = emit.split(carried.initial, found.axis, found.sizes, like)
        finals = _final_parts(patch, found)
        replaced = _read_parts(patch, found, inputs)
        outputs = [
            before if part is None else replaced.get(part, part)
            for part, before in zip(found.parts, inputs)
        ]
        new = [CarriedValue(*each) for each in zip(initial, inputs, outputs, finals)]
        if found.writes:
            # The body returns what they write until it returns the parts. Nothing may read the
            # carried value by then.
            patch.replace_input(found.writes[-1], 0, carried.initial)
        patch.loop(patch.root).replace_carried(found.number, new)
        for node in found.writes:
            patch.remove(node)
        patch.toward_normal_form()


def _parts_of(m: Match, number: int, carried: CarriedValue) -> CarriedParts:
    """How each iteration splits and makes a carried value. Raises Miss if it does neither."""
    body: Graph = m.node.attrs["body"]
    made = m.producer(carried.output, "Concat", "ScatterND")
    if made is None or m.index.graph_of(made) is not body:
        raise Miss("the new value of {} is not made of parts in the body", carried.input)
    shape = m.need(
        m.facts.shape(carried.input), "the rank of {} is not known", carried.input, at=carried.input
    )
    if made.op == "ScatterND":
        return _written_parts(m, number, carried, made, shape)
    axis = int(made.attrs["axis"]) % len(shape)
    sizes = [n for part in made.inputs if (n := _size(m.facts, part, axis)) is not None]
    m.need(
        len(sizes) == len(made.inputs) > 1 and sum(sizes) == shape[axis],
        "the sizes of the parts of {} are not known",
        carried.output,
        at=made,
    )
    parts: list[Tensor | None] = list(made.inputs)
    uses = m.index.uses(carried.input)
    reads = _reads_of(m, carried.input, uses, axis, sizes, made)
    return CarriedParts(number, carried, axis, sizes, parts, reads, [])


def _reads_of(
    m: Match, whole: Tensor, uses: Sequence[Use], axis: int, sizes: Sequence[int], made: Node
) -> list[PartRead]:
    """The parts that the body reads of a value. Raises Miss if it reads anything else.

    `made` is the node that makes the new carried value.
    """
    reads: list[PartRead] = []
    for use in uses:
        if not isinstance(use.reader, Node):
            raise Miss("the body also returns all of {}", whole, at=made)
        reads += m.need(
            _parts_read(m.facts, use.reader, axis, sizes),
            "{} reads other parts of {} than those that are concatenated",
            use.reader,
            whole,
            at=made,
        )
    return reads


def _written_parts(
    m: Match, number: int, carried: CarriedValue, last: Node, shape: Sequence[Dim]
) -> CarriedParts:
    """The rows that an iteration writes into a carried value, one after the other."""
    body: Graph = m.node.attrs["body"]
    count = shape[0] if shape else 0
    if not isinstance(count, int) or not 1 < count <= _MOST_ROWS:
        raise Miss("the number of rows of {} is not known or too large", carried.input, at=last)
    writes = [last]
    while writes[-1].inputs[0] is not carried.input:
        earlier = m.producer(writes[-1].inputs[0], "ScatterND")
        if earlier is None or m.index.graph_of(earlier) is not body:
            raise Miss("{} does not write into {}", writes[-1], carried.input, at=writes[-1])
        writes.append(earlier)
    parts: list[Tensor | None] = [None] * count
    reads: list[PartRead] = []
    whole = carried.input
    for write in reversed(writes):
        found = _reads_of(m, whole, _other_uses(m, whole, write), 0, [1] * count, last)
        reads += [read._replace(written=parts[read.part]) for read in found]
        parts[_row(m, write, count)] = write.inputs[2]
        whole = write.outputs[0]
    found = _reads_of(m, whole, _other_uses(m, whole, body), 0, [1] * count, last)
    reads += [read._replace(written=parts[read.part]) for read in found]
    return CarriedParts(number, carried, 0, [1] * count, parts, reads, writes)


def _other_uses(m: Match, whole: Tensor, reader: Node | Graph) -> list[Use]:
    """The uses of a value but one by a node or body."""
    uses = list(m.index.uses(whole))
    uses.remove(next(use for use in uses if use.reader is reader))
    return uses


def _row(m: Match, write: Node, count: int) -> int:
    """The row that a ScatterND writes. Raises Miss if it writes anything but one whole row."""
    index = m.facts.constant(write.inputs[1])
    row = None if index is None or index.shape != (1, 1) else int(index.item())
    combines = write.attrs.get("reduction", "none") not in ("none", b"none")
    if row is None or combines or not -count <= row < count:
        raise Miss("{} does not write one row at a known position", write, at=write)
    return row % count


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
    patch: Patch, found: CarriedParts, inputs: Sequence[Tensor]
) -> dict[Tensor, Tensor]:
    """Makes the body read the new carried values. Returns the replacement of each slice."""
    body: Graph = patch.root.attrs["body"]
    replaced: dict[Tensor, Tensor] = {}
    readers: dict[Node, None] = {}
    for read in found.reads:
        reader = patch.index.producer(read.value)
        assert reader is not None, "a part is read by a node"
        readers[reader] = None
        if read.written is None:
            part, place = inputs[read.part], patch.start(body)
        else:
            part, place = replaced.get(read.written, read.written), reader
        if read.lacks_axis:
            part = patch.builder(read.value, place).squeeze(part, [found.axis])
        patch.replace(read.value, part)
        replaced[read.value] = part
    for reader in readers:
        patch.remove(reader)
    return replaced


def _final_parts(patch: Patch, found: CarriedParts) -> list[Tensor]:
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
