"""Drops the argument checks of kernels that every call in the module is known to pass.

TVM makes each kernel check its arguments: that they are tensors of its types and ranks, compact and
on its device, and of the sizes that it was compiled for. For VITS, compiling these checks takes a
sixth of LLVM's time. A constant, or a tensor that the module allocates, is compact, on the kernel's
device, and has the type and rank it was allocated with. A size of it is still compared where the
allocation computes it by one expression and the kernel expects another.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ..kernels.map_kernels import map_kernels
from ..kernels.nests import is_if_then_else, substituted

_GUARANTEED = "looplift.guaranteed_arguments"
"""The attribute of a kernel with the indices of the parameters that get only allocated tensors of
their element type and rank, or scalars of their type. The tensors are objects of TVM, as the
virtual machine passes them, and not bare DLTensors."""
_SIZES = "looplift.guaranteed_sizes"
"""The attribute with the sizes that such tensors always have: pairs of a parameter's index and an
axis."""

_ON_HOST = "tirx.is_host_func"
"""TVM's attribute of functions that compute sizes: in the table of sizes, or from scalars."""

_CALL = ir.Op.get("relax.call_tir")
_CALL_IN_PLACE = ir.Op.get("relax.call_tir_inplace")
_ALLOCATION = ir.Op.get("relax.builtin.alloc_tensor")
_RESHAPE = ir.Op.get("relax.reshape")
_READ = ir.Op.get("tirx.tvm_struct_get")
_SHAPE, _STRIDES, _TYPE, _ARGUMENT, _ELEMENT = 2, 3, 13, 15, 17
"""Fields that it reads: the address of a tensor's shape and of its strides, the type and value of
an argument, and an element of a shape."""
_TENSOR = 70
"""The type index of TVM's tensors (kTVMFFITensor), which hold a DLTensor."""
_ALIGNMENT = "storage_alignment"
"""The attribute that promises LLVM the alignment of a tensor."""
_BODY = "compute_scope"
"""The attribute around what a kernel does after the checks."""

_Read = tuple[Any, int, int]
"""A field that an expression reads: the base, the number of the element, and the field."""


# --- before the kernels are lowered ---


def mark_guaranteed_arguments(module: tvm.IRModule) -> tvm.IRModule:
    """Marks what every call of a kernel in the module is known to pass."""
    calls = _Calls(module)
    for function in module.functions.values():
        if isinstance(function, relax.Function):
            calls.visit_expr(function)
    for variable, kernel in list(module.functions_items()):
        if isinstance(kernel, tirx.PrimFunc) and variable in calls.guarantees:
            guarantees = calls.guarantees[variable]
            if calls.references[variable] == calls.count[variable]:
                kernel = kernel.with_attr(_GUARANTEED, sorted(guarantees.arguments))
                module[variable] = kernel.with_attr(_SIZES, sorted(guarantees.sizes))
    return module


def mark_size_functions(module: tvm.IRModule) -> tvm.IRModule:
    """Marks the functions that TVM generates to compute sizes.

    Only the module calls them: with the virtual machine's own table of sizes, or with scalars of
    their types.
    """
    for variable, function in list(module.functions_items()):
        attributes = function.attrs or {}
        if _ON_HOST in attributes and "global_symbol" not in attributes:
            function = function.with_attr(_GUARANTEED, [0])
            module[variable] = function.with_attr(_SIZES, [(0, 0)])
    return module


@dataclass(frozen=True)
class _Guarantees:
    """What calls of a kernel are known to pass."""

    arguments: frozenset[int]
    """The parameters that get scalars of their type, or allocated tensors of their element type
    and rank."""
    sizes: frozenset[tuple[int, int]]
    """The axes of parameters that get tensors of the size that the kernel expects."""


@relax.expr_functor.visitor
class _Calls(relax.PyExprVisitor):  # type: ignore[misc]
    """The calls of kernels in a module."""

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__()
        self._module = module
        self.guarantees: dict[Any, _Guarantees] = {}
        """By kernel, what holds for all calls."""
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
            if isinstance(value.op, ir.GlobalVar):
                returned = _returned_argument(self._module[value.op], value)
                return returned is not None and self._is_allocated(returned)
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
        results = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
        if call.op.same_as(_CALL_IN_PLACE):
            results = []
        allocated = [*map(self._is_allocated, arguments.fields), *(True for _ in results)]
        values = [*arguments.fields, *results]
        found = _guarantees(self._module[kernel].params, values, allocated)
        known = self.guarantees.get(kernel, found)
        self.guarantees[kernel] = _Guarantees(
            known.arguments & found.arguments, known.sizes & found.sizes
        )

    def _attributes(self, kernel: Any) -> Any:
        return self._module[kernel].attrs or {}


