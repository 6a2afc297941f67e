"""One kernel that computes what several calls of kernels compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx

from ..kernels.math_functions import FAST_MATH
from ..kernels.nests import nests_of, substituted
from ..kernels.schedule import schedule_kernel
from .small_calls import result_kinds, variables_in


@dataclass
class CallGroup:
    """Calls of kernels that are to become one."""

    calls: list[Any] = field(default_factory=list)
    """Their bindings."""
    fields: list[Any] = field(default_factory=list)
    """The bindings of fields of their results."""
    results: set[Any] = field(default_factory=set)
    """The variables of both."""

    def add(self, call: Any, fields: Sequence[Any]) -> None:
        """Adds a call and the fields of its result, which may be bound later in the block."""
        self.calls.append(call)
        self.fields += fields
        self.results.update(binding.var for binding in (call, *fields))


class JointKernel:
    """The kernel of a group, with the arguments of its call."""

    def __init__(
        self,
        module: tvm.IRModule,
        group: CallGroup,
        prepare: Callable[[tirx.PrimFunc], tirx.PrimFunc] = lambda kernel: kernel,
    ) -> None:
        self._given: list[tuple[Any, Any]] = []
        """The tensors from outside with their buffers."""
        self._numbers: list[tuple[Any, Any]] = []
        """The numbers from outside with their variables, which TVM's passes want after tensors."""
        self._tensors: dict[Any, Any] = {}
        """The buffer of each tensor, by Relax variable."""
        self._results: dict[Any, list[Any]] = {}
        """The buffers of results, by the variable of the call."""
        self._sizes: dict[Any, Any] = {}
        """What the sizes of tensors outside are in the kernel."""
        self._buffers: list[Any] = []
        """The buffers between the loop nests of the kernels."""
        self._bodies: list[Any] = []
        self._group = group
        for binding in group.calls:
            kernel = prepare(module[binding.value.args[0]])
            self._add(s_tir.renew_defs(kernel), binding)
        for binding in group.fields:
            buffers = self._results[binding.value.tuple_value]
            self._tensors[binding.var] = buffers[binding.value.index]

    @property
    def arguments(self) -> list[Any]:
        """What a call of the kernel passes."""
        return [argument for argument, _ in (*self._given, *self._numbers)]

    def computed(self) -> list[Any]:
        """The variables of tensors that the kernel computes."""
        variables = [*(b.var for b in self._group.calls), *(b.var for b in self._group.fields)]
        return [v for v in variables if not isinstance(v.ty, relax.TupleType)]

    def function(self, needed: Sequence[Any]) -> tirx.PrimFunc:
        """The kernel, which returns the needed ones of the tensors that it computes."""
        return schedule_kernel(self.unscheduled(needed)).with_attr(FAST_MATH, True)

    def unscheduled(self, needed: Sequence[Any]) -> tirx.PrimFunc:
        """The kernel without a schedule."""
        results = [self._tensors[variable] for variable in needed]
        made = [buffer for buffers in self._results.values() for buffer in buffers]
        between = [buffer for buffer in made if not any(buffer.same_as(r) for r in results)]
        root = s_tir.SBlock(
            [], [], [], "root", tirx.SeqStmt(self._bodies), None, [*self._buffers, *between]
        )
        attrs = ir.make_node("ir.DictAttrs", **{"tirx.noalias": True})
        return tirx.PrimFunc(
            [param for _, param in (*self._given, *self._numbers)] + results,
            s_tir.SBlockRealize([], True, root),
            attrs=attrs,
        )

    def _add(self, kernel: tirx.PrimFunc, binding: Any) -> None:
        """Adds the kernel of a call; no other kernel has one of its variables."""
        arguments = list(binding.value.args[1].fields)
        renamed: dict[Any, Any] = {}
        for argument, param in zip(arguments, kernel.params, strict=False):
            if not hasattr(param, "shape"):
                renamed[param] = self._number(argument, param)
        for argument, param in zip(arguments, kernel.params, strict=False):
            if hasattr(param, "shape"):
                buffer = self._tensor(argument, param, renamed)
                for size, known in zip(param.shape, buffer.shape, strict=True):
                    if isinstance(size, ir.Var):
                        renamed.setdefault(size, known)
                renamed[param] = buffer
        results = [
            self._result(param, kind, renamed, is_last=binding is self._group.calls[-1])
            for param, kind in zip(
                kernel.params[len(arguments) :], result_kinds(binding.value), strict=True
            )
        ]
        self._results[binding.var] = results
        if not isinstance(binding.var.ty, relax.TupleType):
            (self._tensors[binding.var],) = results
        root = kernel.body.block
        for buffer in root.alloc_buffers:
            renamed[buffer] = _redeclared(buffer, renamed)
            self._buffers.append(renamed[buffer])
        self._bodies.append(substituted(root.body, renamed))

    def _result(self, param: Any, kind: Any, renamed: dict[Any, Any], *, is_last: bool) -> Any:
        """The buffer of a result. If it is not the last, its sizes must be known without it."""
        for size, given in zip(param.shape, kind.shape.values, strict=True):
            if isinstance(size, ir.Var) and size not in renamed and not is_last:
                renamed[size] = self._number(given, size)
        renamed[param] = _redeclared(param, renamed)
        return renamed[param]

    def _number(self, argument: Any, param: Any) -> Any:
        """A number in the sizes of tensors, or else a parameter, the same one for equal numbers."""
        if all(name in self._sizes for name in variables_in(argument)):
            return substituted(argument, self._sizes)
        for given, known in self._numbers:
            equal = tvm_ffi.structural_equal(given, argument, map_free_vars=False)
            if known.ty == param.ty and equal:
                return known
        self._numbers.append((argument, param))
        return param

    def _tensor(self, argument: Any, param: Any, renamed: Mapping[Any, Any]) -> Any:
        """The buffer of a tensor: of an earlier kernel's result, or a parameter."""
        fields = {binding.var: binding.value for binding in self._group.fields}
        if argument in fields:
            item = fields[argument]
            return self._results[item.tuple_value][item.index]
        known = self._tensors.get(argument)
        if known is None:
            known = self._tensors[argument] = _redeclared(param, renamed)
            self._given.append((argument, known))
            for given, size in zip(argument.ty.shape.values, known.shape, strict=True):
                if isinstance(given, ir.Var):
                    self._sizes.setdefault(given, size)
        return known


