"""Loops around recurrent cells in ONNX text."""

from __future__ import annotations

import numpy as np


def numbers(count: int, start: float = 0.0) -> str:
    """Some numbers, as the elements of a constant."""
    return ", ".join(f"{np.sin(start + k):.3f}" for k in range(count))


def constant(name: str, *shape: int) -> str:
    """The declaration of a constant with some numbers."""
    elements = np.sin(np.arange(np.prod(shape)) * 1.7 + len(name))
    sizes = ",".join(str(n) for n in shape)
    return f"float[{sizes}] {name} = {{{', '.join(f'{v:.3f}' for v in elements)}}}"


def integers(**vectors: list[int] | int) -> str:
    """The declarations of int64 constants, vectors and scalars."""
    return ", ".join(
        f"int64[{len(v)}] {name} = {{{', '.join(map(str, v))}}}"
        if isinstance(v, list)
        else f"int64 {name} = {{{v}}}"
        for name, v in vectors.items()
    )


PLACES = integers(g0=0, g1=1, g2=2, g3=3)
CELL = """i = Sigmoid(gi) f = Sigmoid(gf) g = Tanh(gg) o = Sigmoid(go)
    fc = Mul(f, c) ig = Mul(i, g) cn = Add(fc, ig) tc = Tanh(cn) hn = Mul(o, tc) row = Identity(hn)"""


def gates(value: str, axis: int) -> str:
    """The four gates as slices along an axis."""
    names = ("gi", "gf", "gg", "go")
    return " ".join(f"{g} = Gather<axis={axis}>({value}, g{k})" for k, g in enumerate(names))


def scan_lstm(
    nodes: str, constants: str, x: str = "B,2", state: str = "B,3", before: str = ""
) -> str:
    """A Scan over x around an LSTM with the states h and c; the body reads xt."""
    return f"""m (float[T,{x}] x, float[{state}] h0, float[{state}] c0)
      => (float[T,{state}] y, float[{state}] hl, float[{state}] cl) <{constants}, {PLACES}> {{
      {before}
      hl, cl, y = Scan <num_scan_inputs=1,
        body = cell (float[{state}] h, float[{state}] c, float[{x}] xt)
            => (float[{state}] hn, float[{state}] cn, float[{state}] row) {{ {nodes} {CELL} }}>
        (h0, c0, x) }}"""


def scan_rnn(nodes: str, constants: str, inputs: str = "float[T,B,2] x", before: str = "") -> str:
    """A Scan over x around an RNN whose pre-activation is a."""
    x = inputs.partition("]")[0].partition("T,")[2]
    return f"""m ({inputs}, float[B,3] h0) => (float[T,B,3] y) <{constants}> {{
      {before}
      hl, y = Scan <num_scan_inputs=1, body = cell (float[B,3] h, float[{x}] xt)
            => (float[B,3] hn, float[B,3] row) {{ {nodes} hn = Tanh(a) row = Identity(hn) }}>
        (h0, x) }}"""
