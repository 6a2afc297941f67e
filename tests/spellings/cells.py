"""One time step of an LSTM, GRU or RNN in a random spelling, or a near miss with a flaw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .writer import Writer

GATE = ("Sigmoid", "Sigmoid", "Sigmoid", "HardSigmoid")
OUTER = ("Tanh", "Tanh", "Tanh", "Relu", "Softsign", "Sigmoid", "Elu", "LeakyRelu")

FLAWS = {
    "LSTM": (
        "gate used for another", "wrong constant", "extra term", "late state", "gate of gates",
        "squared state", "unlike activations", "state of iteration", "clipped state", "zoneout",
    ),
    "GRU": (
        "wrong constant", "extra term", "gate used for another", "reset on input", "squared state",
        "unlike activations", "clipped state", "zoneout", "reset twice",
    ),
    "RNN": ("extra term", "squared state", "late state", "clipped state", "zoneout", "sum of two"),
}  # fmt: skip
"""What makes a time step a near miss of each operator."""


@dataclass
class TimeStep:
    """The names and sizes of what a time step reads."""

    w: Writer
    numbers: np.random.Generator
    x: str
    h: str
    c: str
    features: int
    hidden: int
    flaw: str = ""
    """Empty for a cell that the operator has."""

    def matrix(self, rows: int, columns: int) -> np.ndarray:
        return (self.numbers.standard_normal((rows, columns)) * 0.5).astype(np.float32)

    def vector(self, size: int) -> np.ndarray:
        return (self.numbers.standard_normal(size) * 0.5).astype(np.float32)


def pre_activations(s: TimeStep, count: int, x: str, h: str) -> list[str]:
    """x·W + h·R + b for several gates."""
    if s.flaw == "squared state":
        h = s.w.mul(h, h)
    kind = s.w.either("concat", "two", "nested", "each", "added biases")
    size = count * s.hidden
    if kind == "each":
        return [_together(s, s.hidden, x, h) for _ in range(count)]
    whole = _together(s, size, x, h, kind)
    if count == 1:
        return [whole]
    parts = s.w.pieces(whole, count, s.hidden)
    s.w.choose.shuffle(parts)  # the order of the gates
    return parts


def _together(s: TimeStep, size: int, x: str, h: str, kind: str = "") -> str:
    w = s.w
    kind = kind or w.either("concat", "two", "nested", "added biases")
    if kind == "concat":
        parts = w.choose.sample([x, h], 2)
        whole = w.op("Concat", *parts, axis=w.either(1, -1))
        return w.affine(whole, s.matrix(s.features + s.hidden, size), s.vector(size))
    wx, wh = s.matrix(s.features, size), s.matrix(s.hidden, size)
    if kind == "nested":
        inner = w.op("Gemm", x, w.constant(wx), w.constant(s.vector(size)))
        return str(w.op("Gemm", h, w.constant(wh.T), inner, transB=1))
    if kind == "two":
        return w.add(w.affine(x, wx, s.vector(size)), w.product(h, wh))
    biases = [w.constant(s.vector(size)) for _ in range(2)]
    return w.add(w.product(x, wx), w.product(h, wh), *biases)


def lstm(s: TimeStep) -> tuple[str, str]:
    """h and c after the time step."""
    w = s.w
    coupled = w.either(False, False, False, True) and s.flaw != "gate used for another"
    gate, inner, outer = w.either(*GATE), w.either(*OUTER), w.either(*OUTER)
    plain = not s.flaw and w.either(True, True, False)
    if s.flaw:  # so that the flaw shows: a linear cell hides some
        gate, inner, outer = "Sigmoid", "Tanh", "Tanh"
    f, i, o, g = pre_activations(s, 4, s.x, s.h)
    peephole = not plain and not s.flaw and not coupled
    if peephole:
        f, i = (w.add(v, w.mul(s.c, w.constant(s.vector(s.hidden)))) for v in (f, i))
    if w.either(True, False):
        f = w.add(f, w.constant(1.0))  # the forget bias
    if s.flaw == "state of iteration":
        f = w.add(f, w.mul(s.h, s.c))
    f = w.activation("Tanh" if s.flaw == "unlike activations" else gate, f)
    i = w.one_minus(f) if coupled else w.activation(gate, i)
    g = w.activation(inner, g)
    if s.flaw == "gate used for another":
        f = g
    if s.flaw == "gate of gates":
        i = w.activation(gate, w.mul(i, g))
    kept = w.mul(f, s.c)
    if s.flaw == "wrong constant":
        kept = w.scaled(kept, 0.5)
    terms = [kept, w.mul(i, g)]
    if s.flaw == "extra term":
        terms.append(w.either(s.h, g))
    c = w.add(*terms)
    if peephole:
        o = w.add(o, w.mul(c, w.constant(s.vector(s.hidden))))
    if s.flaw == "clipped state":
        c = w.op("Clip", c, w.constant(-0.5), w.constant(0.5))
    o = w.activation(gate, o)
    h = w.mul(o, w.activation(outer, s.c if s.flaw == "late state" else c))
    if s.flaw == "zoneout":
        h = w.add(w.scaled(h, 0.75), w.scaled(s.h, 0.25))
    return h, str(c)


def gru(s: TimeStep) -> tuple[str, str]:
    w = s.w
    gate, inner = w.either("Sigmoid", "HardSigmoid"), w.either(*OUTER)
    if s.flaw:
        gate, inner = "Sigmoid", "Tanh"
    if w.either(True, False) or s.flaw == "squared state":
        z, r = (w.activation(gate, v) for v in pre_activations(s, 2, s.x, s.h))
    else:  # the activation before the split
        both = w.activation(gate, _together(s, 2 * s.hidden, s.x, s.h))
        z, r = w.pieces(both, 2, s.hidden)
    if s.flaw == "unlike activations":
        r = w.op("Tanh", r)
    n = _candidate(s, r)
    n = w.activation(inner, n)
    one = 0.9 if s.flaw == "wrong constant" else 1.0
    kept = s.h
    if s.flaw == "gate used for another":
        h = w.add(w.mul(w.one_minus(z), n), w.mul(r, kept))
    elif one != 1.0:
        h = w.add(w.mul(w.one_minus(z, one), n), w.mul(z, kept))
    else:
        h = _mixed(w, z, n, kept)
    if s.flaw == "extra term":
        h = w.add(h, w.scaled(w.either(n, s.h), 0.5))
    if s.flaw == "clipped state":
        h = w.op("Clip", h, w.constant(-0.5), w.constant(0.5))
    if s.flaw == "zoneout":
        h = w.add(w.scaled(h, 0.75), w.scaled(s.h, 0.25))
    return h, ""


def _candidate(s: TimeStep, r: str) -> str:
    w = s.w
    x, h = s.x, s.h
    if s.flaw == "reset twice":
        r = w.mul(r, r)
    if s.flaw == "reset on input":
        both = w.add(w.product(x, s.matrix(s.features, s.hidden)),
                     w.product(h, s.matrix(s.hidden, s.hidden)))  # fmt: skip
        return w.add(w.mul(r, both), w.constant(s.vector(s.hidden)))
    if w.either(True, False):
        return _together(s, s.hidden, x, w.mul(r, h))
    inner = w.affine(h, s.matrix(s.hidden, s.hidden), s.vector(s.hidden))
    if w.either(True, False):
        inner = w.mul(r, inner)
    else:  # multiplied out
        matrix = s.matrix(s.hidden, s.hidden)
        inner = w.add(w.mul(r, w.product(h, matrix)), w.mul(r, w.constant(s.vector(s.hidden))))
    return w.add(inner, w.affine(x, s.matrix(s.features, s.hidden), s.vector(s.hidden)))


def _mixed(w: Writer, z: str, n: str, h: str) -> str:
    """Between n and h, in either sense of z."""
    if w.either(True, False):
        n, h = h, n
    kind = w.either("sum", "difference")
    if kind == "sum":
        return w.add(w.mul(w.one_minus(z), n), w.mul(z, h))
    return w.add(n, w.mul(z, str(w.op("Sub", h, n))))


def rnn(s: TimeStep) -> tuple[str, str]:
    w = s.w
    function = "Tanh" if s.flaw else w.either(*OUTER)
    h = s.h
    if s.flaw == "late state":
        h = w.activation("Tanh", h)
    (a,) = pre_activations(s, 1, s.x, h)
    h = w.activation(function, a)
    if s.flaw == "extra term":
        h = w.add(h, s.h)
    if s.flaw == "clipped state":
        h = w.op("Clip", h, w.constant(-0.5), w.constant(0.25))
    if s.flaw == "zoneout":
        h = w.add(w.scaled(h, 0.75), w.scaled(s.h, 0.25))
    if s.flaw == "sum of two":
        (b,) = pre_activations(s, 1, s.x, s.h)
        h = w.add(h, w.op("Sigmoid", b))
    return h, ""
