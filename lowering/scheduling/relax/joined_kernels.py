"""Joins kernels that compute a few numbers each: one call computes them all.

    lv = call_tir(take, (starts, i))              gv = call_tir(joined_take_add, (starts, i, n))
    lv1 = call_tir(add, (lv, n))          ->      lv1 = gv[0]
    lv2 = call_tir(take, (ends, i))               lv2 = gv[1]

Models compute sizes, positions and conditions with small tensors. A kernel for one of them takes
the virtual machine longer to call, and to allocate a result for, than it takes to run; in the body
of a loop, that happens in each iteration. FuseOps joins elementwise operators only.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx

from ..kernels.affine import static_product, static_size
from ..kernels.blocks import may_trap
from ..kernels.emission import SCHEDULED
from ..kernels.math_functions import FAST_MATH
from ..kernels.nests import depends, loads, nests_of, substituted
from ..kernels.schedule import schedule_kernel
from .dataflow import with_body

_CALL_TIR = ir.Op.get("relax.call_tir")
_CALL_IN_PLACE = ir.Op.get("relax.call_tir_inplace")
_MOST_ELEMENTS = 16
"""The largest number of elements of a result."""
_MOST_STEPS = 256
"""The most stores that a kernel runs."""
_MOST_KERNELS = 32
"""The most kernels that become one: the time to compile it grows with their number."""
_LONGEST_NAME = 64


def join_small_kernels(module: tvm.IRModule) -> tvm.IRModule:
    """The module with one call for several calls of small kernels.

    A small kernel moves to the earliest dataflow block that has its operands, and kernels between
    two of them that need none of their results run first.
    """
    builder = relax.BlockBuilder(module)
    kernels = _SmallKernels(module)

    def joined(body: Any) -> Any:
        blocks = _hoisted(list(body.blocks), kernels)
        reads = Counter(relax.analysis.free_vars(body.body))
        for block in blocks:
            for binding in block.bindings:
                reads.update(relax.analysis.free_vars(binding.value))
        for number, block in enumerate(blocks):
            if _is_dataflow(block):
                blocks[number] = _Joining(module, builder, kernels, reads).block(block)
        return relax.SeqExpr(blocks, body.body)

    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function):
            body = tvm_ffi.structural_map(function.body, (relax.SeqExpr, joined), order="post")
            builder.update_func(variable, with_body(function, body))
    return without_unused(relax.transform.Normalize()(builder.get()), kernels.known())


class _SmallKernels:
    """The kernels of a module that have a few iterations."""

    def __init__(self, module: tvm.IRModule) -> None:
        self._module = module
        self._small: dict[Any, bool] = {}
        self._total: dict[Any, bool] = {}

    def __contains__(self, variable: Any) -> bool:
        if variable not in self._small:
            kernel = self._module[variable]
            self._small[variable] = isinstance(kernel, tirx.PrimFunc) and _is_small(kernel)
        return self._small[variable]

    def is_total(self, variable: Any) -> bool:
        """Whether a kernel cannot fail: it divides no integer by a loaded value or a number that it
        is given, and reads tensors of known shape at places that its loops alone decide.
        """
        if variable not in self._total:
            kernel = self._module[variable]
            tensors = [param for param in kernel.params if hasattr(param, "shape")]
            numbers = [param for param in kernel.params if not hasattr(param, "shape")]
            is_known = all(static_product(tensor.shape) is not None for tensor in tensors)
            divides = may_trap(kernel.body, *numbers)
            fixed = not _reads_at_places(kernel.body, numbers)
            self._total[variable] = is_known and not divides and fixed
        return self._total[variable]

    def known(self) -> list[Any]:
        """The kernels that were asked for and are small."""
        return [variable for variable, small in self._small.items() if small]


def _reads_at_places(code: Any, numbers: Sequence[Any]) -> bool:
    """Whether an index of a load or store is itself loaded, or depends on numbers."""
    found: list[Any] = []

    def visit(access: Any) -> None:
        for index in access.indices:
            found.extend(loads(index))
            if depends(index, numbers):
                found.append(index)

    tvm_ffi.structural_walk(code, ((ir.TensorLoad, tirx.BufferStore), visit))
    return bool(found)


def without_unused(module: tvm.IRModule, kernels: Sequence[Any]) -> tvm.IRModule:
    """The module without those of some kernels that no function calls."""
    used: set[Any] = set()
    for function in module.functions.values():
        tvm_ffi.structural_walk(function.body, (ir.GlobalVar, used.add))
    for variable in dict.fromkeys(kernels):
        if variable not in used and "global_symbol" not in (module[variable].attrs or {}):
            del module[variable]
    return module


def _is_small(kernel: tirx.PrimFunc) -> bool:
    """Whether a kernel has a few iterations, and nothing in it can take long."""
    if SCHEDULED in (kernel.attrs or {}) or not isinstance(kernel.body, s_tir.SBlockRealize):
        return False
    calls: list[str] = []
    tvm_ffi.structural_walk(kernel.body, (ir.Call, lambda call: calls.append(str(call.op))))
    leaves = any("call_packed" in name or "call_extern" in name for name in calls)
    return not leaves and _steps(kernel.body) <= _MOST_STEPS


def _steps(statement: Any) -> float:
    """The number of stores that a statement runs; infinite if it is not known."""
    if isinstance(statement, tirx.SeqStmt):
        return sum(map(_steps, statement.seq))
    if isinstance(statement, s_tir.SBlockRealize):
        return _steps(statement.block.body)
    if isinstance(statement, tirx.BufferStore):
        return 1
    if not isinstance(statement, tirx.For) or statement.kind != tirx.ForKind.SERIAL:
        return float("inf")
    extent = static_size(statement.extent)
    return float("inf") if extent is None else extent * _steps(statement.body)


def _cannot_fail(value: Any, kernels: _SmallKernels) -> bool:
    """Whether a value is a field, or a call of a kernel that can run on any operands."""
    return isinstance(value, relax.TupleGetItem) or kernels.is_total(value.args[0])


def _is_small_call(binding: Any, kernels: _SmallKernels) -> bool:
    """Whether a binding is of a call of a small kernel with small results."""
    value = binding.value
    return (
        isinstance(value, ir.Call)
        and value.op.same_as(_CALL_TIR)
        and isinstance(value.args[1], relax.Tuple)
        and all(_is_small_tensor(kind) for kind in _result_kinds(value))
        and value.args[0] in kernels
    )


def _is_small_tensor(kind: Any) -> bool:
    count = static_product(kind.shape.values)
    return count is not None and count <= _MOST_ELEMENTS


def _hoisted(blocks: list[Any], kernels: _SmallKernels) -> list[Any]:
    """Blocks with calls of small kernels in the earliest dataflow blocks that have their operands,
    and there as early as possible.

    Blocks that define and check sizes lie between dataflow blocks. A check may be what keeps a
    later kernel from a division by 0, or from a read outside of a tensor.
    """
    defined: dict[Any, int] = {}
    """The block that defines a variable or the name of a size; what is not in it comes before."""
    found: list[list[Any]] = []
    moves: dict[Any, bool] = {}
    """Whether a variable is a result of a small kernel, or a field of one."""
    for number, block in enumerate(blocks):
        found.append([])
        for binding in block.bindings:
            home = number
            value = binding.value
            if isinstance(value, relax.TupleGetItem):
                moves[binding.var] = moves.get(value.tuple_value, False)
            else:
                moves[binding.var] = _is_small_call(binding, kernels)
            if moves[binding.var] and _cannot_fail(value, kernels):
                home = max((defined.get(v, 0) for v in _read(value)), default=0)
                while not _is_dataflow(blocks[home]) and home < number:
                    home += 1
            found[home].append(binding)
            defined[binding.var] = home
            if isinstance(binding, relax.MatchCast):
                sizes: list[Any] = []
                tvm_ffi.structural_walk(binding.ty, (ir.Var, sizes.append))
                for size in sizes:
                    defined.setdefault(size, home)
    visible = {
        v: relax.Var(v.name, v.ty)
        for number, bindings in enumerate(found)
        for binding in bindings
        for v in _read(binding.value)
        if _is_local(v) and defined.get(v, number) != number
    }
    blocks = [
        type(block)(_with_early(bindings, moves) if _is_dataflow(block) else bindings)
        for block, bindings in zip(blocks, found, strict=True)
        if bindings
    ]
    if not visible:
        return blocks
    renamed = (ir.Var, lambda variable: visible.get(variable, variable))
    return [tvm_ffi.structural_map(block, renamed, order="post") for block in blocks]


def _with_early(bindings: Sequence[Any], moves: Mapping[Any, bool]) -> list[Any]:
    """The bindings of a block, some of them as soon as they have their operands."""
    inside = {binding.var: binding for binding in bindings}
    readers: dict[Any, list[Any]] = {}
    missing: dict[Any, int] = {}
    for binding in bindings:
        operands = {v for v in _read(binding.value) if v in inside}
        missing[binding.var] = len(operands)
        for operand in operands:
            readers.setdefault(operand, []).append(binding)
    ordered: list[Any] = []
    done: set[Any] = set()

    def add(first: Any) -> None:
        ready = deque([first])
        while ready:
            binding = ready.popleft()
            ordered.append(binding)
            done.add(binding.var)
            for reader in readers.get(binding.var, ()):
                missing[reader.var] -= 1
                if not missing[reader.var] and moves[reader.var]:
                    ready.append(reader)

    for binding in bindings:
        if moves[binding.var] and not missing[binding.var] and binding.var not in done:
            add(binding)
    for binding in bindings:
        if binding.var not in done:
            add(binding)
    return ordered


def _is_dataflow(block: Any) -> bool:
    return isinstance(block, relax.DataflowBlock)


def _read(value: Any) -> list[Any]:
    """The variables and the names of sizes in a value."""
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (ir.Var, found.append))
    return found


@dataclass
class _Group:
    """Calls of small kernels that are to become one."""

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


class _Joining:
    """Joins the small kernels of a dataflow block."""

    def __init__(
        self,
        module: tvm.IRModule,
        builder: Any,
        kernels: _SmallKernels,
        reads: Counter[Any],
    ) -> None:
        self._module = module
        self._builder = builder
        self._kernels = kernels
        self._reads = reads
        """How many bindings read each variable, in all blocks of the body."""
        self._whole: Counter[Any] = Counter()
        """How often the bindings of the block read each variable, other than for a field."""
        self._fields: dict[Any, list[Any]] = {}
        """The bindings of the fields of each tuple."""
        self._members: set[Any] = set()
        """The variables of the calls that are or were in a group."""
        self._group = _Group()
        self._bindings: list[Any] = []
        self._has_joined = False

    def block(self, block: Any) -> Any:
        """The block with joined kernels; the block itself if there are none."""
        reads = [relax.analysis.free_vars(binding.value) for binding in block.bindings]
        for binding, read in zip(block.bindings, reads, strict=True):
            if isinstance(binding.value, relax.TupleGetItem):
                self._fields.setdefault(binding.value.tuple_value, []).append(binding)
            else:
                self._whole.update(read)
        for binding, read in zip(block.bindings, reads, strict=True):
            if self._takes(binding):
                if len(self._group.calls) == _MOST_KERNELS:
                    self._flush()
                self._group.add(binding, self._fields.get(binding.var, ()))
                self._members.add(binding.var)
            elif not self._is_field_of_member(binding):
                if self._reads_group(read) or _writes_in_place(binding.value):
                    self._flush()
                self._bindings.append(binding)
        self._flush()
        return relax.DataflowBlock(self._bindings) if self._has_joined else block

    def _takes(self, binding: Any) -> bool:
        """Whether a binding is a call of a small kernel."""
        is_whole = self._whole[binding.var] > 0 or not _is_local(binding.var)
        if isinstance(binding.value.ty, relax.TupleType) and is_whole:
            return False
        return _is_small_call(binding, self._kernels)

    def _is_field_of_member(self, binding: Any) -> bool:
        """Whether a binding is of a field of a call in a group, which binds it."""
        value = binding.value
        return isinstance(value, relax.TupleGetItem) and value.tuple_value in self._members

    def _reads_group(self, read: Sequence[Any]) -> bool:
        return any(variable in self._group.results for variable in read)

    def _flush(self) -> None:
        """Ends the group."""
        group, self._group = self._group, _Group()
        if len(group.calls) < 2:
            self._bindings += [*group.calls, *group.fields]
            return
        kernel = _Joined(self._module, group)
        inside: Counter[Any] = Counter()
        for binding in (*group.calls, *group.fields):
            inside.update(relax.analysis.free_vars(binding.value))
        needed = [v for v in kernel.computed() if self._reads[v] > inside[v]]
        self._has_joined = True
        if not needed:
            return
        hints = [binding.value.args[0].name_hint for binding in group.calls]
        name = "_".join(["joined", *hints])[:_LONGEST_NAME]
        function = self._builder.add_func(kernel.function(needed), name)
        kinds = [variable.ty for variable in needed]
        call = relax.op.call_tir(function, relax.Tuple(kernel.arguments), kinds)
        if len(needed) == 1:
            self._bindings.append(relax.VarBinding(needed[0], call))
            return
        results = relax.DataflowVar("joined", relax.TupleType(kinds))
        self._bindings.append(relax.VarBinding(results, call))
        for number, variable in enumerate(needed):
            item = relax.TupleGetItem(results, number)
            self._bindings.append(relax.VarBinding(variable, item))


def _is_local(variable: Any) -> bool:
    """Whether only its dataflow block can read a variable."""
    return isinstance(variable, relax.DataflowVar)


def _writes_in_place(value: Any) -> bool:
    """Whether a call writes to one of its arguments; what stands before it may read that."""
    return isinstance(value, ir.Call) and value.op.same_as(_CALL_IN_PLACE)


def _result_kinds(call: Any) -> list[Any]:
    return list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]


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
    joined = _Joined(module, _Group(list(calls)), _without_first_copy)
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


class _Joined:
    """The kernel of a group, with the arguments of its call."""

    def __init__(
        self,
        module: tvm.IRModule,
        group: _Group,
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
                kernel.params[len(arguments) :], _result_kinds(binding.value), strict=True
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
        if all(name in self._sizes for name in _read(argument)):
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
