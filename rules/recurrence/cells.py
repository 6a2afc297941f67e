"""Cells: the update equations of an LSTM, GRU or RNN over one time step, and their parts.

A gate is an activation of an affine form of the input x and the previous hidden state h (ONNX
operator specification: LSTM, GRU, RNN). This module knows which activations the operators have, and
how other functions become one of them. The equations are in `cell_matching`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...rewrite.engine.miss import Miss
from ...rewrite.graph.views import CarriedValue
from . import weights
from .affine_forms import (
    ActivatedForm,
    AffineForm,
    ColumnSelection,
    Factor,
    InputFeatures,
    SymbolicInput,
    UnexpandedForm,
    as_matrix,
)
from .lifting import UnliftedValue
from .weights import Array, Weight

GATE_COUNT = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULT_ACTIVATIONS = {
    "LSTM": ["Sigmoid", "Tanh", "Tanh"],
    "GRU": ["Sigmoid", "Tanh"],
    "RNN": ["Tanh"],
}
"""The activations of one direction when none are given."""

SUPPORTED_ACTIVATIONS = frozenset(
    {"Affine", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "ScaledTanh", "Sigmoid", "Softsign",
     "Tanh", "ThresholdedRelu"}
)  # fmt: skip
"""The activations that onnxruntime's recurrent operators compute exactly like the operators of the
same names."""
OVERFLOWING_ACTIVATION = "Softplus"
"""The one other activation: in onnxruntime's LSTM, GRU and RNN it overflows from about 88 on."""

ActivationFunction = tuple[str, tuple[float, ...]]
"""An activation with its alpha and beta, if it has them."""
LINEAR: ActivationFunction = ("Affine", (1.0, 0.0))


# --- what a cell consists of ---


@dataclass(frozen=True, eq=False)
class RecurrentState:
    """A hidden or cell state, or some of its features, before and after one time step."""

    source: SymbolicInput
    """The whole state before the time step."""
    columns: Array
    """The features of it."""
    update: AffineForm
    """The features after the time step."""

    @property
    def size(self) -> int:
        """The number of features."""
        return len(self.columns)

    def is_factor(self, factor: Factor) -> bool:
        """Whether a factor of a product is the state before the time step."""
        if not isinstance(factor, InputFeatures) or factor.source.key != self.source.key:
            return False
        return np.array_equal(factor.columns, self.columns)

    def scale_in(self, form: AffineForm) -> Weight | None:
        """What a form multiplies the state by, feature by feature; None where it does not."""
        _, coefficient = form.terms.get(self.source.key, (None, None))
        if not isinstance(coefficient, ColumnSelection):
            return None
        same = np.array_equal(coefficient.columns, self.columns)
        return coefficient.scale if same else None


@dataclass(frozen=True, eq=False)
class Gate:
    """An activation of a form."""

    function: ActivationFunction
    form: AffineForm

    @property
    def key(self) -> bytes:
        """Equal for equal gates, and equal to the key of the factor that the gate was made from."""
        name, parameters = self.function
        if self.function == LINEAR:
            return UnexpandedForm(self.form).key
        return ActivatedForm(name, parameters, self.form).key


@dataclass(frozen=True, eq=False)
class GateWeights:
    """The weights of one gate; matrices have the shape (features in, features out)."""

    inputs: dict[bytes, tuple[SymbolicInput, Weight]]
    """W by input: x may consist of several values."""
    recurrent: Weight
    bias: Weight
    recurrent_bias: Weight | None = None
    """The bias of R in the candidate of a GRU whose reset follows the product."""


@dataclass(frozen=True, eq=False)
class Cell:
    """A cell that one LSTM, GRU or RNN computes."""

    op: str
    h: RecurrentState
    c: RecurrentState | None
    """The cell state of an LSTM."""
    gates: list[GateWeights]
    """In the order of the operator: LSTM i, o, f, c; GRU z, r, h."""
    functions: list[ActivationFunction]
    """In the order of the attribute `activations`: LSTM f, g, h; GRU f, g; RNN f."""
    attributes: dict[str, float] = field(default_factory=dict)
    peepholes: list[Weight] | None = None
    """P of the gates i, o and f of an LSTM."""

    @property
    def inputs(self) -> list[SymbolicInput]:
        """The values that x consists of, in the order in which the gates read them."""
        found = {key: source for gate in self.gates for key, (source, _) in gate.inputs.items()}
        return list(found.values())


class UnliftedDependency(Miss):
    """A cell depends on a value without an affine form.

    Diagnostics catch it separately, to name what the value is part of, such as a layer
    normalisation.
    """

    def __init__(self, origin: UnliftedValue, is_factor: bool = False) -> None:
        """`is_factor`: whether the update is multiplied by the value."""
        self.origin, self.is_factor = origin, is_factor
        super().__init__("the cell depends on {}: {}", origin.node, origin.reason)


# --- activations ---


