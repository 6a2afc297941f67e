"""One time step of an LSTM, GRU or RNN, by the equations of the ONNX operator specification.

The equations are written once, for any representation of values: `FormTimeStep` computes affine
forms, and `unfuse` builds the nodes of a Scan body. With forms, a loop that runs an operator over
one time step in each iteration lifts to the same updates as one that spells the cell out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from ...rewrite.engine.miss import Miss
from ...rewrite.graph.ir import Node
from . import affine_forms, weights
from .affine_forms import AffineForm
from .cells import DEFAULT_ACTIVATIONS, GATE_COUNT, ActivationFunction
from .lifting import Axis, BatchAxis, LiftedValue, Lifter, lifts
from .weights import Weight

V = TypeVar("V")


class TimeStep(ABC, Generic[V]):
    """One time step of one direction; `cell_matching` lists the equations.

    Gates have the numbers of the operator: i, o, f, c of an LSTM and z, r, h of a GRU.
    """

    def __init__(
        self,
        op: str,
        attrs: Mapping[str, Any],
        functions: Sequence[ActivationFunction],
        h: V,
        c: V | None,
    ) -> None:
        """`attrs` and `functions` are those of the operator, `h` and `c` the previous states."""
        self._op, self._attrs, self._functions = op, attrs, functions
        self._h, self._c = h, c

    def states(self) -> list[V]:
        """The states after the time step: h, and c of an LSTM."""
        return {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self._op]()

    def _lstm(self) -> list[V]:
        f, g, h = self._functions
        assert self._c is not None, "an LSTM has a cell state"
        i = self._gate(0, f, self._c)
        coupled = self._attrs.get("input_forget")
        forget = self.one_minus(i) if coupled else self._gate(2, f, self._c)
        c = self.add(self.multiply(forget, self._c), self.multiply(i, self._gate(3, g)))
        o = self._gate(1, f, c)
        return [self.multiply(o, self._apply(h, c)), c]

    def _gru(self) -> list[V]:
        f, g = self._functions
        z, r = self._gate(0, f), self._gate(1, f)
        if self._attrs.get("linear_before_reset"):
            inner = self.multiply(r, self.recurrent_product(2, self._h))
        else:
            inner = self.recurrent_product(2, self.multiply(r, self._h))
        n = self._activate(g, self.add(self.input_product(2), inner))
        new = self.multiply(self.one_minus(z), n)
        return [self.add(new, self.multiply(z, self._h))]

    def _rnn(self) -> list[V]:
        return [self._gate(0, self._functions[0])]

    def _gate(self, gate: int, function: ActivationFunction, seen: V | None = None) -> V:
        """act(x·W + h·R + b), plus a peephole at a cell state that the gate may see."""
        total = self.add(self.input_product(gate), self.recurrent_product(gate, self._h))
        peephole = None if seen is None else self.peephole(gate, seen)
        return self._activate(function, total if peephole is None else self.add(total, peephole))

    def _activate(self, function: ActivationFunction, value: V) -> V:
        """An activation of a gate, after the clip if there is one."""
        clip = float(self._attrs.get("clip") or 0)
        if clip:
            value = self.clip(value, clip)
        return self._apply(function, value)

    def _apply(self, function: ActivationFunction, value: V) -> V:
        name, parameters = function
        if name == "Affine":
            alpha, beta = parameters
            return self.scale(value, alpha, beta)
        if name == "ScaledTanh":
            alpha, beta = parameters
            return self.scale(self.apply("Tanh", (), self.scale(value, beta)), alpha)
        return self.apply(name, parameters, value)

    # --- what depends on the representation ---

    @abstractmethod
    def input_product(self, gate: int) -> V:
        """x·W + Wb of a gate."""

    @abstractmethod
    def recurrent_product(self, gate: int, value: V) -> V:
        """value·R + Rb of a gate."""

    @abstractmethod
    def peephole(self, gate: int, c: V) -> V | None:
        """P∘c of a gate; None without peepholes."""

    @abstractmethod
    def add(self, a: V, b: V) -> V:
        """The sum."""

    @abstractmethod
    def multiply(self, a: V, b: V) -> V:
        """The elementwise product."""

    @abstractmethod
    def one_minus(self, value: V) -> V:
        """1 minus the value."""

    @abstractmethod
    def scale(self, value: V, factor: float, offset: float = 0) -> V:
        """The value times a number, plus a number."""

    @abstractmethod
    def clip(self, value: V, bound: float) -> V:
        """The value clipped to -bound … bound."""

    @abstractmethod
    def apply(self, function: str, parameters: tuple[float, ...], value: V) -> V:
        """An elementwise operator with its alpha and beta."""


class FormTimeStep(TimeStep[AffineForm]):
    """A time step on affine forms; each gate has matrices (features in, features out)."""

    def __init__(
        self,
        op: str,
        attrs: Mapping[str, Any],
        functions: Sequence[ActivationFunction],
        x: AffineForm,
        states: Sequence[AffineForm],
        w: Sequence[Weight],
        r: Sequence[Weight],
        b: Sequence[Weight],
        p: Sequence[Weight] | None,
    ) -> None:
        """`states` are h and, of an LSTM, c. `b` has the biases of W and then those of R."""
        super().__init__(op, attrs, functions, states[0], states[1] if len(states) > 1 else None)
        self._x, self._w, self._r, self._p = x, w, r, p
        self._wb, self._rb = b[: len(w)], b[len(w) :]

    def input_product(self, gate: int) -> AffineForm:
        return self._x.matmul(self._w[gate]).plus(self._wb[gate])

    def recurrent_product(self, gate: int, value: AffineForm) -> AffineForm:
        return value.matmul(self._r[gate]).plus(self._rb[gate])

    def peephole(self, gate: int, c: AffineForm) -> AffineForm | None:
        return None if self._p is None else c.scaled(self._p[gate])

    def add(self, a: AffineForm, b: AffineForm) -> AffineForm:
        return a + b

    def multiply(self, a: AffineForm, b: AffineForm) -> AffineForm:
        return a * b

    def one_minus(self, value: AffineForm) -> AffineForm:
        return value.scaled(-1).plus(1)

    def scale(self, value: AffineForm, factor: float, offset: float = 0) -> AffineForm:
        scaled = value.scaled(factor)
        return scaled.plus(offset) if offset else scaled

    def clip(self, value: AffineForm, bound: float) -> AffineForm:
        return value.activated("Clip", (-bound, bound))

    def apply(self, function: str, parameters: tuple[float, ...], value: AffineForm) -> AffineForm:
        return value.activated(function, parameters)


# --- lifting operators over one time step ---


@lifts("LSTM", "GRU", "RNN")
def _recurrent_operator(lifter: Lifter, node: Node) -> list[LiftedValue]:
    if node.attrs.get("layout", 0) or lifter.has(node, 4):
        raise Miss("it has layout 1 or sequence_lens")
    x = lifter.operand(node, 0)
    if x.axes[0] != 1:
        raise Miss("it runs over more than one time step")
    if x.form.width != x.axes[2]:
        raise Miss("the entries of the batch of its input {} are constant", node.inputs[0])
    bidirectional = direction(node) == "bidirectional"
    results = [_direction(lifter, node, x, k) for k in range(1 + bidirectional)]
    count, hidden, batch = len(results), results[0][0].width, x.axes[1]
    axes: tuple[Axis, ...] = (count, batch, hidden)
    states = [LiftedValue(affine_forms.concat(directions), axes) for directions in zip(*results)]
    y = LiftedValue(states[0].form, (1, *axes))
    return [y, *states][: len(node.outputs)]


def _direction(lifter: Lifter, node: Node, x: LiftedValue, number: int) -> list[AffineForm]:
    """The states of one direction after the time step."""
    w, r = (_gate_matrices(lifter, node, slot, number) for slot in (1, 2))
    hidden, dtype = r[0].shape[0], x.form.dtype
    zeros: Weight = np.zeros(2 * len(w) * hidden, dtype)
    bias = _vector(lifter, node, 3, number) if lifter.has(node, 3) else zeros
    peepholes = None
    if lifter.has(node, 7):
        peepholes = weights.split(_vector(lifter, node, 7, number), hidden)
    slots = (5, 6) if node.op == "LSTM" else (5,)
    states = [_initial_state(lifter, node, slot, number, hidden, dtype) for slot in slots]
    functions = activation_functions(node, number)
    time_step = FormTimeStep(node.op, node.attrs, functions, x.form, states, w, r,
                    weights.split(bias, hidden), peepholes)  # fmt: skip
    return time_step.states()


def _gate_matrices(lifter: Lifter, node: Node, slot: int, number: int) -> list[Weight]:
    """The matrices of the gates of one direction: W or R of the operator, transposed."""
    whole = lifter.weight(node.inputs[slot])
    if whole is None or len(whole.shape) != 3:
        raise Miss("its weights {} depend on the iteration", node.inputs[slot])
    _, rows, columns = whole.shape
    one = weights.reshape(weights.take(whole, np.array([number]), 0), (rows, columns))
    hidden = rows // GATE_COUNT[node.op]
    return [
        weights.transpose(weights.take(one, np.arange(first, first + hidden), 0))
        for first in range(0, rows, hidden)
    ]


def _vector(lifter: Lifter, node: Node, slot: int, number: int) -> Weight:
    """B or P of one direction."""
    whole = lifter.weight(node.inputs[slot])
    if whole is None or len(whole.shape) != 2:
        raise Miss("its weights {} depend on the iteration", node.inputs[slot])
    return weights.reshape(weights.take(whole, np.array([number]), 0), whole.shape[1:])


def _initial_state(
    lifter: Lifter, node: Node, slot: int, number: int, hidden: int, dtype: np.dtype[np.generic]
) -> AffineForm:
    """initial_h or initial_c of one direction."""
    if not lifter.has(node, slot):
        return affine_forms.constant(np.zeros(hidden, dtype))
    axes = lifter.operand(node, slot).axes
    if len(axes) != 3 or isinstance(axes[0], BatchAxis) or isinstance(axes[2], BatchAxis):
        raise Miss("the axes of its initial state {} are not known", node.inputs[slot])
    features = np.arange(number * hidden, (number + 1) * hidden)
    return lifter.operand(node, slot).form.take(features)


# --- attributes of the recurrent operators ---

_PARAMETERS: dict[str, tuple[float, ...]] = {
    "Affine": (1.0, 0.0),
    "Elu": (1.0,),
    "HardSigmoid": (0.2, 0.5),
    "LeakyRelu": (0.01,),
    "ScaledTanh": (1.0, 0.0),
    "ThresholdedRelu": (1.0,),
}
"""The defaults of alpha and beta, for the activations that have them."""
_NAMES = {
    name.lower(): name
    for name in ("Affine", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "ScaledTanh", "Sigmoid",
                 "Softplus", "Softsign", "Tanh", "ThresholdedRelu")
}  # fmt: skip
"""The operators take the names of activations in upper and lower case alike."""


def direction(node: Node) -> str:
    """The direction of a recurrent operator: forward, reverse or bidirectional."""
    found = node.attrs.get("direction", "forward")
    return found.decode() if isinstance(found, bytes) else str(found)


def activation_functions(node: Node, number: int) -> list[ActivationFunction]:
    """The activations of one direction of a recurrent operator with their parameters."""
    count = 2 if direction(node) == "bidirectional" else 1
    names = node.attrs.get("activations") or DEFAULT_ACTIVATIONS[node.op] * count
    alphas = list(node.attrs.get("activation_alpha") or [])
    betas = list(node.attrs.get("activation_beta") or [])
    found: list[ActivationFunction] = []
    for given in names:
        name = _NAMES[(given.decode() if isinstance(given, bytes) else str(given)).lower()]
        parameters = [
            float(source.pop(0)) if source else default
            for source, default in zip((alphas, betas), _PARAMETERS.get(name, ()))
        ]
        found.append((name, tuple(parameters)))
    each = len(found) // count
    return found[number * each : (number + 1) * each]
