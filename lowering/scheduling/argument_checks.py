"""Drops the argument checks of kernels that every call in the module is known to pass.

TVM makes each kernel check its arguments: that they are tensors of its types and ranks, compact and
on its device, and of the sizes that it was compiled for. For VITS, compiling these checks takes a
sixth of LLVM's time. A constant, or a tensor that the module allocates, is compact, on the kernel's
device, and has the type and rank it was allocated with. Only its sizes are still compared: the
allocation computes them by one expression, and the kernel may expect them by another.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

_ALLOCATED = "looplift.allocated_arguments"
"""The attribute of a kernel with the numbers of the parameters that only get allocated tensors."""

_CALL = ir.Op.get("relax.call_tir")
_CALL_IN_PLACE = ir.Op.get("relax.call_tir_inplace")
_ALLOCATION = ir.Op.get("relax.builtin.alloc_tensor")
_RESHAPE = ir.Op.get("relax.reshape")
_READ = ir.Op.get("tirx.tvm_struct_get")
_STRIDES, _TYPE, _ARGUMENT = 3, 13, 15
"""Fields that it reads: the address of a tensor's strides, the type and value of an argument."""
_BODY = "compute_scope"
"""The attribute around what a kernel does after the checks."""


# --- before the kernels are lowered ---


def mark_allocated_arguments(module: tvm.IRModule) -> tvm.IRModule:
    """Marks the parameters of kernels that get an allocated tensor in every call of the module."""
    calls = _Calls(module)
    for function in module.functions.values():
        if isinstance(function, relax.Function):
            calls.visit_expr(function)
    for variable, kernel in list(module.functions_items()):
        if isinstance(kernel, tirx.PrimFunc) and variable in calls.others:
            others = calls.others[variable]
            if calls.references[variable] == calls.count[variable]:
                allocated = [k for k in range(len(kernel.params)) if k not in others]
                module[variable] = kernel.with_attr(_ALLOCATED, allocated)
    return module


@relax.expr_functor.visitor
class _Calls(relax.PyExprVisitor):  # type: ignore[misc]
    """The calls of kernels in a module."""

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__()
        self._module = module
        self.others: dict[Any, set[int]] = {}
        """By kernel, the arguments that are not allocated tensors of its types in some call."""
        self.count: Counter[Any] = Counter()
        """By kernel, the number of calls."""
        self.references: Counter[Any] = Counter()
        """By kernel, how often it is named: more often than called if it is also used otherwise."""
        self._allocated: set[Any] = set()
        """The variables of tensors that have been allocated, and of tuples of them."""

    def visit_global_var_(self, variable: Any) -> None:
        self.references[variable] += 1

    def visit_var_binding_(self, binding: Any) -> None:
        super().visit_var_binding_(binding)
        self._bind(binding)

    def visit_match_cast_(self, binding: Any) -> None:
        super().visit_match_cast_(binding)
        self._bind(binding)

    def _bind(self, binding: Any) -> None:
        if self._is_allocated(binding.value):
            self._allocated.add(binding.var)

    def _is_allocated(self, value: Any) -> bool:
        if isinstance(value, relax.Var):
            return value in self._allocated
        if isinstance(value, relax.TupleGetItem):
            return self._is_allocated(value.tuple_value)
        if isinstance(value, relax.Tuple):
            return all(map(self._is_allocated, value.fields))
        if isinstance(value, relax.Call):
            if value.op.same_as(_RESHAPE):
                return self._is_allocated(value.args[0])
            if value.op.same_as(_CALL_IN_PLACE):  # which returns one of its arguments
                return self._is_allocated(value.args[1])
            return bool(value.op.same_as(_CALL) or value.op.same_as(_ALLOCATION))
        return isinstance(value, ir.Constant)

    def visit_call_(self, call: Any) -> None:
        super().visit_call_(call)
        if not (call.op.same_as(_CALL) or call.op.same_as(_CALL_IN_PLACE)):
            return
        kernel, arguments = call.args[:2]
        if not isinstance(arguments, relax.Tuple) or "global_symbol" in self._attributes(kernel):
            return  # What is called from outside of the module gets other tensors, too.
        self.count[kernel] += 1
        others = self.others.setdefault(kernel, set())
        results = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
        if call.op.same_as(_CALL_IN_PLACE):
            results = []
        given = [*(value.ty for value in arguments.fields), *results]
        for number, (param, kind) in enumerate(zip(self._module[kernel].params, given)):
            is_allocated = number >= len(arguments.fields) or self._is_allocated(
                arguments.fields[number]
            )
            if not (is_allocated and _is_of_type(param, kind)):
                others.add(number)

    def _attributes(self, kernel: Any) -> Any:
        return self._module[kernel].attrs or {}


def _is_of_type(param: Any, kind: Any) -> bool:
    """Whether a tensor has the element type and the rank of a parameter."""
    is_tensor = isinstance(kind, relax.TensorType) and hasattr(param, "shape")
    return is_tensor and kind.ndim == len(param.shape) and str(kind.dtype) == str(param.dtype)


# --- after they are lowered ---


def drop_guaranteed_checks(module: tvm.IRModule) -> tvm.IRModule:
    """Drops the checks of marked parameters, other than of their sizes, from lowered kernels."""
    for variable, kernel in list(module.functions_items()):
        if isinstance(kernel, tirx.PrimFunc) and _ALLOCATED in (kernel.attrs or {}):
            allocated = {int(number) for number in kernel.attrs[_ALLOCATED]}
            body = _Checks(allocated).without(kernel.body)
            module[variable] = kernel.with_body(body).without_attr(_ALLOCATED)
    return module


class _Checks:
    """The statements of a kernel that unpack and check its arguments."""

    def __init__(self, allocated: set[int]) -> None:
        self._allocated = allocated
        self._arguments: dict[Any, int] = {}
        """The number of the argument that a variable was read from."""

    def without(self, statement: Any) -> Any:
        """A statement without the checks that allocated tensors always pass."""
        if isinstance(statement, tirx.SeqStmt):
            kept = [self.without(s) for s in statement.seq if not self._drops(s)]
            return kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)
        if isinstance(statement, tirx.AttrStmt) and statement.attr_key != _BODY:
            return tirx.AttrStmt(
                statement.node, statement.attr_key, statement.value, self.without(statement.body)
            )
        if isinstance(statement, tirx.Bind):
            self._note(statement.var, statement.value)
        return statement

    def _note(self, variable: Any, value: Any) -> None:
        """Records which argument a variable holds the type, the address or the strides of."""
        for base, number, field in _reads(value):
            is_address = isinstance(variable.ty, ir.PointerType)
            if field == _TYPE or (field == _ARGUMENT and is_address):
                self._arguments[variable] = number
            elif field == _STRIDES and base in self._arguments:
                self._arguments[variable] = self._arguments[base]

    def _drops(self, statement: Any) -> bool:
        """Whether a statement only checks allocated tensors, and not their sizes."""
        if not isinstance(statement, (tirx.AssertStmt, tirx.IfThenElse)):
            return False
        names: list[Any] = []
        tvm_ffi.structural_walk(statement.condition, (ir.Var, names.append))
        checked = {self._arguments[name] for name in names if name in self._arguments}
        return bool(checked) and checked <= self._allocated


def _reads(value: Any) -> list[tuple[Any, int, int]]:
    """The fields that an expression reads: the base, the number of the element, and the field."""
    calls: list[Any] = []
    tvm_ffi.structural_walk(value, (ir.Call, calls.append))
    found = (call.args for call in calls if call.op.same_as(_READ))
    return [(base, int(number), int(field)) for base, number, field in found]