def as_gate(factor: Factor) -> Gate | None:
    """A factor as a gate, an unexpanded form as a linear one; None for a function no operator has."""
    if isinstance(factor, ActivatedForm) and factor.function in SUPPORTED_ACTIVATIONS:
        return Gate((factor.function, factor.parameters), factor.argument)
    return Gate(LINEAR, factor.form) if isinstance(factor, UnexpandedForm) else None


def scale_activation(function: ActivationFunction, scale: Weight) -> ActivationFunction | None:
    """An activation times a number, as an activation; None if there is no such activation."""
    if weights.is_filled(scale, 1):
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


def scale_gate(gate: Gate, scale: Weight) -> Gate | None:
    """A gate times a number, as a gate; None if its activation cannot be scaled."""
    function = scale_activation(gate.function, scale)
    return None if function is None else Gate(function, gate.form)


def complement(gate: Gate) -> Gate | None:
    """1 minus the gate, as a gate: 1 - sigmoid(x) = sigmoid(-x). None for most activations."""
    name, parameters = gate.function
    form = gate.form.scaled(-1)
    if name == "Sigmoid":
        return Gate(gate.function, form)
    if name == "HardSigmoid":
        alpha, beta = parameters
        return Gate(gate.function, form.plus((1 - 2 * beta) / alpha))
    return None


def with_common_activation(gates: Sequence[Gate]) -> list[Gate] | None:
    """The gates with one activation for all of them; None if theirs differ.

    Hard sigmoids get the same slope: one that was written as a Clip has its slope in the form.
    """
    if all(g.function == gates[0].function for g in gates):
        return list(gates)
    if any(g.function[0] != "HardSigmoid" for g in gates):
        return None
    wanted = next((g.function for g in gates if g.function[1] != (1.0, 0.0)), gates[0].function)
    return [_with_slope(g, wanted) for g in gates]


def _with_slope(gate: Gate, wanted: ActivationFunction) -> Gate:
    (alpha, beta), (slope, shift) = gate.function[1], wanted[1]
    return Gate(wanted, gate.form.scaled(alpha / slope).plus((beta - shift) / slope))


# --- the attribute `clip` ---


def split_clip(form: AffineForm) -> tuple[AffineForm, float | None]:
    """A form without its clip to -bound … bound, and the bound; None if it has no such clip.

    A form that is clipped and then negated is the same as one that is negated and then clipped.
    """
    monomial, scale = form.single_monomial() or (None, None)
    if not isinstance(monomial, ActivatedForm) or monomial.function != "Clip" or scale is None:
        return form, None
    low, high = monomial.parameters
    if low != -high:
        return form, None
    if weights.is_filled(scale, 1):
        return monomial.argument, high
    return (monomial.argument.scaled(scale), high) if weights.is_filled(scale, -1) else (form, None)


def split_clips(gates: Sequence[Gate]) -> tuple[list[AffineForm], dict[str, float]]:
    """The forms of gates without their clips, and the attribute `clip` if they have one.

    Raises Miss where the gates are clipped differently.
    """
    found = [split_clip(gate.form) for gate in gates]
    bound = found[0][1]
    if any(other != bound for _, other in found):
        raise Miss("only some of its gates are clipped, or to different bounds")
    return [form for form, _ in found], {} if bound is None else {"clip": bound}


# --- weights ---


def gate_weights(form: AffineForm, h: RecurrentState) -> GateWeights:
    """The weights of a gate that is affine in its inputs and h.

    Raises Miss for a form that is not, and for an input that is not known before the loop.
    """
    inputs: dict[bytes, tuple[SymbolicInput, Weight]] = {}
    recurrent: Weight = np.zeros((h.size, form.width), form.dtype)
    for key, (monomial, coefficient) in form.terms.items():
        if not isinstance(monomial, SymbolicInput):
            for source in monomial.inputs():
                check_lifted(source)
            raise Miss("a gate reads what the cell computes in a way that no operator has")
        matrix = as_matrix(coefficient, monomial.width)
        if key == h.source.key:
            recurrent = _state_rows(matrix, h)
        else:
            _check_input(monomial)
            inputs[key] = (monomial, matrix)
    return GateWeights(inputs, recurrent, form.bias)


def _state_rows(matrix: Weight, h: RecurrentState) -> Weight:
    """The rows for the features of h; raises Miss if other features of its source are read."""
    if h.size < h.source.width:
        others = np.setdiff1d(np.arange(h.source.width), h.columns)
        if not weights.is_zero(weights.take(matrix, others, 0)):
            raise Miss("a gate reads the state of another cell")
    return weights.take(matrix, h.columns, 0)


def _check_input(source: SymbolicInput) -> None:
    """Raises Miss for an input that is not known before the loop runs."""
    origin = source.origin
    if isinstance(origin, CarriedValue):
        raise Miss(
            "its input depends on the carried value {} of an earlier iteration", origin.input
        )
    check_lifted(source)


def check_lifted(source: SymbolicInput) -> None:
    """Raises UnliftedDependency for a value without an affine form."""
    if isinstance(source.origin, UnliftedValue):
        raise UnliftedDependency(source.origin)
