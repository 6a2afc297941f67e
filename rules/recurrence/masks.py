"""How booleans act on forms, as far as they are known to be all true or all false."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...rewrite.graph.ir import Node
from . import forms, values
from .coefficients import NotAffine
from .lifting import FLOATS, Lifter, lifts, numpy_type
from .operators import broadcast
from .values import Value
from .weights import Array

LENGTH_PREFIX = "not known to be a length prefix"
"""What is said of a mask that may be any data."""

_LOGIC: dict[str, Callable[..., Any]] = {
    "And": np.logical_and,
    "Not": np.logical_not,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}


_MOST_FEATURES = 65536
"""Constants with more elements than this are none that a cell adds or chooses."""


@lifts(*_LOGIC)
def _logic(lifter: Lifter, node: Node) -> list[Value]:
    operands = broadcast([lifter.value(t) for t in node.inputs])
    truths = _LOGIC[node.op](*(_truths(v, node.inputs[0].name) for v in operands))
    return [operands[0].with_form(forms.constant(truths))]


@lifts("Where")
def _where(lifter: Lifter, node: Node) -> list[Value]:
    name = node.inputs[0].name
    new, old = broadcast([lifter.operand(node, 1), lifter.operand(node, 2)])
    if _is_the_same(new, old) and new.has_shape(lifter.shape(node.outputs[0])):
        return [new]
    try:
        mask = lifter.operand(node, 0)
    except NotAffine:
        raise NotAffine(_is_data(name)) from None
    try:
        mask, new, old = broadcast([mask, new, old])
    except NotAffine:
        raise NotAffine(f"its mask `{name}` is not the same for all features of a row") from None
    truths = _truths(mask, name)
    if truths.all():
        return [new]
    if not truths.any():
        return [old]
    raise NotAffine(f"its mask `{name}` chooses between features")


def _is_the_same(new: Value, old: Value) -> bool:
    """Whether the choice is none: both are one value, written in two ways."""
    return new.axes == old.axes and new.form.key == old.form.key


def _truths(value: Value, name: str) -> Array:
    bias = value.form.bias
    if value.form.terms or not isinstance(bias, np.ndarray):
        raise NotAffine(_is_data(name))
    return bias


def _is_data(name: str) -> str:
    return f"its mask `{name}` is data: {LENGTH_PREFIX}"


@lifts("ConstantOfShape")
def _filled(lifter: Lifter, node: Node) -> list[Value]:
    """One number everywhere."""
    given = node.attrs.get("value")
    dtype = numpy_type(lifter.facts, node.outputs[0])
    number = np.zeros(1, dtype) if given is None else np.asarray(given.values).reshape(1)
    if lifter.facts.dtype(node.outputs[0]) not in FLOATS:
        raise NotAffine("it is not of a float type")
    shape = lifter.shape(node.outputs[0])
    if np.prod([n for n in shape if isinstance(n, int)]) > _MOST_FEATURES:
        raise NotAffine("it is too large")
    axes = values.axes_of(shape, [k for k, n in enumerate(shape) if isinstance(n, int)])
    return [values.expanded(values.constant(number), axes)]