def _redeclared(buffer: Any, renamed: Mapping[Any, Any]) -> Any:
    """A buffer like another one, with other names in its shape; the same one without any."""
    shape = [substituted(size, renamed) for size in buffer.shape]
    if all(new.same_as(old) for new, old in zip(shape, buffer.shape, strict=True)):
        return buffer
    # The default layout would have the names of sizes in it, which passes do not replace there.
    return tirx.decl_buffer(shape, buffer.dtype, buffer.name, layout=None)


def called_together(
    module: tvm.IRModule,
    builder: Any,
    calls: Sequence[Any],
    needed: Sequence[Any],
    accepts: Callable[[tirx.PrimFunc], bool],
) -> Any:
    """A binding of one kernel for the calls of several, which gives the one needed result.

    None if `accepts` refuses the kernel, which has no schedule.
    """
    joined = JointKernel(module, CallGroup(list(calls)), _without_first_copy)
    kernel = joined.unscheduled(needed)
    if not accepts(kernel):
        return None
    function = builder.add_func(kernel, calls[-1].value.args[0].name_hint)
    (result,) = needed
    return relax.VarBinding(
        result, relax.op.call_tir(function, relax.Tuple(joined.arguments), result.ty)
    )


def _without_first_copy(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel without a copy of an operand at its start, as TVM's convolutions begin with.

    A schedule does not inline it where TVM cannot prove that the rest reads what it writes.
    """
    nests = nests_of(kernel)
    if nests is None or len(nests) < 2 or not isinstance(nests[0].value, ir.TensorLoad):
        return kernel
    copy, load = nests[0], nests[0].value
    pairs = zip(copy.indices, load.indices, strict=False)
    is_whole = len(copy.indices) == len(load.indices) and all(a.same_as(b) for a, b in pairs)
    if copy.reduced or not is_whole or not any(load.source.same_as(p) for p in kernel.params):
        return kernel
    root = kernel.body.block
    others = list(root.body.seq)[1:]
    rest = others[0] if len(others) == 1 else tirx.SeqStmt(others)
    rest = substituted(rest, {copy.buffer: load.source})
    kept = [buffer for buffer in root.alloc_buffers if not buffer.same_as(copy.buffer)]
    root = s_tir.SBlock([], [], [], root.name_hint, rest, None, kept)
    return kernel.with_body(s_tir.SBlockRealize([], True, root))
