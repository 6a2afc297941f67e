"""A Loop or a Scan as one kernel, where the shapes in its body are the same in every iteration.

The virtual machine takes no part in the iterations then, which for small bodies is where nearly
all the time goes. The sizes may be symbols, and the number of iterations known only at run time.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, sym, tirx
from tvm.ir import is_prim_var

from ...rewrite.errors import UnsupportedError
from ..emitter import Emitter
from ..kernel_call import call_kernel
from ..processor import is_for_gpu
from ..values import Value, fresh_dim
from .kernel_body import FusedBody, NoKernelError, fuse_body
from .kernel_emit import LoopPlan, SlicePlan, StatePlan, loop_kernel
from .kernel_inputs import Inputs, dims_of
from .kernel_steps import Steps, count_steps
from .plan import Plan
from .rows import axis_of

_NAME = "loop_kernel"


def try_kernel(emitter: Emitter, plan: Plan) -> list[Value] | str:
    """The states and the wanted scan outputs of a loop, computed by one kernel.

    Or a sentence on why that cannot be; nothing that has an effect was emitted then. The operands
    of the plan are values of the current segment, and so are the results.
    """
    try:
        _check_wanted(emitter)
        _check_body(plan)
        inputs = Inputs(emitter.bb, plan)
        body = _fused(emitter, plan, inputs)
        _check_types(plan, inputs, body)
        return _call(emitter.bb, plan, inputs, body)
    except NoKernelError as reason:
        return str(reason)


def _check_wanted(emitter: Emitter) -> None:
    if not emitter.loop_kernels:
        raise NoKernelError("kernels with a loop inside were not asked for")
    if is_for_gpu():
        raise NoKernelError("kernels with a loop inside are for CPUs")


def _check_body(plan: Plan) -> None:
    for step in plan.body.steps:
        if step.bodies:
            raise NoKernelError(f"its body holds control flow ({step.node.op_type})")


def _fused(emitter: Emitter, plan: Plan, inputs: Inputs) -> FusedBody:
    try:
        return fuse_body(emitter, plan.body, inputs.values, inputs.params)
    except UnsupportedError as error:
        raise NoKernelError(f"its body alone cannot be translated: {error.what}") from error


def _check_types(plan: Plan, inputs: Inputs, body: FusedBody) -> None:
    if plan.tells_condition and str(body.outputs[0].ty.dtype) != "bool":
        raise NoKernelError("the condition of its body is no bool")
    analyzer = sym.Analyzer()
    for position, state in enumerate(plan.states, plan.first_state):
        before, after = inputs.variables[state.name].ty, body.outputs[position].ty
        pairs = zip(dims_of(before), dims_of(after), strict=False)
        kept = before.ndim == after.ndim and all(analyzer.can_prove_equal(*pair) for pair in pairs)
        if not kept or before.dtype != after.dtype:
            raise NoKernelError(f"the state {state.name!r} changes its shape or type")


def _call(bb: Any, plan: Plan, inputs: Inputs, body: FusedBody) -> list[Value]:
    """Emit the kernel and the call."""
    proceeds = _always_proceeds(plan, body)
    steps = count_steps(bb, plan, conditional=not proceeds)
    kernel = _kernel_plan(plan, inputs, body, steps, proceeds)
    read = [state.input for state in kernel.states] + [s.slice for s in kernel.scan_inputs]
    arguments = [
        *([] if steps.argument is None else [steps.argument]),
        *([] if proceeds else [steps.condition]),
        *(inputs.outer(variable) for variable in (*read, *kernel.captures)),
        *(body.constants[variable] for variable in kernel.tensors),
    ]
    types = [inputs.outer_type(state.input.ty) for state in kernel.states]
    types += [_stacked_type(inputs, slices, steps) for slices in kernel.scan_outputs]
    results = call_kernel(bb, _NAME, loop_kernel(kernel), arguments, types)
    finals = dict(zip([state.input for state in kernel.states], results, strict=False))
    states = [inputs.variables[state.name] for state in plan.states]
    return [
        *(finals[state] if state in finals else inputs.outer(state) for state in states),
        *results[len(finals) :],
    ]


def _always_proceeds(plan: Plan, body: FusedBody) -> bool:
    """Whether the body lets another iteration follow, whatever it computes."""
    if not plan.tells_condition:
        return True
    condition = body.outputs[0]
    if condition in body.constants:
        return bool(body.constants[condition].value.numpy().item())
    return bool(condition.name == plan.given_condition)


def _kernel_plan(
    plan: Plan, inputs: Inputs, body: FusedBody, steps: Steps, proceeds: bool
) -> LoopPlan:
    """States that no iteration changes are read like captures."""
    variables, outputs = inputs.variables, body.outputs
    states = [
        StatePlan(variables[state.name], outputs[position])
        for position, state in enumerate(plan.states, plan.first_state)
    ]
    kept = [state.input for state in states if state.input.same_as(state.output)]
    rows = [(outputs[stacked.row], stacked) for stacked in plan.wanted]
    return LoopPlan(
        body,
        [state for state in states if not state.input.same_as(state.output)],
        [SlicePlan(variables[s.name], s.axis, s.reverse) for s in plan.sliced],
        [SlicePlan(row, axis_of(s, row.ty), s.reverse) for row, s in rows],
        [*kept, *inputs.captures],
        _inner_steps(steps, body),
        reads_trip=steps.argument is not None,
        iteration=variables.get(plan.iteration or ""),
        condition_in=variables.get(plan.given_condition or ""),
        condition_out=None if proceeds else outputs[0],
    )


def _inner_steps(steps: Steps, body: FusedBody) -> Any:
    """The number of iterations as the kernel knows it, without looking at the trip count."""
    if steps.static is not None:
        return tirx.IntImm("int64", steps.static)
    if is_prim_var(steps.size):
        return body.symbols.get(steps.size, steps.size)
    return None if steps.size is None else fresh_dim("steps")


def _stacked_type(inputs: Inputs, slices: SlicePlan, steps: Steps) -> Any:
    row = inputs.outer_type(slices.slice.ty)
    shape = dims_of(row)
    shape.insert(slices.axis, steps.size)
    return relax.TensorType(shape, row.dtype)
