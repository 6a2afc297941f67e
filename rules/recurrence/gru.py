"""The GRU and the RNN by their equations (ONNX operator specification, GRU and RNN):

    h' = (1-z)∘n + z∘h      n = act(x·W + (r∘h)·R + b)  or  act(x·W + r∘(h·R + b))
    h' = act(x·W + h·R + b)          act may be Affine, with 1 and 0: no activation

The first arrives multiplied out, as n - z∘n + z∘h. Libraries that exchange the roles of z and 1-z
give h - z∘h + z∘n; z is then 1 minus the operator's.
"""

from __future__ import annotations

from . import weights
from .atoms import Activation, Affine, Atom, Factor, Product, Source
from .cells import (
    LINEAR,
    Cell,
    Gate,
    Linear,
    NoCell,
    Part,
    alike,
    check_known,
    complement,
    gate_of,
    is_all,
    opened,
    taken_apart,
    unclipped,
    with_scale,
)
from .coefficients import Coefficient, Pick, dense
from .forms import Form


def match_gru(h: Part) -> Cell | None:
    """The GRU whose output is h; None if there is none.

    Raises NoCell where it would be one but for something.
    """
    found = _keep_and_candidate(h)
    if found is None:
        return None
    z, n = found
    inner, bound = unclipped(n.form)
    reset, linear, after = _candidate(inner, h)
    of_one_kind = alike([z, reset])
    if of_one_kind is None:
        raise NoCell("the activations of its reset and update gates differ")
    forms_of, attributes = opened(of_one_kind)
    if attributes.get("clip") != bound:
        raise NoCell("only some of its gates are clipped, or to different bounds")
    gates = [*(taken_apart(form, h) for form in forms_of), linear]
    attributes |= {"linear_before_reset": 1.0} if after else {}
    return Cell("GRU", h, None, gates, [of_one_kind[0].function, n.function], attributes)


def _keep_and_candidate(h: Part) -> tuple[Gate, Gate] | None:
    """The operator's z and the candidate n."""
    form = h.update
    if len(form.terms) != 3 or not weights.is_zero(form.bias):
        return None
    own = h.scale_in(form)
    products = [
        (a, c.scale)
        for a, c in form.atoms
        if isinstance(a, Product) and isinstance(c, Pick) and len(a.factors) == 2
    ]
    alone = [
        (a, c.scale) for a, c in form.atoms if isinstance(a, Activation) and isinstance(c, Pick)
    ]
    if len(products) != 2:
        return None
    kept = next(((a, s) for a, s in products if any(h.is_factor(f) for f in a.factors)), None)
    if kept is None:
        return None
    z_factor = next(f for f in kept[0].factors if not h.is_factor(f))
    other, scale = next((a, s) for a, s in products if a is not kept[0])
    candidate = next((f for f in other.factors if f.key != z_factor.key), None)
    z = gate_of(z_factor)
    n = None if candidate is None else gate_of(candidate)
    if z is None or n is None or z_factor.key not in {f.key for f in other.factors}:
        return None
    if own is None and len(alone) == 1 and alone[0][0].key == n.key:
        is_gru = is_all(alone[0][1], 1) and is_all(kept[1], 1) and is_all(scale, -1)
        return (z, n) if is_gru else None
    is_gru = own is not None and is_all(own, 1) and is_all(kept[1], -1) and is_all(scale, 1)
    negated = complement(z)
    return (negated, n) if is_gru and negated is not None else None


def _candidate(form: Form, h: Part) -> tuple[Gate, Linear, bool]:
    """The reset gate, the affine form of the candidate, and whether the reset comes after R."""
    for source in form.sources():
        check_known(source)
    products = [(a, c) for a, c in form.atoms if isinstance(a, Product)]
    if len(products) != 1 or len(products[0][0].factors) != 2:
        raise NoCell("its candidate has no reset gate")
    (atom, coefficient) = products[0]
    assert isinstance(atom, Product)
    rest = Form(form.width, {k: t for k, t in form.terms.items() if k != atom.key}, form.bias)
    for factor, other in (atom.factors, atom.factors[::-1]):
        reset = gate_of(factor)
        if reset is None or not isinstance(factor, Activation):
            continue
        if h.is_factor(other):
            return reset, _before(rest, h, atom, coefficient), False
        if isinstance(other, Affine) and isinstance(coefficient, Pick):
            return reset, _after(rest, h, factor, other.form.scaled(coefficient.scale)), True
    raise NoCell("its candidate has no reset gate")


def _before(rest: Form, h: Part, atom: Atom, coefficient: Coefficient) -> Linear:
    """act(x·W + (r∘h)·R + b)"""
    linear = taken_apart(rest, h)
    if not weights.is_zero(linear.recurrent):
        raise NoCell("its candidate also reads the state without the reset gate")
    return Linear(linear.inputs, dense(coefficient, atom.width), linear.bias)


def _after(rest: Form, h: Part, reset: Factor, product: Form) -> Linear:
    """act(x·W + b + r∘(h·R + c)), where r∘c may stand apart."""
    apart = rest.terms.get(reset.key)
    if apart is not None:
        _, coefficient = apart
        if not isinstance(coefficient, Pick):
            raise NoCell("its candidate mixes the features of the reset gate")
        product = product.plus(coefficient.scale)
        terms = {k: t for k, t in rest.terms.items() if k != reset.key}
        rest = Form(rest.width, terms, rest.bias)
    outer, inner = taken_apart(rest, h), taken_apart(product, h)
    if inner.inputs or not weights.is_zero(outer.recurrent):
        raise NoCell("its reset gate acts on more than the state")
    return Linear(outer.inputs, inner.recurrent, outer.bias, inner.bias)


def match_rnn(h: Part) -> Cell | None:
    """The RNN whose output is h; None if there is none."""
    if _is_linear(h):
        return Cell("RNN", h, None, [taken_apart(h.update, h)], [LINEAR])
    whole = h.update.only()
    if whole is None or not isinstance(whole[0], Activation):
        return None
    gate = gate_of(whole[0])
    function = None if gate is None else with_scale(gate.function, whole[1])
    if gate is None or function is None:
        return None
    (form,), attributes = opened([gate])
    if h.source.key not in form.terms:
        return None
    return Cell("RNN", h, None, [taken_apart(form, h)], [function], attributes)


def _is_linear(h: Part) -> bool:
    """Whether the update is affine, with a product that mixes the features of h. One that leaves
    them apart is a recurrence of numbers, for which a Scan of two operators does.
    """
    own = h.update.terms.get(h.source.key)
    mixes = own is not None and not isinstance(own[1], Pick)
    return mixes and all(isinstance(atom, Source) for atom, _ in h.update.atoms)
