"""LSTM, GRU and RNN over a single step as forms: their equations written out.

A loop that calls such an operator in every iteration is then the same as one that spells the cell.
(ONNX operator specification: LSTM, GRU, RNN.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...rewrite.graph.ir import Node
from . import forms, weights
from .cells import Function
from .coefficients import NotAffine
from .emission import DEFAULTS
from .forms import Form
from .lifting import Lifter, lifts
from .values import Axis, Batch, Value
from .weights import Weight

_PARAMETERS = {"Affine": 2, "Elu": 1, "HardSigmoid": 2, "LeakyRelu": 1, "ScaledTanh": 2,
               "ThresholdedRelu": 1}  # fmt: skip
_DEFAULT_PARAMETERS = {"HardSigmoid": (0.2, 0.5), "LeakyRelu": (0.01,), "Elu": (1.0,)}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True, eq=False)
class Step:
    """One step of one direction, with matrices per gate as (features in, features out)."""

    attrs: Mapping[str, Any]
    x: Form
    h: Form
    c: Form | None
    w: list[Weight]
    r: list[Weight]
    wb: list[Weight]
    rb: list[Weight]
    p: list[Weight] | None
    functions: list[Function]

    def gate(self, number: int, function: Function, extra: Form | None = None) -> Form:
        """Activation of x·W + h·R + b, of one gate, plus a peephole."""
        return self.activated(function, self.linear(number), extra)

    def linear(self, number: int) -> Form:
        return forms.added(self.input(number), self.recurrent(number))

    def input(self, number: int) -> Form:
        return self.x.times(self.w[number]).plus(self.wb[number])

    def recurrent(self, number: int) -> Form:
        return self.h.times(self.r[number]).plus(self.rb[number])

    def activated(self, function: Function, form: Form, extra: Form | None = None) -> Form:
        form = form if extra is None else forms.added(form, extra)
        clip = self.attrs.get("clip")
        if clip:
            form = forms.activated("Clip", (-float(clip), float(clip)), form)
        return applied(function, form)


def applied(function: Function, form: Form) -> Form:
    """An activation of the RNN operators, by simpler ones where there are."""
    name, parameters = function
    if name == "Affine":
        alpha, beta = (np.full(form.width, p, form.dtype) for p in parameters)
        return form.scaled(alpha).plus(beta)
    if name == "ScaledTanh":
        alpha, beta = (np.full(form.width, p, form.dtype) for p in parameters)
        return forms.activated("Tanh", (), form.scaled(beta)).scaled(alpha)
    return forms.activated(name, parameters, form)


@lifts("LSTM", "GRU", "RNN")
def _one_step(lifter: Lifter, node: Node) -> list[Value]:
    if node.attrs.get("layout", 0) or lifter.has(node, 4):
        raise NotAffine(f"{node.op} with a layout or sequence lengths is not followed")
    x = lifter.operand(node, 0)
    if x.axes[0] != 1:
        raise NotAffine(f"{node.op} takes more than one step")
    count = (
        2 if node.attrs.get("direction", "forward") in ("bidirectional", b"bidirectional") else 1
    )
    directions = [_direction(lifter, node, x, k, count) for k in range(count)]
    results = [after_step(node.op, d) for d in directions]
    hidden = results[0][0].width
    batch = x.axes[1]
    states = [forms.joined([r[k] for r in results]) for k in range(len(results[0]))]
    step: tuple[Axis, ...] = (1, count, batch, hidden)
    values = [Value(states[0], step), *(Value(s, (count, batch, hidden)) for s in states)]
    return values[: len(node.outputs)]


def _direction(lifter: Lifter, node: Node, x: Value, number: int, count: int) -> Step:
    gates = _GATES[node.op]
    w, r = (_matrices(lifter, node, slot, number, gates) for slot in (1, 2))
    hidden = r[0].shape[0]
    dtype = x.form.dtype
    zeros: Weight = np.zeros(2 * gates * hidden, dtype)
    bias = _row(lifter, node, 3, number) if lifter.has(node, 3) else zeros
    biases = weights.cut(bias, hidden)
    peepholes = weights.cut(_row(lifter, node, 7, number), hidden) if lifter.has(node, 7) else None
    h = _state(lifter, node, 5, number, hidden, x)
    c = _state(lifter, node, 6, number, hidden, x) if node.op == "LSTM" else None
    functions = functions_of(node, number, count)
    return Step(
        node.attrs, x.form, h, c, w, r, biases[:gates], biases[gates:], peepholes, functions
    )


def _matrices(lifter: Lifter, node: Node, slot: int, number: int, gates: int) -> list[Weight]:
    """The matrices of the gates of one direction, of which the operator has the transposed."""
    whole = lifter.weight(node.inputs[slot])
    if whole is None or len(whole.shape) != 3:
        raise NotAffine("its weights depend on the iteration")
    _, rows, columns = whole.shape
    one = weights.reshaped(weights.take(whole, np.array([number]), 0), (rows, columns))
    hidden = rows // gates
    return [
        weights.transposed(weights.take(one, np.arange(k * hidden, (k + 1) * hidden), 0))
        for k in range(gates)
    ]


def _row(lifter: Lifter, node: Node, slot: int, number: int) -> Weight:
    whole = lifter.weight(node.inputs[slot])
    if whole is None or len(whole.shape) != 2:
        raise NotAffine("its weights depend on the iteration")
    return weights.reshaped(weights.take(whole, np.array([number]), 0), whole.shape[1:])


def _state(lifter: Lifter, node: Node, slot: int, number: int, hidden: int, x: Value) -> Form:
    if not lifter.has(node, slot):
        return forms.constant(np.zeros(hidden, x.form.dtype))
    value = lifter.operand(node, slot)
    if len(value.axes) != 3 or isinstance(value.axes[0], Batch) or isinstance(value.axes[2], Batch):
        raise NotAffine("its initial state has unlike axes")
    return value.form.take(np.arange(number * hidden, (number + 1) * hidden))


def functions_of(node: Node, number: int, count: int) -> list[Function]:
    """The activations of one direction with their parameters."""
    names = node.attrs.get("activations") or DEFAULTS[node.op] * count
    names = [n.decode() if isinstance(n, bytes) else str(n) for n in names]
    names = [_CANONICAL[n.lower()] for n in names]
    alphas = list(node.attrs.get("activation_alpha") or [])
    betas = list(node.attrs.get("activation_beta") or [])
    found: list[Function] = []
    for name in names:
        wanted = _PARAMETERS.get(name, 0)
        defaults = _DEFAULT_PARAMETERS.get(name, (1.0, 0.0))
        given = [
            float(source.pop(0)) if source else default
            for source, default in zip((alphas, betas)[:wanted], defaults)
        ]
        found.append((name, tuple(given)))
    each = len(found) // count
    return found[number * each : (number + 1) * each]


_CANONICAL = {
    name.lower(): name
    for name in ("Affine", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "ScaledTanh", "Sigmoid",
                 "Softplus", "Softsign", "Tanh", "ThresholdedRelu")
}  # fmt: skip
"""The operators take the names of activations in any case."""


def after_step(op: str, step: Step) -> Sequence[Form]:
    """h and, for an LSTM, c after the step."""
    return {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}[op](step)


def _lstm(d: Step) -> Sequence[Form]:
    f, g, last = d.functions
    assert d.c is not None
    p = d.p
    c = d.c
    input_gate = d.gate(0, f, None if p is None else c.scaled(p[0]))
    if d.attrs.get("input_forget"):
        forget = _one_minus(input_gate)
    else:
        forget = d.gate(2, f, None if p is None else c.scaled(p[2]))
    new = forms.added(forms.product(forget, c), forms.product(input_gate, d.gate(3, g)))
    output = d.gate(1, f, None if p is None else new.scaled(p[1]))
    return forms.product(output, applied(last, new)), new


def _gru(d: Step) -> Sequence[Form]:
    f, g = d.functions
    z, r = d.gate(0, f), d.gate(1, f)
    if d.attrs.get("linear_before_reset"):
        inner = forms.product(r, d.recurrent(2))
    else:
        inner = forms.product(r, d.h).times(d.r[2]).plus(d.rb[2])
    n = d.activated(g, forms.added(d.input(2), inner))
    return (forms.added(forms.product(_one_minus(z), n), forms.product(z, d.h)),)


def _rnn(d: Step) -> Sequence[Form]:
    return (d.gate(0, d.functions[0]),)


def _one_minus(form: Form) -> Form:
    return form.scaled(np.full(form.width, -1, form.dtype)).plus(np.ones(form.width, form.dtype))
