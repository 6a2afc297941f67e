"""The body of a counted loop as forms of what an iteration reads and carries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ...rewrite.facts.counted_loop import CountedLoop, SliceRead
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import CarriedValue
from ...rewrite.symbolic import Dim
from . import masks, movement, one_step, operators, products  # noqa: F401  they fill the lifter's table
from .atoms import Source
from .cells import Cell, Part
from .coefficients import NotAffine
from .gru import match_gru, match_rnn
from .layout import Layout, layout_of
from .lifting import FLOATS, Invariant, Lifter, as_one, source_value
from .lstm import match_lstm
from .obstacles import obstacle
from .values import Value, one_batch

_NOTHING: Mapping[Tensor, Value] = MappingProxyType({})


class Body:
    """What one iteration of a loop computes."""

    def __init__(
        self,
        facts: Facts,
        steps: CountedLoop,
        known: Mapping[Tensor, Value] = _NOTHING,
        contexts: Collection[Tensor] = (),
        same: Sequence[Dim] = (),
    ) -> None:
        """`known` are masks of the body, taken for all true or all false; `contexts` are values from
        outside that are no weights although they are of static shape; sizes in `same` count as one.
        """
        self.facts = facts
        self.steps = steps
        self._contexts = contexts
        self._same = same
        self._sources = {t: Value(v.form, one_batch(v.axes, same)) for t, v in known.items()}
        for state in steps.carried:
            self._add_source(state.input, ("state", id(state.input)), state)
        self._batch = self._batch_sizes()
        for read in steps.reads:
            name = ("read", id(read.sequence), read.axis, read.reverse)
            self._add_source(read.slice, name, read, self._batch)
        self.lifter = Lifter(facts, self._sources, self._is_inside, self._outer, same)

    def _is_inside(self, node: Node) -> bool:
        return self.facts.index.graph_of(node) is self.steps.body

    def _batch_sizes(self) -> set[Dim]:
        """The sizes of the batch axes of the states."""
        return {size for value in self._sources.values() for size in value.batch}

    def _add_source(
        self,
        tensor: Tensor,
        name: object,
        origin: SliceRead | CarriedValue,
        batch: Collection[Dim] = (),
    ) -> None:
        shape = self.facts.shape(tensor)
        if shape is None or self.facts.dtype(tensor) not in FLOATS or tensor in self._sources:
            return
        value = source_value(self.facts, tensor, as_one(shape, self._same), name, origin, batch)
        if isinstance(value, Value):
            self._sources[tensor] = value

    def _outer(self, tensor: Tensor) -> Value | NotAffine:
        """A weight where the shape is static; else a value that is the same in every iteration."""
        if self.facts.index.home(tensor) is self.steps.body:
            return NotAffine(f"`{tensor.name}` is no slice or state of a float type")
        weight = self.lifter.weight_value(tensor)
        if weight is not None and tensor not in self._contexts:
            return weight
        shape = self.facts.shape(tensor)
        if shape is None or self.facts.dtype(tensor) not in FLOATS:
            return NotAffine(f"`{tensor.name}` is computed outside the loop")
        name, origin = ("invariant", id(tensor)), Invariant(tensor)
        shape = as_one(shape, self._same)
        return source_value(self.facts, tensor, shape, name, origin, self._batch)

    def possible_contexts(self) -> set[Tensor]:
        """Values from outside, computed at run time, with an axis of the size of a static batch."""
        return {
            tensor
            for tensor in self.facts.index.captures(self.steps.node)
            if self.facts.constant(tensor) is None
            and self._batch.intersection((self.facts.shape(tensor) or ())[:-1])
        }

    def parts(self) -> dict[Tensor, Part]:
        """The states whose update has a form and the shape of the state, by their input."""
        found = ((state.input, self._part(state)) for state in self.steps.carried)
        return {tensor: part for tensor, part in found if part is not None}

    def _part(self, state: CarriedValue) -> Part | None:
        before = self._sources.get(state.input)
        if before is None:
            return None
        try:
            after = self.lifter.value(state.output)
        except NotAffine:
            return None
        ((source, _),) = before.form.atoms
        if after.axes != before.axes or not isinstance(source, Source):
            return None
        return Part(source, np.arange(source.width), after.form)

    def value(self, tensor: Tensor) -> Value | None:
        """The value of a tensor of the body; None where it has no form."""
        try:
            return self.lifter.value(tensor)
        except NotAffine:
            return None

    def layout(self, tensor: Tensor) -> Layout | None:
        """None where a value has several batch axes, or no form."""
        value = self.value(tensor)
        return None if value is None else layout_of(value)


def find_cell(h: Part, others: Sequence[Part]) -> Cell:
    """The cell whose output is the state h; an LSTM's cell state is one of the others.

    Raises NoCell with what is in the way.
    """
    cell = match_lstm(h, others) or match_gru(h) or match_rnn(h)
    if cell is None:
        raise obstacle(h)
    return cell
