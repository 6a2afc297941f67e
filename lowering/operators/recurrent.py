"""LSTM, GRU and RNN for Relax: one product for the input of all steps, one kernel for the rest.

    X ──▶ x·W + Wb for all steps ──▶ recurrence ──▶ Y, Y_h, Y_c
                                        ▲
          R, Rb, P, initial state, sequence_lens

Batch and sequence length may be symbolic; the sizes of the layer must be known. float16 and
bfloat16 are computed in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...rewrite.errors import UnsupportedError
from ..constants import constant
from ..kernel_call import call_kernel
from .recurrent_attributes import Layer, parse_layer
from .recurrent_buffers import PEEPHOLES, Recurrence
from .recurrent_inputs import Expr, computation_type, dims, last_dim, shaped
from .recurrent_kernel import recurrence_kernel
from .recurrent_layout import Layout, choose_layout, pack
from .recurrent_product import input_product


def convert_lstm(
    bb: relax.BlockBuilder, inputs: Sequence[Expr | None], attrs: Mapping[str, Any], params: Any
) -> Expr:
    """ai.onnx.LSTM: (X, W, R, [B, sequence_lens, initial_h, initial_c, P]) -> (Y, Y_h, Y_c)."""
    return _convert(bb, "LSTM", inputs, attrs)


def convert_gru(
    bb: relax.BlockBuilder, inputs: Sequence[Expr | None], attrs: Mapping[str, Any], params: Any
) -> Expr:
    """ai.onnx.GRU: (X, W, R, [B, sequence_lens, initial_h]) -> (Y, Y_h)."""
    return _convert(bb, "GRU", inputs, attrs)


def convert_rnn(
    bb: relax.BlockBuilder, inputs: Sequence[Expr | None], attrs: Mapping[str, Any], params: Any
) -> Expr:
    """ai.onnx.RNN: (X, W, R, [B, sequence_lens, initial_h]) -> (Y, Y_h)."""
    return _convert(bb, "RNN", inputs, attrs)


def _convert(
    bb: relax.BlockBuilder, op: str, inputs: Sequence[Expr | None], attrs: Mapping[str, Any]
) -> Expr:
    """Convert one node to a tuple of all its outputs, wanted or not.

    ModelError: attributes or shapes that contradict the specification.
    UnsupportedError: a size of the layer that is not known, or a type other than floating point.
    """
    given: list[Any] = [*inputs, *[None] * (8 - len(inputs))]
    x, w, r, b, lengths, h, c, p = given
    layer = parse_layer(op, attrs, _hidden_size(op, r, attrs))
    outer_type = str(x.ty.dtype)
    dtype = computation_type(op, outer_type)
    layout = choose_layout(layer.gates, layer.hidden, dtype)
    directions, columns = len(layer.directions), _input_size(op, x, w)

    x = _batch_second(bb, layer, shaped(bb, "X", x, (None, None, columns), dtype))
    steps, batch, _ = dims(x)
    w = shaped(bb, "W", w, (directions, layer.gates * layer.hidden, columns), dtype)
    r = shaped(bb, "R", r, (directions, layer.gates * layer.hidden, layer.hidden), dtype)
    input_bias, recurrent_bias = _biases(bb, layer, b, dtype)
    product = _input_product(bb, x, pack(bb, w, layout), pack(bb, input_bias, layout))

    arguments = [product, pack(bb, r, layout), pack(bb, recurrent_bias, layout)]
    if p is not None:
        arguments.append(_peepholes(bb, layer, layout, p, dtype))
    for name, state in zip(("initial_h", "initial_c"), (h, c)[: _states(op)], strict=False):
        arguments.append(_initial_state(bb, layer, name, state, batch, dtype))
    if lengths is not None:
        arguments.append(shaped(bb, "sequence_lens", lengths, (batch,), "int32"))
    rows = batch if isinstance(batch, int) else None
    recurrence = Recurrence(layer, layout, dtype, rows, p is not None, lengths is not None)
    kernel = recurrence_kernel(recurrence)
    state_type = relax.TensorType((directions, batch, layer.hidden), dtype)
    sequence_type = relax.TensorType((steps, directions, batch, layer.hidden), dtype)
    types = [sequence_type] + [state_type] * _states(op)
    outputs = call_kernel(bb, f"{op.lower()}_recurrence", kernel, arguments, types)
    return relax.Tuple([_as_declared(bb, layer, y, outer_type) for y in outputs])


def _states(op: str) -> int:
    """Number of tensors the state consists of."""
    return 2 if op == "LSTM" else 1


def _hidden_size(op: str, r: Expr, attrs: Mapping[str, Any]) -> int:
    size = last_dim(r) or attrs.get("hidden_size")
    if not size:
        raise UnsupportedError(
            f"the number of hidden units of an {op} is not known",
            remedy="set hidden_size, or give R a known shape",
        )
    return int(size)


def _input_size(op: str, x: Expr, w: Expr) -> int:
    size = last_dim(w) or last_dim(x)
    if size is None:
        raise UnsupportedError(
            f"the input size of an {op} is not known",
            remedy="give the last dimension of X or W a known size",
        )
    return size


def _batch_second(bb: relax.BlockBuilder, layer: Layer, value: Expr) -> Expr:
    """X or a state with the batch as the second of three dimensions, whatever the layout."""
    return bb.emit(relax.op.permute_dims(value, (1, 0, 2))) if layer.batch_first else value


def _biases(bb: relax.BlockBuilder, layer: Layer, b: Expr | None, dtype: str) -> tuple[Expr, Expr]:
    """Wb and Rb as weights of one column, [directions, gates·hidden, 1]."""
    directions, rows = len(layer.directions), layer.gates * layer.hidden
    if b is None:
        none = constant(np.zeros((directions, rows, 1), dtype))
        return none, none
    b = shaped(bb, "B", b, (directions, 2 * rows), dtype)
    if isinstance(b, tvm.ir.GenericConst):
        halves = np.split(b.value.numpy()[..., None], 2, axis=1)
        return constant(halves[0]), constant(halves[1])
    halves = bb.emit(relax.op.split(relax.op.expand_dims(b, -1), 2, axis=1))
    return bb.emit(halves[0]), bb.emit(halves[1])


def _peepholes(bb: relax.BlockBuilder, layer: Layer, layout: Layout, p: Expr, dtype: str) -> Expr:
    p = shaped(bb, "P", p, (len(layer.directions), PEEPHOLES * layer.hidden), dtype)
    if isinstance(p, tvm.ir.GenericConst):
        column = constant(p.value.numpy()[..., None])
    else:
        column = bb.emit(relax.op.expand_dims(p, -1))
    return pack(bb, column, replace(layout, gates=PEEPHOLES))


def _initial_state(
    bb: relax.BlockBuilder, layer: Layer, name: str, state: Expr | None, batch: Any, dtype: str
) -> Expr:
    """[directions, batch, hidden]; zeros if the node gives none."""
    directions = len(layer.directions)
    if state is None:
        return bb.emit(relax.op.zeros((directions, batch, layer.hidden), dtype))
    outer = (directions, batch)
    outer = outer[::-1] if layer.batch_first else outer
    return _batch_second(bb, layer, shaped(bb, name, state, (*outer, layer.hidden), dtype))


def _input_product(bb: relax.BlockBuilder, x: Expr, weight: Expr, bias: Expr) -> Expr:
    steps, batch, columns = dims(x)
    panels, _, panel = dims(weight)
    dtype = str(x.ty.dtype)
    kernel = input_product(columns, panels, panel, dtype)
    wanted = relax.TensorType((steps, batch, panels * panel), dtype)
    return call_kernel(bb, "recurrent_input_product", kernel, [x, weight, bias], [wanted])[0]


def _as_declared(bb: relax.BlockBuilder, layer: Layer, output: Expr, dtype: str) -> Expr:
    """An output in the layout and type of the node."""
    if layer.batch_first:
        batch_first = (2, 0, 1, 3) if len(dims(output)) == 4 else (1, 0, 2)
        output = bb.emit(relax.op.permute_dims(output, batch_first))
    if str(output.ty.dtype) == dtype:
        return output
    return bb.emit(relax.op.astype(output, dtype))
