"""The body of a counted loop as forms of what an iteration reads and carries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ...rewrite.facts import Facts
from ...rewrite.ir import Node, Tensor
from ...rewrite.steps import Read, Steps
from ...rewrite.symbolic import Dim
from ...rewrite.views import State
from . import masks, movement, one_step, operators  # noqa: F401  they fill the lifter's table
from .cells import OVERFLOWING, Cell, NoCell, Part, unknown
from .coefficients import NotAffine, Pick
from .forms import Activation, Form, Picked, Product, Source
from .gru import match_gru, match_rnn
from .lifting import FLOATS, Lifter, Unknown, source_value
from .lstm import match_lstm
from .values import Batch, Value

NO_UPDATE = "the update of {} is that of no LSTM, GRU or RNN"
"""What is said where nothing more telling is known."""


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
        if shape is None or self.facts.dtype(tensor) not in FLOATS:
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
        raise _obstacle(h)
    return cell


def _obstacle(h: Part) -> NoCell:
    """Why an update is that of no cell, as far as one value is to blame."""
    for source in h.update.sources():
        if isinstance(source.origin, Unknown):
            return unknown(source.origin)
    if OVERFLOWING in _functions_in(h.update):
        return NoCell("{} overflows inside onnxruntime's recurrent operators", OVERFLOWING)
    for read in _reads_as_factors(h.update):
        return NoCell(
            "the update of {} is multiplied by slices of {}, which are data: no operator has such "
            "a mask or decay",
            _tensor(h.source),
            read.sequence,
        )
    if any(not isinstance(a, Source) and not isinstance(c, Pick) for a, c in h.update.atoms):
        return NoCell("{} is a matrix times what the cell computes: no operator has a projection",
                      _tensor(h.source))  # fmt: skip
    return NoCell(NO_UPDATE, _tensor(h.source))


def _tensor(source: Source) -> object:
    return source.origin.input if isinstance(source.origin, State) else source.origin


def _reads_as_factors(form: Form) -> Iterator[Read]:
    for atom, _ in form.atoms:
        for factor in atom.factors if isinstance(atom, Product) else ():
            if isinstance(factor, Picked) and isinstance(factor.source.origin, Read):
                yield factor.source.origin


def _functions_in(form: Form) -> set[str]:
    """The activations that a form is made of, at whatever depth."""
    found: set[str] = set()
    waiting = [form]
    while waiting:
        for atom, _ in waiting.pop().atoms:
            factors = atom.factors if isinstance(atom, Product) else (atom,)
            for factor in factors:
                if isinstance(factor, Activation):
                    found.add(factor.function)
                    waiting.append(factor.argument)
    return found
