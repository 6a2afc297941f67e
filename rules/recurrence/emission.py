"""Puts the operator of a cell into the graph (ONNX operator specification: LSTM, GRU, RNN)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.graph.ir import Tensor, Variable
from . import weights
from .cells import Cell, Function
from .layout import Layout
from .weights import Weight

DEFAULTS = {
    "LSTM": ["Sigmoid", "Tanh", "Tanh"],
    "GRU": ["Sigmoid", "Tanh"],
    "RNN": ["Tanh"],
}
"""The activations of one direction when none are given."""


@dataclass(frozen=True, eq=False)
class Parameters:
    """The weights of a cell in the operator's layout; None for inputs that can be left out."""

    w: Weight
    """(1, gates * hidden, features)"""
    r: Weight
    """(1, gates * hidden, hidden)"""
    b: Weight | None
    """(1, 2 * gates * hidden)"""
    p: Weight | None
    """(1, 3 * hidden)"""


def parameters(cell: Cell) -> Parameters:
    """The weights of a cell, its inputs one behind the other in the order of `cell.inputs`."""
    hidden = cell.h.hidden
    rows = [_input_matrix(cell, place) for place in range(len(cell.gates))]
    w = _stacked([weights.transposed(m) for m in rows])
    r = _stacked([weights.transposed(gate.recurrent) for gate in cell.gates])
    zeros = np.zeros(hidden, cell.h.update.dtype)
    biases = [gate.bias for gate in cell.gates]
    inner = [zeros if g.recurrent_bias is None else g.recurrent_bias for g in cell.gates]
    b = None
    if not all(weights.is_zero(v) for v in (*biases, *inner)):
        b = _with_direction(weights.concat([*biases, *inner], 0))
    p = None if cell.peepholes is None else _with_direction(weights.concat(cell.peepholes, 0))
    return Parameters(w, r, b, p)


def _input_matrix(cell: Cell, gate: int) -> Weight:
    """The weights of one gate for all inputs together: (features, hidden)."""
    parts: list[Weight] = []
    for source in cell.inputs:
        found = cell.gates[gate].inputs.get(source.key)
        zeros = np.zeros((source.width, cell.h.hidden), cell.h.update.dtype)
        parts.append(zeros if found is None else found[1])
    return weights.concat(parts, 0)


def _stacked(matrices: Sequence[Weight]) -> Weight:
    return _with_direction(weights.concat(matrices, 0))


def _with_direction(weight: Weight) -> Weight:
    return weights.reshaped(weight, (1, *weight.shape))


def attributes(cell: Cell) -> dict[str, Any]:
    """The attributes of the operator; defaults are left out."""
    attrs: dict[str, Any] = {"hidden_size": cell.h.hidden}
    names = [name for name, _ in cell.functions]
    if names != DEFAULTS[cell.op]:
        attrs["activations"] = names
        alphas, betas = _activation_parameters(cell.functions)
        attrs |= {"activation_alpha": alphas} if alphas else {}
        attrs |= {"activation_beta": betas} if betas else {}
    for name, value in cell.attributes.items():
        attrs[name] = value if name == "clip" else int(value)
    return attrs


def _activation_parameters(functions: Sequence[Function]) -> tuple[list[float], list[float]]:
    """alpha and beta of the activations that have them, in order."""
    alphas = [p[0] for _, p in functions if len(p) > 0]
    betas = [p[1] for _, p in functions if len(p) > 1]
    return alphas, betas


class InGraph:
    """Builds weights as nodes and initializers."""

    def __init__(self, emit: Builder) -> None:
        self._emit = emit

    def value(self, tensor: Tensor) -> Tensor:
        return tensor

    def constant(self, array: weights.Array) -> Tensor:
        return self._emit.constant(np.ascontiguousarray(array))

    def apply(self, op: str, operands: Sequence[Tensor], attrs: Mapping[str, Any]) -> Tensor:
        return self._emit(op, *operands, **attrs)


def emit_operator(
    emit: Builder,
    cell: Cell,
    x: Tensor,
    initial: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
    lengths: Tensor | None = None,
) -> list[Tensor]:
    """The operator over all steps; `x` is (time, batch, features), `initial` h and c with a
    direction in front, `lengths` one number per row. `outputs` name Y, Y_h and Y_c; a name that is
    empty is not made.
    """
    builder, done = InGraph(emit), dict[bytes, Any]()

    def built(weight: Weight | None) -> Tensor:
        return nothing() if weight is None else weights.build(weight, builder, done)

    found = parameters(cell)
    inputs = [
        x,
        built(found.w),
        built(found.r),
        built(found.b),
        nothing() if lengths is None else lengths,
    ]
    inputs += [nothing() if t is None else t for t in initial]
    if found.p is not None:
        inputs.append(built(found.p))
    made = emit.outputs(cell.op, _trimmed(inputs), _trimmed(outputs), **attributes(cell))
    return [*made, *outputs[len(made) :]]


def tell_of_empty_batch(patch: Patch, op: str, layout: Layout) -> None:
    """Notes where onnxruntime ends, which ran what an operator takes the place of."""
    if op != "RNN" and not symbolic.positive(layout.size):
        patch.note(f"an empty batch ends onnxruntime's process in {op}")


def _trimmed(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Without those at the end that are left out."""
    last = max((k for k, t in enumerate(tensors) if t.name), default=-1)
    return tensors[: last + 1]


def nothing() -> Variable:
    """An input or output that is left out."""
    return Variable("")
