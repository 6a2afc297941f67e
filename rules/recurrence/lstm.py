"""The LSTM by its equations (ONNX operator specification, LSTM):

    c' = f∘c + i∘g    h' = o∘act(c')

with i, f and o of one activation, peepholes p∘c in i and f and p∘c' in o. One of i and f may be 1
minus the other; the product is then multiplied out: c' = f∘c + g - f∘g.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from . import forms, weights
from .atoms import Activation, Atom, Factor, Product
from .cells import (
    LINEAR,
    Cell,
    Function,
    Gate,
    NoCell,
    Part,
    alike,
    complement,
    gate_of,
    is_all,
    opened,
    scaled_gate,
    taken_apart,
    with_scale,
    without,
)
from .coefficients import Coefficient, Pick
from .forms import Form
from .weights import Weight

_Terms = list[tuple[Atom, Weight]]
_Gates = tuple[Gate, Gate, Gate]


def match_lstm(h: Part, others: Sequence[Part]) -> Cell | None:
    """The LSTM whose output is h and whose cell is one of the others; None if there is none.

    Raises NoCell where it would be one but for something.
    """
    reason: NoCell | None = None
    for c in others if _may_be_gated(h.update) else ():
        if c.hidden != h.hidden:
            continue
        for (i, f, g), (o, last) in itertools.product(
            _gates_of(c), list(_outputs(h.update, c.update))
        ):
            of_one_kind = alike([i, o, f])
            if of_one_kind is None:
                continue
            try:
                return _lstm(h, c, [*of_one_kind, g], last)
            except NoCell as miss:  # i and g may be the other way round
                reason = reason or miss
    if reason is not None:
        raise reason
    return None


# --- h' = o∘act(c') ---


def _may_be_gated(update: Form) -> bool:
    """Whether some cell may be multiplied by a gate here: most states need not be paired with all
    others to see that they are no output.
    """
    whole = update.only()
    product = whole is not None and isinstance(whole[0], Product) and len(whole[0].factors) == 2
    return product or bool(_common_factors(update))


def _outputs(update: Form, cell: Form) -> Iterator[tuple[Gate, Function]]:
    """Ways to read h' as o∘act(c'): the gate and the activation."""
    whole = update.only()
    if whole is not None and isinstance(whole[0], Product) and len(whole[0].factors) == 2:
        for factor, other in itertools.permutations(whole[0].factors):
            gate, last = gate_of(factor), _applied_to(other, cell, whole[1])
            if gate is not None and last is not None:
                yield gate, last
    for factor in _common_factors(update):
        gate = gate_of(factor)
        if gate is not None:
            multiplied = forms.product(forms.of_atom(factor, update.dtype), cell)
            if multiplied.key == update.key:
                yield gate, LINEAR


def _common_factors(form: Form) -> list[Activation]:
    """Activations by which every term of the form is multiplied."""
    terms = [{f.key for f in a.factors} if isinstance(a, Product) else set() for a, _ in form.atoms]
    if not terms:
        return []
    first = form.atoms[0][0]
    factors = first.factors if isinstance(first, Product) else ()
    shared = set.intersection(*terms)
    return [f for f in factors if f.key in shared and isinstance(f, Activation)]


def _applied_to(factor: Factor, cell: Form, scale: Weight) -> Function | None:
    """The activation by which a factor is a function of c'."""
    if not isinstance(factor, Activation):
        return None
    function = with_scale((factor.function, factor.parameters), scale)
    if factor.argument.key == cell.key or function is None:
        return function
    slope = _slope(factor.argument, cell)
    if slope is None or factor.function != "Tanh":
        return None
    return "ScaledTanh", (function[1][0] if function[1] else 1.0, slope)


def _slope(form: Form, cell: Form) -> float | None:
    """The number that c' is multiplied with, if the form is nothing else."""
    for key, (_, coefficient) in form.terms.items():
        there = cell.terms.get(key)
        if there is None or not isinstance(coefficient, Pick) or not is_all(_scale(there[1]), 1):
            continue
        scale = coefficient.scale
        if isinstance(scale, np.ndarray) and cell.scaled(scale).key == form.key:
            return float(scale.flat[0]) if is_all(scale, scale.flat[0]) else None
    return None


def _scale(coefficient: Coefficient) -> Weight:
    return coefficient.scale if isinstance(coefficient, Pick) else coefficient


# --- c' = f∘c + i∘g ---


