"""The body of a counted loop as forms of what an iteration reads and carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ...rewrite.facts import Facts
from ...rewrite.ir import Node, Tensor
from ...rewrite.steps import Read, Steps
from ...rewrite.symbolic import Dim
from ...rewrite.views import State
from . import masks, movement, one_step, operators, products  # noqa: F401  they fill the lifter's table
from .atoms import Source
from .cells import Cell, Part
from .coefficients import NotAffine
from .gru import match_gru, match_rnn
from .lifting import FLOATS, Lifter, source_value
from .lstm import match_lstm
from .obstacles import obstacle
from .values import Batch, Value


@dataclass(frozen=True)
class Layout:
    """Where the features and the batch stand among the axes of a value; other axes have size 1."""

    rank: int
    features: int
    batch: int | None
    size: Dim
    """Of the batch; 1 where there is none."""

    @property
    def units(self) -> list[int]:
        return [k for k in range(self.rank) if k not in (self.features, self.batch)]


_NOTHING: Mapping[Tensor, Value] = MappingProxyType({})


class Body:
    """What one iteration of a loop computes."""

    def __init__(
        self, facts: Facts, steps: Steps, known: Mapping[Tensor, Value] = _NOTHING
    ) -> None:
        """`known` are masks of the body, taken for all true or all false."""
        self.facts = facts
        self.steps = steps
        self._sources: dict[Tensor, Value] = dict(known)
        for read in steps.reads:
            name = ("read", id(read.sequence), read.axis, read.reverse)
            self._add_source(read.slice, name, read)
        for state in steps.states:
            self._add_source(state.input, ("state", id(state.input)), state)
        self.lifter = Lifter(facts, self._sources, self._is_inside)

    def _is_inside(self, node: Node) -> bool:
        return self.facts.index.graph_of(node) is self.steps.body

    def _add_source(self, tensor: Tensor, name: object, origin: Read | State) -> None:
        shape = self.facts.shape(tensor)
        if shape is None or self.facts.dtype(tensor) not in FLOATS or tensor in self._sources:
            return
        value = source_value(self.facts, tensor, shape, name, origin)
        if isinstance(value, Value):
            self._sources[tensor] = value

    def parts(self) -> dict[Tensor, Part]:
        """The states whose update has a form and the shape of the state, by their input."""
        found = ((state.input, self._part(state)) for state in self.steps.states)
        return {tensor: part for tensor, part in found if part is not None}

    def _part(self, state: State) -> Part | None:
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
        """None where a value has several axes of features or of the batch, or none of features."""
        value = self.value(tensor)
        return None if value is None else layout_of(value)


def layout_of(value: Value) -> Layout | None:
    axes = value.axes
    batch = [k for k, a in enumerate(axes) if isinstance(a, Batch)]
    plain = [k for k in range(len(axes)) if k not in batch]
    wide = [k for k in plain if axes[k] != 1]
    if len(wide) > 1 or len(batch) > 1 or not plain:
        return None
    features = wide[0] if wide else plain[-1]
    if batch:
        size = axes[batch[0]]
        assert isinstance(size, Batch)
        return Layout(len(axes), features, batch[0], size.size)
    return Layout(len(axes), features, next((k for k in plain if k != features), None), 1)


def find_cell(h: Part, others: Sequence[Part]) -> Cell:
    """The cell whose output is the state h; an LSTM's cell state is one of the others.

    Raises NoCell with what is in the way.
    """
    cell = match_lstm(h, others) or match_gru(h) or match_rnn(h)
    if cell is None:
        raise obstacle(h)
    return cell
