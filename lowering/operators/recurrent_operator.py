"""LSTM, GRU and RNN: a marked function in plain Relax, and the kernel that replaces it.

The kernel takes packed weights, and the time steps in chunks:

    X ──▶ x·W + Wb of a chunk ──▶ recurrence ──▶ Y, Y_h, Y_c
                                      ▲
        R, Rb, P, initial or last state, sequence_lens

Batch and sequence length may be symbolic; the sizes of the layer must be known. float16 and
bfloat16 are computed in float32. See https://onnx.ai/onnx/operators/onnx__LSTM.html.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.sym import Analyzer

from ...rewrite.errors import ModelError, UnsupportedError
from ..closure import Closure
from ..constants import constant
from ..kernel_call import call_kernel
from ..tvm_onnx import building_function
from ..values import Constant, Value
from .broadcasting import known_dims
from .recurrent_attributes import Layer, parse_layer
from .recurrent_kernel import recurrence_kernel
from .recurrent_layout import PEEPHOLES, Layout, Recurrence, choose_layout, pack
from .recurrent_mark import RecurrentOperator
from .recurrent_reference import Operands, emit_reference
from .registry import ConverterContext, converts

Dim = Any
"""A dim: an int, or a tirx expression over symbolic sizes."""

_NAMES = ("x", "w", "r", "b", "sequence_lens", "initial_h", "initial_c", "p")
_SLOTS = len(_NAMES)

_ATTRIBUTES = frozenset(
    {
        "activation_alpha",
        "activation_beta",
        "activations",
        "clip",
        "direction",
        "hidden_size",
        "input_forget",
        "layout",
        "linear_before_reset",
    }
)

_COMPUTATION_TYPES: Mapping[str, str] = {
    "bfloat16": "float32",
    "float16": "float32",
    "float32": "float32",
    "float64": "float64",
}


@converts("GRU", "LSTM", "RNN")
def recurrent(ctx: ConverterContext) -> Value:
    """The tuple of all outputs of an LSTM (Y, Y_h, Y_c), a GRU or an RNN (Y, Y_h).

    The inputs are X, W, R, B, sequence_lens, initial_h, and for an LSTM initial_c and P. It calls a
    function in plain Relax with a mark, see `RecurrentOperator`.
    Raises ModelError for attributes or shapes that contradict the specification, UnsupportedError
    for a layer whose sizes are not known or whose type is not floating point.
    """
    bb, op = ctx.bb, ctx.op_type
    given = [ctx.inputs[slot] for slot in range(_SLOTS)]
    present = [slot for slot, value in enumerate(given) if value is not None]
    values = {slot: as_parameter(bb, given[slot]) for slot in present}
    operator = RecurrentOperator(op, tuple(present), _described(ctx.attrs))
    closure = Closure({}, [value.ty for value in values.values()])
    params = [relax.Var(_NAMES[slot], closure.inner_type(values[slot].ty)) for slot in present]
    attributes = {RecurrentOperator.ATTRIBUTE: operator.encoded()}
    name = op.lower()
    with building_function(bb, name, params, private=False, attributes=attributes):
        with bb.dataflow():
            outputs = _outputs(bb, operator, params, emit_reference)
            result = bb.emit_output(relax.Tuple(outputs))
        function = bb.emit_func_output(result)
    result = bb.emit(relax.Call(function, list(values.values())))
    return relax.Tuple([bb.emit(relax.TupleGetItem(result, slot)) for slot in range(len(outputs))])


def emit_kernel(bb: Any, operator: RecurrentOperator, arguments: Sequence[Value]) -> list[Value]:
    """All outputs of an operator, computed by a kernel for the target in scope."""
    return _outputs(bb, operator, arguments, _call_kernel)


def _outputs(
    bb: Any,
    operator: RecurrentOperator,
    arguments: Sequence[Value],
    emit: Callable[[Any, Layer, Operands], list[Value]],
) -> list[Value]:
    """All outputs, by a function that takes checked operands."""
    op, attrs = operator.operator, operator.attributes
    slots = dict(zip(operator.present, arguments, strict=True))
    x, w, r = (slots[slot] for slot in range(3))
    b, lengths, h, c, p = (slots.get(slot) for slot in range(3, _SLOTS))
    layer = parse_layer(op, attrs, _hidden_size(op, r, attrs))
    outer_type = str(x.ty.dtype)
    dtype = _computation_type(op, outer_type)
    directions, columns = len(layer.directions), _input_size(op, x, w)
    x = _batch_second(bb, layer, _with_shape(bb, "X", x, (None, None, columns), dtype))
    batch = _dims(x)[1]
    rows, peepholes = layer.gates * layer.hidden, PEEPHOLES * layer.hidden
    states = {"initial_h": h, "initial_c": c} if op == "LSTM" else {"initial_h": h}
    operands = Operands(
        x,
        _with_shape(bb, "W", w, (directions, rows, columns), dtype),
        _with_shape(bb, "R", r, (directions, rows, layer.hidden), dtype),
        None if b is None else _with_shape(bb, "B", b, (directions, 2 * rows), dtype),
        None if lengths is None else _with_shape(bb, "sequence_lens", lengths, (batch,), "int32"),
        [_initial_state(bb, layer, name, state, batch, dtype) for name, state in states.items()],
        None if p is None else _with_shape(bb, "P", p, (directions, peepholes), dtype),
    )
    return [_as_declared(bb, layer, y, outer_type) for y in emit(bb, layer, operands)]


def _call_kernel(bb: Any, layer: Layer, given: Operands) -> list[Value]:
    """Y [steps, directions, batch, hidden] and the final states, computed by a kernel."""
    dtype = str(given.x.ty.dtype)
    layout = choose_layout(layer.gates, layer.hidden, dtype)
    directions = len(layer.directions)
    steps, batch, columns = _dims(given.x)
    input_bias, recurrent_bias = _biases(bb, layer, given.b, dtype)
    weights = (given.w, input_bias, given.r, recurrent_bias)
    arguments = [given.x, *(pack(bb, weight, layout) for weight in weights)]
    if given.p is not None:
        arguments.append(_peepholes(bb, layout, given.p))
    arguments += given.states
    if given.lengths is not None:
        arguments.append(given.lengths)
    rows = batch if isinstance(batch, int) else None
    has_lengths = given.lengths is not None
    has_peepholes = given.p is not None
    recurrence = Recurrence(layer, layout, columns, dtype, rows, has_peepholes, has_lengths)
    kernel = recurrence_kernel(recurrence)
    state_type = relax.TensorType((directions, batch, layer.hidden), dtype)
    sequence_type = relax.TensorType((steps, directions, batch, layer.hidden), dtype)
    chunk_steps = recurrence.chunk_steps(_expr(steps), _expr(batch))
    product_type = relax.TensorType((chunk_steps, batch, recurrence.width), dtype)
    types = [sequence_type, *[state_type] * len(given.states), product_type]
    return call_kernel(bb, f"{layer.op.lower()}_recurrence", kernel, arguments, types)[:-1]


def as_parameter(bb: Any, value: Value) -> Value:
    """A value that can be an argument of a function."""
    return value if isinstance(value, relax.Var | Constant) else bb.emit(value)


def _described(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of the node that its results depend on."""
    return {name: value for name, value in attrs.items() if name in _ATTRIBUTES}


