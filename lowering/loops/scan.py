"""Scan: see https://onnx.ai/onnx/operators/onnx__Scan.html.

The version of opset 8 has a batch, see `scan_batched`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import relax

from ...rewrite.errors import ModelError, UnsupportedError
from ..attributes import attributes
from ..bodies import Step, place
from ..emitter import Emitter
from ..scope import Frame, Scope
from ..values import ListValue, Value, match
from .function import emit_loop_function
from .loop import as_carried, is_wanted
from .plan import CarriedValue, Plan, ScanInput, ScanOutput
from .scan_batched import ENTRY, emit_batched_scan

_BATCHED = 8
"""The opset whose Scan has a batch."""


def emit_scan(emitter: Emitter, scope: Scope, frame: Frame, step: Step) -> list[Value]:
    """The outputs of a Scan: the final carried values, and the scan outputs."""
    if step.node.domain == ENTRY:
        emitter = replace(emitter, opset=_BATCHED)
    elif emitter.opset <= _BATCHED:
        return emit_batched_scan(emitter, scope, frame, step)
    return emit_loop_function(emitter, scope, "Scan", _plan(scope.bb, frame, step))


def _plan(bb: Any, frame: Frame, step: Step) -> Plan:
    node, body = step.node, step.bodies["body"]
    given = attributes(node)
    slices = given["num_scan_inputs"]
    count = len(node.input) - slices
    names = [value.name for value in body.graph.input]
    initial = [as_carried(bb, frame.values[name]) for name in node.input[:count]]
    data = [as_carried(bb, frame.values[name]) for name in node.input[count:]]
    axes = given.get("scan_input_axes", (0,) * slices)
    reverse = given.get("scan_input_directions", (0,) * slices)
    where = place(node, frame.body.path)
    axes = [
        _axis(name, tensor, axis, where)
        for name, tensor, axis in zip(node.input[count:], data, axes, strict=True)
    ]
    data = _equally_long(bb, data, axes)
    slices = range(count, len(body.graph.output))
    return Plan(
        name=node.name or next(filter(None, node.output), "scan"),
        place=where,
        body=body,
        captured={name: frame.values[name] for name in body.captures},
        limit=None,
        condition=None,
        iteration=None,
        given_condition=None,
        returns_condition=False,
        carried_values=[CarriedValue(*pair) for pair in zip(names[:count], initial, strict=True)],
        scan_inputs=[
            ScanInput(name, tensor, axis, bool(backwards))
            for name, tensor, axis, backwards in zip(
                names[count:], data, axes, reverse, strict=True
            )
        ],
        scan_outputs=[
            ScanOutput(
                index,
                index,
                _of(given, "scan_output_axes", index - count),
                bool(_of(given, "scan_output_directions", index - count)),
                is_wanted(node, index),
            )
            for index in slices
        ],
    )


def _axis(name: str, data: Value, axis: int, where: str) -> int:
    """The axis of a scan input, counted from the front."""
    if isinstance(data, ListValue):
        raise ModelError(f"the scan input {name!r} is a sequence", where=where)
    rank = int(data.ty.ndim)
    if rank < 0:
        raise UnsupportedError(f"the rank of the scan input {name!r} is not known", where=where)
    if not -rank <= axis < rank:
        what = f"the scan input {name!r} has {rank} dimensions, and none is number {axis}"
        raise ModelError(what, where=where)
    return axis % rank


def _of(given: dict[str, Any], name: str, index: int) -> int:
    """An axis or a direction; 0 if the node does not give the attribute."""
    return int(given[name][index]) if name in given else 0


def _equally_long(bb: Any, data: list[Any], axes: list[int]) -> list[Any]:
    """The scan inputs, cast to the number of slices of the first; a run fails where they differ."""
    length = data[0].ty.shape.values[axes[0]]
    cast = [data[0]]
    for tensor, axis in zip(data[1:], axes[1:], strict=True):
        dims = list(tensor.ty.shape.values)
        dims[axis] = length
        cast.append(match(bb, tensor, relax.TensorType(dims, tensor.ty.dtype)))
    return cast
