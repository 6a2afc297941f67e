"""The part of a loop body that no state reaches, and its values outside the loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match
from ...rewrite.facts.counted_loop import CountedLoop, counted_loop
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.purity import cannot_fail, is_pure
from ...rewrite.graph.ir import Constant, Graph, Node, Tensor, bodies
from . import axis_operators, batched_operators, data_movement, elementwise, matrix_products  # noqa: F401  they fill the table
from .operator_table import Plan, Work, as_is, rule_for

_FEW = 4
"""Elements of what still counts as a position, such as the bounds of a Slice."""
_MOST_GROWTH = 16
_SMALL = 1 << 16
"""A result with more elements than this per iteration, and more than _MOST_GROWTH times those it is
computed from, stays in the body: all of them at once would not fit the caches, or the memory."""


@dataclass
class Parallel:
    """What no state reaches: which values are known outside, and how to compute them there."""

    plans: dict[Node, Plan] = field(default_factory=dict)
    """In the order in which they run."""
    batched: dict[Tensor, None] = field(default_factory=dict)
    """Values that may differ between iterations."""
    uniform: dict[Tensor, None] = field(default_factory=dict)
    """Results that are the same in every iteration."""
    positions: dict[Tensor, None] = field(default_factory=dict)
    """A few numbers that follow from the iteration number alone."""
    miss: Miss | None = None
    """Why the first node stays that reads only such values."""


def counted(m: Match) -> CountedLoop:
    """The loop at the root as a number of steps; declines for a while loop."""
    if m.node.op == "Loop":
        need_count(m)
    steps = counted_loop(m.facts, m.node)
    m.need(steps is None or not isinstance(steps.count, int) or steps.count > 0, "it never runs")
    steps = m.need(steps, "the rank of what it reads, or of a row that it adds, is not known")
    if m.options.strict:
        _need_inside(m, steps)
    return steps


def _need_inside(m: Match, steps: CountedLoop) -> None:
    """Declines where an iteration may read behind the end: what takes all slices at once takes
    fewer then, and does not fail.
    """
    for read in steps.reads:
        shape = m.facts.shape(read.sequence)
        assert shape is not None, "the view holds only reads of known rank"
        length = shape[read.axis]
        known = steps.count is not None and symbolic.le(steps.count, length) is True
        m.need(
            steps.trip is None or known,
            "--strict: {} may have fewer slices than there are iterations",
            read.sequence,
            at=read.sequence,
        )


def need_count(m: Match) -> None:
    """Declines for a Loop that does not end after a number of iterations known before the first."""
    loop = m.loop()
    ends = loop.condition_out
    early = "it may end early: {} is computed in each iteration"
    m.need(loop.never_stops_early(m.facts), early, ends, at=ends)
    if loop.trip is None:
        raise Miss("it never ends: it has no trip count", at=m.node)
    if loop.iteration_shape != ():
        raise Miss("its body takes the iteration number {} as a vector", loop.iteration, at=m.node)


def parallel_work(facts: Facts, steps: CountedLoop) -> Parallel:
    """The nodes of the body that can be computed for all iterations at once."""
    found = Parallel()
    found.batched.update((read.slice, None) for read in steps.reads)
    if steps.iteration is not None:
        found.batched[steps.iteration] = None
        found.positions[steps.iteration] = None
    reading = {read.gather for read in steps.reads}
    runs = steps.runs_at_least_once
    for node in sorted(facts.index.nodes(steps.body), key=lambda n: n.order):
        if node not in reading and _depends_on(node, found):
            try:
                plan = _plan(facts, steps.body, node, found, runs)
            except Miss as miss:
                found.miss = found.miss or miss
                continue
            if plan is not None:
                found.plans[node] = plan
                (found.uniform if plan.uniform else found.batched).update(
                    (t, None) for t in node.outputs
                )
                if _is_position(facts, node, found):
                    found.positions.update((t, None) for t in node.outputs)
    return found


def _is_position(facts: Facts, node: Node, found: Parallel) -> bool:
    counts = all(t in found.positions for t in node.inputs if t in found.batched)
    return counts and all(_is_small_vector(facts, t) for t in node.outputs)


def _is_small_vector(facts: Facts, tensor: Tensor) -> bool:
    shape = facts.shape(tensor)
    if shape is None or len(shape) > 1:
        return False
    return all(isinstance(d, int) and d <= _FEW for d in shape)


def _depends_on(node: Node, found: Parallel) -> bool:
    return any(t in found.batched or t in found.uniform for t in node.inputs)


def _plan(facts: Facts, body: Graph, node: Node, found: Parallel, runs: bool) -> Plan | None:
    """How to compute the node outside; None if a state reaches it. Raises Miss if it must stay."""
    if node.op == "Identity" or bodies(node) or not is_pure(node, facts.index):
        return None
    given = [t for t in node.inputs if t.name]
    if not all(t in found.batched or t in found.uniform or is_outer(facts, body, t) for t in given):
        return None
    batched = [t in found.batched for t in node.inputs]
    work = Work(node, facts, batched, runs)
    if not any(batched):
        work.must_run(cannot_fail(node, facts), "it may fail")
        return Plan(as_is(work), uniform=True)
    plan = work.need(rule_for(node), "it works on one iteration at a time")(work)
    if not plan.uniform:
        _need_moderate_growth(work)
    return plan


def is_outer(facts: Facts, body: Graph, tensor: Tensor) -> bool:
    """Whether a value is the same in all iterations and there before the first."""
    return isinstance(tensor, Constant) or facts.index.is_outside(tensor, body)


def _need_moderate_growth(work: Work) -> None:
    operands = sum(
        known_elements(work.facts, t)
        for t, batched in zip(work.node.inputs, work.batched)
        if batched
    )
    results = sum(known_elements(work.facts, t) for t in work.node.outputs)
    work.need(
        is_moderate(results, operands),
        "it makes {} elements of {} in each iteration",
        results,
        operands,
    )


def known_elements(facts: Facts, tensor: Tensor) -> int:
    """The number of elements, open sizes left out."""
    count = 1
    for dim in facts.shape(tensor) or ():
        count *= max(dim, 1) if isinstance(dim, int) else 1
    return count


def is_moderate(more: int, instead_of: int) -> bool:
    """Whether so many elements of each iteration may be held at once instead of others."""
    return more <= max(_SMALL, _MOST_GROWTH * instead_of)


class Outside:
    """Values of the body for all iterations, computed in front of the loop."""

    def __init__(
        self,
        patch: Patch,
        steps: CountedLoop,
        facts: Facts,
        plans: Mapping[Node, Plan] | None = None,
    ) -> None:
        self.patch = patch
        self._steps = steps
        self._facts = facts
        self._plans = plans or {}
        self._reads = {read.slice: read for read in steps.reads}
        self._values: dict[Tensor, Tensor] = {}

    def emit(self, like: Tensor) -> Builder:
        return self.patch.builder(like)

    def __getitem__(self, inner: Tensor) -> Tensor:
        """The stacked value, or the value itself where it is the same in every iteration."""
        if inner not in self._values:
            self._values[inner] = self._source(inner)
        return self._values[inner]

    def __setitem__(self, inner: Tensor, outer: Tensor) -> None:
        self._values[inner] = outer

    def _source(self, inner: Tensor) -> Tensor:
        if inner in self._reads:
            return self.emit(inner).all_slices(self._facts, self._steps, self._reads[inner])
        if inner is self._steps.iteration:
            return self.emit(inner).iteration_numbers(self._steps)
        if isinstance(inner, Constant) and inner.name:
            self.patch.hoist_constant(inner, self.patch.index.graph_of(self._steps.node))
        return inner

    def compute(self, node: Node) -> None:
        """Makes the operator for all iterations; its operands must be known or computed."""
        operands = [self[t] if t.name else t for t in node.inputs]
        results = self._plans[node].build(self.emit(node.outputs[0]), operands)
        for inner, outer in zip(node.outputs, results):
            self[inner] = outer

    def compute_for(self, wanted: Iterable[Tensor]) -> None:
        """Makes whatever these values need."""
        index = self._facts.index
        waiting = [index.producer(t) for t in wanted if t not in self._values]
        needed: dict[Node, None] = {}
        while waiting:
            node = waiting.pop()
            if node is not None and node in self._plans and node not in needed:
                needed[node] = None
                waiting += [index.producer(t) for t in node.inputs if t not in self._values]
        for node in sorted(needed, key=lambda n: n.order):
            self.compute(node)
