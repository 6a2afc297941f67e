"""The parts of which cells are made: states, gates, their affine forms taken apart.

Gates are activations of affine forms of the reads and the previous h (ONNX operator specification:
LSTM, GRU, RNN). Which activations the operators know, and how others become one of them, is known
here; the equations of the cells are in `lstm`, `gru` and `rnn`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...rewrite.graph.views import CarriedValue
from . import weights
from .atoms import Activation, Affine, Factor, Picked, Source
from .coefficients import Pick, dense
from .forms import Form
from .lifting import Unknown
from .weights import Array, Weight

FUNCTIONS = frozenset(
    {"Affine", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "ScaledTanh", "Sigmoid", "Softsign",
     "Tanh", "ThresholdedRelu"}
)  # fmt: skip
"""The activations of the RNN operators that onnxruntime computes as it does the operators of their
names. The one left out is Softplus: inside an LSTM, GRU or RNN it overflows from about 88 on."""
OVERFLOWING = "Softplus"

Function = tuple[str, tuple[float, ...]]
"""An activation with its alpha and beta, as far as it has them."""
LINEAR: Function = ("Affine", (1.0, 0.0))


class NoCell(Exception):
    """An update is that of no cell; the sentence has a `{}` for each value."""

    def __init__(self, sentence: str, *given: object) -> None:
        self.sentence, self.given = sentence, given
        super().__init__(sentence)


class Dependency(NoCell):
    """A cell depends on a value that has no form."""

    def __init__(self, origin: Unknown, is_factor: bool = False) -> None:
        """`is_factor` says whether the update is multiplied by the value."""
        self.origin, self.is_factor = origin, is_factor
        super().__init__("it depends on {}: {}", origin.node, origin.reason)


@dataclass(frozen=True, eq=False)
class Part:
    """Some features of a state."""

    source: Source
    columns: Array
    update: Form
    """What they are after the iteration."""

    @property
    def hidden(self) -> int:
        return len(self.columns)

    def is_factor(self, factor: Factor) -> bool:
        if not isinstance(factor, Picked) or factor.source.key != self.source.key:
            return False
        return np.array_equal(factor.columns, self.columns)

    def scale_in(self, form: Form) -> Weight | None:
        """The factor of this very part in a form; None where it is not there, or mixed."""
        found = form.terms.get(self.source.key)
        if found is None or not isinstance(found[1], Pick):
            return None
        return found[1].scale if np.array_equal(found[1].columns, self.columns) else None


@dataclass(frozen=True, eq=False)
class Gate:
    """An activation of a form."""

    function: Function
    form: Form

    @property
    def key(self) -> bytes:
        name, parameters = self.function
        if self.function == LINEAR:
            return Affine(self.form).key
        return Activation(name, parameters, self.form).key


@dataclass(frozen=True, eq=False)
class Linear:
    """A gate's affine form taken apart; matrices have the shape (features in, features out)."""

    inputs: dict[bytes, tuple[Source, Weight]]
    recurrent: Weight
    bias: Weight
    recurrent_bias: Weight | None = None
    """That of a GRU's candidate whose reset comes after the product."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One operator's worth of a body."""

    op: str
    h: Part
    c: Part | None
    gates: list[Linear]
    """In the operator's order: LSTM i, o, f, c; GRU z, r, h."""
    functions: list[Function]
    attributes: dict[str, float] = field(default_factory=dict)
    peepholes: list[Weight] | None = None
    """Of the gates i, o and f."""

    @property
    def inputs(self) -> list[Source]:
        """The reads, in the order in which the gates mention them."""
        found = {key: source for gate in self.gates for key, (source, _) in gate.inputs.items()}
        return list(found.values())


def gate_of(factor: Factor) -> Gate | None:
    """A factor as a gate; an affine form is one too."""
    if isinstance(factor, Activation) and factor.function in FUNCTIONS:
        return Gate((factor.function, factor.parameters), factor.argument)
    return Gate(LINEAR, factor.form) if isinstance(factor, Affine) else None


def is_all(vector: Weight, number: float) -> bool:
    return isinstance(vector, np.ndarray) and bool(np.all(vector == number))


def with_scale(function: Function, scale: Weight) -> Function | None:
    """An activation times a number as an activation; None where there is none such."""
    if is_all(scale, 1):
        return function
    if not isinstance(scale, np.ndarray) or not np.all(scale == scale.flat[0]):
        return None
    factor = float(scale.flat[0])
    name, parameters = function
    if name == "Tanh":
        return "ScaledTanh", (factor, 1.0)
    if name == "Affine":
        return "Affine", (parameters[0] * factor, parameters[1] * factor)
    return None