def _computation_type(op: str, dtype: str) -> str:
    if dtype not in _COMPUTATION_TYPES:
        raise UnsupportedError(
            f"{op} on {dtype or 'an unknown type'} is not supported",
            remedy=f"use one of {', '.join(_COMPUTATION_TYPES)}",
        )
    return _COMPUTATION_TYPES[dtype]


def _hidden_size(op: str, r: Value, attrs: Mapping[str, Any]) -> int:
    size = _last_dim(r) or attrs.get("hidden_size")
    if not size:
        raise UnsupportedError(
            f"the number of hidden units of the {op} is not known",
            remedy="set hidden_size, or give R a known shape",
        )
    return int(size)


def _input_size(op: str, x: Value, w: Value) -> int:
    size = _last_dim(w) or _last_dim(x)
    if size is None:
        raise UnsupportedError(
            f"the input size of the {op} is not known",
            remedy="give the last dimension of X or W a known size",
        )
    return size


def _batch_second(bb: relax.BlockBuilder, layer: Layer, value: Value) -> Value:
    """X or a state with the batch as the second of three axes."""
    return bb.emit(relax.op.permute_dims(value, (1, 0, 2))) if layer.batch_first else value


def _biases(
    bb: relax.BlockBuilder, layer: Layer, b: Value | None, dtype: str
) -> tuple[Value, Value]:
    """Wb and Rb as weights of one column, [directions, gates·hidden, 1]."""
    directions, rows = len(layer.directions), layer.gates * layer.hidden
    if b is None:
        zeros = constant(np.zeros((directions, rows, 1), dtype))
        return zeros, zeros
    if isinstance(b, Constant):
        halves = np.split(b.value.numpy()[..., None], 2, axis=1)
        return constant(halves[0]), constant(halves[1])
    halves = bb.emit(relax.op.split(relax.op.expand_dims(b, -1), 2, axis=1))
    return bb.emit(halves[0]), bb.emit(halves[1])


