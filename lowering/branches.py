"""If: each branch is a function, called only when it is taken.

The functions are public, so that `InlinePrivateFunctions` leaves them alone, see `loops.function`.
Inlined, they would be wrong as well because `StaticPlanBlockMemory` of TVM 0.27 lets the two
branches of an If share memory that only one of them allocates.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..rewrite.errors import UnsupportedError
from .bodies import Step, first_output, place
from .closure import Closure
from .emitter import Emitter
from .join import unpack
from .kinds import MAY_BE_EMPTY, Kind, join_kinds
from .scalars import scalar
from .scope import Frame, Scope
from .sequences.lists import copy_received
from .values import Constant, Element, Value, as_int, is_prim

_BRANCHES = {"then_branch": "then", "else_branch": "else"}


def emit_if(emitter: Emitter, scope: Scope, frame: Frame, step: Step) -> list[Value]:
    """The outputs of an If, see https://onnx.ai/onnx/operators/onnx__If.html.

    A branch that is known to be taken is emitted in place.
    """
    condition = frame.values[step.node.inputs[0]]
    taken = _known_condition(condition)
    if taken is not None:
        body = step.bodies["then_branch" if taken else "else_branch"]
        captured = {tensor: frame.values[tensor] for tensor in body.captures}
        return emitter.emit_body(scope, body, captured)

    where = place(step.node, frame.body.path)
    condition = scalar(scope.bb, condition, "bool", "condition", where)
    with scope.between_segments([condition]) as (flag,):
        calls, kinds = [], []
        for attribute, suffix in _BRANCHES.items():
            body = step.bodies[attribute]
            closure = Closure({tensor: frame.values[tensor] for tensor in body.captures})
            name = f"{step.node.name or first_output(step.node)}_{suffix}"
            params, values = closure.params, closure.values
            branch = emitter.emit_function(name, params, body, values, private=False)
            if any(isinstance(kind, relax.ObjectType) for kind in branch.output_kinds):
                raise UnsupportedError(MAY_BE_EMPTY, where=where)
            calls.append(relax.Call(branch.variable, closure.args))
            kinds.append([closure.outer_kind(kind) for kind in branch.output_kinds])
        joined = [join_kinds(left, right) for left, right in zip(*kinds, strict=True)]
        joined = scope.sizes.refined(step.node.outputs, joined)
        result = scope.bb.emit(relax.If(flag, *calls))
        items = unpack(scope.bb, result, [_type(kind) for kind in joined])
        # A branch may give a tuple where the other gives a list.
        outputs = [
            copy_received(scope.bb, item, kind) if isinstance(kind, Element) else item
            for item, kind in zip(items, joined, strict=True)
        ]
    emitter.ranks.note(step.node, outputs, *kinds)
    return outputs


def _type(kind: Kind) -> Any:
    return relax.ObjectType() if isinstance(kind, Element) else kind


def _known_condition(condition: Value) -> bool | None:
    if isinstance(condition, Constant):
        return bool(condition.value.numpy().item())
    if is_prim(condition):
        number = as_int(condition)
        return None if number is None else bool(number)
    return None