def _returned_argument(function: Any, call: Any) -> Any | None:
    """The argument that a called function returns as it is, as `any_sizes` does; None if it
    computes something.
    """
    if not isinstance(function, relax.Function):
        return None
    body = function.body
    if isinstance(body, relax.SeqExpr) and not body.blocks:
        body = body.body
    pairs = zip(function.params, call.args, strict=True)
    return next((argument for param, argument in pairs if body.same_as(param)), None)


def _guarantees(
    params: Sequence[Any], values: Sequence[Any], allocated: Sequence[bool]
) -> _Guarantees:
    """What a call is known to pass: arguments, or types of results."""
    arguments: set[int] = set()
    sizes: dict[Any, Any] = {}
    """What the variables in the shapes of parameters are in the caller."""
    unknown: set[Any] = set()
    """The variables in the shapes of tensors whose types do not say how large they are."""
    tensors = []
    for number, (param, value, is_allocated) in enumerate(zip(params, values, allocated)):
        if not hasattr(param, "shape"):
            if isinstance(value.ty, ir.PrimType) and value.ty.dtype == param.ty.dtype:
                arguments.add(number)
                sizes[param] = value
            else:
                unknown.add(param)
            continue
        kind = value if isinstance(value, relax.TensorType) else value.ty
        if is_allocated and _is_of_type(param, kind):
            arguments.add(number)
            if isinstance(kind.shape, relax.ShapeExpr):
                tensors.append((number, param.shape, kind.shape.values))
                continue
        unknown |= {size for size in param.shape if isinstance(size, ir.Var)}
    for _, expected, given in tensors:
        for size, actual in zip(expected, given, strict=True):
            if isinstance(size, ir.Var) and size not in unknown:
                sizes.setdefault(size, actual)
    guaranteed = {
        (number, axis)
        for number, expected, given in tensors
        for axis, (size, actual) in enumerate(zip(expected, given, strict=True))
        if all(variable in sizes for variable in tirx.analysis.undefined_vars(size))
        and tvm_ffi.structural_equal(substituted(size, sizes), actual)
    }
    return _Guarantees(frozenset(arguments), frozenset(guaranteed))


def _is_of_type(param: Any, kind: Any) -> bool:
    """Whether a tensor has the element type and the rank of a parameter."""
    is_tensor = isinstance(kind, relax.TensorType)
    return is_tensor and kind.ndim == len(param.shape) and str(kind.dtype) == str(param.dtype)


# --- after they are lowered ---


