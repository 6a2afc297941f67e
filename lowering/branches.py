"""If: each branch is a private function, called only when it is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import relax

from .bodies import Step
from .closure import Closure
from .emitter import Emitter
from .join import join
from .scope import Frame, Scope
from .values import Constant, Value, as_int, as_tensor, is_prim

_BRANCHES = {"then_branch": "then", "else_branch": "else"}


def emit_if(emitter: Emitter, scope: Scope, frame: Frame, step: Step) -> list[Value]:
    """The outputs of an If, see https://onnx.ai/onnx/operators/onnx__If.html.

    A branch that is known to be taken is emitted in place.
    """
    condition = frame.values[step.node.input[0]]
    taken = _known_condition(condition)
    if taken is not None:
        body = step.bodies["then_branch" if taken else "else_branch"]
        captured = {name: frame.values[name] for name in body.captures}
        return emitter.emit_body(scope, body, captured)

    with scope.between_segments([_scalar(scope.bb, condition)]) as (flag,):
        calls, kinds = [], []
        for attribute, suffix in _BRANCHES.items():
            body = step.bodies[attribute]
            closure = Closure({name: frame.values[name] for name in body.captures})
            name = f"{step.node.name or step.node.output[0]}_{suffix}"
            branch = emitter.emit_function(name, closure.params, body, closure.values)
            calls.append(relax.Call(branch.variable, closure.args))
            kinds.append([closure.outer_type(kind) for kind in branch.output_types])
        joined = [join(left, right) for left, right in zip(*kinds, strict=True)]
        result = scope.bb.emit(relax.If(flag, *calls))
        outputs = _unpack(scope.bb, result, joined)
    emitter.ranks.note(step.node, outputs, *kinds)
    return outputs


def _known_condition(condition: Value) -> bool | None:
    if isinstance(condition, Constant):
        return bool(condition.value.numpy().item())
    if is_prim(condition):
        number = as_int(condition)
        return None if number is None else bool(number)
    return None


def _scalar(bb: Any, condition: Value) -> Value:
    """The condition as a tensor without dimensions; ONNX allows any that has one element."""
    tensor = as_tensor(bb, condition)
    if tensor.ty.ndim == 0:
        return tensor
    return bb.normalize(relax.op.reshape(tensor, ()))


def _unpack(bb: Any, result: Any, kinds: Sequence[Any]) -> list[Value]:
    """The outputs of a call whose branches agree only in `kinds`."""
    if len(kinds) == 1:
        items = [result]
    else:
        items = [bb.emit(relax.TupleGetItem(result, index)) for index in range(len(kinds))]
    return [_cast(bb, item, kind) for item, kind in zip(items, kinds, strict=True)]


def _cast(bb: Any, item: Any, kind: Any) -> Any:
    if tvm_ffi.structural_equal(item.ty, kind):
        return item
    return bb.match_cast(item, kind)
