"""Scan: see https://onnx.ai/onnx/operators/onnx__Scan.html.

The version of opset 8 has a batch, see `scan_batched`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import relax

from ...rewrite.errors import ModelError, UnsupportedError
from ...rewrite.graph.ir import Node
from ...rewrite.graph.views import ScanView
from ..bodies import Step, first_output, place
from ..emitter import Emitter
from ..scope import Frame, Scope
from ..values import ListValue, Value, match
from .function import emit_loop_function
from .loop import as_carried, as_operand, is_wanted
from .plan import Plan, ScanInput, ScanOutput
from .scan_batched import ENTRY, emit_batched_scan

_BATCHED = 8
"""The opset whose Scan has a batch."""


def emit_scan(emitter: Emitter, scope: Scope, frame: Frame, step: Step) -> list[Value]:
    """The outputs of a Scan: the final carried values, and the scan outputs."""
    if step.node.domain == ENTRY:
        emitter = replace(emitter, opset=_BATCHED)
    elif emitter.opset <= _BATCHED:
        return emit_batched_scan(emitter, scope, frame, step)
    return emit_loop_function(emitter, scope, step.node, _plan(scope.bb, frame, step))


def _plan(bb: Any, frame: Frame, step: Step) -> Plan:
    where = place(step.node, frame.body.path)
    _check_attributes(step.node, where)
    view = ScanView(step.node)
    carried = [as_carried(bb, frame, each, where) for each in view.carried]
    return Plan(
        name=step.node.name or first_output(step.node) or "scan",
        place=where,
        body=step.bodies["body"],
        captured={tensor: frame.values[tensor] for tensor in step.bodies["body"].captures},
        limit=None,
        condition=None,
        iteration=None,
        given_condition=None,
        returns_condition=False,
        carried_values=carried,
        scan_inputs=_scan_inputs(bb, frame, view, where),
        scan_outputs=[
            ScanOutput(slot, slot, output.axis, output.reverse, is_wanted(step.node, slot))
            for slot, output in enumerate(view.scan_outputs, len(carried))
        ],
    )


def _check_attributes(node: Node, where: str) -> None:
    """Raises ModelError for axes or directions that do not fit the numbers of slices."""
    slices = int(node.attrs["num_scan_inputs"])
    carried = len(node.inputs) - slices
    counts = {"input": slices, "output": len(node.attrs["body"].outputs) - carried}
    for side, count in counts.items():
        for name in (f"scan_{side}_axes", f"scan_{side}_directions"):
            values = node.attrs.get(name)
            if values is not None and len(values) != count:
                what = f"{name} has {len(values)} entries for {count} tensors"
                raise ModelError(what, where=where)
            if name.endswith("directions") and not {0, 1}.issuperset(values or ()):
                raise ModelError(f"{name} {list(values or ())} are not all 0 or 1", where=where)


def _scan_inputs(bb: Any, frame: Frame, view: ScanView, where: str) -> list[ScanInput]:
    """The scan inputs, cast to the number of slices of the first; a run fails where they differ."""
    found: list[ScanInput] = []
    for each in view.scan_inputs:
        data = as_operand(bb, frame.values[each.sequence])
        axis = _axis(each.sequence.name, data, each.axis, where)
        if found:
            dims = list(data.ty.shape.values)
            dims[axis] = found[0].data.ty.shape.values[found[0].axis]
            data = match(bb, data, relax.TensorType(dims, data.ty.dtype))
        found.append(ScanInput(each.slice, data, axis, each.reverse))
    return found


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
