"""States that have a closed form: their values in all iterations are computed without the loop.

    y = Loop(n, , s0) { x_t = Gather(x, i)  return true, s + x_t }   ->   y = s0 + ReduceSum(x[:n])

What is common to all of them: finding the states, replacing their values, dropping them. The value
at the start of an iteration (the sum of what came before) and the one at its end are read inside
like slices of any other outer value; their rows need no loop then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

from onnx import TensorProto

from ...rewrite import symbolic
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.splat import is_filled_with
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import CarriedValue
from ...rewrite.symbolic import Dim
from ..vectorization.independent_work import Outside, Parallel, counted, is_outer, parallel_work
from ..vectorization.operator_table import aligned

NUMBERS = FLOAT_OR_DOUBLE | {TensorProto.INT32, TensorProto.INT64}
"""Types of which onnxruntime has ReduceSum, ReduceProd, ReduceMax, ReduceMin and CumSum."""


@dataclass(frozen=True)
class Term:
    """An operand that meets the state in an iteration."""

    value: Tensor
    negative: bool = False


@dataclass(frozen=True)
class Chain:
    """state.output = state.input ∘ term ∘ term …"""

    terms: tuple[Term, ...]
    nodes: frozenset[Node]


@dataclass(frozen=True)
class Found:
    """A state with a closed form, and what is wanted of it."""

    steps: CountedLoop
    facts: Facts
    parallel: Parallel
    number: int
    state: CarriedValue
    chain: Chain
    before: bool
    """Whether the body reads the value at the start of an iteration otherwise."""
    after: bool
    """Whether the body reads, or collects, the value at its end."""
    runs: bool

    @property
    def final(self) -> Tensor | None:
        """The value after the loop, where something reads it."""
        final = self.state.final
        return final if final is not None and self.facts.index.use_count(final) else None


class StateRule(Rule):
    """What the rules about states with closed forms share. A rule says which chain of operators it
    knows, for which types, and how the values are computed.
    """

    root = ("Loop", "Scan")
    types: frozenset[int] = NUMBERS
    has_running_values = True
    """Whether there is an operator for the values in between."""

    def chain(self, m: Match, parallel: Parallel, state: CarriedValue) -> Chain | None:
        raise NotImplementedError

    def has_type(self, dtype: int) -> bool:
        return dtype in self.types

    def running(self, values: Values, inclusive: bool) -> Tensor:
        """The state at the end, or at the start, of each iteration."""
        raise NotImplementedError

    def last(self, values: Values) -> Tensor:
        """The state after the last iteration."""
        raise NotImplementedError

    def match(self, m: Match) -> dict[str, Any]:
        steps = counted(m)
        parallel = parallel_work(m.facts, steps)
        found: list[Found] = []
        first: Miss | None = None
        for number, state in enumerate(steps.carried):
            try:
                chain = self.chain(m, parallel, state)
                if chain is not None:
                    found.append(self._checked(m, steps, parallel, number, state, chain))
            except Miss as miss:
                first = first or miss
        if not found:
            raise first or Miss(self.nothing, at=m.node)
        return {"steps": steps, "facts": m.facts, "parallel": parallel, "found": found}

    nothing = ""
    """Why the rule does not fire where no state has such a chain."""

    def _checked(
        self,
        m: Match,
        steps: CountedLoop,
        parallel: Parallel,
        number: int,
        state: CarriedValue,
        chain: Chain,
    ) -> Found:
        at = state.input
        dtype = m.facts.dtype(state.initial)
        m.need(
            self.has_type(dtype), "there is no operator for the type of {}", state.initial, at=at
        )
        shape = m.facts.shape(state.input)
        start = m.facts.shape(state.initial)
        keeps = symbolic.equal_shapes(shape, start)
        m.need(keeps, "the shape of {} may change in the loop", state.input, at=at)
        assert start is not None
        for term in chain.terms:
            fits = fits_into(m.facts.shape(term.value), start)
            m.need(fits, "{} may change the shape of the state", term.value, at=term.value)
        before, after = self.wanted(m.index, state, chain)
        large = None if before or after else self.too_large_to_repeat(m, parallel, chain, start)
        sentence = "{} is the same in every iteration, and too large to fold copies of it"
        m.need(large is None, sentence, large, at=large or at)
        m.need(
            self.has_running_values or not (before or after),
            "there is no operator for the values in between, which the body reads",
            at=at,
        )
        runs = steps.runs_at_least_once
        return Found(steps, m.facts, parallel, number, state, chain, before, after, runs)

    def too_large_to_repeat(
        self, m: Match, parallel: Parallel, chain: Chain, state: Sequence[Dim]
    ) -> Tensor | None:
        """A term that no iteration changes, and of which a copy for each would take memory that
        neither the loop nor what it reads does.
        """
        read = [m.facts.shape(t.value) for t in chain.terms if t.value in parallel.batched]
        if any(symbolic.equal_shapes(shape, state) for shape in read):
            return None
        for term in chain.terms:
            shape = m.facts.shape(term.value)
            size = None if shape is None else symbolic.product(shape)
            small = size is not None and symbolic.le(size, _SMALL) is True
            if term.value not in parallel.batched and not small:
                return term.value
        return None

    def wanted(self, index: Index, state: CarriedValue, chain: Chain) -> tuple[bool, bool]:
        """Whether something but the chain reads the state at the start, and the end, of a step."""
        inner = {state.input, *(n.outputs[0] for n in chain.nodes)} - {state.output}
        before = any(use.reader not in chain.nodes for t in inner for use in index.uses(t))
        return before, len(index.uses(state.output)) > 1

    def apply(
        self, patch: Patch, steps: CountedLoop, facts: Facts, parallel: Parallel, found: list[Found]
    ) -> None:
        patch.loop(steps.node).declare_scan_outputs(facts, steps)
        outside = Outside(patch, steps, facts, parallel.plans)
        reads: list[tuple[Tensor, Tensor]] = []
        for each in found:
            values = Values(patch, each, outside)
            if each.before:
                reads.append((each.state.input, self.running(values, False)))
            if each.after:
                reads.append((each.state.output, self.running(values, True)))
            if each.final is not None:
                patch.replace(each.final, self.last(values))
        patch.loop(steps.node).read_slices(steps.iteration, reads)
        for each in found:
            patch.replace(each.state.input, each.state.initial)
        patch.loop(steps.node).drop_carried([each.number for each in found])
        patch.loop(steps.node).remove_if_unused()
        patch.toward_normal_form()


_SMALL = 64
"""Elements of a value that may be copied once per iteration."""


def fits_into(shape: Sequence[Dim] | None, target: Sequence[Dim]) -> bool:
    """Whether a value broadcasts to the target shape without making it larger."""
    if shape is None or len(shape) > len(target):
        return False
    return all(a == 1 or symbolic.eq(a, b) is True for a, b in zip(shape[::-1], target[::-1]))


class Values:
    """The terms of a state for all iterations, and its initial value, outside the loop."""

    def __init__(self, patch: Patch, found: Found, outside: Outside) -> None:
        self.found = found
        self.initial = found.state.initial
        self.emit = patch.builder(found.state.input)
        self.outside = outside
        self.shape = found.facts.shape(self.initial) or ()

    def is_fixed(self, term: Term) -> bool:
        """Whether a term is the same in every iteration."""
        return term.value not in self.found.parallel.batched

    def fixed(self) -> list[Tensor]:
        """The terms that are the same in every iteration, once."""
        terms = [term for term in self.found.chain.terms if self.is_fixed(term)]
        self.outside.compute_for(term.value for term in terms)
        values = [self.outside[term.value] for term in terms]
        return [self.emit("Neg", v) if t.negative else v for t, v in zip(terms, values)]

    @cached_property
    def terms(self) -> list[Tensor]:
        """One stacked value for each term, slices with as many axes as the state."""
        return self.stacked(self.found.chain.terms)

    def stacked(self, terms: Sequence[Term]) -> list[Tensor]:
        """Such a value for each of these terms."""
        found, emit = self.found, self.emit
        self.outside.compute_for(term.value for term in terms)
        stacked = []
        for term in terms:
            value = self.outside[term.value]
            rank = found.facts.rank(term.value)
            assert rank is not None, "its shape was compared with that of the state"
            if self.is_fixed(term):
                value = emit.repeat(value, self.count())
            value = aligned(emit, value, True, rank, len(self.shape))
            stacked.append(emit("Neg", value) if term.negative else value)
        return stacked

    def combined(self, op: str) -> Tensor:
        """All terms of each iteration joined by an operator."""
        return reduce(lambda a, b: self.emit(op, a, b), self.terms)

    def count(self) -> Tensor:
        return self.emit.trip_count(self.found.steps)

    def has_full_shape(self) -> bool:
        """Whether a term has the shape of the state, so that their combination has it too."""
        shapes = [self.found.facts.shape(t.value) for t in self.found.chain.terms]
        return any(symbolic.equal_shapes(s, self.shape) for s in shapes)

    def starts_as(self, number: float) -> bool:
        """Whether the initial state is this number everywhere."""
        return is_filled_with(self.found.facts, self.initial, number)


def chain_of(m: Match, parallel: Parallel, state: CarriedValue, ops: Sequence[str]) -> Chain | None:
    """The chain of these operators through which a state goes, other operands free of states."""
    body = m.index.home(state.input)
    assert body is not None
    terms: list[Term] = []
    nodes: list[Node] = []
    tensor = state.output
    while tensor is not state.input:
        node = m.producer(tensor, *ops, "Identity")
        if node is None or m.index.graph_of(node) is not body:
            return None
        nodes.append(node)
        dependent = [
            slot
            for slot, t in enumerate(node.inputs)
            if t not in parallel.batched
            and t not in parallel.uniform
            and not is_outer(m.facts, body, t)
        ]
        if len(dependent) != 1 or (node.op == "Sub" and dependent != [0]):
            return None
        others = [t for slot, t in enumerate(node.inputs) if slot != dependent[0]]
        terms += [Term(t, node.op == "Sub") for t in others]
        tensor = node.inputs[dependent[0]]
    return Chain(tuple(terms), frozenset(nodes)) if terms else None
