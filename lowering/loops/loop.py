"""Loop: see https://onnx.ai/onnx/operators/onnx__Loop.html.

Trip count and condition are read as onnxruntime reads them: a body's condition counts even where
the node gives no first one, which then is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..bodies import Step, place
from ..emitter import Emitter
from ..scalars import scalar
from ..scope import Frame, Scope
from ..sequences.lists import to_list
from ..values import Constant, ListValue, Value, as_tensor, with_shape
from .function import emit_loop_function
from .plan import CarriedValue, Plan, ScanOutput

_ENDLESS = 2**63 - 1
"""Exporters write this trip count for loops that only the condition ends."""


def emit_loop(emitter: Emitter, scope: Scope, frame: Frame, step: Step) -> list[Value]:
    """The outputs of a Loop: the final carried values, and the scan outputs."""
    return emit_loop_function(emitter, scope, "Loop", _plan(scope.bb, frame, step))


def _plan(bb: Any, frame: Frame, step: Step) -> Plan:
    node, body = step.node, step.bodies["body"]
    trip, condition = (_operand(frame, node.input, slot) for slot in range(2))
    initial = [as_carried(bb, frame.values[name]) for name in node.input[2:]]
    names = [value.name for value in body.graph.input]
    where = place(node, frame.body.path)
    slices = range(1 + len(initial), len(body.graph.output))
    return Plan(
        name=node.name or next(filter(None, node.output), "loop"),
        place=where,
        body=body,
        captured={name: frame.values[name] for name in body.captures},
        limit=_limit(bb, trip, where),
        condition=_condition(bb, condition, where),
        iteration=names[0],
        given_condition=names[1],
        returns_condition=True,
        carried_values=[CarriedValue(*pair) for pair in zip(names[2:], initial, strict=True)],
        scan_inputs=[],
        scan_outputs=[ScanOutput(i, i - 1, 0, False, is_wanted(node, i - 1)) for i in slices],
    )


def _condition(bb: Any, condition: Value | None, where: str) -> Value | None:
    if condition is None:
        return None
    first = scalar(bb, condition, "bool", "condition", where)
    is_true = isinstance(first, Constant) and bool(first.value.numpy().item())
    return None if is_true else first


def as_carried(bb: Any, value: Value) -> Value:
    """An initial value in the form in which iterations carry it."""
    if isinstance(value, relax.Tuple | ListValue):
        return to_list(bb, value)
    return with_shape(bb, bb.normalize(as_tensor(bb, value)))


def is_wanted(node: Any, output: int) -> bool:
    """Whether a node lists an output."""
    return output < len(node.output) and bool(node.output[output])


def _operand(frame: Frame, names: Sequence[str], slot: int) -> Value | None:
    return frame.values[names[slot]] if slot < len(names) and names[slot] else None


def _limit(bb: Any, trip: Value | None, where: str) -> Value | None:
    """The trip count as an int64 scalar, None if it is not one that could ever be reached."""
    if trip is None:
        return None
    tensor = scalar(bb, trip, "int64", "trip count", where)
    if isinstance(trip, Constant):
        count = int(trip.value.numpy().item())
        return None if count == _ENDLESS else relax.const(np.int64(count), "int64")
    return tensor
