"""Loop: see https://onnx.ai/onnx/operators/onnx__Loop.html.

Trip count and condition are read as onnxruntime reads them: a body's condition counts even where
the node gives no first one, which then is true.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from tvm import relax

from ...rewrite.errors import ModelError, UnsupportedError
from ...rewrite.graph import views
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import LoopView
from ..bodies import Step, first_output, place
from ..emitter import Emitter
from ..kinds import MAY_BE_EMPTY
from ..scalars import scalar
from ..scope import Frame, Scope
from ..sequences.lists import to_list
from ..small_types import stored_dtype
from ..tvm_onnx import EmptyOptional
from ..values import Constant, ListValue, Value, as_tensor, describe, with_shape
from .function import emit_loop_function
from .plan import CarriedValue, Plan, ScanOutput

_ENDLESS = 2**63 - 1
"""Exporters write this trip count for loops that only the condition ends."""


def emit_loop(emitter: Emitter, scope: Scope, frame: Frame, step: Step) -> list[Value]:
    """The outputs of a Loop: the final carried values, and the scan outputs."""
    return emit_loop_function(emitter, scope, step.node, _plan(scope.bb, frame, step))


def _plan(bb: Any, frame: Frame, step: Step) -> Plan:
    view = LoopView(step.node)
    where = place(step.node, frame.body.path)
    carried = [as_carried(bb, frame, each, where) for each in view.carried]
    slices = range(1 + len(carried), len(view.body.outputs))
    return Plan(
        name=step.node.name or first_output(step.node) or "loop",
        place=where,
        body=step.bodies["body"],
        captured={tensor: frame.values[tensor] for tensor in step.bodies["body"].captures},
        limit=_limit(bb, _value(frame, view.trip), where),
        condition=_condition(bb, _value(frame, view.condition), where),
        iteration=view.iteration,
        given_condition=view.condition_in,
        returns_condition=True,
        carried_values=carried,
        scan_inputs=[],
        scan_outputs=[ScanOutput(i, i - 1, 0, False, is_wanted(step.node, i - 1)) for i in slices],
    )


def _condition(bb: Any, condition: Value | None, where: str) -> Value | None:
    if condition is None:
        return None
    first = scalar(bb, condition, "bool", "condition", where)
    is_true = isinstance(first, Constant) and bool(first.value.numpy().item())
    return None if is_true else first


def as_carried(bb: Any, frame: Frame, view: views.CarriedValue, where: str) -> CarriedValue:
    """A carried value with its initial value in the form in which iterations carry it.

    Raises ModelError if the body declares another type, and UnsupportedError for an empty optional.
    """
    if isinstance(frame.values[view.initial], EmptyOptional):
        raise UnsupportedError(MAY_BE_EMPTY, where=where)
    initial = as_operand(bb, frame.values[view.initial])
    _check_declared(view.input, initial, where)
    return CarriedValue(view.input, initial)


def as_operand(bb: Any, value: Value) -> Value:
    """A tensor or list as a loop takes it."""
    if isinstance(value, relax.Tuple | ListValue):
        return to_list(bb, value)
    return with_shape(bb, bb.normalize(as_tensor(bb, value)))


def _check_declared(parameter: Tensor, initial: Value, where: str) -> None:
    declared = parameter.info.type if parameter.info is not None else onnx.TypeProto()
    kind = declared.WhichOneof("value")
    if kind not in ("tensor_type", "sequence_type"):
        return
    is_sequence = kind == "sequence_type"
    tensor = declared.sequence_type.elem_type.tensor_type if is_sequence else declared.tensor_type
    wanted = stored_dtype(tensor.elem_type) if tensor.elem_type else None
    given = initial.element.dtype if isinstance(initial, ListValue) else initial.ty.dtype
    is_same_type = None in (wanted, given) or wanted == str(given)
    if is_sequence == isinstance(initial, ListValue) and is_same_type:
        return
    form = f"{'a sequence of ' if is_sequence else ''}{wanted or 'a tensor'}"
    raise ModelError(
        f"the carried value {parameter.name!r} starts as {describe(initial)}, but the body "
        f"declares {form}",
        where=where,
    )


def is_wanted(node: Node, output: int) -> bool:
    """Whether a node lists an output."""
    return output < len(node.outputs) and bool(node.outputs[output].name)


def _value(frame: Frame, tensor: Tensor | None) -> Value | None:
    return None if tensor is None else frame.values[tensor]


def _limit(bb: Any, trip: Value | None, where: str) -> Value | None:
    """The trip count as an int64 scalar, None if it is not one that could ever be reached."""
    if trip is None:
        return None
    tensor = scalar(bb, trip, "int64", "trip count", where)
    if isinstance(trip, Constant):
        count = int(trip.value.numpy().item())
        return None if count == _ENDLESS else relax.const(np.int64(count), "int64")
    return tensor