def drop_guaranteed_checks(module: tvm.IRModule) -> tvm.IRModule:
    """Drops the checks of marked parameters and sizes from lowered kernels, and the choice between
    the kinds of tensors that a marked parameter might be.
    """

    def without(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        if _GUARANTEED not in (kernel.attrs or {}):
            return kernel
        arguments = {int(number) for number in kernel.attrs[_GUARANTEED]}
        sizes = {(int(number), int(axis)) for number, axis in kernel.attrs[_SIZES]}
        body = _Checks(kernel.params, arguments, sizes).without(kernel.body)
        return kernel.with_body(body).without_attr(_GUARANTEED).without_attr(_SIZES)

    return map_kernels(module, without)


def accept_any_alignment(module: tvm.IRModule) -> tvm.IRModule:
    """The module with lowered kernels that take tensors at any address.

    TVM promises LLVM that the tensors of a kernel are aligned to 64 bytes, as those that it
    allocates are. An array of NumPy, which the virtual machine takes as it is, lies at a multiple
    of 16, and an aligned load from there would end the process.
    """

    def without(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        return kernel.with_body(_rebuilt(kernel.body, lambda part: part, without=_ALIGNMENT))

    return map_kernels(module, without)


class _Checks:
    """The checks of a kernel, and what the variables in them are."""

    def __init__(
        self, params: Sequence[Any], arguments: set[int], sizes: set[tuple[int, int]]
    ) -> None:
        self._guaranteed = arguments
        self._sizes = sizes
        self._params = set(params)
        """Those of the packed function: the address of the arguments, their number, and others."""
        self._arguments: dict[Any, int] = {}
        """The number of the argument that a variable was read from."""
        self._types: dict[Any, int] = {}
        """The number of the argument whose type a variable holds."""
        self._shapes: dict[Any, int] = {}
        """The number of the argument whose shape a variable is the address of."""

    def without(self, body: Any) -> Any:
        """The body of the kernel without checks that always pass, and what only they read."""
        outer = [(statement, _reads(_expression(statement))) for statement in _outer(body)]
        for statement, reads in outer:
            if isinstance(statement, tirx.Bind):
                self._note(statement.var, reads)
        outer = [(self._of_tensor(statement), reads) for statement, reads in outer]
        needed = [not self._always_passes(statement, reads) for statement, reads in outer]
        read: set[Any] = set()
        for statement, _ in itertools.compress(outer, needed):
            tvm_ffi.structural_walk(_expression(statement), (ir.Var, read.add))
        kept = [
            None
            if not is_needed or (_is_for_checks(statement, reads) and statement.var not in read)
            else statement
            for is_needed, (statement, reads) in zip(needed, outer, strict=True)
        ]
        parts = iter(kept)
        return _rebuilt(body, lambda _: next(parts))

    def _note(self, variable: Any, reads: Sequence[_Read]) -> None:
        """Records which argument a variable holds the type, the address or a part of."""
        for base, number, field in reads:
            is_address = isinstance(variable.ty, ir.PointerType)
            if field == _TYPE:
                self._types[variable] = number
            if field == _TYPE or (field == _ARGUMENT and is_address):
                self._arguments[variable] = number
            elif field == _STRIDES and base in self._arguments:
                self._arguments[variable] = self._arguments[base]
            elif field == _SHAPE and base in self._arguments:
                self._shapes[variable] = self._arguments[base]

    def _of_tensor(self, statement: Any) -> Any:
        """The definition of an argument's address without the choice between a tensor's and that of
        a bare DLTensor, if it is guaranteed to be a tensor; another statement as it is.
        """
        if not isinstance(statement, tirx.Bind) or not is_if_then_else(statement.value):
            return statement
        condition, of_tensor, _ = statement.value.args
        number = self._arguments.get(statement.var)
        asks_for_tensor = (
            isinstance(condition, tirx.EQ)
            and self._types.get(condition.a) == number
            and isinstance(condition.b, tirx.IntImm)
            and int(condition.b) == _TENSOR
        )
        is_known = number in self._guaranteed and asks_for_tensor
        return tirx.Bind(statement.var, of_tensor) if is_known else statement

    def _always_passes(self, statement: Any, reads: Sequence[_Read]) -> bool:
        """Whether a statement only checks what is guaranteed."""
        if not isinstance(statement, (tirx.AssertStmt, tirx.IfThenElse)):
            return False
        sizes = {
            (self._shapes[base], axis)
            for base, axis, field in reads
            if field == _ELEMENT and base in self._shapes
        }
        if sizes and isinstance(statement, tirx.AssertStmt):
            return sizes <= self._sizes
        names: list[Any] = []
        tvm_ffi.structural_walk(statement.condition, (ir.Var, names.append))
        checked = {self._arguments[name] for name in names if name in self._arguments}
        if not checked:
            return not reads and bool(names) and self._params.issuperset(names)
        return checked <= self._guaranteed


def _outer(statement: Any) -> Iterator[Any]:
    """The statements around what the kernel does."""
    # A kernel has a statement within another for each of its parameters: too many to recurse.
    left = [statement]
    while left:
        statement = left.pop()
        if isinstance(statement, tirx.SeqStmt):
            left += reversed(statement.seq)
        elif not isinstance(statement, tirx.AttrStmt):
            yield statement
        elif statement.attr_key != _BODY:
            left.append(statement.body)


def _rebuilt(statement: Any, new: Callable[[Any], Any], *, without: str = "") -> Any:
    """A statement with each of its `_outer` statements replaced; None drops it.

    Attributes with the key `without` are left out.
    """
    around: list[Any] = []
    """From the outermost on, attributes and the statements before the last one of a sequence."""
    while isinstance(statement, (tirx.SeqStmt, tirx.AttrStmt)):
        if isinstance(statement, tirx.SeqStmt):
            *first, statement = statement.seq
            around.append([_rebuilt(part, new, without=without) for part in first])
        elif statement.attr_key == _BODY:
            break
        else:
            if statement.attr_key != without:
                around.append(statement)
            statement = statement.body
    result = statement if isinstance(statement, tirx.AttrStmt) else new(statement)
    for outer in reversed(around):
        if isinstance(outer, list):
            parts = [part for part in (*outer, result) if part is not None]
            result = parts[0] if len(parts) == 1 else tirx.SeqStmt(parts)
        else:
            result = tirx.AttrStmt(outer.node, outer.attr_key, outer.value, result)
    return result


def _expression(statement: Any) -> Any:
    """What a statement reads: the value that it binds, the condition that it asserts, or all."""
    if isinstance(statement, tirx.AssertStmt):
        return statement.condition
    return statement.value if isinstance(statement, tirx.Bind) else statement


def _is_for_checks(statement: Any, reads: Sequence[_Read]) -> bool:
    """Whether a statement defines a type, or the address of a shape or of strides."""
    return isinstance(statement, tirx.Bind) and any(
        field in (_SHAPE, _STRIDES, _TYPE) for _, _, field in reads
    )


def _reads(value: Any) -> list[_Read]:
    """The fields that an expression or statement reads."""
    calls: list[Any] = []
    # Most bindings are a single read, whose base is a variable in what TVM writes.
    if isinstance(value, ir.Call) and value.op.same_as(_READ):
        calls.append(value)
    else:
        tvm_ffi.structural_walk(value, (ir.Call, calls.append))
    found = (call.args for call in calls if call.op.same_as(_READ))
    return [(base, int(number), int(field)) for base, number, field in found]