def _gates_of(c: Part) -> list[_Gates]:
    """The gates i, f and g; two ways where i and g could change places."""
    if not weights.is_zero(c.update.bias):
        return []
    kept, rest = _by_cell(c)
    if len(kept) != 1 or (gate := gate_of(kept[0][0])) is None:
        return []
    own = c.scale_in(c.update)
    if own is None and is_all(kept[0][1], 1):
        return [*_independent(gate, rest), *_input_is_complement(gate, rest)]
    if own is not None and is_all(own, 1) and is_all(kept[0][1], -1):
        return list(_forget_is_complement(gate, rest))
    return []


def _by_cell(c: Part) -> tuple[list[tuple[Factor, Weight]], _Terms]:
    """What is multiplied with c, and all terms without c."""
    kept: list[tuple[Factor, Weight]] = []
    rest: _Terms = []
    for atom, coefficient in c.update.atoms:
        if not isinstance(coefficient, Pick):
            return [], []
        factors = list(atom.factors) if isinstance(atom, Product) else []
        place = next((k for k, f in enumerate(factors) if c.is_factor(f)), None)
        if place is not None and len(factors) == 2:
            kept.append((factors[1 - place], coefficient.scale))
        elif atom.key != c.source.key:
            rest.append((atom, coefficient.scale))
    return kept, rest


def _independent(f: Gate, rest: _Terms) -> Iterator[_Gates]:
    """The only other term is i∘g."""
    for first, second in _pairs(rest):
        i, g = gate_of(first), gate_of(second)
        if i is not None and g is not None and alike([i, f]) is not None:
            scaled = scaled_gate(g, rest[0][1])
            if scaled is not None:
                yield i, f, scaled


def _pairs(rest: _Terms) -> Iterator[tuple[Factor, Factor]]:
    if len(rest) == 1 and isinstance(rest[0][0], Product) and len(rest[0][0].factors) == 2:
        first, second = rest[0][0].factors
        yield from ((first, second), (second, first))


def _input_is_complement(f: Gate, rest: _Terms) -> Iterator[_Gates]:
    """The other terms are g - f∘g."""
    if len(rest) != 2 or (i := complement(f)) is None:
        return
    for (alone, plus), (pair, minus) in (rest, rest[::-1]):
        if not is_all(plus, 1) or not is_all(minus, -1) or not isinstance(alone, Activation):
            continue
        g = gate_of(alone)
        factors = pair.factors if isinstance(pair, Product) else ()
        if g is not None and sorted(x.key for x in factors) == sorted((f.key, g.key)):
            yield i, f, g


def _forget_is_complement(i: Gate, rest: _Terms) -> Iterator[_Gates]:
    """The other terms are c, which stands alone, and i∘g."""
    f = complement(i)
    for first, second in _pairs(rest):
        g = gate_of(second)
        if f is not None and g is not None and first.key == i.key:
            scaled = scaled_gate(g, rest[0][1])
            if scaled is not None:
                yield i, f, scaled


# --- the whole ---


def _lstm(h: Part, c: Part, gates: list[Gate], last: Function) -> Cell:
    """The cell of gates in the operator's order i, o, f, g."""
    (i, o, f, g), attributes = opened(gates)
    at_i, at_f = _peephole(i, c), _peephole(f, c)
    at_o, o = _output_peephole(o, c)
    peepholes = [at_i, at_o, at_f]
    linear = [taken_apart(form, h) for form in (without(i, c.source), o, without(f, c.source), g)]
    used = any(not weights.is_zero(p) for p in peepholes)
    functions = [gates[0].function, gates[3].function, last]
    return Cell("LSTM", h, c, linear, functions, attributes, peepholes if used else None)


def _peephole(form: Form, c: Part) -> Weight:
    if c.source.key not in form.terms:
        return weights.zeros(form.width, form.dtype)
    scale = c.scale_in(form)
    if scale is None:
        raise NoCell("a gate mixes the features of the cell state: a peephole is elementwise")
    return scale


def _output_peephole(form: Form, c: Part) -> tuple[Weight, Form]:
    """The scale of c' in the output gate, and the form without it."""
    terms = dict(form.terms)
    scale: Weight | None = None
    for key, (_, coefficient) in c.update.terms.items():
        found = terms.pop(key, None)
        if found is None and scale is None:
            continue
        if found is None:
            raise NoCell("the output gate reads a part of the new cell state")
        own = found[1]
        if not isinstance(own, Pick) or not isinstance(coefficient, Pick):
            raise NoCell("the output gate mixes the features of the cell state")
        if scale is None and is_all(coefficient.scale, 1):
            scale = own.scale
        expected = None if scale is None else weights.multiply(scale, coefficient.scale)
        if expected is None or not weights.equal(expected, own.scale):
            raise NoCell("the output gate reads a part of the new cell state")
    if scale is None:
        return weights.zeros(form.width, form.dtype), form
    return scale, Form(form.width, terms, form.bias)
