"""Length masks: what a loop computes only while the iteration number is below the length of a row.

A padded batch runs to its longest sequence, and each row (one sequence of the batch) keeps its
states from its own length on. However that is spelled (Where, `m*new + (1-m)*old`, …), the body is
the cell within the length, and keeps its states beyond it. LSTM, GRU and RNN take the lengths as
`sequence_lens`, and fill Y with zeros beyond them (ONNX operator specification).

A length is recognised from a comparison of the iteration number with a limit, in the body or, for
all iterations, before the loop:

    m = Less(Unsqueeze(Range(0, T, 1)), lengths)    Loop(…) { m_t = Gather(m, i) … }

A loop that reads its sequences from the end reads the mask from the end as well: the padding then
comes first, and the states are the initial ones until the row begins.

Any other mask is data. It has lengths only if it is a prefix mask, true first and false from some
time step on: a constant with such elements, a part of one, or a value that the user asserts to be
one. The length of a row is then its number of true elements.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto, helper

from ...rewrite import symbolic
from ...rewrite.facts.counted_loop import CountedLoop, SliceRead
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.prefix_masks import is_prefix_mask
from ...rewrite.facts.purity import MIRRORED, TOTAL_ELEMENTWISE
from ...rewrite.graph.index import Use
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import CarriedValue, ScanOutput
from ...rewrite.running.evaluate import NotEvaluated, evaluate
from ...rewrite.symbolic import Dim
from . import affine_forms
from .lifting import Axis, BatchAxis, CellLayout, LiftedValue, numpy_type
from .position_runs import (
    FLOAT_TYPES,
    INDEX_TYPES,
    MOST_OFFSET,
    OperandAxis,
    PositionRun,
    axis_without_repetition,
    operand_axis,
    position_run,
    uniform_integer,
)

UNKNOWN_MASK = "not known to be a prefix mask"
"""What reasons say of a mask that may be any data."""
EXACT_IN_FLOAT = (1 << 24) - MOST_OFFSET
"""The number of iterations whose positions are exact in single precision. Comparing them with a
rounded limit is exact as well: rounding moves no limit across an exact number."""

_UNIT_AXES = frozenset({"Identity", "Squeeze", "Unsqueeze"})
"""Operators that add or remove axes of size 1 only."""
_COMPARE = {
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
}


@dataclass(frozen=True)
class RowLengths:
    """Iteration i is within the length of a row if its time step < limit + shift.

    The time step is i, or n - 1 - i of n where reversed.
    """

    limit: Tensor
    """An integer for each row, or one for all; or a prefix mask (outside)."""
    shift: int = 0
    mask_axis: int | None = None
    """The axis along which the limit is the number of true elements, if `limit` is a mask."""
    is_rounded: bool = False
    """Whether the time step is compared as a float."""
    is_difference: bool = False
    """Whether the sign of an integer difference is tested, which wraps around for some limits at
    the end of their type."""
    is_reverse: bool = False
    """Whether the first iteration has the last time step."""

    def turned(self, turns: bool) -> RowLengths:
        """The same lengths, for the opposite order of the iterations if `turns`."""
        return replace(self, is_reverse=self.is_reverse != turns)


@dataclass(frozen=True)
class LengthTest:
    """A mask with one value within the length of a row, and the opposite beyond it."""

    lengths: RowLengths
    within: bool
    """The value within the length."""

    def turned(self, turns: bool) -> LengthTest:
        """The same test, for the opposite order of the iterations if `turns`."""
        return replace(self, lengths=self.lengths.turned(turns))


@dataclass(frozen=True, eq=False)
class LengthMasks:
    """All masks of a body that test the same lengths."""

    lengths: RowLengths
    within: dict[Tensor, bool]
    """The masks, and their values within the length. A mask that was cast to floats is 1 or 0."""

    def lifted(self, facts: Facts, is_within: bool) -> dict[Tensor, LiftedValue]:
        """The masks as the constants that they are within the length, or beyond it."""
        values = {}
        for mask, truth in self.within.items():
            number = np.array([truth == is_within], numpy_type(facts, mask))
            values[mask] = LiftedValue(affine_forms.constant(number), _mask_axes(facts, mask))
        return values


def _mask_axes(facts: Facts, mask: Tensor) -> tuple[Axis, ...]:
    """The axes of a mask: an axis of more than one row is a batch axis."""
    return tuple(1 if n == 1 else BatchAxis(n) for n in facts.shape(mask) or ())


def length_masks(facts: Facts, loop: CountedLoop) -> list[LengthMasks]:
    """The length masks of a loop body by the lengths that they test."""
    found: dict[RowLengths, LengthMasks] = {}
    for mask, test in _length_tests(facts, loop):
        shape = facts.shape(mask)
        if shape is not None and sum(n != 1 for n in shape) < 2:
            masks = found.setdefault(test.lengths, LengthMasks(test.lengths, {}))
            masks.within[mask] = test.within
    return list(found.values())


def _length_tests(facts: Facts, loop: CountedLoop) -> Iterator[tuple[Tensor, LengthTest]]:
    for read in loop.reads:
        test = _test_along(facts, read.sequence, read.axis) or _prefix_mask_test(facts, read)
        test = None if test is None else _in_iterations(facts, loop, read, test)
        if test is not None:
            yield read.slice, test
    counters = dict(_counters(facts, loop))
    for node in facts.index.nodes(loop.body) if counters else ():
        test = _test_in_body(facts, loop, counters, node)
        if test is not None:
            yield node.outputs[0], test


def _in_iterations(
    facts: Facts, loop: CountedLoop, read: SliceRead, test: LengthTest
) -> LengthTest | None:
    """A test of the positions along the axis of a read as a test of the iterations; or None."""
    length = facts.known_shape(read.sequence)[read.axis]
    if test.lengths.is_reverse and not loop.reads_whole_axis(length):
        return None
    return test.turned(read.reverse)


def _length_test(
    op: str,
    positions: PositionRun,
    limit: Tensor,
    *,
    is_rounded: bool = False,
    is_difference: bool = False,
) -> LengthTest | None:
    """The comparison `positions op limit`; None for positions far from the time steps."""
    if abs(positions.first) > MOST_OFFSET:
        return None
    shift = int(op in ("LessOrEqual", "Greater")) - positions.first
    lengths = RowLengths(
        limit,
        shift,
        is_rounded=is_rounded,
        is_difference=is_difference,
        is_reverse=positions.is_reverse,
    )
    return LengthTest(lengths, op in ("Less", "LessOrEqual"))


# --- comparisons in the body ---


def _test_in_body(
    facts: Facts, loop: CountedLoop, counters: dict[Dim, PositionRun], node: Node
) -> LengthTest | None:
    """A comparison of the iteration number with a limit from outside."""
    if node.domain or node.op not in MIRRORED:
        return None
    (left, right), op = node.inputs, node.op
    positions = _positions_of(facts, loop, counters, left)
    if positions is None:
        (left, right), op = (right, left), MIRRORED[op]
        positions = _positions_of(facts, loop, counters, left)
    limit = _outer_integers(facts, loop, right)
    return None if positions is None or limit is None else _length_test(op, positions, limit)


def _outer_integers(facts: Facts, loop: CountedLoop, tensor: Tensor) -> Tensor | None:
    """The outer integers that a value is, apart from added or removed axes of size 1."""
    while (home := facts.index.home(tensor)) is not None and facts.dtype(tensor) in INDEX_TYPES:
        if not facts.index.encloses(loop.body, home):
            return tensor
        node = facts.index.producer(tensor)
        if node is None or node.domain or node.op not in _UNIT_AXES:
            return None
        tensor = node.inputs[0]
    return None


def _positions_of(
    facts: Facts, loop: CountedLoop, counters: dict[Dim, PositionRun], tensor: Tensor
) -> PositionRun | None:
    """The run that a value of the body goes through in the iterations."""
    number = uniform_integer(facts, tensor)
    if number is None or isinstance(number, int):
        return None
    for counter, run in counters.items():
        distance = symbolic.sub(number, counter)
        if isinstance(distance, int):
            return replace(run, first=run.first + distance)
        if loop.count is not None:
            last = symbolic.sub(symbolic.add(number, counter), loop.count)
            if isinstance(last, int):
                return PositionRun(last + 1 - run.first, not run.is_reverse)
    return None


def _counters(facts: Facts, loop: CountedLoop) -> Iterator[tuple[Dim, PositionRun]]:
    """The symbols of integers that go through a run in the iterations, each with its run."""
    if loop.iteration is not None:
        yield from _symbol(facts, loop.iteration, PositionRun(0))
    for state in loop.carried:
        start = facts.scalar(state.initial)
        if isinstance(start, int) and _grows_by_one(facts, state):
            yield from _symbol(facts, state.input, PositionRun(start))
    for read in loop.reads:
        run = None if read.reverse else position_run(facts, read.sequence, read.axis)
        if run is not None and not run.is_reverse:
            yield from _symbol(facts, read.slice, run)


def _grows_by_one(facts: Facts, state: CarriedValue) -> bool:
    node = facts.index.producer(state.output)
    if node is None or node.domain or node.op != "Add" or state.input not in node.inputs:
        return False
    other = node.inputs[1] if node.inputs[0] is state.input else node.inputs[0]
    return facts.scalar(other) == 1 and facts.dtype(other) in INDEX_TYPES


def _symbol(facts: Facts, tensor: Tensor, run: PositionRun) -> Iterator[tuple[Dim, PositionRun]]:
    number = facts.scalar(tensor)
    if number is not None and not isinstance(number, (bool, int)):
        yield number, run


# --- comparisons for all iterations, outside the loop ---


def _test_along(facts: Facts, tensor: Tensor, axis: int) -> LengthTest | None:
    """The comparison of the positions along an axis with lengths, if a value is one.

    Casts may come between, which keep 0 and 1 in any type.
    """
    is_negated = is_reverse = False
    while (node := facts.index.producer(tensor)) is not None and not node.domain:
        if node.op not in MIRRORED:
            is_negated ^= node.op == "Not"
            source = operand_axis(facts, node, axis)
            if source is None:
                return None
            tensor, axis, is_reverse = node.inputs[0], source.axis, is_reverse != source.is_reversed
            continue
        test = _comparison_along(facts, node, axis)
        if test is not None:
            return LengthTest(test.lengths.turned(is_reverse), test.within != is_negated)
        mask, keeps = _threshold(facts, node)
        if mask is None:
            return None
        tensor, is_negated = mask, is_negated ^ (not keeps)
    return None


def _threshold(facts: Facts, node: Node) -> tuple[Tensor | None, bool]:
    """The value for which a comparison tells 0 from 1, and the result of the comparison for 1.

    None as the value if the comparison has the same result for both.
    """
    for op, (value, bound) in _both_directions(node):
        limit = facts.constant(bound)
        if limit is not None and limit.size == 1 and facts.rank(bound) == 0:
            compare = _COMPARE[op]
            of_0, of_1 = (bool(compare(number, limit.item())) for number in (0, 1))
            if of_0 != of_1:
                return value, of_1
    return None, False


def _both_directions(node: Node) -> list[tuple[str, Sequence[Tensor]]]:
    """A comparison in both directions."""
    return [(node.op, node.inputs), (MIRRORED[node.op], list(node.inputs)[::-1])]


def _comparison_along(facts: Facts, node: Node, axis: int) -> LengthTest | None:
    """A comparison of the positions along an axis with one limit for each row, or one for all."""
    shape = facts.shape(node.outputs[0])
    compared = [(False, *pair) for pair in _both_directions(node)]
    compared += [(True, *pair) for pair in _compared_terms(facts, node)]
    for is_difference, op, (positions, limit) in compared:
        limit = _before_expansion(facts, limit)
        rows, whole = facts.shape(limit), _as_integers(facts, limit)
        if shape is None or rows is None or whole is None:
            continue
        other = axis - (len(shape) - len(rows))
        own = axis_without_repetition(facts, positions, shape, axis)
        found = None if own is None else position_run(facts, positions, own)
        is_per_row = (other < 0 or rows[other] == 1) and sum(n != 1 for n in rows) < 2
        if found is not None and is_per_row:
            dtype = facts.dtype(limit)
            return _length_test(
                op,
                found,
                whole,
                is_rounded=dtype == TensorProto.FLOAT,
                is_difference=is_difference and dtype in INDEX_TYPES,
            )
    return None


def _compared_terms(facts: Facts, node: Node) -> list[tuple[str, Sequence[Tensor]]]:
    """The comparison of a and b in both directions, where `a - b` is compared with zero."""
    found: list[tuple[str, Sequence[Tensor]]] = []
    for op, (difference, bound) in _both_directions(node):
        producer = facts.index.producer(difference)
        is_difference = producer is not None and producer.op == "Sub" and not producer.domain
        if producer is not None and is_difference and facts.scalar(bound) == 0:
            left, right = producer.inputs
            found += [(op, (left, right)), (MIRRORED[op], (right, left))]
    return found


def _before_expansion(facts: Facts, tensor: Tensor) -> Tensor:
    """A value before its expansion to a shape, which a comparison does by broadcasting anyway."""
    node = facts.index.producer(tensor)
    while node is not None and not node.domain and _expands(facts, node):
        tensor = node.inputs[0]
        node = facts.index.producer(tensor)
    return tensor


def _expands(facts: Facts, node: Node) -> bool:
    """Whether a node is an Expand, or a Tile that repeats only along axes of size 1."""
    if node.op != "Tile":
        return node.op == "Expand"
    before, after = facts.shape(node.inputs[0]), facts.shape(node.outputs[0])
    if before is None or after is None:
        return False
    return all(old == 1 or symbolic.eq(old, new) is True for old, new in zip(before, after))


def _as_integers(facts: Facts, tensor: Tensor) -> Tensor | None:
    """The integers that a value is, or was before a Cast to floats; None for any other value."""
    if facts.dtype(tensor) in INDEX_TYPES:
        return tensor
    node = facts.index.producer(tensor)
    while node is not None and not node.domain and node.op in _UNIT_AXES:
        tensor = node.inputs[0]
        node = facts.index.producer(tensor)
    is_cast = node is not None and node.op == "Cast" and facts.dtype(tensor) in FLOAT_TYPES
    if node is None or not is_cast or facts.dtype(node.inputs[0]) not in INDEX_TYPES:
        return None
    return node.inputs[0]


# --- prefix masks: constants, and masks that the user asserts ---


def _prefix_mask_test(facts: Facts, read: SliceRead) -> LengthTest | None:
    """The length test of a prefix mask that a loop reads slice by slice.

    None for other data, and for a mask that is asserted along another axis.
    """
    for origin in elementwise_origins(facts, read):
        tensor, axis = origin.tensor, origin.axis
        is_asserted = facts.prefix_masks.get(tensor) == axis
        is_reverse = False if is_asserted else _is_reversed_prefix_mask(facts, tensor, axis)
        if is_reverse is not None:
            values = _true_and_false(facts, tensor, origin.applied[::-1])
            lengths = RowLengths(tensor, mask_axis=axis, is_reverse=is_reverse)
            lengths = lengths.turned(origin.is_reverse)
            return LengthTest(lengths, values == (1, 0)) if values in ((1, 0), (0, 1)) else None
    return None


def _is_reversed_prefix_mask(facts: Facts, tensor: Tensor, axis: int) -> bool | None:
    """Whether a constant, or what is gathered from one, is a prefix mask in reverse order.

    False for a prefix mask, None for any other value.
    """
    if facts.dtype(tensor) not in (*INDEX_TYPES, *FLOAT_TYPES, TensorProto.BOOL):
        return None
    is_reverse = False
    while not facts.is_constant(tensor):
        node = facts.index.producer(tensor)
        if node is None or node.domain:
            return None
        source = operand_axis(facts, node, axis)
        if node.op == "Gather":
            source = _gathered_axis(facts, node, axis)
        if source is None or node.op in ("Cast", "Not"):
            return None
        tensor, axis, is_reverse = node.inputs[0], source.axis, is_reverse != source.is_reversed
    mask = facts.constant(tensor)
    if mask is None:
        return None
    if is_prefix_mask(mask, axis):
        return is_reverse
    is_suffix = axis < mask.ndim and is_prefix_mask(np.flip(mask, axis), axis)
    return not is_reverse if is_suffix else None


def _gathered_axis(facts: Facts, node: Node, axis: int) -> OperandAxis | None:
    """The axis of the data of a Gather along another axis; None for one that the indices give."""
    rank, indices = facts.rank(node.inputs[0]), facts.rank(node.inputs[1])
    if rank is None or indices is None:
        return None
    gathered = int(node.attrs.get("axis", 0)) % rank
    if axis < gathered:
        return OperandAxis(axis)
    return None if axis < gathered + indices else OperandAxis(axis - indices + 1)


def mask_of_another_axis(
    facts: Facts, reads: Iterable[SliceRead]
) -> tuple[Tensor, int, int] | None:
    """A mask that is asserted along another axis than the loop runs along, with both axes."""
    for read in reads if facts.prefix_masks else ():
        for origin in elementwise_origins(facts, read):
            asserted = facts.prefix_masks.get(origin.tensor, origin.axis)
            if asserted != origin.axis:
                return origin.tensor, asserted, origin.axis
    return None


@dataclass(frozen=True)
class ElementwiseOrigin:
    """A value from which a sequence is computed element by element."""

    tensor: Tensor
    axis: int
    """The axis that the loop runs along."""
    applied: Sequence[Node]
    """The operators that are applied to it, the last one first, until the next origin is asked for."""
    is_reverse: bool
    """Whether the sequence has it in reverse order along the axis."""


def elementwise_origins(facts: Facts, read: SliceRead) -> Iterator[ElementwiseOrigin]:
    """The values from which a sequence is computed element by element, the nearest first."""
    tensor, axis, is_reverse = read.sequence, read.axis, False
    applied: list[Node] = []
    while True:
        yield ElementwiseOrigin(tensor, axis, applied, is_reverse)
        node = facts.index.producer(tensor)
        if node is None or node.domain:
            return
        operand = _only_operand(facts, node)
        if operand is not None:
            applied.append(node)
            tensor = operand
            continue
        source = operand_axis(facts, node, axis)
        if source is None:
            return
        tensor, axis, is_reverse = node.inputs[0], source.axis, is_reverse != source.is_reversed


def _only_operand(facts: Facts, node: Node) -> Tensor | None:
    """The operand of an elementwise operator whose other operands are constant numbers."""
    if node.op not in TOTAL_ELEMENTWISE:
        return None
    operands = {tensor for tensor in node.inputs if not _is_number(facts, tensor)}
    operand = operands.pop() if len(operands) == 1 else None
    shape = None if operand is None else facts.shape(operand)
    return operand if shape is not None and shape == facts.shape(node.outputs[0]) else None


def _is_number(facts: Facts, tensor: Tensor) -> bool:
    shape = facts.shape(tensor)
    return facts.is_constant(tensor) and shape is not None and all(n == 1 for n in shape)


def _true_and_false(
    facts: Facts, mask: Tensor, nodes: Sequence[Node]
) -> tuple[float, float] | None:
    """What a chain of elementwise operators makes of true and of false; None if not known."""
    values = np.array([1, 0]).astype(helper.tensor_dtype_to_np_dtype(facts.dtype(mask)))
    for node in nodes:
        numbers = (facts.constant(t) if _is_number(facts, t) else None for t in node.inputs)
        operands = [values if number is None else number.reshape(1) for number in numbers]
        try:
            (values,) = evaluate(node, operands, facts.opsets)
        except NotEvaluated:
            return None
    return float(values[0]), float(values[1])


# --- masks after the loop ---


def is_masked_after_loop(
    facts: Facts, loop: CountedLoop, lengths: RowLengths, value: Tensor, layout: CellLayout
) -> bool:
    """Whether a value of the body is read beyond the lengths only to be masked after the loop.

    ys = Loop(…) { h1 = cell(x_t, h)  h' = Where(m_t, h1, h)  yield h1 }    z = Where(m, ys, 0)
    """
    return all(
        _is_masked(facts, lengths, use, output, facts.shape(output.stacked), layout)
        for output in loop.scan_outputs
        if output.slice is value and output.stacked is not None
        for use in facts.index.uses(output.stacked)
    )


def _is_masked(
    facts: Facts,
    lengths: RowLengths,
    use: Use,
    output: ScanOutput,
    stacked: Sequence[Dim] | None,
    layout: CellLayout,
) -> bool:
    """Whether a Where takes a scan output within the lengths, and something else beyond them.

    `stacked` is the shape of the scan output.
    """
    node = use.reader
    if not isinstance(node, Node) or node.domain or node.op != "Where":
        return False
    shape = facts.shape(node.inputs[0])
    missing = layout.rank + 1 - len(shape or ())
    time = output.axis - missing
    if shape is None or missing < 0 or time < 0:
        return False
    batch = None
    if layout.batch is not None:
        batch = layout.batch + (layout.batch >= output.axis) - missing
    if any(n != 1 for k, n in enumerate(shape) if k not in (time, batch)):
        return False
    if stacked is None or symbolic.eq(shape[time], stacked[output.axis]) is not True:
        return False  # one mask may be repeated for all time steps
    test = _test_along(facts, node.inputs[0], time)
    if test is None or test.lengths != lengths.turned(output.reverse):
        return False
    return use.slot == (1 if test.within else 2)
