"""Carried values with a closed form: their values in all iterations are computed without the loop.

    y = Loop(n, , s0) { x_t = Gather(x, i)  return true, s + x_t }   ->   y = s0 + ReduceSum(x[:n])

This module has what such rules share: they find the chain of operators that updates a carried
value, compute its running and final values outside, and drop it from the loop. The body then reads
running values as slices of an outer tensor. A running value is exclusive at the start of an
iteration (the sum of what came before) and inclusive at its end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from onnx import TensorProto

from ...rewrite import symbolic
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE
from ...rewrite.facts.splat import is_filled_with
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import CarriedValue
from ...rewrite.symbolic import Dim
from ..loops.counted_loop_checks import need_counted_loop
from ..vectorization.batching import align_rank
from ..vectorization.independent_work import HoistedValues, IndependentWork, need_independent_work

NUMBERS = FLOAT_OR_DOUBLE | {TensorProto.INT32, TensorProto.INT64}
"""Types for which onnxruntime has ReduceSum, ReduceProd, ReduceMax, ReduceMin and CumSum."""
_SMALL = 64
"""The most elements of an invariant value that may be repeated for each iteration."""


@dataclass(frozen=True)
class Operand:
    """A value that an iteration combines with a carried value."""

    value: Tensor
    negated: bool = False
    """Whether it is subtracted in a chain of sums."""


@dataclass(frozen=True)
class UpdateChain:
    """How an iteration updates a carried value: output = input ∘ operand ∘ operand …"""

    operands: tuple[Operand, ...]
    nodes: frozenset[Node]


@dataclass(frozen=True)
class ClosedForm:
    """A carried value with a closed form, and which of its values something reads."""

    number: int
    """The number of the carried value."""
    carried: CarriedValue
    shape: tuple[Dim, ...]
    """The shape of the carried value, the same in all iterations."""
    chain: UpdateChain
    reads_exclusive: bool
    """Whether nodes other than those of the chain read the value at the start of an iteration."""
    reads_inclusive: bool
    """Whether the body reads the value at the end of an iteration, or collects it."""
    final: Tensor | None
    """The value after the loop, if something reads it."""


@dataclass(frozen=True)
class ClosedForms:
    """The carried values of one loop that have a closed form."""

    work: IndependentWork
    forms: list[ClosedForm]


class ClosedFormRule(Rule[ClosedForms], ABC):
    """What the rules about carried values with closed forms share.

    A rule says which chain of operators it takes, for which types, and how to compute the values.
    """

    root = ("Loop", "Scan")
    no_chain: ClassVar[str] = ""
    """Why the rule does not fire where no carried value has such a chain."""
    types: ClassVar[frozenset[int]] = NUMBERS
    has_running_values: ClassVar[bool] = True
    """Whether the rule can compute running values."""
    repeats_invariants: ClassVar[bool] = True
    """Whether the final value takes a copy of each invariant operand for each iteration."""

    @abstractmethod
    def chain(self, m: Match, work: IndependentWork, carried: CarriedValue) -> UpdateChain | None:
        """The chain that updates a carried value, or None."""

    def supports(self, dtype: int) -> bool:
        """Whether there are operators for this element type."""
        return dtype in self.types

    def running_values(self, operands: ChainOperands, inclusive: bool) -> Tensor:
        """The carried value at the end, or at the start, of each iteration, stacked.

        Only of a rule that `has_running_values`.
        """
        raise NotImplementedError

    @abstractmethod
    def final_value(self, operands: ChainOperands) -> Tensor:
        """The carried value after the last iteration; the initial one if there is none."""

    def reads(self, index: Index, carried: CarriedValue, chain: UpdateChain) -> tuple[bool, bool]:
        """Whether something other than the chain reads the exclusive and inclusive values."""
        inner = {carried.input, *(n.outputs[0] for n in chain.nodes)} - {carried.output}
        exclusive = any(use.reader not in chain.nodes for t in inner for use in index.uses(t))
        return exclusive, index.use_count(carried.output) > 1

    def match(self, m: Match) -> ClosedForms:
        loop = need_counted_loop(m)
        work = need_independent_work(m)

        def closed_form(number: int) -> ClosedForm | None:
            carried = loop.carried[number]
            chain = self.chain(m, work, carried)
            if chain is None:
                return None
            return self._need_closed_form(m, work, number, carried, chain)

        numbers = range(len(loop.carried))
        return ClosedForms(work, m.every(closed_form, numbers, self.no_chain))

    def _need_closed_form(
        self,
        m: Match,
        work: IndependentWork,
        number: int,
        carried: CarriedValue,
        chain: UpdateChain,
    ) -> ClosedForm:
        at, initial = carried.input, carried.initial
        supported = self.supports(m.facts.dtype(initial))
        m.need(supported, "there is no operator for the type of {}", initial, at=at)
        changes = "the shape of {} may change in the loop"
        shape = m.need(m.facts.shape(initial), changes, at, at=at)
        m.need(symbolic.equal_shapes(m.facts.shape(at), shape), changes, at, at=at)
        for operand in chain.operands:
            value = operand.value
            fits = broadcasts_to(m.facts.shape(value), shape)
            m.need(fits, "{} may change the shape of the carried value", value, at=value)
        exclusive, inclusive = self.reads(m.index, carried, chain)
        final_only = not (exclusive or inclusive)
        if final_only and self.repeats_invariants:
            _need_small_invariants(m, work, chain, shape)
        m.need(
            self.has_running_values or final_only,
            "the body reads running values of {}, which no operator computes",
            at,
            at=at,
        )
        final = carried.final
        is_read = final is not None and m.index.use_count(final)
        return ClosedForm(
            number, carried, shape, chain, exclusive, inclusive, final if is_read else None
        )

    def apply(self, patch: Patch, found: ClosedForms) -> None:
        work, loop = found.work, found.work.loop
        edit = patch.loop(loop.node)
        edit.declare_scan_outputs(loop)
        hoisted = HoistedValues(patch, loop, work.plans)
        slices: list[tuple[Tensor, Tensor]] = []
        for form in found.forms:
            operands = ChainOperands(patch, work, form, hoisted)
            if form.reads_exclusive:
                slices.append((form.carried.input, self.running_values(operands, False)))
            if form.reads_inclusive:
                slices.append((form.carried.output, self.running_values(operands, True)))
            if form.final is not None:
                patch.replace(form.final, self.final_value(operands))
        edit.read_slices(slices)
        for form in found.forms:
            patch.replace(form.carried.input, form.carried.initial)
        edit.drop_carried([form.number for form in found.forms])
        edit.remove_if_unused()
        patch.toward_normal_form()


def _need_small_invariants(
    m: Match, work: IndependentWork, chain: UpdateChain, shape: Sequence[Dim]
) -> None:
    """Raises Miss for a large invariant operand.

    Copies of it for all iterations would take more memory than the loop and its inputs do.
    """
    read = [m.facts.shape(o.value) for o in chain.operands if o.value in work.batched]
    if any(symbolic.equal_shapes(each, shape) for each in read):
        return
    large = "{} is the same in every iteration, and too large to repeat for each of them"
    for operand in chain.operands:
        value = operand.value
        elements = symbolic.product(m.facts.known_shape(value))
        small = value in work.batched or symbolic.le(elements, _SMALL) is True
        m.need(small, large, value, at=value)


def broadcasts_to(shape: Sequence[Dim] | None, target: Sequence[Dim]) -> bool:
    """Whether a value of a shape is known to broadcast to the target shape, not beyond it."""
    if shape is None or len(shape) > len(target):
        return False
    return all(a == 1 or symbolic.eq(a, b) is True for a, b in zip(shape[::-1], target[::-1]))


def find_chain(
    m: Match, work: IndependentWork, carried: CarriedValue, ops: Sequence[str]
) -> UpdateChain | None:
    """The chain of these operators that updates a carried value; None if there is none.

    Its other operands depend on no carried value.
    """
    operands: list[Operand] = []
    nodes: list[Node] = []
    tensor = carried.output
    while tensor is not carried.input:
        node = m.producer(tensor, *ops, "Identity")
        if node is None or m.index.graph_of(node) is not work.loop.body:
            return None
        nodes.append(node)
        inputs = enumerate(node.inputs)
        dependent = [slot for slot, t in inputs if not work.is_independent(m.index, t)]
        if len(dependent) != 1 or (node.op == "Sub" and dependent != [0]):
            return None
        others = [t for slot, t in enumerate(node.inputs) if slot != dependent[0]]
        operands += [Operand(t, node.op == "Sub") for t in others]
        tensor = node.inputs[dependent[0]]
    return UpdateChain(tuple(operands), frozenset(nodes)) if operands else None


class ChainOperands:
    """The operands of a chain for all iterations, and the initial value, outside of the loop."""

    def __init__(
        self, patch: Patch, work: IndependentWork, form: ClosedForm, hoisted: HoistedValues
    ) -> None:
        self.emit = patch.builder(form.carried.input)
        self.initial = form.carried.initial
        self.shape = form.shape
        """The shape of the carried value."""
        self.facts = patch.facts
        self.dtype = patch.facts.dtype(self.initial)
        """The element type of the carried value."""
        self.runs_at_least_once = work.loop.runs_at_least_once
        self._work = work
        self._operands = form.chain.operands
        self._hoisted = hoisted

    def trip_count(self) -> Tensor:
        """The number of iterations, an int64 vector of one element."""
        return self.emit.trip_count(self._work.loop)

    def batched(self) -> list[Tensor]:
        """The operands that differ between iterations, stacked."""
        return self._stack([o for o in self._operands if o.value in self._work.batched])

    def invariant(self) -> list[Tensor]:
        """The operands that are the same in every iteration, once."""
        operands = [o for o in self._operands if o.value not in self._work.batched]
        self._hoisted.build_producers(o.value for o in operands)
        return [self._with_sign(o, self._hoisted[o.value]) for o in operands]

    @cached_property
    def stacked(self) -> list[Tensor]:
        """All operands, stacked; their slices have as many axes as the carried value."""
        return self._stack(self._operands)

    def combined(self, op: str) -> Tensor:
        """All operands of each iteration combined by an operator, stacked."""
        return self.emit.combine(op, self.stacked)

    def _stack(self, operands: Sequence[Operand]) -> list[Tensor]:
        emit = self.emit
        self._hoisted.build_producers(o.value for o in operands)
        stacked = []
        for operand in operands:
            value = self._hoisted[operand.value]
            rank = len(self.facts.known_shape(operand.value))
            if operand.value not in self._work.batched:
                value = emit.repeat(value, self.trip_count())
            value = align_rank(emit, value, True, rank, len(self.shape))
            stacked.append(self._with_sign(operand, value))
        return stacked

    def _with_sign(self, operand: Operand, value: Tensor) -> Tensor:
        return self.emit("Neg", value) if operand.negated else value

    def combination_has_full_shape(self) -> bool:
        """Whether the operands of an iteration combined have the shape of the carried value."""
        shapes = [self.facts.shape(o.value) for o in self._operands]
        return any(symbolic.equal_shapes(shape, self.shape) for shape in shapes)

    def starts_as(self, number: float) -> bool:
        """Whether all elements of the initial value are known to be this number."""
        return is_filled_with(self.facts, self.initial, number)