def _peepholes(bb: relax.BlockBuilder, layout: Layout, p: Value) -> Value:
    """P, packed like the biases."""
    if isinstance(p, Constant):
        column = constant(p.value.numpy()[..., None])
    else:
        column = bb.emit(relax.op.expand_dims(p, -1))
    return pack(bb, column, replace(layout, gates=PEEPHOLES))


def _initial_state(
    bb: relax.BlockBuilder, layer: Layer, name: str, state: Value | None, batch: Any, dtype: str
) -> Value:
    """[directions, batch, hidden]; zeros if the input is omitted."""
    directions = len(layer.directions)
    if state is None:
        return bb.emit(relax.op.zeros((directions, batch, layer.hidden), dtype))
    outer = (directions, batch)
    outer = outer[::-1] if layer.batch_first else outer
    return _batch_second(bb, layer, _with_shape(bb, name, state, (*outer, layer.hidden), dtype))


def _as_declared(bb: relax.BlockBuilder, layer: Layer, output: Value, dtype: str) -> Value:
    """An output in the layout and type of the node."""
    if layer.batch_first:
        batch_first = (2, 0, 1, 3) if len(_dims(output)) == 4 else (1, 0, 2)
        output = bb.emit(relax.op.permute_dims(output, batch_first))
    if str(output.ty.dtype) == dtype:
        return output
    return bb.emit(relax.op.astype(output, dtype))


# --- Shapes and types of the inputs --------------------------------------------------------------


def _with_shape(
    bb: relax.BlockBuilder, name: str, value: Value, wanted: Sequence[Dim | None], dtype: str
) -> Value:
    """`value` with the dims `wanted` (None: any) and of type `dtype`.

    A run checks the dims that are not known. Raises ModelError for a rank or a dim that is known to
    differ.
    """
    value = _cast(bb, value, dtype)
    known = _int_dims(value)
    if known is None:
        fresh = [tirx.Var(f"{name}_{i}", "int64") if d is None else d for i, d in enumerate(wanted)]
        return bb.match_cast(value, relax.TensorType(fresh, dtype))
    if len(known) != len(wanted) or any(map(_contradict, known, wanted)):
        sizes = [str(d) for d in known]
        expected = ["any" if d is None else str(d) for d in wanted]
        raise ModelError(
            f"{name} has shape [{', '.join(sizes)}], but the layer needs [{', '.join(expected)}]",
            remedy="correct the shape or the attributes of the node",
        )
    result = [have if want is None else want for have, want in zip(known, wanted, strict=True)]
    analyzer = Analyzer()
    if all(map(analyzer.can_prove_equal, map(_expr, known), map(_expr, result))):
        return value
    return bb.match_cast(value, relax.TensorType(result, dtype))


def _cast(bb: relax.BlockBuilder, value: Value, dtype: str) -> Value:
    if str(value.ty.dtype) == dtype:
        return value
    if isinstance(value, Constant):
        return constant(value.value.numpy().astype(dtype))
    return bb.emit(relax.op.astype(value, dtype))


def _last_dim(value: Value) -> int | None:
    """The last dim, if it is a number."""
    dims = _int_dims(value)
    return dims[-1] if dims and isinstance(dims[-1], int) else None


def _dims(value: Value) -> list[Dim]:
    """The dims of a value that `_with_shape` returned."""
    dims = _int_dims(value)
    assert dims is not None
    return dims


def _int_dims(value: Value) -> list[Dim] | None:
    """The dims with an int for each number; None if they are not known."""
    dims = known_dims(value)
    return None if dims is None else [int(d) if isinstance(d, tirx.IntImm) else d for d in dims]


def _contradict(have: Dim, want: Dim | None) -> bool:
    return isinstance(have, int) and isinstance(want, int) and have != want


def _expr(dim: Dim) -> Any:
    return tirx.IntImm("int64", dim) if isinstance(dim, int) else dim
