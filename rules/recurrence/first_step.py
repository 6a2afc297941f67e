"""The first step of an unrolled recurrence, whose state may be a constant that was folded into it:
it is recognised by what it computes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...rewrite.facts.facts import Facts
from ...rewrite.facts.reads import axis_element
from ...rewrite.graph.ir import Node, Tensor
from . import forms, weights
from .cells import Cell, NoCell
from .coefficients import NotAffine
from .emission import parameters
from .forms import Form
from .lifting import Lifter
from .link import Link, Walker, lifter_of, picked_in, tensors_of
from .one_step import Step, after_step


def first_link(
    walker: Walker, h: Tensor, after: Tensor, nodes: list[Node], template: Link
) -> Link | None:
    """The step in front of the template, if it computes what the cell would."""
    lifter = lifter_of(walker, h, nodes)
    cell = template.cell
    try:
        update = lifter.value(after).form
        inputs = [_earlier(walker.facts, t, update) for t in template.inputs]
        before = [h]
        if cell.c is not None:
            before.append(_first_cell(lifter, template, h))
        x = forms.joined([lifter.value(t).form for t in inputs])
        expected = after_step(cell.op, _step(cell, x, [lifter.value(t).form for t in before]))
        ends = [after, *template.before[1:]]
        if len(inputs) != len(template.inputs) or len(ends) != len(expected):
            return None
        if any(lifter.value(t).form.key != e.key for t, e in zip(ends, expected)):
            return None
    except (NotAffine, NoCell):
        return None
    return Link(cell, inputs, before, ends, nodes, lifter)


def _earlier(facts: Facts, following: Tensor, update: Form) -> Tensor:
    """The input in front of an input: the slice before or after it that the form reads; where it is
    no slice, the same value.
    """
    there = axis_element(facts, following)
    read = tensors_of([s.origin for s in update.sources()])
    if there is None and following in read:
        return following
    if there is not None:
        for tensor in read:
            own = axis_element(facts, tensor)
            near = own is not None and abs(own.start - there.start) == 1
            if own is not None and near and own == there.element(own.start):
                return tensor
    raise NoCell("the input of its first step is not known")


def _first_cell(lifter: Lifter, template: Link, h: Tensor) -> Tensor:
    """c before the first step: what c after it is computed from, or the tensor that h is."""
    after = lifter.value(template.before[1]).form
    for factor in picked_in(after):
        (tensor,) = tensors_of([factor.source.origin]) or (None,)
        if tensor is not None:
            return tensor
    return h


def _step(cell: Cell, x: Form, states: Sequence[Form]) -> Step:
    """The cell applied to forms of its input and states."""
    hidden, count = cell.h.hidden, len(cell.gates)
    found = parameters(cell)
    zeros = np.zeros(2 * count * hidden, x.dtype)
    bias = zeros if found.b is None else weights.reshaped(found.b, (2 * count * hidden,))
    biases = weights.cut(bias, hidden)
    inputs = [weights.concat([g.inputs[s.key][1] for s in cell.inputs], 0) for g in cell.gates]
    return Step(
        cell.attributes, x, states[0], states[1] if len(states) > 1 else None, inputs,
        [g.recurrent for g in cell.gates], biases[:count], biases[count:], cell.peepholes,
        cell.functions,
    )  # fmt: skip
