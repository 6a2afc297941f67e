"""Rerolling: copies of a cell become one operator, and concatenated slices their tensor.

    h1 = cell(x[0], h0)    h2 = cell(x[1], h1)    h3 = cell(x[2], h2)    ->    Y = LSTM(x, …, h0)

What follows the copies often concatenates their results again:

    y = Concat(Unsqueeze(Y[0]), Unsqueeze(Y[1]), Unsqueeze(Y[2]))    ->    y = Y
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.axes import named_axes
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.reads import AxisRange, axis_element
from ...rewrite.facts.splat import is_zero
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.symbolic import Dim
from .emission import (
    BatchBroadcast,
    BatchedOperand,
    emit_operator,
    from_operator_axes,
    note_empty_batch,
    omitted,
    to_operator_axes,
)
from .lifting import CellLayout
from .probe import probe
from .unrolled import CellCopy, depends_on, find_copies, nodes_with_weight


def _four_copies(third: str) -> str:
    """A model with four copies of an RNN, the third with this activation."""
    copy = """i@ = Constant<value_int=@>() x@ = Gather<axis=0>(x, i@)
      p@ = MatMul(x@, w) q@ = MatMul(h@, r) a@ = Add(p@, q@) """
    nodes = ""
    for number, activation in enumerate(("Tanh", "Tanh", third, "Tanh")):
        nodes += copy.replace("@", str(number)) + f"h{number + 1} = {activation}(a{number}) "
    return f"""g (float[4,B,2] x, float[B,3] h0) => (float[B,3] y, float[B,3] z)
      <float[2,3] w = {{0.1, 0.2, 0.3, -0.1, -0.2, -0.3}},
       float[3,3] r = {{1, 0, 0, 0, 1, 0, 0, 0, 1}}> {{
      {nodes} y = Neg(h4) z = Neg(h1) }}"""


@dataclass(frozen=True)
class CopyInputs:
    """One input of all copies: consecutive slices of a sequence, one value, or single values."""

    values: list[Tensor]
    """The input of each copy."""
    first: AxisRange | None
    """The first slice, if they are consecutive slices of a sequence."""
    stride: int
    """1, or -1 if the first copy reads the last slice."""

    @property
    def sources(self) -> list[Tensor]:
        """The values that the operator reads instead."""
        return self.values if self.first is None else [self.first.source]


@dataclass(frozen=True)
class HiddenValue:
    """A value that nodes outside the copies read, and that equals the h of a copy but for axes."""

    number: int
    """The number of the copy."""
    value: Tensor
    layout: CellLayout

    @property
    def is_slice_of_y(self) -> bool:
        """Whether its axes are those of Y: (time, direction, batch, hidden)."""
        return self.layout.units == [0, 1] and self.layout.order == [0, 1]


@dataclass(frozen=True, eq=False)
class UnrolledCell:
    """Copies of one cell in a row, and what the operator has to return."""

    copies: list[CellCopy]
    layout: CellLayout
    """The layout of the states."""
    inputs: list[CopyInputs]
    """In the order of `cell.inputs`."""
    hidden: list[HiddenValue]
    """The values to be taken from Y."""
    finals: list[bool]
    """Whether Y_h and Y_c are read."""
    first_reader: Node
    """The first node that reads a result; the operator is placed before it."""


class RerollRecurrence(Rule[UnrolledCell]):
    """Replaces copies of one cell in a row by the operator over a sequence."""

    root = ("MatMul", "Gemm", "LSTM", "GRU", "RNN")
    promise = Promise(
        rounds="the gates are computed by one product",
        nonfinite="saturated gates may hide an infinity or NaN",
        assumes="inputs that onnxruntime's operator takes: its LSTM, GRU and RNN crash on some empty ones",
    )
    fires = _four_copies("Tanh")
    spares = {"are different cells": _four_copies("Relu")}

    def match(self, m: Match) -> UnrolledCell:
        nodes = nodes_with_weight(m.facts, m.node)
        m.need(
            len(nodes) > 1, "its weight is applied only once, or an earlier node applies it first"
        )
        found = _unrolled_cell(m.facts, nodes)
        last = found.copies[-1]
        inputs, before = (
            [(tensor, last.layout(tensor)) for tensor in tensors]
            for tensors in (last.inputs, last.before)
        )
        probe(m.facts, last.cell, inputs, before, last.after)
        return found

    def apply(self, patch: Patch, found: UnrolledCell) -> None:
        copies = found.copies
        emit = patch.builder(copies[-1].after[0], found.first_reader)
        y, *finals = _operator(emit, patch.facts, found)
        for final, value in zip(finals, copies[-1].after):
            if final.name:
                patch.replace(value, from_operator_axes(emit, final, found.layout, 0))
        layouts = dict.fromkeys(h.layout for h in found.hidden if not h.is_slice_of_y)
        sequences = {layout: from_operator_axes(emit, y, layout, 1) for layout in layouts}
        for h in found.hidden:
            if h.is_slice_of_y:
                value = emit("Gather", y, emit.vector(h.number), axis=0)
            else:
                value = emit("Gather", sequences[h.layout], emit.scalar(h.number), axis=0)
            patch.replace(h.value, value)
        reads = dict.fromkeys(patch.index.producer(t) for copy in copies for t in copy.inputs)
        nodes = (node for copy in reversed(copies) for node in reversed(copy.nodes))
        for node in (*nodes, *reads):
            if node is not None and patch.index.is_unused(node):
                patch.remove(node)
        if patch.delta["nodes"] >= 0:
            raise Miss(
                "{} copies have no more nodes than one operator that replaces them", len(copies)
            )
        note_empty_batch(patch, copies[-1].cell.op, found.layout)


def _unrolled_cell(facts: Facts, nodes: Sequence[Node]) -> UnrolledCell:
    """Raises Miss where no operator can replace the copies."""
    copies = find_copies(facts, nodes)
    last = copies[-1]
    layout = last.layout(last.before[0])
    if len(layout.features) != 1:
        raise Miss("the features of {} have {} axes", last.before[0], len(layout.features))
    inputs = [
        _copy_inputs(facts, [copy.inputs[k] for copy in copies]) for k in range(len(last.inputs))
    ]
    for copy in copies:
        for tensor in copy.inputs:
            if symbolic.eq(copy.layout(tensor).size, layout.size) is not True:
                raise Miss("the batches of {} and of the state may differ", tensor)
    for tensor in copies[0].before:
        shape = facts.known_shape(tensor)
        if len(shape) != layout.rank:
            raise Miss("{} has {} axes, the states after it {}", tensor, len(shape), layout.rank)
        if _initial_batch(facts, tensor, layout) not in (1, layout.size):
            raise Miss("the batches of {} and of the states after it may differ", tensor)
    reads = _outside_reads(facts, nodes[0], copies)
    only_last = reads.states == [len(copies) - 1]  # then Y_h is read, otherwise slices of Y
    states = [] if only_last else reads.states
    hidden = [HiddenValue(number, copies[number].after[0], layout) for number in states]
    finals = [only_last, reads.has_cell_state][: len(last.after)]
    graph = facts.index.graph_of(nodes[0])
    readers = [facts.index.ancestor_in(reader, graph) for reader in reads.readers]
    first_reader = min((n for n in readers if n is not None), key=lambda n: n.order,
                       default=last.nodes[-1])  # fmt: skip
    for tensor in (*copies[0].before, *(t for found in inputs for t in found.sources)):
        producer = facts.index.producer(tensor)
        if producer is not None and producer.order >= first_reader.order:
            raise Miss("{} is read before {} is computed", copies[0].after[0], tensor)
    return UnrolledCell(copies, layout, inputs, hidden + reads.equal_to_h, finals, first_reader)


@dataclass(frozen=True)
class _OutsideReads:
    """The results of copies that are read by others than the copies."""

    states: list[int]
    """The numbers of the copies whose h is read."""
    equal_to_h: list[HiddenValue]
    """Other values that equal the h of a copy."""
    has_cell_state: bool
    """Whether the c of the last copy is read."""
    readers: list[Node]


def _outside_reads(facts: Facts, first: Node, copies: Sequence[CellCopy]) -> _OutsideReads:
    """Raises Miss where others read any other value that depends on the first copy."""
    inner = {node for copy in copies for node in copy.nodes}
    states: list[int] = []
    equal_to_h: list[HiddenValue] = []
    readers: list[Node] = []
    has_cell_state = False
    for number, copy in enumerate(copies):
        for tensor in (t for node in copy.nodes for t in node.outputs):
            outside = [u.reader for u in facts.index.uses(tensor) if u.reader not in inner]
            if not outside:
                continue
            slot = next((k for k, t in enumerate(copy.after) if t is tensor), None)
            layout = _layout_of_equal(copy, tensor) if slot is None else None
            if slot == 0:
                states.append(number)
            elif slot == 1 and number == len(copies) - 1:
                has_cell_state = True
            elif layout is not None:
                equal_to_h.append(HiddenValue(number, tensor, layout))
            elif depends_on(facts, tensor, first):
                raise Miss("{} is read by more than the copies", tensor)
            else:
                continue
            readers += [reader for reader in outside if isinstance(reader, Node)]
    return _OutsideReads(states, equal_to_h, has_cell_state, readers)


def _layout_of_equal(copy: CellCopy, tensor: Tensor) -> CellLayout | None:
    """The layout of a value that equals the new h of a copy; None for any other value."""
    value, h = (copy.lifter.value_or_none(t) for t in (tensor, copy.after[0]))
    is_equal = value is not None and h is not None and value.form.key == h.form.key
    return value.layout() if value is not None and is_equal else None


def _copy_inputs(facts: Facts, values: list[Tensor]) -> CopyInputs:
    slices = [axis_element(facts, tensor) for tensor in values]
    first = slices[0]
    for stride in (1, -1):
        if first is not None and all(
            other is not None and other == first.element(first.start + k * stride)
            for k, other in enumerate(slices)
        ):
            return CopyInputs(values, first, stride)
    return CopyInputs(values, None, 1)


def _operator(emit: Builder, facts: Facts, found: UnrolledCell) -> list[Tensor]:
    """Y, Y_h and Y_c."""
    copies, last = found.copies, found.copies[-1]
    parts = [
        to_operator_axes(emit, _stacked(emit, facts, inputs), last.layout(tensor), 1)
        for inputs, tensor in zip(found.inputs, last.inputs)
    ]
    x = parts[0] if len(parts) == 1 else emit("Concat", *parts, axis=2)
    initial = [
        None if is_zero(facts, tensor) else _initial_state(emit, facts, found, tensor, x)
        for tensor in copies[0].before
    ]
    names = [emit.like if found.hidden else omitted()]
    names += [t if is_read else omitted() for t, is_read in zip(last.after, found.finals)]
    return emit_operator(emit, last.cell, x, initial, names)


def _initial_state(
    emit: Builder, facts: Facts, found: UnrolledCell, tensor: Tensor, x: Tensor
) -> Tensor:
    """The initial state of the operator; a state with a single row is expanded to the batch."""
    layout = found.layout
    value = to_operator_axes(emit, tensor, layout, 0, direction=True)
    size = _initial_batch(facts, tensor, layout)
    if size == layout.size:
        return value
    state = BatchedOperand(value, 1, 3, size)
    return BatchBroadcast(emit, [BatchedOperand(x, 1, 3, layout.size), state], None).expand(state)


def _initial_batch(facts: Facts, tensor: Tensor, layout: CellLayout) -> Dim:
    """The batch size of an initial state; 1 if it has no batch axis."""
    return 1 if layout.batch is None else facts.known_shape(tensor)[layout.batch]


def _stacked(emit: Builder, facts: Facts, inputs: CopyInputs) -> Tensor:
    """The inputs of all copies along a new axis 0."""
    first, values = inputs.first, inputs.values
    if first is None and len(set(values)) == 1:
        return emit.repeat(values[0], emit.vector(len(values)))
    if first is None:
        return emit("Concat", *(emit.unsqueeze(t, [0]) for t in values), axis=0)
    sequence = _slice_elements(emit, first, inputs.stride, len(values))
    rank = len(facts.known_shape(first.source))
    stacked = emit.move_axis(sequence, first.axis, 0, rank)
    return emit.unsqueeze(stacked, [first.axis + 1] if first.keeps_axis else [])


def _slice_elements(emit: Builder, first: AxisRange, stride: int, count: int) -> Tensor:
    """A slice of the source of consecutive elements; the source itself if it has no others."""
    if stride == 1 and (first.start, count) == (0, first.length):
        return first.source
    end = first.start + stride * count
    elements = slice(first.start, end if end >= 0 else None, stride)
    return emit.slice(first.source, first.axis, elements)


# --- slices that are concatenated again ---


@dataclass(frozen=True)
class ConcatenatedSlices:
    """Consecutive single slices of a tensor that are concatenated."""

    first: AxisRange
    stride: int
    """1, or -1 if the last slice comes first."""
    axis: int
    """The axis of the Concat."""
    has_new_axis: bool
    """Whether an Unsqueeze gave the slices that axis; otherwise it is an axis of the tensor."""


class ConcatOfSlices(Rule[ConcatenatedSlices]):
    """Replaces a Concat of consecutive slices of one tensor by a Slice of the tensor."""

    root = "Concat"
    fires = """g (float[2,N] x) => (float[2,N] y) <int64 p = {0}, int64 q = {1}, int64[1] a = {0}> {
      u = Gather<axis=0>(x, p) v = Gather<axis=0>(x, q) s = Unsqueeze(u, a) t = Unsqueeze(v, a)
      w = Concat<axis=0>(s, t) y = Neg(w) }"""
    spares = {
        "is not the next slice": """g (float[3,N] x) => (float[2,N] y) <int64 p = {2}, int64 q = {0}, int64[1] a = {0}> {
      u = Gather<axis=0>(x, p) v = Gather<axis=0>(x, q) s = Unsqueeze(u, a) t = Unsqueeze(v, a)
      w = Concat<axis=0>(s, t) y = Neg(w) }""",
        "is not a single slice": """g (float[1,N] x) => (float[2,N] y) {
      u = Neg(x) w = Concat<axis=0>(u, x) y = Neg(w) }""",
    }

    def match(self, m: Match) -> ConcatenatedSlices:
        tensors, output = m.node.inputs, m.node.outputs[0]
        m.need(len(tensors) > 1, "it has one operand")
        rank = m.need(m.facts.rank(output), "the rank of {} is not known", output)
        axis = int(m.node.attrs["axis"]) % rank
        found = _single_slice(m.facts, tensors[0], axis)
        first, has_new_axis = m.need(found, "{} is not a single slice of a tensor", tensors[0])
        second = _single_slice(m.facts, tensors[1], axis)
        stride = -1 if second is not None and second[0].start < first.start else 1
        for number, tensor in enumerate(tensors):
            expected = first.element(first.start + number * stride), has_new_axis
            is_next = _single_slice(m.facts, tensor, axis) == expected
            m.need(is_next, "{} is not the next slice of {}", tensor, first.source)
        return ConcatenatedSlices(first, stride, axis, has_new_axis)

    def apply(self, patch: Patch, found: ConcatenatedSlices) -> None:
        first, axis, output = found.first, found.axis, patch.root.outputs[0]
        emit = patch.builder(output)
        value = _slice_elements(emit, first, found.stride, len(patch.root.inputs))
        source, rank = first.axis, len(patch.facts.known_shape(first.source))
        if not found.has_new_axis:  # the slices have size 1 along the axis of the Concat
            unit = axis if axis < source else axis + 1
            value, rank = emit.squeeze(value, [unit]), rank - 1
            source -= unit < source
        patch.replace(output, emit.move_axis(value, source, axis, rank))
        patch.toward_normal_form()
        patch.remove(patch.root)


def _single_slice(facts: Facts, tensor: Tensor, axis: int) -> tuple[AxisRange, bool] | None:
    """The slice that an operand of a Concat is, and whether an Unsqueeze gave it the axis."""
    node = facts.index.producer(tensor)
    if node is not None and node.op == "Unsqueeze" and not node.domain:
        inner = axis_element(facts, node.inputs[0])
        if inner is not None and not inner.keeps_axis and named_axes(facts, node) == [axis]:
            return inner, True
    own, shape = axis_element(facts, tensor), facts.shape(tensor)
    if own is None or own.keeps_axis or shape is None or axis >= len(shape) or shape[axis] != 1:
        return None
    return own, False
