"""Which form a Loop or Scan takes: one kernel where it can be, else a tower of calls."""

from __future__ import annotations

import onnx

from ..emitter import Emitter
from ..forms import Form
from ..scope import Scope
from ..values import Value
from .kernel import try_kernel
from .plan import Plan
from .tower_form import by_output, emit_as_tower


def emit_plan(emitter: Emitter, scope: Scope, node: onnx.NodeProto, plan: Plan) -> list[Value]:
    """The outputs of the node of a plan, whose operands are values of the current segment."""
    results = try_kernel(emitter, plan)
    reason = results if isinstance(results, str) else ""
    emitter.note_form(node, Form(node.op_type, plan.place, reason))
    if isinstance(results, str):
        return emit_as_tower(emitter, scope, plan)
    return by_output(plan, results)
