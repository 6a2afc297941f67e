"""Drops calls that change nothing: each costs the virtual machine about as much as a small kernel.

s = tensor_to_shape(t)              s = tensor_to_shape(t)
y = match_cast(s, [x])              match_cast(s, [n])
z = match_cast([x], [n])            y = x
y = any_sizes(x)             ->     f(y, n)
f(y, n)
kill(t)
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax

from ..kernels.affine import static_product
from .dataflow import with_body

_TO_SHAPE = "relax.tensor_to_shape"
_STORAGE = ir.Op.get("relax.vm.alloc_storage")
_TENSOR = ir.Op.get("relax.vm.alloc_tensor")
_KILL = ir.Op.get("relax.vm.kill_object")
_MAKE_SHAPE = "vm.builtin.make_shape"
_FEW_BYTES = 1024
"""The size up to which memory is held until its function returns."""


def read_sizes_once(module: tvm.IRModule) -> tvm.IRModule:
    """The module with one `match_cast` for each tensor of sizes.

    DecomposeOpsForInference names the sizes that it reads from the tensor, and the `match_cast` of
    the model would name them again.
    """

    def reading(binding: Any) -> list[Any]:
        value = binding.value
        if not isinstance(binding, relax.MatchCast) or not _is_call(value, _TO_SHAPE):
            return [binding]
        kind = relax.ShapeType(ndim=value.ty.ndim)
        read = relax.op.call_pure_packed(
            "vm.builtin.tensor_to_shape", value.args[0], ty_args=[kind]
        )
        sizes = relax.Var("sizes", kind)
        return [relax.VarBinding(sizes, read), relax.MatchCast(binding.var, sizes, binding.ty)]

    return _with_bindings(module, reading)


def _is_call(value: Any, name: str) -> bool:
    return isinstance(value, ir.Call) and getattr(value.op, "name", "") == name


def _with_bindings(module: tvm.IRModule, change: Any) -> tvm.IRModule:
    """The module with what `change` makes of each binding in a block that is no dataflow block."""

    def changed(block: Any) -> Any:
        bindings = [each for binding in block.bindings for each in change(binding)]
        same = len(bindings) == len(block.bindings) and all(
            new.same_as(old) for new, old in zip(bindings, block.bindings, strict=True)
        )
        return block if same else relax.BindingBlock(bindings)

    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function):
            body = tvm_ffi.structural_map(
                function.body, (relax.BindingBlock, changed), order="post"
            )
            module[variable] = with_body(function, body)
    return module


def inline_identities(module: tvm.IRModule) -> tvm.IRModule:
    """The module without calls of functions that return their only parameter."""
    identities = {v for v, function in module.functions_items() if _is_identity(function)}

    def inlined(binding: Any) -> list[Any]:
        value = binding.value
        is_call = isinstance(value, ir.Call) and value.op in identities
        # The virtual machine cannot release another name of a constant.
        if is_call and isinstance(value.args[0], relax.Var):
            return [relax.VarBinding(binding.var, value.args[0])]
        return [binding]

    return _with_bindings(module, inlined) if identities else module


def _is_identity(function: Any) -> bool:
    if not isinstance(function, relax.Function) or len(function.params) != 1:
        return False
    body = function.body
    if isinstance(body, relax.SeqExpr) and not body.blocks:
        body = body.body
    return bool(body.same_as(function.params[0]))


def drop_idle_calls(module: tvm.IRModule) -> tvm.IRModule:
    """The module without shapes that nothing reads, and without releases of small memory.

    Requires a module after VMShapeLower, in which a `match_cast` is a copy.
    """
    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function):
            module[variable] = with_body(function, _Idle(function.body).dropped())
    return module


class _Idle:
    """The idle bindings of a function."""

    def __init__(self, body: Any) -> None:
        self._body = body
        self._reads: Counter[Any] = Counter()
        self._small: set[Any] = set()
        """The variables of small tensors and of small storages."""

        def visit(binding: Any) -> None:
            value = binding.value
            # A small tensor holds the whole of its storage.
            in_small = not _is_of(value, _TENSOR) or value.args[0] in self._small
            if _has_few_bytes(value) and in_small:
                self._small.add(binding.var)
            self._reads.update(relax.analysis.free_vars(value))

        def visit_body(inner: Any) -> None:
            self._reads.update(relax.analysis.free_vars(inner.body))

        tvm_ffi.structural_walk(body, [(relax.Binding, visit), (relax.SeqExpr, visit_body)])

    def dropped(self) -> Any:
        """The body without its idle bindings."""
        return tvm_ffi.structural_map(
            self._body, (relax.BindingBlock, self._without_idle), order="post"
        )

    def _without_idle(self, block: Any) -> Any:
        kept = []
        # A binding that goes may have been the only one that reads another one.
        for binding in reversed(list(block.bindings)):
            if self._is_idle(binding):
                self._reads.subtract(relax.analysis.free_vars(binding.value))
            else:
                kept.append(binding)
        return relax.BindingBlock(kept[::-1]) if len(kept) < len(block.bindings) else block

    def _is_idle(self, binding: Any) -> bool:
        value = binding.value
        if _is_of(value, _KILL):
            return value.args[0] in self._small
        if self._reads[binding.var]:
            return False
        is_alias = isinstance(binding, relax.MatchCast) or isinstance(value, relax.Var)
        return is_alias or (
            isinstance(value, ir.Call)
            and isinstance(value.op, relax.ExternFunc)
            and str(value.op.global_symbol) == _MAKE_SHAPE
        )


def _is_of(value: Any, op: Any) -> bool:
    return isinstance(value, ir.Call) and value.op.same_as(op)


def _has_few_bytes(value: Any) -> bool:
    """Whether a value is an allocation of few bytes, whose number is known."""
    if _is_of(value, _STORAGE):
        shape, item = value.args[0], 1
    elif _is_of(value, _TENSOR):
        shape, item = value.args[2], 8
    else:
        return False
    count = static_product(shape.values) if isinstance(shape, relax.ShapeExpr) else None
    return count is not None and count * item <= _FEW_BYTES
