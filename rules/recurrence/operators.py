"""How elementwise operators act on forms (ONNX operator specification)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...rewrite.graph.ir import Node
from . import forms, values
from .atoms import Activation
from .coefficients import NotAffine
from .forms import Form
from .lifting import Lifter, lifts, numpy_type
from .values import Batch, Value

# --- elementwise ---

_ACTIVATIONS: dict[str, tuple[tuple[str, float], ...]] = {
    "Abs": (),
    "Elu": (("alpha", 1.0),),
    "Exp": (),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
    "LeakyRelu": (("alpha", 0.01),),
    "Relu": (),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": (("alpha", 1.0),),
}
"""Elementwise functions with their attributes and defaults."""


@lifts(*_ACTIVATIONS)
def _activation(lifter: Lifter, node: Node) -> list[Value]:
    parameters = tuple(float(node.attrs.get(k, d)) for k, d in _ACTIVATIONS[node.op])
    value = lifter.operand(node, 0)
    return [value.with_form(forms.activated(node.op, parameters, value.form))]


@lifts("Identity", "Dropout")
def _identity(lifter: Lifter, node: Node) -> list[Value]:
    if len(node.inputs) > 2 and node.inputs[2].name:
        raise NotAffine("dropout is random")
    return [lifter.operand(node, 0)]


@lifts("Cast")
def _cast(lifter: Lifter, node: Node) -> list[Value]:
    value = lifter.operand(node, 0)
    if lifter.facts.dtype(node.inputs[0]) == int(node.attrs["to"]):
        return [value]
    bias = value.form.bias
    dtype = numpy_type(lifter.facts, node.outputs[0])
    if (
        not value.form.terms
        and isinstance(bias, np.ndarray)
        and "b" in (bias.dtype.kind, dtype.kind)
    ):
        return [value.with_form(forms.constant(bias.astype(dtype)))]
    raise NotAffine("Cast between types rounds")


@lifts("Neg")
def _neg(lifter: Lifter, node: Node) -> list[Value]:
    return [times(lifter.operand(node, 0), -1.0)]


@lifts("Add", "Sum")
def _add(lifter: Lifter, node: Node) -> list[Value]:
    terms = broadcast([lifter.value(t) for t in node.inputs])
    form = terms[0].form
    for term in terms[1:]:
        form = forms.added(form, term.form)
    return [terms[0].with_form(form)]


@lifts("Sub")
def _sub(lifter: Lifter, node: Node) -> list[Value]:
    left, right = broadcast([lifter.operand(node, 0), lifter.operand(node, 1)])
    return [left.with_form(forms.added(left.form, times(right, -1.0).form))]


@lifts("Mul")
def _mul(lifter: Lifter, node: Node) -> list[Value]:
    left, right = broadcast([lifter.operand(node, 0), lifter.operand(node, 1)])
    return [left.with_form(forms.product(left.form, right.form))]


@lifts("Div")
def _div(lifter: Lifter, node: Node) -> list[Value]:
    left, right = broadcast([lifter.operand(node, 0), lifter.operand(node, 1)])
    divisor = right.form
    if not divisor.terms and isinstance(divisor.bias, np.ndarray):
        if np.any(divisor.bias == 0):
            raise NotAffine("it divides by zero")
        return [left.with_form(left.form.scaled(1 / divisor.bias))]
    softsign = _softsign(left.form, divisor)
    if softsign is not None:
        return [left.with_form(softsign)]
    reciprocal = _reciprocal(divisor)
    return [left.with_form(forms.product(left.form, reciprocal))]


@lifts("Reciprocal")
def _inverse(lifter: Lifter, node: Node) -> list[Value]:
    value = lifter.operand(node, 0)
    return [value.with_form(_reciprocal(value.form))]


def _softsign(form: Form, divisor: Form) -> Form | None:
    """`x / (1 + |x|)` is the softsign of x; None for other quotients."""
    magnitude = forms.activated("Abs", (), form).plus(np.ones(form.width, form.dtype))
    return forms.activated("Softsign", (), form) if magnitude.key == divisor.key else None


def _reciprocal(form: Form) -> Form:
    """`1 / (1 + exp(-x))` is the sigmoid of x."""
    whole = Form(form.width, form.terms, np.zeros(form.width, form.dtype)).only()
    if whole is not None and isinstance(whole[0], Activation) and whole[0].function == "Exp":
        ones = isinstance(form.bias, np.ndarray) and bool(np.all(form.bias == 1))
        if ones and isinstance(whole[1], np.ndarray) and bool(np.all(whole[1] == 1)):
            minus = np.full(form.width, -1, form.dtype)
            return forms.activated("Sigmoid", (), whole[0].argument.scaled(minus))
    raise NotAffine("to divide by a value is no affine function")


@lifts("Clip")
def _clip(lifter: Lifter, node: Node) -> list[Value]:
    value = lifter.operand(node, 0)
    low, high = (_bound(lifter, node, slot) for slot in (1, 2))
    return [value.with_form(_clipped(value.form, low, high))]


@lifts("Max", "Min")
def _extremum(lifter: Lifter, node: Node) -> list[Value]:
    operands = [lifter.value(t) for t in node.inputs]
    limits = [v for v in operands if not v.form.terms]
    if len(operands) != 2 or len(limits) != 1 or not isinstance(limits[0].form.bias, np.ndarray):
        raise NotAffine(f"{node.op} of two values is no affine function")
    value, _ = broadcast(sorted(operands, key=lambda v: v is limits[0]))
    bounds = np.unique(limits[0].form.bias)
    if len(bounds) != 1:
        raise NotAffine("its bounds differ between features")
    limit = float(bounds[0])
    form = value.form
    return [
        value.with_form(
            _clipped(form, *((limit, np.inf) if node.op == "Max" else (-np.inf, limit)))
        )
    ]


def _bound(lifter: Lifter, node: Node, slot: int) -> float:
    """The lower bound of a Clip, slot 1, or the upper one, slot 2."""
    name = ("min", "max")[slot - 1]
    if name in node.attrs:
        return float(node.attrs[name])
    if not lifter.has(node, slot):
        return (-np.inf, np.inf)[slot - 1]
    array = lifter.facts.constant(node.inputs[slot])
    if array is None or array.size != 1:
        raise NotAffine("its bounds are not known")
    return float(array.ravel()[0])


def _clipped(form: Form, low: float, high: float) -> Form:
    """Clip as the activation of the RNN operators that it is, where it is one."""
    low, high = _unless_endless(low, form), _unless_endless(high, form)
    least, most, argument = _bounds_of(form)
    if max(low, least) <= min(high, most):  # one clip inside another is one clip
        low, high, form = max(low, least), min(high, most), argument
    if (low, high) == (-np.inf, np.inf):
        return form
    if low == 0 and high == np.inf:
        return forms.activated("Relu", (), form)
    if low == 0 and high > 0:
        size = np.full(form.width, high, form.dtype)
        return forms.activated("HardSigmoid", (1.0, 0.0), form.scaled(1 / size)).scaled(size)
    return forms.activated("Clip", (low, high), form)


def _unless_endless(bound: float, form: Form) -> float:
    """Infinite for a bound that no number exceeds."""
    endless = abs(bound) >= float(np.finfo(form.dtype.name).max)
    return float(np.copysign(np.inf, bound)) if endless else bound


def _bounds_of(form: Form) -> tuple[float, float, Form]:
    """What a form is clipped to, and the form inside the clip."""
    atom, scale = form.only() or (None, None)
    plain = isinstance(scale, np.ndarray) and bool(np.all(scale == 1))
    if plain and isinstance(atom, Activation) and atom.function == "Clip":
        least, most = atom.parameters
        return least, most, atom.argument
    if plain and isinstance(atom, Activation) and atom.function == "Relu":
        return 0.0, np.inf, atom.argument
    return -np.inf, np.inf, form


def times(value: Value, factor: float) -> Value:
    """The value times one number."""
    vector = np.full(value.form.width, factor, value.form.dtype)
    return value.with_form(value.form.scaled(vector))


def broadcast(operands: Sequence[Value]) -> list[Value]:
    """Broadcast, after constants that are the same along a batch axis have lost it."""
    rank = max(len(v.axes) for v in operands)
    batch = {
        k - len(v.axes) for v in operands for k, a in enumerate(v.axes) if isinstance(a, Batch)
    }
    return values.aligned(
        [_without_batch(v, batch) if len(v.axes) <= rank else v for v in operands]
    )


def _without_batch(value: Value, batch: set[int]) -> Value:
    bias = value.form.bias
    sizes = [a for a in value.axes if isinstance(a, int)]
    if value.form.terms or not isinstance(bias, np.ndarray) or len(sizes) < len(value.axes):
        return value
    array = bias.reshape(sizes)
    for axis in batch:
        if -axis <= array.ndim and array.shape[axis] > 1:
            first = np.take(array, [0], axis)
            if np.array_equal(np.broadcast_to(first, array.shape), array):
                array = first
    return values.constant(array)