def scaled_gate(gate: Gate, scale: Weight) -> Gate | None:
    """A gate times a positive number or, where its activation allows, any number."""
    function = with_scale(gate.function, scale)
    return None if function is None else Gate(function, gate.form)


def complement(gate: Gate) -> Gate | None:
    """1 minus the gate: of a sigmoid, the sigmoid of the negated form."""
    name, parameters = gate.function
    form = gate.form.scaled(np.full(gate.form.width, -1, gate.form.dtype))
    if name == "Sigmoid":
        return Gate(gate.function, form)
    if name == "HardSigmoid":
        alpha, beta = parameters
        shift = np.full(form.width, (1 - 2 * beta) / alpha, form.dtype)
        return Gate(gate.function, form.plus(shift))
    return None


def alike(gates: Sequence[Gate]) -> list[Gate] | None:
    """Gates of one activation; None where they differ. Hard sigmoids get the same slope: one that
    is written as a Clip has the slope in its form.
    """
    if all(g.function == gates[0].function for g in gates):
        return list(gates)
    if any(g.function[0] != "HardSigmoid" for g in gates):
        return None
    wanted = next((g.function for g in gates if g.function[1] != (1.0, 0.0)), gates[0].function)
    return [_with_slope(g, wanted) for g in gates]


def _with_slope(gate: Gate, wanted: Function) -> Gate:
    (alpha, beta), (slope, shift) = gate.function[1], wanted[1]
    factor, constant = (
        np.full(gate.form.width, v, gate.form.dtype)
        for v in (alpha / slope, (beta - shift) / slope)
    )
    return Gate(wanted, gate.form.scaled(factor).plus(constant))


def unclipped(form: Form) -> tuple[Form, float | None]:
    """What a form clips to -bound … bound, and the bound. What is negated behind the clip may as
    well be negated in front of it.
    """
    whole = form.only()
    if whole is None or not isinstance(whole[0], Activation):
        return form, None
    atom, scale = whole[0], whole[1]
    same = is_all(scale, 1)
    if atom.function != "Clip" or atom.parameters[0] != -atom.parameters[1]:
        return form, None
    if not same and not is_all(scale, -1):
        return form, None
    return atom.argument if same else atom.argument.scaled(scale), atom.parameters[1]


def opened(gates: Sequence[Gate]) -> tuple[list[Form], dict[str, float]]:
    """What the gates are activations of, and the attribute for the clip they have in common.

    Raises NoCell where they are clipped differently.
    """
    found = [unclipped(gate.form) for gate in gates]
    bound = found[0][1]
    if any(other != bound for _, other in found):
        raise NoCell("only some of its gates are clipped, or to different bounds")
    return [form for form, _ in found], {} if bound is None else {"clip": bound}


def without(form: Form, source: Source) -> Form:
    terms = {key: term for key, term in form.terms.items() if key != source.key}
    return Form(form.width, terms, form.bias)


def taken_apart(form: Form, h: Part) -> Linear:
    """An affine form of reads and h. Raises NoCell with what else is in it."""
    inputs: dict[bytes, tuple[Source, Weight]] = {}
    recurrent: Weight = np.zeros((h.hidden, form.width), form.dtype)
    for key, (atom, coefficient) in form.terms.items():
        if not isinstance(atom, Source):
            for source in atom.sources():
                check_known(source)
            raise NoCell("a gate reads what the cell computes in a way that no operator does")
        matrix = dense(coefficient, atom.width)
        if atom.key == h.source.key:
            recurrent = _rows_of(matrix, h)
        else:
            check_input(atom)
            inputs[key] = (atom, matrix)
    return Linear(inputs, recurrent, form.bias)


def _rows_of(matrix: Weight, h: Part) -> Weight:
    """The rows for the features of h; a gate that reads other features of the state is no gate."""
    if len(h.columns) < h.source.width:
        others = np.setdiff1d(np.arange(h.source.width), h.columns)
        if not weights.is_zero(weights.take(matrix, others, 0)):
            raise NoCell("a gate reads the state of another cell")
    return weights.take(matrix, h.columns, 0)


def check_input(source: Source) -> None:
    """Raises NoCell for what is not known before the loop runs."""
    origin = source.origin
    if isinstance(origin, CarriedValue):
        raise NoCell("its input depends on the state {} of an earlier iteration", origin.input)
    check_known(source)


def check_known(source: Source) -> None:
    """Raises NoCell for a value that has no form."""
    if isinstance(source.origin, Unknown):
        raise Dependency(source.origin)
