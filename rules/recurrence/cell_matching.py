"""Matches the updates of states against the equations of LSTM, GRU and RNN.

The equations are those of the ONNX operator specification, where ∘ is the elementwise product and
act an activation, and where x, h and c are row vectors:

    LSTM   i = act(x·Wi + h·Ri + Pi∘c + bi)     f = act(x·Wf + h·Rf + Pf∘c + bf)
           g = act(x·Wc + h·Rc + bc)            c' = f∘c + i∘g
           o = act(x·Wo + h·Ro + Po∘c' + bo)    h' = o∘act(c')
    GRU    z = act(x·Wz + h·Rz + bz)            r = act(x·Wr + h·Rr + br)
           n = act(x·Wh + (r∘h)·Rh + bh)    or  n = act(x·Wh + r∘(h·Rh + bR) + bW)
           h' = (1-z)∘n + z∘h
    RNN    h' = act(x·W + h·R + b)

Here b is the sum of the operator's biases Wb and Rb, and the matrices have the shape (features in,
features out); `emission.OperatorWeights` has the shapes of the operands W, R, B and P.

Forms are expanded, so the updates arrive as c' = f∘c + i∘g and h' = n - z∘n + z∘h. Where one of i
and f is 1 minus the other, c' = f∘c + g - f∘g. Libraries that exchange z and 1-z give
h' = h - z∘h + z∘n.

A GRU whose candidate reads the state without a reset gate gets one that is always 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ...rewrite.engine.miss import Miss
from . import affine_forms, weights
from .affine_forms import (
    ActivatedForm,
    AffineForm,
    ColumnSelection,
    ElementwiseProduct,
    Factor,
    Monomial,
    SymbolicInput,
    UnexpandedForm,
    as_matrix,
)
from .cell_diagnostics import why_no_cell
from .cells import (
    LINEAR,
    ActivationFunction,
    Cell,
    Gate,
    GateWeights,
    RecurrentState,
    as_gate,
    check_lifted,
    complement,
    gate_weights,
    scale_activation,
    scale_gate,
    split_clip,
    split_clips,
    with_common_activation,
)
from .weights import Weight

_Terms = list[tuple[Monomial, Weight]]
_LstmGates = tuple[Gate, Gate, Gate]
"""The gates i, f and g."""


def match_cell(h: RecurrentState, others: Sequence[RecurrentState]) -> Cell:
    """The cell whose hidden state is h; the cell state of an LSTM is one of the others.

    Raises Miss with the reason if there is none.
    """
    cell = _match_lstm(h, others) or _match_gru(h) or _match_rnn(h)
    if cell is None:
        raise why_no_cell(h)
    return cell


# --- LSTM ---


def _match_lstm(h: RecurrentState, others: Sequence[RecurrentState]) -> Cell | None:
    """The LSTM with the hidden state h; None if h is not o∘act(c') of another state.

    Raises Miss for a near miss.
    """
    reason: Miss | None = None
    for c in others if _may_be_gated(h.update) else ():
        if c.size != h.size:
            continue
        for (i, f, g), (o, output) in itertools.product(
            _cell_gates(c), list(_output_gates(h.update, c.update))
        ):
            gates = with_common_activation([i, o, f])
            if gates is None:
                continue
            try:
                return _lstm(h, c, [*gates, g], output)
            except Miss as miss:  # i and g may have to be exchanged
                reason = reason or miss
    if reason is not None:
        raise reason
    return None


def _may_be_gated(update: AffineForm) -> bool:
    """Whether an update may be o∘act(c'); saves pairing most states with all others."""
    return _pair(update) is not None or bool(_common_factors(update))


def _pair(form: AffineForm) -> tuple[tuple[Factor, Factor], Weight] | None:
    """The two factors of a form that is their product, and its scale."""
    monomial, scale = form.single_monomial() or (None, None)
    factors = _two_factors(monomial)
    return None if factors is None or scale is None else (factors, scale)


def _two_factors(monomial: Monomial | None) -> tuple[Factor, Factor] | None:
    """The factors of a product of two; None for any other monomial."""
    if not isinstance(monomial, ElementwiseProduct) or len(monomial.factors) != 2:
        return None
    return monomial.factors[0], monomial.factors[1]


def _output_gates(
    update: AffineForm, cell: AffineForm
) -> Iterator[tuple[Gate, ActivationFunction]]:
    """The ways to read h' as o∘act(c'): the gate o and the activation."""
    pair = _pair(update)
    if pair is not None:
        factors, scale = pair
        for factor, other in itertools.permutations(factors):
            gate, output = as_gate(factor), _activation_of(other, cell, scale)
            if gate is not None and output is not None:
                yield gate, output
    for common in _common_factors(update):
        gate = as_gate(common)
        if gate is not None:
            product = affine_forms.from_monomial(common, update.dtype) * cell
            if product.key == update.key:
                yield gate, LINEAR


def _common_factors(form: AffineForm) -> list[ActivatedForm]:
    """The activations that are factors of every term of a form."""
    terms = [m.factors if isinstance(m, ElementwiseProduct) else () for m, _ in form.terms.values()]
    if not terms:
        return []
    shared = set.intersection(*({f.key for f in factors} for factors in terms))
    return [f for f in terms[0] if f.key in shared and isinstance(f, ActivatedForm)]


def _activation_of(factor: Factor, cell: AffineForm, scale: Weight) -> ActivationFunction | None:
    """The activation of c' that a factor times a scale is; None if it is not one."""
    if not isinstance(factor, ActivatedForm):
        return None
    function = scale_activation((factor.function, factor.parameters), scale)
    if factor.argument.key == cell.key or function is None:
        return function
    slope = _slope(factor.argument, cell)
    if slope is None or factor.function != "Tanh":
        return None
    return "ScaledTanh", (function[1][0] if function[1] else 1.0, slope)


def _slope(form: AffineForm, cell: AffineForm) -> float | None:
    """The number k if the form is k·c'."""
    for key, (_, coefficient) in form.terms.items():
        _, own = cell.terms.get(key, (None, None))
        if not isinstance(coefficient, ColumnSelection) or own is None:
            continue
        if not weights.is_filled(own.scale if isinstance(own, ColumnSelection) else own, 1):
            continue
        scale = coefficient.scale
        if isinstance(scale, np.ndarray) and cell.scaled(scale).key == form.key:
            return float(scale.flat[0]) if weights.is_filled(scale, scale.flat[0]) else None
    return None


def _cell_gates(c: RecurrentState) -> list[_LstmGates]:
    """The gates of an update f∘c + i∘g, in each order of i and g that is possible."""
    if not weights.is_zero(c.update.bias):
        return []
    kept, rest = _terms_with_state(c)
    if len(kept) != 1 or (gate := as_gate(kept[0][0])) is None:
        return []
    own, scale = c.scale_in(c.update), kept[0][1]
    if own is None and weights.is_filled(scale, 1):
        return [*_independent_gates(gate, rest), *_input_complements_forget(gate, rest)]
    if own is not None and weights.is_filled(own, 1) and weights.is_filled(scale, -1):
        return list(_forget_complements_input(gate, rest))
    return []


def _terms_with_state(c: RecurrentState) -> tuple[list[tuple[Factor, Weight]], _Terms]:
    """The factors that c' multiplies c by, and its terms without c; both with their scales."""
    kept: list[tuple[Factor, Weight]] = []
    rest: _Terms = []
    for monomial, coefficient in c.update.terms.values():
        if not isinstance(coefficient, ColumnSelection):
            return [], []
        factors = _two_factors(monomial)
        place = next((k for k, f in enumerate(factors or ()) if c.is_factor(f)), None)
        if factors is not None and place is not None:
            kept.append((factors[1 - place], coefficient.scale))
        elif monomial.key != c.source.key:
            rest.append((monomial, coefficient.scale))
    return kept, rest


def _independent_gates(f: Gate, rest: _Terms) -> Iterator[_LstmGates]:
    """The gates where the only other term is i∘g."""
    for first, second in _orders_of_product(rest):
        i, g = as_gate(first), as_gate(second)
        if i is not None and g is not None and with_common_activation([i, f]) is not None:
            scaled = scale_gate(g, rest[0][1])
            if scaled is not None:
                yield i, f, scaled


def _orders_of_product(rest: _Terms) -> Iterator[tuple[Factor, Factor]]:
    """The two factors of the only term, in both orders."""
    factors = _two_factors(rest[0][0]) if len(rest) == 1 else None
    if factors is not None:
        yield factors
        yield factors[::-1]


def _input_complements_forget(f: Gate, rest: _Terms) -> Iterator[_LstmGates]:
    """The gates where i = 1 - f: the other terms are g - f∘g."""
    if len(rest) != 2 or (i := complement(f)) is None:
        return
    for (alone, plus), (product, minus) in (rest, rest[::-1]):
        if not weights.is_filled(plus, 1) or not weights.is_filled(minus, -1):
            continue
        g = as_gate(alone) if isinstance(alone, ActivatedForm) else None
        factors = product.factors if isinstance(product, ElementwiseProduct) else ()
        if g is not None and sorted(x.key for x in factors) == sorted((f.key, g.key)):
            yield i, f, g


def _forget_complements_input(i: Gate, rest: _Terms) -> Iterator[_LstmGates]:
    """The gates where f = 1 - i: the other terms are c and i∘g."""
    f = complement(i)
    for first, second in _orders_of_product(rest):
        g = as_gate(second)
        if f is not None and g is not None and first.key == i.key:
            scaled = scale_gate(g, rest[0][1])
            if scaled is not None:
                yield i, f, scaled


def _lstm(
    h: RecurrentState, c: RecurrentState, gates: list[Gate], output: ActivationFunction
) -> Cell:
    """The LSTM with gates in the order i, o, f, g. Raises Miss if a form is not that of a gate."""
    (i, o, f, g), attributes = split_clips(gates)
    at_i, at_f = _peephole(i, c), _peephole(f, c)
    at_o, o = _output_peephole(o, c)
    peepholes = [at_i, at_o, at_f]
    linear = [gate_weights(form, h) for form in (i.without(c.source), o, f.without(c.source), g)]
    used = any(not weights.is_zero(p) for p in peepholes)
    functions = [gates[0].function, gates[3].function, output]
    return Cell("LSTM", h, c, linear, functions, attributes, peepholes if used else None)


def _peephole(form: AffineForm, c: RecurrentState) -> Weight:
    """What a gate multiplies the previous cell state by; zeros if it does not read it."""
    if c.source.key not in form.terms:
        return np.zeros(form.width, form.dtype)
    scale = c.scale_in(form)
    if scale is None:
        raise Miss("a gate mixes the features of the cell state: a peephole is elementwise")
    return scale


def _output_peephole(form: AffineForm, c: RecurrentState) -> tuple[Weight, AffineForm]:
    """What the output gate multiplies the new cell state by, and the form without that."""
    terms = dict(form.terms)
    scale: Weight | None = None
    for key, (_, coefficient) in c.update.terms.items():
        _, own = terms.pop(key, (None, None))
        if own is None and scale is None:
            continue
        if own is None:
            raise Miss("the output gate reads only a part of the new cell state")
        if not isinstance(own, ColumnSelection) or not isinstance(coefficient, ColumnSelection):
            raise Miss("the output gate mixes the features of the cell state")
        if scale is None and weights.is_filled(coefficient.scale, 1):
            scale = own.scale
        expected = None if scale is None else weights.multiply(scale, coefficient.scale)
        if expected is None or not weights.equal(expected, own.scale):
            raise Miss("the output gate reads only a part of the new cell state")
    if scale is None:
        return np.zeros(form.width, form.dtype), form
    return scale, AffineForm(form.width, terms, form.bias)


# --- GRU ---


def _match_gru(h: RecurrentState) -> Cell | None:
    """The GRU with the hidden state h; None if h' is not (1-z)∘n + z∘h.

    Raises Miss for a near miss.
    """
    found = _update_gate_and_candidate(h)
    if found is None:
        return None
    z, n = found
    argument, bound = split_clip(n.form)
    r, candidate, reset_after = _candidate_weights(argument, h)
    gates = with_common_activation([z] if r is None else [z, r])
    if gates is None:
        raise Miss("its update and reset gates have different activations")
    forms, attributes = split_clips(gates)
    if attributes.get("clip") != bound:
        raise Miss("only some of its gates are clipped, or to different bounds")
    linear = [gate_weights(form, h) for form in forms]
    if r is None:
        if gates[0].function[0] != "Sigmoid" or attributes:
            raise Miss("its candidate has no reset gate, and the operator's is not 1 for any bias")
        linear.append(_gate_of_one(argument))
    linear.append(candidate)
    attributes |= {"linear_before_reset": 1.0} if reset_after else {}
    return Cell("GRU", h, None, linear, [gates[0].function, n.function], attributes)


def _update_gate_and_candidate(h: RecurrentState) -> tuple[Gate, Gate] | None:
    """The gate z of the operator and the candidate n."""
    form = h.update
    if len(form.terms) != 3 or not weights.is_zero(form.bias):
        return None
    terms = [(m, c.scale) for m, c in form.terms.values() if isinstance(c, ColumnSelection)]
    products = [(fs, s) for m, s in terms if (fs := _two_factors(m)) is not None]
    alone = [(m, s) for m, s in terms if isinstance(m, ActivatedForm)]
    own = h.scale_in(form)
    if len(products) != 2:
        return None
    kept = next((p for p in products if any(h.is_factor(f) for f in p[0])), None)
    if kept is None:
        return None
    other, scale = products[1] if kept is products[0] else products[0]
    z_factor = next((f for f in kept[0] if not h.is_factor(f)), None)
    if z_factor is None or z_factor.key not in {f.key for f in other}:
        return None
    n_factor = next((f for f in other if f.key != z_factor.key), None)
    z, n = as_gate(z_factor), None if n_factor is None else as_gate(n_factor)
    if z is None or n is None:
        return None
    if own is None and len(alone) == 1 and alone[0][0].key == n.key:  # n - z∘n + z∘h
        signs = (alone[0][1], 1), (kept[1], 1), (scale, -1)
        return (z, n) if all(weights.is_filled(*sign) for sign in signs) else None
    if own is None:
        return None
    signs = (own, 1), (kept[1], -1), (scale, 1)  # h - z∘h + z∘n
    exchanged = complement(z) if all(weights.is_filled(*sign) for sign in signs) else None
    return None if exchanged is None else (exchanged, n)


def _gate_of_one(form: AffineForm) -> GateWeights:
    """The weights of a reset gate that is 1, for a candidate that reads the state as it is.

    As in the light GRU of Ravanelli et al. (Light Gated Recurrent Units for Speech Recognition,
    2018). The sigmoid of the bias is 1 in every float type.
    """
    size, dtype = form.width, form.dtype
    return GateWeights({}, np.zeros((size, size), dtype), np.full(size, _OPEN, dtype))


_OPEN = 40.0
"""The bias of a gate that is always open."""


def _candidate_weights(
    form: AffineForm, h: RecurrentState
) -> tuple[Gate | None, GateWeights, bool]:
    """The reset gate, the weights of the candidate, and whether the reset follows the product.

    None for a candidate that reads the state without a reset gate.
    """
    for source in form.inputs():
        check_lifted(source)
    products = [(m, c) for m, c in form.terms.values() if isinstance(m, ElementwiseProduct)]
    factors = _two_factors(products[0][0]) if len(products) == 1 else None
    for factor, other in () if factors is None else (factors, factors[::-1]):
        product, coefficient = products[0]
        reset, rest = as_gate(factor), form.without(product)
        if reset is None or not isinstance(factor, ActivatedForm):
            continue
        if h.is_factor(other):
            recurrent = as_matrix(coefficient, product.width)
            return reset, _reset_before_product(rest, h, recurrent), False
        if isinstance(other, UnexpandedForm) and isinstance(coefficient, ColumnSelection):
            inner = other.form.scaled(coefficient.scale)
            return reset, _reset_after_product(rest, h, factor, inner), True
    if products:
        raise Miss("its candidate multiplies the state by other than a reset gate")
    candidate = gate_weights(form, h)
    # Without the state, no operator is needed: the recurrence is linear.
    if weights.is_zero(candidate.recurrent):
        raise Miss("its candidate does not read the state")
    # Runtimes multiply the state once for all gates if the reset follows the product.
    unshifted = np.zeros(form.width, form.dtype)
    return None, replace(candidate, recurrent_bias=unshifted), True


def _reset_before_product(rest: AffineForm, h: RecurrentState, recurrent: Weight) -> GateWeights:
    """The weights of act(x·W + (r∘h)·R + b)."""
    found = gate_weights(rest, h)
    if not weights.is_zero(found.recurrent):
        raise Miss("its candidate also reads the state without the reset gate")
    return GateWeights(found.inputs, recurrent, found.bias)


def _reset_after_product(
    rest: AffineForm, h: RecurrentState, reset: ActivatedForm, product: AffineForm
) -> GateWeights:
    """The weights of act(x·W + r∘(h·R + bR) + bW), where r∘bR may be a term of its own."""
    _, coefficient = rest.terms.get(reset.key, (None, None))
    if coefficient is not None:
        if not isinstance(coefficient, ColumnSelection):
            raise Miss("its candidate mixes the features of the reset gate")
        product = product.plus(coefficient.scale)
        rest = rest.without(reset)
    outer, inner = gate_weights(rest, h), gate_weights(product, h)
    if inner.inputs or not weights.is_zero(outer.recurrent):
        raise Miss("its reset gate acts on more than the state")
    return GateWeights(outer.inputs, inner.recurrent, outer.bias, inner.bias)


# --- RNN ---


def _match_rnn(h: RecurrentState) -> Cell | None:
    """The RNN with the hidden state h; None if there is none."""
    if _is_linear(h):
        return Cell("RNN", h, None, [gate_weights(h.update, h)], [LINEAR])
    monomial, scale = h.update.single_monomial() or (None, None)
    gate = as_gate(monomial) if isinstance(monomial, ActivatedForm) else None
    if gate is None or scale is None:
        return None
    function = scale_activation(gate.function, scale)
    (form,), attributes = split_clips([gate])
    if function is None or h.source.key not in form.terms:
        return None
    return Cell("RNN", h, None, [gate_weights(form, h)], [function], attributes)


def _is_linear(h: RecurrentState) -> bool:
    """Whether the update is affine and mixes the features of h.

    One that keeps them apart is a linear recurrence for each feature, which needs no matrix.
    """
    _, own = h.update.terms.get(h.source.key, (None, None))
    mixes = own is not None and not isinstance(own, ColumnSelection)
    return mixes and all(isinstance(m, SymbolicInput) for m, _ in h.update.terms.values())
