"""The body of a loop as one kernel without the loop: emitted, legalized, fused and scheduled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx
from tvm.ir import is_prim_var

from ...rewrite.errors import summary_line
from ..scheduling.kernels.blocks import inlinable_in_loop
from ..scheduling.kernels.math_functions import with_fast_math
from ..scheduling.kernels.nests import substituted
from ..scheduling.kernels.schedule import schedule_kernel
from ..scheduling.legalization.legalize import legalize_operators
from ..scheduling.relax.constant_folding import fold_constant_calls
from ..scheduling.relax.dataflow import with_body
from ..values import Constant, as_int
from .kernel_limits import has_large_convolution

_NAME = "body"
_CALL_TIR = ir.Op.get("relax.call_tir")
_FOREIGN_SIZES = "its body computes with sizes that none of the tensors it reads has"
_PRIMITIVE = ir.make_node("ir.DictAttrs", Primitive=True)


class NoKernelError(Exception):
    """The loop cannot be one kernel; the text is a sentence that says why."""


@dataclass(frozen=True)
class FusedBody:
    """One iteration: statements over buffers.

    Where two outputs are the same value, or an output is an input, they share a variable.
    """

    statement: Any
    buffers: dict[Any, Any]
    """The buffer of each parameter and of each value that is computed, by Relax variable."""
    constants: dict[Any, Any]
    """The constants of the body, scalars too, by Relax variable."""
    outputs: list[Any]
    """The Relax variable of each output of the body."""
    symbols: dict[Any, Any]
    """The symbols of sizes in the buffers, by those in Relax."""

    def shape(self, variable: Any) -> list[Any]:
        """The shape of a value of the body, in the symbols of the buffers."""
        return list(self.buffers[variable].ty.shape)


def fuse_body(module: tvm.IRModule, body: Any) -> FusedBody:
    """Legalizes, fuses and schedules the function of a body, which may call kernels of a module.

    Variables are those of `body`. NoKernelError: it computes something whose shape depends on
    values, or that is no loop nest.
    """
    emitted = _alone(module, body)
    _check_shapes(emitted[_NAME])
    if has_large_convolution(emitted[_NAME]):
        raise NoKernelError("a convolution in its body is faster as a kernel of its own")
    module = _with_known_sizes(_legalize(emitted))
    function = module[_NAME]
    bindings = _bindings(function)
    results = [_resolve(result, bindings) for result in _results(function, bindings)]
    computed = list(dict.fromkeys(result for result in results if result in bindings))
    if not computed:
        raise NoKernelError("its body computes nothing")
    lifted = _constants(function)
    primitive = _primitive(function, computed, lifted)
    if relax.analysis.free_symbolic_vars(primitive):
        raise NoKernelError(_FOREIGN_SIZES)
    kernel = _lower(with_fast_math(schedule_kernel(_fuse(module, primitive), inlinable_in_loop)))
    values_of_kernel = [*primitive.params, *computed]
    if len(kernel.params) != len(values_of_kernel):
        raise NoKernelError(_FOREIGN_SIZES)
    buffers = dict(zip(values_of_kernel, kernel.params, strict=True))
    symbols = _symbols(buffers)
    for unread in (*function.params, *lifted.values()):
        if unread not in buffers:
            buffers[unread] = _buffer(unread, symbols)
    # The passes may have replaced the parameters.
    given = dict(zip(function.params, body.params, strict=True))
    return FusedBody(
        kernel.body,
        {given.get(variable, variable): buffer for variable, buffer in buffers.items()},
        {variable: constant for constant, variable in lifted.items()},
        [given.get(result, lifted.get(result, result)) for result in results],
        symbols,
    )


def _symbols(buffers: Mapping[Any, Any]) -> dict[Any, Any]:
    """Symbols of sizes in Relax, and what the kernel calls them."""
    found = {}
    for variable, buffer in buffers.items():
        for size, inside in zip(variable.ty.shape.values, buffer.ty.shape, strict=True):
            if is_prim_var(size):
                found[size] = inside
    return found


def _buffer(variable: Any, symbols: Mapping[Any, Any]) -> Any:
    """A buffer for a tensor that is handed on but not read."""

    def inside(size: Any) -> Any:
        return tvm_ffi.structural_map(size, (ir.Var, lambda v: symbols.get(v, v)), order="post")

    shape = [inside(size) for size in variable.ty.shape.values]
    return tirx.decl_buffer(shape, variable.ty.dtype, variable.name)


def _alone(module: tvm.IRModule, body: Any) -> tvm.IRModule:
    """The body in a module with only the kernels that it calls."""
    functions: dict[Any, Any] = {}

    def visit(expression: Any) -> None:
        if isinstance(expression, ir.GlobalVar):
            functions[expression] = module[expression]

    relax.analysis.post_order_visit(body.body, visit)
    for variable, callee in functions.items():
        if not isinstance(callee, tirx.PrimFunc):
            called = variable.name_hint
            raise NoKernelError(f"an If, a loop or a layer in its body is a function, {called!r}")
    functions[ir.GlobalVar(_NAME)] = body.with_attr("global_symbol", _NAME)
    return tvm.IRModule(functions)


def _check_shapes(function: Any) -> None:
    """What has no shape before it is cast to one cannot be legalised either."""
    for block in function.body.blocks:
        if any(isinstance(binding, relax.MatchCast) for binding in block.bindings):
            raise NoKernelError("its body has values whose shape is only known when it runs")


def _legalize(module: tvm.IRModule) -> tvm.IRModule:
    passes = relax.transform
    module = passes.DecomposeOpsForInference()(module)
    module = fold_constant_calls(legalize_operators()(module))
    return passes.DeadCodeElimination([_NAME])(passes.CanonicalizeBindings()(module))


def _with_known_sizes(module: tvm.IRModule) -> tvm.IRModule:
    """The module with numbers for the sizes of kernels that are known where these are called.

    FuseTIR in TVM 0.27 replaces the symbols of a kernel by symbols only.
    """
    builder = relax.BlockBuilder(module)

    def replaced(call: Any) -> Any:
        if not call.op.same_as(_CALL_TIR):
            return call
        variable, arguments = call.args[:2]
        results = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
        types = [*(field.ty for field in arguments.fields), *results]
        numbers = {
            symbol: size
            for param, kind in zip(module[variable].params, types, strict=False)
            if isinstance(kind, relax.TensorType)
            for symbol, size in zip(param.shape, kind.shape.values, strict=True)
            if is_prim_var(symbol) and as_int(size) is not None
        }
        if not numbers:
            return call
        kernel = substituted(module[variable], numbers)
        known = builder.add_func(kernel, variable.name_hint)
        return ir.Call(call.op, [known, arguments], call.attrs, call.ty_args, ret_ty=call.ty)

    function = module[_NAME]
    body = tvm_ffi.structural_map(function.body, (ir.Call, replaced), order="post")
    module = builder.get()
    module.update_func(module.get_global_var(_NAME), with_body(function, body))
    return relax.transform.Normalize()(module)


def _bindings(function: Any) -> dict[Any, Any]:
    """What each variable of a function is bound to: kernel calls, and fields of their results."""
    if len(function.body.blocks) > 1:
        raise NoKernelError("its body checks shapes while it runs")
    found = {}
    for binding in (binding for block in function.body.blocks for binding in block.bindings):
        if isinstance(binding, relax.MatchCast):
            raise NoKernelError("its body has values whose shape is only known when it runs")
        value = binding.value
        if isinstance(value, relax.Call) and value.op != _CALL_TIR:
            name = getattr(value.op, "name", "a function")
            raise NoKernelError(f"its body calls {name}, which is not a loop nest")
        found[binding.var] = value
    return found


def _resolve(value: Any, bindings: Mapping[Any, Any]) -> Any:
    """The variable that a value is another name of."""
    while isinstance(bindings.get(value), relax.Var):
        value = bindings[value]
    return value


def _results(function: Any, bindings: Mapping[Any, Any]) -> list[Any]:
    """What the function returns, one entry for each output of the body."""
    returned = _resolve(function.body.body, bindings)
    returned = bindings.get(returned, returned)
    return list(returned.fields) if isinstance(returned, relax.Tuple) else [function.body.body]


def _constants(function: Any) -> dict[Any, Any]:
    """A parameter for each constant, which FuseTIR does not take inside a function."""
    found: dict[Any, Any] = {}

    def visit(constant: Any) -> None:
        if constant not in found:
            found[constant] = relax.Var(f"constant{len(found)}", constant.ty)

    tvm_ffi.structural_walk(function.body, (Constant, visit))
    return found


def _primitive(function: Any, computed: Sequence[Any], lifted: Mapping[Any, Any]) -> Any:
    """The function as one that FuseTIR makes a single kernel of, with only computed results."""
    bindings = [
        binding
        for block in function.body.blocks
        for binding in block.bindings
        if not isinstance(binding.value, relax.Tuple)
    ]
    result = relax.Var("results", relax.TupleType([value.ty for value in computed]))
    bindings.append(relax.VarBinding(result, relax.Tuple(list(computed))))
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], result)
    body = tvm_ffi.structural_map(body, (Constant, lambda c: lifted.get(c, c)), order="post")
    # FuseTIR leaves out parameters that no kernel reads.
    free = set(relax.analysis.free_vars(body))
    params = [param for param in (*function.params, *lifted.values()) if param in free]
    return relax.Function(params, body, result.ty, attrs=_PRIMITIVE)


def _fuse(module: tvm.IRModule, primitive: Any) -> tirx.PrimFunc:
    kernels = {v: f for v, f in module.functions_items() if isinstance(f, tirx.PrimFunc)}
    bb = relax.BlockBuilder(tvm.IRModule(kernels))
    variable = bb.add_func(primitive, _NAME)
    arguments = [relax.Var(param.name, param.ty) for param in primitive.params]
    with bb.function("main", arguments):
        with bb.dataflow():
            result = bb.emit_output(relax.Call(variable, arguments))
        bb.emit_func_output(result)
    try:
        return relax.transform.FuseTIR()(bb.get())[_NAME]
    except Exception as error:  # TVM raises built-in errors of all kinds.
        raise NoKernelError(f"TVM cannot fuse its body: {summary_line(error)}") from error


def _lower(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel without blocks, so that it can stand inside a loop."""
    passes = s_tir.transform
    lowered = tvm.transform.Sequential(
        [
            passes.CanonicalizeLoop(),
            passes.LowerInitBlock(),
            passes.PlanAndUpdateBufferAllocationLocation(),
            passes.ConvertBlocksToOpaque(),
            passes.CompactBufferAllocation(),
            passes.LowerMatchBuffer(),
            passes.LowerOpaqueBlock(),
        ]
    )(tvm.IRModule({_NAME: kernel}))
    return lowered[_NAME]
