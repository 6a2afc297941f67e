"""FuseLoops: a loop as one kernel, where the shapes in its body are the same in every iteration.

The virtual machine takes no part in the iterations then, which for small bodies is where nearly
all the time goes. The sizes may be symbols, and the number of iterations known only at run time.

Where the body multiplies an unknown number of rows by a large matrix, the run decides: the kernel
takes one row at a time, and for many rows the virtual machine with kernels of packed products is
faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, sym, tirx
from tvm.ir import is_prim_var

from ..forms import Form
from ..kernel_call import call_kernel
from ..loops.roles import KERNEL, LOOP_PART, LoopRoles, Slices
from ..operators.sizes import sizes_of
from ..processor import is_for_llvm
from ..tvm_onnx import building_function, unused_name
from ..values import as_int, as_tensor, fresh_dim
from .kernel_limits import RowLimit, row_limits
from .loop_body import FusedBody, NoKernelError, fuse_body
from .loop_kernel import CarriedPlan, LoopPlan, SlicePlan, loop_kernel
from .unused import without_unused


def fuse_loops(module: tvm.IRModule) -> tuple[tvm.IRModule, list[Form]]:
    """The module with loops as kernels, for the target in scope, and what became of each loop."""
    forms = []
    before = module
    for variable, function in list(module.functions_items()):
        roles = LoopRoles.of(function) if isinstance(function, relax.Function) else None
        if roles is None:
            continue
        reason = ""
        try:
            if not is_for_llvm():
                raise NoKernelError("kernels with a loop inside are for CPUs")
            module = _Fusion(module, variable, function, roles).module()
        except NoKernelError as error:
            reason = str(error)
        forms.append(Form(roles.operator, roles.node, reason))
    fused = any(form.is_kernel for form in forms)
    return (without_unused(module, before) if fused else module), forms


class _Fusion:
    """One loop on its way to a kernel."""

    def __init__(
        self, module: tvm.IRModule, variable: Any, function: Any, roles: LoopRoles
    ) -> None:
        """Raises NoKernelError."""
        self._module = module
        self._variable = variable
        self._function = function
        self._roles = roles
        self._body = self._body_function()
        params = list(self._body.params)
        self._iteration = params.pop(0) if roles.reads_iteration else None
        slices = roles.carried_values + len(roles.scan_inputs)
        self._carried, self._slices = (
            params[: roles.carried_values],
            params[roles.carried_values : slices],
        )
        self._captures = params[slices:]
        outer = list(function.params)
        self._outer = dict(zip(params, [*outer[roles.first_carried :][:slices]], strict=False))
        captured = [outer[index] for index in roles.captured]
        self._outer.update(zip(self._captures, captured, strict=True))
        self._sizes = self._outer_sizes()

    def module(self) -> tvm.IRModule:
        """The module with the kernel in place of the loop. Raises NoKernelError."""
        fused = fuse_body(self._module, self._body)
        self._check_types(fused)
        bb = relax.BlockBuilder(self._module)
        name = f"{self._variable.name_hint}_fused"
        with building_function(bb, name, self._function.params, private=False):
            with bb.dataflow():
                results = self._call(bb, fused)
                result = results[0] if len(results) == 1 else relax.Tuple(results)
                output = bb.emit_output(result)
            replacement = bb.emit_func_output(output)
        limits = row_limits(self._body)
        fused_loop = bb.get()[replacement]
        module = bb.get()
        del module[replacement]
        if limits:
            return self._with_choice(module, fused_loop, limits)
        fused_loop = fused_loop.with_attr("global_symbol", self._variable.name_hint)
        module.update_func(self._variable, fused_loop.with_attr(LOOP_PART, KERNEL))
        return module

    def _with_choice(
        self, module: tvm.IRModule, kernel: Any, limits: Sequence[RowLimit]
    ) -> tvm.IRModule:
        """The module with a loop that is the kernel for few rows, and iterations for more.

        Both are functions of their own: FuseOps in TVM 0.27 fails on dataflow blocks in branches.
        """
        bb, name = relax.BlockBuilder(module), self._variable.name_hint
        loop = self._function.without_attr(LoopRoles.ATTRIBUTE)
        callees = []
        for function, suffix in ((kernel, "kernel"), (loop, "iterations")):
            unused = unused_name(bb, f"{name}_{suffix}")
            renamed = relax.utils.copy_with_new_vars(function).with_attr("global_symbol", unused)
            callees.append(bb.add_func(renamed, unused))
        params = list(self._function.params)
        with building_function(bb, f"{name}_choice", params, private=False):
            with bb.dataflow():
                few = [self._outer_type(limit.rows) <= limit.most for limit in limits]
                flag = bb.emit_output(as_tensor(bb, reduce(tirx.And, few)))
            choice = bb.emit(relax.If(flag, *(relax.Call(callee, params) for callee in callees)))
            chosen = bb.emit_func_output(choice)
        module = bb.get()
        module.update_func(self._variable, module[chosen].with_attr("global_symbol", name))
        del module[chosen]
        return module

    def _body_function(self) -> Any:
        if self._roles.body not in self._module:
            raise NoKernelError("another pass removed the function of its body")
        if self._roles.captures_sizes:
            raise NoKernelError("its body computes with sizes that no tensor it reads has")
        body = self._module[self._roles.body]
        for param in body.params:
            if not isinstance(param.ty, relax.TensorType) or param.ty.dtype is None:
                raise NoKernelError(f"{param.name!r} is a sequence, or its type is not known")
            if not isinstance(param.ty.shape, relax.ShapeExpr):
                raise NoKernelError(f"the shape of {param.name!r} is not known")
        return body

    def _outer_sizes(self) -> Mapping[Any, Any]:
        """The sizes of the loop's function that the symbols of the body stand for."""
        found: dict[Any, Any] = {}
        analyzer = sym.Analyzer()
        for inner, outer in self._outer.items():
            if not isinstance(outer.ty, relax.TensorType) or outer.ty.ndim < 0:
                raise NoKernelError(f"the shape of {inner.name!r} is not known")
            dims = dims_of(outer.ty)
            if inner in self._slices:
                del dims[self._roles.scan_inputs[self._slices.index(inner)].axis]
            for size, dim in zip(dims_of(inner.ty), dims, strict=True):
                if is_prim_var(size) and not analyzer.can_prove_equal(
                    found.setdefault(size, dim), dim
                ):
                    raise NoKernelError(f"the size {size.name!r} has two values")
        return found

    def _outer_type(self, kind: Any) -> Any:
        def translate(symbol: Any) -> Any:
            return self._sizes.get(symbol, symbol)

        return tvm_ffi.structural_map(kind, (ir.Var, translate), order="post")

    def _check_types(self, fused: FusedBody) -> None:
        outputs = fused.outputs[int(self._roles.returns_condition) :]
        analyzer = sym.Analyzer()
        for carried, output in zip(self._carried, outputs, strict=False):
            before, after = carried.ty, output.ty
            pairs = zip(dims_of(before), dims_of(after), strict=False)
            same = all(analyzer.can_prove_equal(*pair) for pair in pairs)
            if before.ndim != after.ndim or not same or before.dtype != after.dtype:
                name = carried.name
                raise NoKernelError(f"the carried value {name!r} changes its shape or type")

    def _call(self, bb: Any, fused: FusedBody) -> list[Any]:
        """Emits the kernel and the call; returns the results of the loop."""
        proceeds = self._always_proceeds(fused)
        trips = self._trip_count(bb, conditional=not proceeds)
        kernel = self._plan(fused, trips, proceeds)
        read = [carried.input for carried in kernel.carried_values] + [
            s.slice for s in kernel.scan_inputs
        ]
        arguments = [
            *([] if trips.argument is None else [trips.argument]),
            *([] if proceeds else [trips.condition]),
            *(self._outer[variable] for variable in (*read, *kernel.captures)),
            *(fused.constants[variable] for variable in kernel.tensors),
        ]
        types = [self._outer_type(carried.input.ty) for carried in kernel.carried_values]
        types += [self._stacked_type(slices, trips) for slices in kernel.scan_outputs]
        results = call_kernel(bb, "loop_kernel", loop_kernel(kernel), arguments, types)
        finals = dict(
            zip([carried.input for carried in kernel.carried_values], results, strict=False)
        )
        return [
            *(finals.get(carried, self._outer[carried]) for carried in self._carried),
            *results[len(finals) :],
        ]

    def _always_proceeds(self, fused: FusedBody) -> bool:
        """Whether another iteration follows, whatever the body computes."""
        if not self._roles.returns_condition:
            return True
        condition = fused.outputs[0]
        if condition in fused.constants:
            return bool(fused.constants[condition].value.numpy().item())
        return False

    def _plan(self, fused: FusedBody, trips: _TripCount, proceeds: bool) -> LoopPlan:
        """Carried values that no iteration changes are read like captures."""
        outputs = fused.outputs[int(self._roles.returns_condition) :]
        carried_values = [CarriedPlan(*pair) for pair in zip(self._carried, outputs, strict=False)]
        kept = [
            carried.input for carried in carried_values if carried.input.same_as(carried.output)
        ]
        slices = zip(outputs[len(carried_values) :], self._roles.scan_outputs, strict=True)
        return LoopPlan(
            fused,
            [carried for carried in carried_values if not carried.input.same_as(carried.output)],
            [_slices(*pair) for pair in zip(self._slices, self._roles.scan_inputs, strict=True)],
            [_slices(*pair) for pair in slices],
            [*kept, *self._captures],
            self._inner_trip_count(trips, fused),
            reads_trip=trips.argument is not None,
            iteration=self._iteration,
            condition_out=None if proceeds else fused.outputs[0],
        )

    def _trip_count(self, bb: Any, *, conditional: bool) -> _TripCount:
        """How often the loop runs; `conditional` says whether its body decides about that.

        Raises NoKernelError if nothing ends the loop, or if the sizes of its outputs cannot be
        known beforehand.
        """
        roles, params = self._roles, list(self._function.params)
        limit = params[0] if roles.has_limit else None
        condition = params[int(roles.has_limit)] if roles.has_condition else None
        if roles.scan_inputs:
            data = params[roles.first_scan_input]
            length = dims_of(data.ty)[roles.scan_inputs[0].axis]
            return _TripCount(as_int(length), length)
        if conditional:
            if roles.scan_outputs:
                raise NoKernelError("a condition decides how many slices its scan outputs have")
            first = relax.const(True, "bool") if condition is None else condition
            return _TripCount(roles.trip_count, None, limit, first)
        if limit is None and roles.trip_count is None:
            raise NoKernelError("nothing ends it")
        if limit is None and condition is None:
            static = max(roles.trip_count or 0, 0)
            return _TripCount(static, tirx.IntImm("int64", static))
        if limit is None:
            limit = relax.const(roles.trip_count, "int64")
        if condition is not None:
            limit = bb.emit(relax.op.where(condition, limit, relax.const(0, "int64")))
        if not roles.scan_outputs:
            return _TripCount(None, None, limit)
        limit = relax.op.reshape(relax.op.maximum(limit, relax.const(0, "int64")), (1,))
        return _TripCount(None, sizes_of(bb, bb.emit(limit))[0])

    def _inner_trip_count(self, trips: _TripCount, fused: FusedBody) -> Any:
        """The number of iterations as the kernel knows it, without looking at the trip count."""
        if trips.static is not None:
            return tirx.IntImm("int64", trips.static)
        if trips.size is None:
            return None
        inner = next((k for k, v in self._sizes.items() if v.same_as(trips.size)), None)
        return fused.symbols.get(inner, inner) if inner is not None else fresh_dim("trip_count")

    def _stacked_type(self, slices: SlicePlan, trips: _TripCount) -> Any:
        slice_type = self._outer_type(slices.slice.ty)
        shape = dims_of(slice_type)
        shape.insert(slices.axis, trips.size)
        return relax.TensorType(shape, slice_type.dtype)


@dataclass(frozen=True)
class _TripCount:
    """The number of iterations, or the most there may be if the body returns a condition."""

    static: int | None
    """The number if it is known."""
    size: Any
    """The number as a dimension, where tensors have it as one."""
    argument: Any = None
    """The number as an int64 scalar, where it is neither known nor a dimension."""
    condition: Any = None
    """Whether the first iteration runs, a bool scalar; only with a condition."""


def _slices(variable: Any, slices: Slices) -> SlicePlan:
    rank = int(variable.ty.ndim) + 1
    return SlicePlan(variable, slices.axis % rank, slices.reverse)


def dims_of(kind: Any) -> list[Any]:
    """The dimensions of a tensor type that has them."""
    return list(kind.shape.values)
