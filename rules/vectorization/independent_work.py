"""Finds work of a loop body that depends on no carried value, and computes it outside the loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import TensorProto

from ...rewrite.engine.builder import Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.purity import cannot_fail, is_pure
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Constant, Node, Tensor, bodies
from ...rewrite.symbolic import Dim
from ..loops.counted_loop_checks import need_counted_loop
from . import (  # noqa: F401  they register batching rules
    axis_operators,
    data_movement,
    elementwise,
    matrix_products,
    recurrent_operators,
)
from .batching import BatchedNode, Plan, batching_rule_of, relative_cost, same_operator

_CRASH = "onnxruntime 1.31 crashes when it loads a half-precision product of a transposed tensor"
_INDEX_ELEMENTS = 4
"""The most elements of an index value, such as the bounds of a Slice."""
_MAX_GROWTH = 8
_SMALL = 1 << 13
"""A result with more elements than this per iteration, and more than _MAX_GROWTH times those of its
operands, stays in the body: for all iterations at once it would not fit the caches, or memory. On
onnxruntime, outer products for a state of 1536 x 16 run at 0.7 of the speed if they leave the loop."""
_PRODUCT_GROWTH = 16
_SMALL_PRODUCT = 1 << 16
"""The same for matrix products, which are faster for all iterations at once."""


@dataclass
class IndependentWork:
    """The nodes of a loop body that depend on no carried value, and so can leave the loop."""

    loop: CountedLoop
    plans: dict[Node, Plan] = field(default_factory=dict)
    """How to compute each of the nodes for all iterations, in the order in which they run."""
    batched: set[Tensor] = field(default_factory=set)
    """Values that may differ between iterations: slice reads and results of the nodes."""
    invariant: set[Tensor] = field(default_factory=set)
    """Results of the nodes that are the same in every iteration."""
    index_values: set[Tensor] = field(default_factory=set)
    """Short vectors and scalars that are functions of the iteration number alone."""
    first_miss: Miss | None = None
    """Why the first node that stays does so, although its operands depend on no carried value."""

    def is_independent(self, index: Index, tensor: Tensor) -> bool:
        """Whether a value is known outside of the loop for every iteration."""
        computed = tensor in self.batched or tensor in self.invariant
        return computed or self.loop.is_outer_value(index, tensor)


def need_independent_work(m: Match) -> IndependentWork:
    """What can leave the body of the root; raises Miss if the root is not a counted loop."""
    return m.once(_find_independent_work)


def _find_independent_work(m: Match) -> IndependentWork:
    loop, facts = need_counted_loop(m), m.facts
    work = IndependentWork(loop, batched={read.slice for read in loop.reads})
    if loop.iteration is not None:
        work.batched.add(loop.iteration)
        work.index_values.add(loop.iteration)
    reading = {read.gather for read in loop.reads}
    for node in facts.index.nodes_in_order(loop.body):
        reached = any(t in work.batched or t in work.invariant for t in node.inputs)
        if node in reading or not reached:
            continue
        try:
            plan = _plan(facts, work, node)
        except Miss as miss:
            work.first_miss = work.first_miss or miss
            continue
        if plan is not None:
            work.plans[node] = plan
            (work.invariant if plan.invariant else work.batched).update(node.outputs)
            if _is_index_arithmetic(facts, work, node):
                work.index_values.update(node.outputs)
    return work


def _plan(facts: Facts, work: IndependentWork, node: Node) -> Plan | None:
    """How to compute the node outside; None if it depends on a carried value.

    Raises Miss if it must stay for another reason.
    """
    index = facts.index
    if node.op == "Identity" or bodies(node) or not is_pure(node, index):
        return None
    if not all(work.is_independent(index, t) for t in node.inputs if t.name):
        return None
    batched = [t in work.batched for t in node.inputs]
    op = BatchedNode(node, facts, batched, work.loop.runs_at_least_once)
    if not any(batched):
        op.need_speculatable(cannot_fail(node, facts), "it may fail")
        return Plan(same_operator(op), invariant=True)
    rule = op.need(batching_rule_of(node), "there is no batching rule for {}", node)
    op.need(not _would_crash(op, work.loop), _CRASH)
    plan = rule(op)
    if not plan.invariant:
        _need_bounded_growth(op)
    return plan


def _would_crash(op: BatchedNode, loop: CountedLoop) -> bool:
    """Whether a node becomes a product of a transposed tensor in half precision."""
    index = op.facts.index
    if relative_cost(op.node) == 1 or op.facts.of(op.node.outputs[0]).dtype != TensorProto.FLOAT16:
        return False
    read = [each for each in loop.reads if each.slice in op.node.inputs]
    sources = (index.producer(each.sequence) for each in read)
    is_transposed = any(source is not None and source.op == "Transpose" for source in sources)
    return is_transposed or any(each.axis for each in read)


def _is_index_arithmetic(facts: Facts, work: IndependentWork, node: Node) -> bool:
    """Whether a node computes short values from the iteration number alone."""
    differing = [t for t in node.inputs if t in work.batched]
    return work.index_values.issuperset(differing) and all(
        _is_short(facts.shape(t)) for t in node.outputs
    )


def _is_short(shape: tuple[Dim, ...] | None) -> bool:
    if shape is None or len(shape) > 1:
        return False
    return all(isinstance(d, int) and d <= _INDEX_ELEMENTS for d in shape)


def _need_bounded_growth(op: BatchedNode) -> None:
    """Raises Miss if the results are much larger than the batched operands."""
    operands = [t for t, batched in zip(op.node.inputs, op.batched) if batched]
    read = sum(static_size(op.facts, t) for t in operands)
    made = sum(static_size(op.facts, t) for t in op.node.outputs)
    sentence = "it makes {} elements from {} in each iteration, too many to hold for all iterations"
    is_product = relative_cost(op.node) > 1
    op.need(may_materialize(made, read, is_product), sentence, made, read)


def static_size(facts: Facts, tensor: Tensor) -> int:
    """The product of the sizes of a value that are known numbers other than 0."""
    count = 1
    for dim in facts.shape(tensor) or ():
        count *= max(dim, 1) if isinstance(dim, int) else 1
    return count


def may_materialize(added: int, replaced: int, is_product: bool = False) -> bool:
    """Whether a value of `added` elements per iteration may be held for all iterations at once.

    `replaced` is the number of elements that are held for each iteration otherwise.
    """
    small, growth = (_SMALL_PRODUCT, _PRODUCT_GROWTH) if is_product else (_SMALL, _MAX_GROWTH)
    return added <= max(small, growth * replaced)


class HoistedValues:
    """The values of a loop body for all iterations, computed outside of the loop.

    A value that differs between iterations is stacked along axis 0. By default the nodes go before
    the root. If `after` lists results of the loop, they go before the first reader of these.
    """

    def __init__(
        self,
        patch: Patch,
        loop: CountedLoop,
        plans: Mapping[Node, Plan],
        after: Sequence[Tensor] | None = None,
    ) -> None:
        self._patch = patch
        self._loop = loop
        self._plans = plans
        self._after = after
        self._reads = {read.slice: read for read in loop.reads}
        self._values: dict[Tensor, Tensor] = {}

    def builder(self, like: Tensor) -> Builder:
        """A builder at the place of the values."""
        if self._after is None:
            return self._patch.builder(like)
        return self._patch.builder_after(like, self._after)

    def __getitem__(self, inner: Tensor) -> Tensor:
        """The stacked values of a value of the body, or the value itself if it is invariant.

        Its node must have been built, unless it is a slice read, the iteration number, or an outer
        value.
        """
        if inner not in self._values:
            self._values[inner] = self._source(inner)
        return self._values[inner]

    def __setitem__(self, inner: Tensor, outer: Tensor) -> None:
        self._values[inner] = outer

    def _source(self, inner: Tensor) -> Tensor:
        if inner in self._reads:
            emit = self.builder(inner)
            return emit.all_slices(self._patch.facts, self._loop, self._reads[inner])
        if inner is self._loop.iteration:
            return self.builder(inner).iteration_numbers(self._loop)
        if isinstance(inner, Constant) and inner.name:
            self._patch.hoist_constant(inner, self._patch.index.graph_of(self._loop.node))
        return inner

    def build(self, node: Node) -> None:
        """Builds a node for all iterations; those that compute its operands must have been built."""
        operands = [self[t] if t.name else t for t in node.inputs]
        like = next(t for t in node.outputs if t.name)
        results = self._plans[node].build(self.builder(like), operands)
        for inner, outer in zip(node.outputs, results):
            self[inner] = outer

    def build_producers(self, wanted: Iterable[Tensor]) -> None:
        """Builds all nodes that these values depend on and that have not been built yet."""
        index = self._patch.index
        waiting = [index.producer(t) for t in wanted if t not in self._values]
        needed: dict[Node, None] = {}
        while waiting:
            node = waiting.pop()
            if node is not None and node in self._plans and node not in needed:
                needed[node] = None
                waiting += [index.producer(t) for t in node.inputs if t not in self._values]
        for node in sorted(needed, key=lambda n: n.order):
            self.build(node)
