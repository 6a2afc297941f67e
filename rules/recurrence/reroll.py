"""Unrolled recurrences become one operator.

h1 = cell(x[0], h0)   h2 = cell(x[1], h1)   h3 = cell(x[2], h2)   ->   Y = LSTM(x, …, h0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.reads import AxisRange, axis_element
from ...rewrite.facts.splat import is_zero
from ...rewrite.graph.ir import Node, Tensor
from .cells import NoCell
from .chain import copies, find_chain
from .coefficients import NotAffine
from .emission import emit_operator, nothing, tell_of_empty_batch
from .layout import Layout, layout_of
from .link import Link, depends_on
from .probe import Disproved, Placed, probe
from .shapes import from_operator, to_operator


def _steps(third: str) -> str:
    """Four steps of an RNN; the third has another activation in the near miss."""
    step = """i@ = Constant<value_int=@>() x@ = Gather<axis=0>(x, i@)
      p@ = MatMul(x@, w) q@ = MatMul(h@, r) a@ = Add(p@, q@) """
    nodes = ""
    for number, activation in enumerate(("Tanh", "Tanh", third, "Tanh")):
        nodes += step.replace("@", str(number)) + f"h{number + 1} = {activation}(a{number}) "
    return f"""g (float[4,B,2] x, float[B,3] h0) => (float[B,3] y, float[B,3] z)
      <float[2,3] w = {{0.1, 0.2, 0.3, -0.1, -0.2, -0.3}},
       float[3,3] r = {{1, 0, 0, 0, 1, 0, 0, 0, 1}}> {{
      {nodes} y = Neg(h4) z = Neg(h1) }}"""


@dataclass(frozen=True)
class Inputs:
    """The inputs of all steps: slices of one sequence in their order, one value, or single values."""

    values: list[Tensor]
    whole: AxisRange | None
    """The first slice."""
    step: int

    @property
    def needs(self) -> list[Tensor]:
        return self.values if self.whole is None else [self.whole.source]


_COPY = 2
"""Stands for values that are h with other axes, where 0 is h and 1 is c."""


@dataclass(frozen=True)
class Copy:
    """The h of a step, with these axes: Y_h, or Y beside it."""

    number: int
    value: Tensor
    layout: Layout

    @property
    def is_step_of_y(self) -> bool:
        """Whether it has the axes of Y: (time, direction, batch, features)."""
        return self.layout.units == [0, 1] and self.layout.order == [0, 1]


@dataclass(frozen=True, eq=False)
class UnrolledCell:
    """Steps of one cell in a row, and what is to be put in their place."""

    links: list[Link]
    layout: Layout
    """Of the states."""
    inputs: list[Inputs]
    read: list[int]
    """The steps whose h is read by others, from all of them."""
    copies: list[Copy]
    """Other values than h that are h, and are read."""
    finals: list[bool]
    """Whether the last h and c are, from outputs of their own."""
    anchor: Node
    """The first node that reads a result: the operator goes in front of it."""


class RerollRecurrence(Rule):
    """Steps of one cell in a row become the operator over a sequence."""

    root = ("MatMul", "Gemm", "LSTM", "GRU", "RNN")
    fires = _steps("Tanh")
    spares = {"differ from step to step": _steps("Relu")}

    def match(self, m: Match) -> dict[str, Any]:
        nodes = copies(m.facts, m.node)
        m.need(len(nodes) > 1, "its weight is applied once, or by another node first")
        try:
            chain = _chain(m.facts, nodes)
            last = chain.links[-1]
            probe(m.facts, last.cell, _placed(last, last.inputs), _placed(last, last.before),
                  last.after)  # fmt: skip
        except NoCell as reason:
            raise Miss(reason.sentence, *reason.given, at=m.node) from None
        except Disproved as reason:
            raise Miss("{}", str(reason), at=m.node) from None
        return {"facts": m.facts, "chain": chain}

    def apply(self, patch: Patch, facts: Facts, chain: UnrolledCell) -> None:
        links = chain.links
        emit = patch.builder(links[-1].after[0], chain.anchor)
        y, *finals = _operator(emit, facts, chain)
        for final, value in zip(finals, links[-1].after):
            if final.name:
                patch.replace(value, from_operator(emit, final, chain.layout, 0))
        read = [Copy(k, links[k].after[0], chain.layout) for k in chain.read] + chain.copies
        layouts = dict.fromkeys(copy.layout for copy in read if not copy.is_step_of_y)
        rows = {layout: from_operator(emit, y, layout, 1) for layout in layouts}
        for copy in read:
            if copy.is_step_of_y:
                row = emit("Gather", y, emit.vector(copy.number), axis=0)
            else:
                row = emit("Gather", rows[copy.layout], emit.scalar(copy.number), axis=0)
            patch.replace(copy.value, row)
        reads = dict.fromkeys(patch.index.producer(t) for link in links for t in link.inputs)
        steps = (node for link in reversed(links) for node in reversed(link.nodes))
        for node in (*steps, *reads):
            if node is not None and patch.index.is_unused(node):
                patch.remove(node)
        if patch.delta["nodes"] >= 0:  # few steps of single values take more than they are
            raise Miss("{} steps take no more operators than one over all of them", len(links), at=patch.root)  # fmt: skip
        tell_of_empty_batch(patch, links[-1].cell.op, chain.layout)


def _chain(facts: Facts, nodes: Sequence[Node]) -> UnrolledCell:
    """Raises NoCell with what is in the way."""
    links = find_chain(facts, nodes)
    layout = _layout(links[-1], links[-1].before[0])
    if len(layout.features) != 1:
        raise NoCell("the features of {} have {} axes", links[-1].before[0], len(layout.features))
    inputs = [_sequence(facts, [link.inputs[k] for link in links])
              for k in range(len(links[-1].inputs))]  # fmt: skip
    for tensor in links[-1].inputs:
        if symbolic.eq(_layout(links[-1], tensor).size, layout.size) is not True:
            raise NoCell("the batch of {} and that of the state may differ", tensor)
    readers, copies_of_h = _readers(facts, nodes[0], links)
    read = sorted({k for k, slot in readers if slot == 0})
    finals = [(len(links) - 1, slot) in readers for slot in range(len(links[-1].after))]
    if len(read) > 1:  # all of them are slices of one output
        finals[0] = False
    elif finals[0]:
        read = []
    graph = facts.index.graph_of(nodes[0])
    found = [facts.index.ancestor_in(r, graph) for rs in readers.values() for r in rs]
    anchor = min((n for n in found if n is not None), key=lambda n: n.order,
                 default=links[-1].nodes[-1])  # fmt: skip
    for tensor in (*links[0].before, *(t for i in inputs for t in i.needs)):
        producer = facts.index.producer(tensor)
        if producer is not None and producer.order >= anchor.order:
            raise NoCell("{} is read before {} is there", links[0].after[0], tensor)
    return UnrolledCell(links, layout, inputs, read, copies_of_h, finals, anchor)


def _layout(link: Link, tensor: Tensor) -> Layout:
    layout = layout_of(link.lifter.value(tensor))
    if layout is None:
        raise NoCell("{} has several batch axes", tensor)
    return layout


def _placed(link: Link, tensors: Sequence[Tensor]) -> list[Placed]:
    return [(tensor, _layout(link, tensor)) for tensor in tensors]


def _readers(
    facts: Facts, first: Node, links: Sequence[Link]
) -> tuple[dict[tuple[int, int], list[Node]], list[Copy]]:
    """Who reads h (0), c (1) or copies of h after a step but the steps themselves, and the copies;
    graphs count, but are no nodes. Raises NoCell where anything else of the steps is read.
    """
    inner = {node for link in links for node in link.nodes}
    found: dict[tuple[int, int], list[Node]] = {}
    copied: list[Copy] = []
    for number, link in enumerate(links):
        for tensor in (t for node in link.nodes for t in node.outputs):
            outside = [u.reader for u in facts.index.uses(tensor) if u.reader not in inner]
            if not outside:
                continue
            slot = next((k for k, t in enumerate(link.after) if t is tensor), None)
            is_state = slot == 0 or (slot == 1 and number == len(links) - 1)
            if slot is None and (layout := _layout_of_h(link, tensor)) is not None:
                copied.append(Copy(number, tensor, layout))
                slot, is_state = _COPY, True
            if slot is not None and is_state:
                readers = found.setdefault((number, slot), [])
                readers += [r for r in outside if isinstance(r, Node)]
            elif depends_on(facts, tensor, first):
                raise NoCell("{} is read by more than the steps", tensor)
    return found, copied


def _layout_of_h(link: Link, tensor: Tensor) -> Layout | None:
    """The axes of a value of a step that is its new h; None for any other value."""
    try:
        value, h = link.lifter.value(tensor), link.lifter.value(link.after[0])
    except NotAffine:
        return None
    return layout_of(value) if value.form.key == h.form.key else None


def _sequence(facts: Facts, values: list[Tensor]) -> Inputs:
    slices = [axis_element(facts, tensor) for tensor in values]
    first = slices[0]
    for step in (1, -1):
        if first is not None and all(
            other is not None and other == first.element(first.start + k * step)
            for k, other in enumerate(slices)
        ):
            return Inputs(values, first, step)
    return Inputs(values, None, 1)


def _operator(emit: Builder, facts: Facts, chain: UnrolledCell) -> list[Tensor]:
    """Y, Y_h and Y_c."""
    last = chain.links[-1]
    parts = [
        to_operator(emit, _stacked(emit, facts, found), _layout(last, tensor), 1)
        for found, tensor in zip(chain.inputs, last.inputs)
    ]
    x = parts[0] if len(parts) == 1 else emit("Concat", *parts, axis=2)
    initial = [
        None
        if is_zero(facts, tensor)
        else to_operator(emit, tensor, chain.layout, 0, direction=True)
        for tensor in chain.links[0].before
    ]
    names = [emit.like if chain.read or chain.copies else nothing()]
    names += [t if read else nothing() for t, read in zip(last.after, chain.finals)]
    return emit_operator(emit, last.cell, x, initial, names)


def _stacked(emit: Builder, facts: Facts, inputs: Inputs) -> Tensor:
    """The inputs of all steps along a new axis 0."""
    whole = inputs.whole
    if whole is None and len(set(inputs.values)) == 1:
        return emit.repeat(inputs.values[0], emit.vector(len(inputs.values)))
    if whole is None:
        return emit("Concat", *(emit.unsqueeze(t, [0]) for t in inputs.values), axis=0)
    shape = facts.shape(whole.source)
    assert shape is not None, "slices are of values of known rank"
    count = len(inputs.values)
    sequence = whole.source
    if inputs.step != 1 or whole.start != 0 or shape[whole.axis] != count:
        end = whole.start + inputs.step * count
        order = slice(whole.start, end if end >= 0 else None, inputs.step)
        sequence = emit.slice(sequence, whole.axis, order)
    stacked = emit.move_axis(sequence, whole.axis, 0, len(shape))
    return emit.unsqueeze(stacked, [whole.axis + 1] if whole.keeps_axis else [])
