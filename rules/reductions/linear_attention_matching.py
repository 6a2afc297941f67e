"""Matches the update of a carried value by outer products, and its reads by contractions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ...rewrite import symbolic
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.rule import Match
from ...rewrite.facts.axes import named_axes
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE
from ...rewrite.graph.einsum import einsum_letters
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import CarriedValue
from ...rewrite.symbolic import Dim
from ..vectorization.independent_work import IndependentWork
from .linear_recurrence_chunks import MAY_GROW
from .value_ranges import float_range

_MIN_ELEMENTS = 256
"""From this many elements of a carried value on, matrix products are faster on onnxruntime."""
_LIKELY = 64
"""The size that is assumed for an axis of unknown size: that of an attention head."""
_OTHER_READER = "{} reads {}, but is not a contraction of it"

Axes = tuple[int | None, ...]
"""The axis of the carried value for each axis of another value; None for an axis of size 1."""


@dataclass(frozen=True)
class Factor:
    """A value of the body that depends on no carried value, as a factor of an elementwise product."""

    value: Tensor
    axes: Axes
    """The axes of its elements; None also for an axis of size 1, along which it cannot vary."""

    def varies_along(self, axis: int) -> bool:
        """Whether the factor may differ along an axis of the carried value."""
        return axis in self.axes


@dataclass(frozen=True)
class Contraction:
    """A read of the carried value: its product with a vector, summed along one axis."""

    result: Tensor
    node: Node
    """The node that computes the result."""
    axis: int
    """The axis of the carried value that is summed over."""
    query: Factor
    bonus: list[Factor]
    """The factors of an outer product that is added to the carried value first; [] for none."""
    reads_next: bool
    """Whether it reads the updated value; else it reads the value from the iteration before."""
    kept: Axes
    """The axes of the result."""


@dataclass(frozen=True)
class LinearAttention:
    """A carried value updated by outer products and read by contractions only."""

    loop: CountedLoop
    work: IndependentWork
    number: int
    """The number of the carried value."""
    carried: CarriedValue
    decay: Factor | None
    """The factor of the carried value; None if it is not scaled."""
    added: list[Factor]
    """The factors of the outer product that each iteration adds."""
    reads: list[Contraction]
    batch: list[int]
    """The axes along which keys and values both vary."""
    columns: list[int]
    """The axes along which only values vary."""


def _likely_size(shape: Iterable[Dim]) -> int:
    """The number of elements of a shape, with _LIKELY for each unknown size."""
    return math.prod(n if isinstance(n, int) else _LIKELY for n in shape)


class LinearAttentionMatcher:
    """Matches the update and the reads of one carried value."""

    def __init__(self, m: Match, work: IndependentWork, number: int) -> None:
        self._m = m
        self._work = work
        self._loop = work.loop
        self._number = number
        self._carried = work.loop.carried[number]
        m.need(
            m.facts.dtype(self._carried.initial) in FLOAT_OR_DOUBLE,
            "{} is not a float tensor",
            self._carried.initial,
        )
        changes = "the shape of {} may change in the loop"
        shape = m.facts.shape(self._carried.initial)
        self._shape: tuple[Dim, ...] = m.need(shape, changes, self._carried.input)
        for value in (self._carried.input, self._carried.output):
            same = symbolic.equal_shapes(m.facts.shape(value), self._shape)
            m.need(same, changes, self._carried.input)
        self._all_axes: Axes = tuple(range(len(self._shape)))

    def find(self, update: Node) -> LinearAttention:
        """The recurrence whose update ends in this Add. Raises Miss if it is not linear attention."""
        m, carried = self._m, self._carried
        elements = _likely_size(self._shape)
        few = "{} has {} elements, fewer than {}"
        m.need(elements >= _MIN_ELEMENTS, few, carried.input, elements, _MIN_ELEMENTS)
        decay, own, added = self._decay_and_added(update)
        if own is not None:
            scaled = own.outputs[0]
            m.need(m.index.use_count(scaled) == 1, "another node than the update reads {}", scaled)
        reads = self._reads({update, own} if own is not None else {update})
        if decay is not None:
            self._need_bounded(decay)
        (axis, *others) = dict.fromkeys(read.axis for read in reads)
        m.need(not others, "the reads of {} sum over different axes", carried.input)
        columns = self._need_columns(axis, decay, added, reads)
        batch = [a for a in range(len(self._shape)) if a != axis and a not in columns]
        return LinearAttention(
            self._loop, self._work, self._number, carried, decay, added, reads, batch, columns,
        )  # fmt: skip

    def _need_bounded(self, decay: Factor) -> None:
        """Raises Miss unless all elements of the factor are known to be between -1 and 1."""
        inner = decay.value
        read = next((r.sequence for r in self._loop.reads if r.slice is inner), inner)
        low, high = float_range(self._m.facts, read)
        self._m.need(low >= -1 and high <= 1, MAY_GROW, inner)

    def _need_columns(
        self, axis: int, decay: Factor | None, added: list[Factor], reads: list[Contraction]
    ) -> list[int]:
        """The axes along which only values vary. Raises Miss if there is none."""
        shared = [] if decay is None else [decay]
        shared += [read.query for read in reads]
        outer = [*added, *(f for read in reads for f in read.bonus)]
        shared += [f for f in outer if f.varies_along(axis)]
        columns = [
            a for a in range(len(self._shape))
            if a != axis and not any(f.varies_along(a) for f in shared)
        ]  # fmt: skip
        size = _likely_size(self._shape[a] for a in columns)
        what = decay.value if decay is not None else added[0].value
        every = "{} varies along every axis of {}, so there is no matrix product"
        self._m.need(size > 1, every, what, self._carried.input)
        return columns

    def _decay_and_added(self, update: Node) -> tuple[Factor | None, Node | None, list[Factor]]:
        """The factor of the carried value, the node that applies it, and the factors that are added."""
        carried = self._carried
        other = "{} is not updated by an outer product"
        for scaled, added in (update.inputs, update.inputs[::-1]):
            if scaled is carried.input:
                return None, None, self._factors(added, self._all_axes)
            product = self._m.producer(scaled, "Mul")
            if product is not None and carried.input in product.inputs:
                a, b = product.inputs
                decay = self._factor(b if a is carried.input else a, self._all_axes)
                return decay, product, self._factors(added, self._all_axes)
        raise Miss(other, carried.output, at=carried.output)

    # --- factors ---

    def _factors(self, value: Tensor, axes: Axes) -> list[Factor]:
        """An elementwise or outer product as its factors; `axes` are those of the value."""
        node = self._m.index.producer(value)
        if node is not None and not node.domain and node.op in ("Mul", "MatMul", "Einsum"):
            terms = self._operand_axes(node, axes)
            if terms is not None:
                return [f for t, own in zip(node.inputs, terms) for f in self._factors(t, own)]
        return [self._factor(value, axes)]

    def _operand_axes(self, node: Node, axes: Axes) -> list[Axes] | None:
        """The axes of the operands of an elementwise or outer product; None if it is neither."""
        if node.op == "Einsum":
            letters = einsum_letters(node.attrs["equation"])
            if letters is None:
                return None
            terms, result = letters
            places = dict(zip(result, axes))
            fits = len(places) == len(result) == len(axes)
            if not fits or any(c not in places for term in terms for c in term):
                return None
            if any(len(set(term)) < len(term) for term in terms):  # the diagonal of an operand
                return None
            return [tuple(places[c] for c in term) for term in terms]
        shapes = [self._m.facts.shape(t) for t in node.inputs]
        if any(shape is None or len(shape) > len(axes) for shape in shapes):
            return None
        ranks = [len(shape or ()) for shape in shapes]
        if node.op == "Mul":
            return [axes[len(axes) - rank :] for rank in ranks]
        (a, b), first, second = shapes, *ranks
        if a is None or b is None or min(ranks) < 2 or a[-1] != 1 or b[-2] != 1:
            return None
        return [
            (*axes[len(axes) - first : -2], axes[-2], None),
            (*axes[len(axes) - second : -2], None, axes[-1]),
        ]

    def _factor(self, value: Tensor, axes: Axes) -> Factor:
        """A value that depends on no carried value, with the axes that it has. Raises Miss for others."""
        m, carried = self._m, self._carried
        node = m.index.producer(value)
        if node is not None and not node.domain and node.op == "Unsqueeze":
            new, rank = named_axes(m.facts, node), m.facts.rank(value)
            if new is not None and rank is not None and rank <= len(axes):
                axes = axes[len(axes) - rank :]
                kept = tuple(a for k, a in enumerate(axes) if k not in new)
                return self._factor(node.inputs[0], kept)
        depends = "{} depends on a carried value, or cannot be computed before the loop"
        m.need(self._work.is_independent(m.index, value), depends, value)
        shape = m.need(m.facts.shape(value), "the rank of {} is not known", value)
        axes = axes[len(axes) - len(shape) :] if len(shape) <= len(axes) else axes
        fits = len(axes) == len(shape) and all(
            size == 1 or (axis is not None and symbolic.eq(size, self._shape[axis]) is True)
            for size, axis in zip(shape, axes)
        )
        m.need(fits, "the shape of {} is not known to fit {}", value, carried.input)
        return Factor(value, tuple(None if n == 1 else a for n, a in zip(shape, axes)))

    # --- reads ---

    def _reads(self, own: set[Node]) -> list[Contraction]:
        """The contractions that read the carried value; `own` are the nodes of its update."""
        m, carried = self._m, self._carried
        reads = []
        for state, reads_next in ((carried.input, False), (carried.output, True)):
            for use in m.index.uses(state):
                if use.reader in own:
                    continue
                if not isinstance(use.reader, Node):
                    is_update = self._loop.carried_number(use) == self._number
                    m.need(is_update, "the body returns {}, not only contractions of it", state)
                    continue
                reads.append(self._read(use.reader, state, reads_next))
        m.need(bool(reads), "no carried value is read by contractions only")
        return reads

    def _read(self, node: Node, state: Tensor, reads_next: bool) -> Contraction:
        """A contraction of the carried value, or of its sum with an outer product."""
        bonus: list[Factor] = []
        added = self._other_operand(node, "Add", state)
        if added is not None:
            bonus = self._factors(added, self._all_axes)
            state, node = node.outputs[0], self._only_reader(node)
        query = self._other_operand(node, "Mul", state)
        if query is not None:
            node = self._only_reader(node)
            found = self._summed(node)
        elif node.op in ("MatMul", "Einsum") and not node.domain and len(node.inputs) == 2:
            left, right = node.inputs
            query = right if left is state else left
            rank = len(self._shape)
            if node.op == "Einsum":
                found = _einsum_contraction(node, rank, left is state)
            else:
                found = self._product(query, rank, left is state)
        else:
            found = None
        query = self._m.need(query, _OTHER_READER, node, state)
        axes, axis, kept = self._m.need(found, _OTHER_READER, node, state)
        factor = self._factor(query, axes)
        return Contraction(node.outputs[0], node, axis, factor, bonus, reads_next, kept)

    def _other_operand(self, node: Node, op: str, state: Tensor) -> Tensor | None:
        """The other operand of an Add or Mul of the state; None for another node."""
        inside = self._m.index.graph_of(node) is self._loop.body
        self._m.need(inside, "{} reads {} in another body", node, state)
        if node.domain or node.op != op or node.inputs[0] is node.inputs[1]:
            return None
        a, b = node.inputs
        return b if a is state else a

    def _only_reader(self, node: Node) -> Node:
        """The node that reads a result. Raises Miss unless it is the only reader."""
        uses = self._m.index.uses(node.outputs[0])
        reader = uses[0].reader if len(uses) == 1 else None
        only = reader if isinstance(reader, Node) else None
        return self._m.need(only, "{} does not have exactly one reader", node.outputs[0])

    def _summed(self, node: Node) -> tuple[Axes, int, Axes] | None:
        """The axes of the query, the contracted axis and the axes kept by a ReduceSum."""
        axes = named_axes(self._m.facts, node) if node.op == "ReduceSum" else None
        shape = self._m.facts.shape(node.inputs[0])
        if axes is None or len(axes) != 1 or shape is None or len(shape) != len(self._shape):
            return None
        kept: list[int | None] = list(range(len(shape)))
        if node.attrs.get("keepdims", 1):
            kept[axes[0]] = None
        else:
            del kept[axes[0]]
        return self._all_axes, axes[0], tuple(kept)

    def _product(self, query: Tensor, rank: int, is_left: bool) -> tuple[Axes, int, Axes] | None:
        """The axes, as `_summed` gives them, of a MatMul of the carried value and a vector.

        The vector may be a matrix of one row or one column.
        """
        shape, axes = self._m.facts.shape(query), self._all_axes
        if shape is None or not 0 < len(shape) <= rank or rank < 2:
            return None
        summed, free = (rank - 1, rank - 2) if is_left else (rank - 2, rank - 1)
        if len(shape) == 1:
            return (summed,), summed, tuple(a for a in axes if a != summed)
        if shape[-1 if is_left else -2] != 1:
            return None
        ends: tuple[Axes, Axes] = ((summed, None), (free, None))
        own, kept = ends if is_left else (ends[0][::-1], ends[1][::-1])
        return (*axes[rank - len(shape) : -2], *own), summed, (*axes[:-2], *kept)


def _einsum_contraction(node: Node, rank: int, is_left: bool) -> tuple[Axes, int, Axes] | None:
    """The axes of the query, the contracted axis and the axes kept by an Einsum."""
    letters = einsum_letters(node.attrs["equation"])
    if letters is None:
        return None
    terms, result = letters
    state, other = terms if is_left else terms[::-1]
    places = {letter: axis for axis, letter in enumerate(state)}
    summed = places.keys() - set(result)
    distinct = all(len(set(term)) == len(term) for term in (state, other, result))
    known = places.keys() >= set(other + result) and len(state) == rank
    if not distinct or not known or len(summed) != 1:
        return None
    kept = tuple(places[letter] for letter in result)
    return tuple(places[letter] for letter in other), places[summed.pop()], kept
