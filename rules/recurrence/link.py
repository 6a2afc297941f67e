"""One step of an unrolled recurrence: the nodes between two states, as a cell."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ...rewrite.facts.facts import Facts
from ...rewrite.facts.reads import axis_element
from ...rewrite.graph.ir import Constant, Graph, Node, Tensor, Variable, bodies
from ...rewrite.symbolic import Dim
from . import values, weights
from .atoms import Activation, Picked, Product, Source
from .body import find_cell
from .cells import LINEAR, Cell, NoCell, Part, unclipped
from .coefficients import NotAffine, Pick
from .forms import Form
from .lifting import FLOATS, Lifter, source_value
from .values import Value

MOST_NODES = 400
"""A step with more nodes than this is no cell."""


@dataclass(frozen=True, eq=False)
class Link:
    """One step of a chain."""

    cell: Cell
    inputs: list[Tensor]
    """x of this step, in the order of `cell.inputs`."""
    before: list[Tensor]
    """h and, for an LSTM, c before the step."""
    after: list[Tensor]
    """The same after it."""
    nodes: list[Node]
    """What computes the step, in order."""
    lifter: Lifter


class Walker:
    """Gives every node to the first step that needs it."""

    def __init__(self, facts: Facts, copy: Node, sequences: Collection[Tensor] = ()) -> None:
        """`copy` is the first copy of what all steps apply. Steps read slices of `sequences` or, if
        there are none, of whatever does not depend on the copy: a step may slice its gates too.
        """
        self.facts = facts
        self.graph: Graph = facts.index.graph_of(copy)
        self.seen: set[Tensor] = set()
        self._copy = copy
        self._is_sequence = dict.fromkeys(sequences, True)
        self._only_these = bool(sequences)

    def start_at(self, h: Tensor) -> None:
        """What h is computed from belongs to no step: a step in front of it may have left a c."""
        index, waiting = self.facts.index, deque([h])
        while waiting and len(self.seen) < MOST_NODES:
            tensor = waiting.popleft()
            if tensor not in self.seen and tensor.name:
                self.seen.add(tensor)
                node = index.producer(tensor)
                if node is not None and index.graph_of(node) is self.graph:
                    waiting += node.inputs

    def visit(self, wanted: Tensor) -> list[Node]:
        """The nodes that `wanted` needs beyond what was visited before, in order."""
        index = self.facts.index
        nodes: dict[Node, None] = {}
        waiting = [wanted]
        while waiting:
            tensor = waiting.pop()
            if tensor in self.seen or not tensor.name:
                continue
            self.seen.add(tensor)
            node = index.producer(tensor)
            if node is None or index.graph_of(node) is not self.graph or bodies(node):
                continue
            if self._reads(tensor):
                continue
            nodes[node] = None
            waiting += node.inputs
        return sorted(nodes, key=lambda n: n.order)

    def _reads(self, tensor: Tensor) -> bool:
        """Whether a value is a slice of a sequence, which no step computes."""
        found = axis_element(self.facts, tensor)
        if found is None:
            return False
        if found.source not in self._is_sequence:
            free = not self._only_these and not depends_on(self.facts, found.source, self._copy)
            self._is_sequence[found.source] = free
        return self._is_sequence[found.source]


def lifter_of(walker: Walker, h: Tensor, nodes: Sequence[Node]) -> Lifter:
    """What lies outside the nodes counts as read; h by its own name even where it is a constant."""
    facts = walker.facts
    own = set(nodes)

    def outer(tensor: Tensor) -> Value | NotAffine:
        shape = facts.shape(tensor)
        if shape is None or facts.dtype(tensor) not in FLOATS:
            return NotAffine("its shape is not known")
        return source_value(facts, tensor, shape, ("outer", id(tensor)), tensor, batch)

    batch: tuple[Dim, ...] = ()
    constant = facts.constant(h)
    value = outer(h) if constant is None else _row(constant)
    sources = {h: value} if isinstance(value, Value) else {}
    batch = value.batch if isinstance(value, Value) else ()
    return Lifter(facts, sources, lambda node: node in own, outer)


def _row(state: weights.Array) -> Value:
    """A constant state, without the batch axis if it is the same all over it."""
    first = state[:1]
    same = state.ndim > 1 and np.array_equal(np.broadcast_to(first, state.shape), state)
    return values.constant(first if same else state)


def link_between(walker: Walker, h: Tensor, after: Tensor) -> Link:
    """The step between two states. Raises NoCell where it is no cell."""
    nodes = walker.visit(after)
    if len(nodes) > MOST_NODES:
        raise NoCell("a step is too long for a cell")
    lifter = lifter_of(walker, h, nodes)
    try:
        before, update = lifter.value(h), lifter.value(after)
    except NotAffine as reason:
        raise NoCell("{}", reason) from None
    source = before.form.atoms[0][0] if before.form.terms else None
    if not isinstance(source, Source) or before.axes != update.axes:
        raise NoCell("its state changes its shape")
    cell = find_cell(Part(source, np.arange(source.width), update.form), _cells(update.form))
    if cell.functions == [LINEAR]:  # any sum on the way to an activation is such a step
        raise NoCell("a step has no activation")
    given = [s.origin for s in (cell.h.source, *([cell.c.source] if cell.c else []))]
    ends = [after, *([_computing(lifter, nodes, cell.c.update)] if cell.c is not None else [])]
    return Link(cell, tensors_of([s.origin for s in cell.inputs]), tensors_of(given), ends, nodes,
                lifter)  # fmt: skip


def _computing(lifter: Lifter, nodes: Sequence[Node], form: Form) -> Tensor:
    """The value with this form."""
    for node in nodes:
        for tensor in node.outputs:
            try:
                if lifter.value(tensor).form.key == form.key:
                    return tensor
            except NotAffine:
                continue
    raise NoCell("its cell state is no value of its own")


def tensors_of(origins: Sequence[object]) -> list[Tensor]:
    return [t for t in origins if isinstance(t, (Variable, Constant))]


def _cells(update: Form) -> list[Part]:
    """What may be an LSTM's cell state: whatever the argument of the output activation keeps."""
    parts = []
    for atom, _ in update.atoms:
        for factor in atom.factors if isinstance(atom, Product) else ():
            if isinstance(factor, Activation):
                argument, _ = unclipped(factor.argument)
                parts += [Part(f.source, f.columns, argument) for f in picked_in(argument)]
    return parts


def picked_in(form: Form) -> list[Picked]:
    found = [
        factor
        for atom, _ in form.atoms
        for factor in (atom.factors if isinstance(atom, Product) else ())
        if isinstance(factor, Picked)
    ]
    alone = [
        Picked(atom, coefficient.columns)
        for atom, coefficient in form.atoms
        if isinstance(atom, Source) and isinstance(coefficient, Pick) and coefficient.complete
    ]
    return found + alone


def depends_on(facts: Facts, tensor: Tensor, on: Node) -> bool:
    """Whether a value may be computed from a node: True, too, where that takes long to find out."""
    index = facts.index
    waiting, seen = [tensor], set[Tensor]()
    while waiting and len(seen) < MOST_NODES:
        tensor = waiting.pop()
        node = index.producer(tensor)
        if node is on:
            return True
        if tensor not in seen and node is not None and node.order > on.order:
            seen.add(tensor)
            waiting += [t for t in node.inputs if t.name]
    return bool(waiting)
