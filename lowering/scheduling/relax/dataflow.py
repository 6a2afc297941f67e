"""Dataflow blocks that define no sizes.

FuseOps in TVM 0.27 orders the bindings of a dataflow block by the tensors they need. What needs
sizes only, a range for example, may then stand before the `match_cast` that defines them, and
cannot be compiled. Blocks keep their order, so every `match_cast` gets a block of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax


def rewritten_functions(rewriter: Any, module: tvm.IRModule) -> tvm.IRModule:
    """The module after a mutator of it has visited all functions but those that became kernels."""
    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function) and not (function.attrs or {}).get("Primitive"):
            rewriter.builder_.update_func(variable, rewriter.visit_expr(function))
    return rewriter.builder_.get()


def split_blocks(module: tvm.IRModule) -> tvm.IRModule:
    """The module with every `match_cast` outside of dataflow blocks."""
    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
            module[variable] = split_function(function)
    return relax.transform.Normalize()(module)


def split_function(function: Any) -> Any:
    """A function with every `match_cast` of its outermost blocks outside of dataflow blocks."""
    blocks = [part for block in function.body.blocks for part in _parts(block)]
    if len(blocks) == len(function.body.blocks):
        return function
    visible = {variable: relax.Var(variable.name, variable.ty) for variable in _shared(blocks)}
    blocks = [_with_names(block, visible) for block in blocks]
    body = tvm_ffi.structural_map(
        relax.SeqExpr(blocks, function.body.body),
        (relax.DataflowVar, lambda variable: visible.get(variable, variable)),
        order="post",
    )
    return with_body(function, body)


def _with_names(block: Any, visible: Mapping[Any, Any]) -> Any:
    """The block with a variable of its own for each field of a tuple that is visible outside.

    ToMixedPrecision in TVM 0.27 fails where a field is bound to an output of a dataflow block.
    """
    if not isinstance(block, relax.DataflowBlock):
        return block
    bindings = []
    for binding in block.bindings:
        is_field = isinstance(getattr(binding, "value", None), relax.TupleGetItem)
        if is_field and binding.var in visible:
            field = relax.DataflowVar(binding.var.name, binding.var.ty)
            bindings.append(relax.VarBinding(field, binding.value))
            bindings.append(relax.VarBinding(binding.var, field))
        else:
            bindings.append(binding)
    return relax.DataflowBlock(bindings)


def _parts(block: Any) -> Iterator[Any]:
    """A block as blocks for the casts and dataflow blocks for what lies between them."""
    if not isinstance(block, relax.DataflowBlock):
        yield block
        return
    runs = itertools.groupby(block.bindings, lambda binding: isinstance(binding, relax.MatchCast))
    for are_casts, bindings in runs:
        yield (relax.BindingBlock if are_casts else relax.DataflowBlock)(list(bindings))


def _shared(blocks: Sequence[Any]) -> list[Any]:
    """The variables of dataflow blocks that are defined outside of one now, or read so."""
    home: dict[Any, int] = {}
    shared: dict[Any, None] = {}
    for number, block in enumerate(blocks):
        is_dataflow = isinstance(block, relax.DataflowBlock)
        for binding in block.bindings:
            found = [v for v in relax.analysis.free_vars(binding.value) if home.get(v) != number]
            if not is_dataflow:
                found.append(binding.var)
            shared.update((v, None) for v in found if isinstance(v, relax.DataflowVar))
            home[binding.var] = number
    return list(shared)


def with_body(function: relax.Function, body: Any) -> relax.Function:
    """The function with another body; the same function if the body is its own."""
    if body.same_as(function.body):
        return function
    return relax.Function(
        function.params, body, function.ret_ty, function.is_pure, attrs=function.attrs
    )
