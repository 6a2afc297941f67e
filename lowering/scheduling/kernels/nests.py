"""The loop nests of a kernel that has no schedule yet, as legalisation and fusion leave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, sym, tirx

_MOST_LOADS = 32
"""The most loads of a block after inlining: LLVM merges equal ones, but has to read them all."""
_MOST_NESTED = 3
"""The deepest nesting of function calls after inlining, as in x · tanh(log1p(exp(x))): TVM's tanh
repeats its argument, so that code grows exponentially with the depth."""
_INSTRUCTIONS = ("fabs", "floor", "ceil", "trunc", "round", "nearbyint", "sqrt")
"""Functions that a processor has an instruction for, with vectors of SSE4.1 or more."""
_IF_THEN_ELSE = frozenset({"prim.if_then_else", "tirx.if_then_else"})
"""The operators that evaluate one of two expressions only."""
_NO_FUNCTIONS = _IF_THEN_ELSE | {f"tirx.{name}" for name in _INSTRUCTIONS}

REDUCTION = int(tirx.IterVar.CommReduce)
SPATIAL = int(tirx.IterVar.DataPar)


@dataclass(frozen=True)
class Nest:
    """A perfect loop nest around one block that stores one element per iteration."""

    block: Any
    """The SBlock."""
    extents: tuple[Any, ...]
    """The extents of the block's iteration variables: numbers, or expressions of sizes."""

    @property
    def variables(self) -> list[Any]:
        """The block's iteration variables, outermost first."""
        return [variable.var for variable in self.block.iter_vars]

    @property
    def spatial(self) -> list[Any]:
        """The iteration variables that index the output."""
        return [v.var for v in self.block.iter_vars if int(v.iter_type) == SPATIAL]

    @property
    def reduced(self) -> list[Any]:
        """The iteration variables that are summed (or otherwise combined) over."""
        return [v.var for v in self.block.iter_vars if int(v.iter_type) == REDUCTION]

    @property
    def buffer(self) -> Any:
        """The buffer that the nest writes."""
        return self.block.body.buffer

    @property
    def indices(self) -> list[Any]:
        """The indices of the element that an iteration writes."""
        return list(self.block.body.indices)

    @property
    def value(self) -> Any:
        """The expression that an iteration stores."""
        return self.block.body.value

    @property
    def is_empty(self) -> bool:
        """Whether the nest is known to compute nothing."""
        return any(isinstance(e, tirx.IntImm) and not int(e) for e in self.extents)

    def extent(self, variable: Any) -> Any:
        """The extent of an iteration variable."""
        return self.extents[next(k for k, v in enumerate(self.variables) if v.same_as(variable))]


@lru_cache(maxsize=2)  # The kernel, and the kernel without copies.
def nests_of(kernel: tirx.PrimFunc) -> tuple[Nest, ...] | None:
    """The loop nests of a kernel in order; None for a kernel of another form."""
    if not isinstance(kernel.body, s_tir.SBlockRealize):
        return None
    body = kernel.body.block.body
    parts = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    nests = [_nest(part) for part in parts]
    known = tuple(nest for nest in nests if nest is not None)
    return known if len(known) == len(nests) else None


def _nest(statement: Any) -> Nest | None:
    loops = []
    while isinstance(statement, tirx.For):
        if statement.kind != tirx.ForKind.SERIAL or not is_number(statement.min, 0):
            return None
        loops.append(statement)
        statement = statement.body
    if not isinstance(statement, s_tir.SBlockRealize):
        return None
    block, values = statement.block, list(statement.iter_values)
    plain = (
        is_number(statement.predicate, 1)
        and isinstance(block.body, tirx.BufferStore)
        and not block.alloc_buffers
        and not block.match_buffers
        and (_is_of_one_element(values, loops) or _are_variables(values, loops))
        and {int(v.iter_type) for v in block.iter_vars} <= {SPATIAL, REDUCTION}
    )
    if not plain:
        return None
    nest = Nest(block, tuple(variable.dom.extent for variable in block.iter_vars))
    # TVM's simplifier fails on a division by an extent that it knows to be 0.
    return nest if nest.is_empty else replace(nest, block=_with_simple_indices(block))


def _are_variables(values: Sequence[Any], loops: Sequence[Any]) -> bool:
    """Whether the iteration variables of a block are the variables of the loops around it."""
    return len(values) == len(loops) and all(
        value.same_as(loop.loop_var) for value, loop in zip(values, loops, strict=True)
    )


def _is_of_one_element(values: Sequence[Any], loops: Sequence[Any]) -> bool:
    """Whether a block computes a tensor of rank 0: its only iteration variable is 0."""
    return not loops and len(values) == 1 and is_number(values[0], 0)


def _with_simple_indices(block: Any) -> Any:
    """The block without the divisions in indices of loads that known extents make redundant: a
    reshape from [1, 24] to [1, 24, 1] leaves `i % 24`.
    """
    divisions: list[Any] = []
    kinds = [(kind, divisions.append) for kind in (tirx.FloorDiv, tirx.FloorMod)]
    tvm_ffi.structural_walk(block.body.value, kinds)
    if not divisions:
        return block
    analyzer = sym.Analyzer()
    for variable in block.iter_vars:
        analyzer.bind(variable.var, variable.dom)

    def simplified(load: Any) -> Any:
        indices = [analyzer.simplify(index) for index in load.indices]
        is_simple = all(new.same_as(old) for new, old in zip(indices, load.indices, strict=True))
        return load if is_simple else load.source[tuple(indices)]

    store = block.body
    value = tvm_ffi.structural_map(store.value, (ir.TensorLoad, simplified), order="post")
    if value.same_as(store.value):
        return block
    body = tirx.BufferStore(store.buffer, value, store.indices)
    return s_tir.SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, body, block.init,
        annotations=block.annotations,
    )  # fmt: skip


def without_single_iterations(nest: Nest) -> Nest:
    """The nest, which reduces nothing, without loops of one iteration: along axes of size 1."""
    loops = list(zip(nest.block.iter_vars, nest.extents, strict=True))
    zero = {v.var: tirx.const(0, v.var.ty.dtype) for v, extent in loops if is_number(extent, 1)}
    if not zero:
        return nest
    kept = [(v, extent) for v, extent in loops if not is_number(extent, 1)]
    body = substituted(nest.block.body, zero)
    block = s_tir.SBlock([v for v, _ in kept], [], [], nest.block.name_hint, body)
    return Nest(block, tuple(extent for _, extent in kept))


def is_number(expression: Any, number: int) -> bool:
    """Whether an expression is a number, as it stands."""
    return isinstance(expression, tirx.IntImm) and int(expression) == number


_MOST_READS = 6
"""Reads of one nest by another up to which it is inlined: LLVM computes the copies once."""


@lru_cache(maxsize=1)  # All rules ask for the same kernel, one after another.
def inlined(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with elementwise nests inlined into the elementwise nests that read them.

    Keeps nests of reductions and what they read. Every reader computes as many elements and reads
    each at its own place, so that no work is repeated, but for a few operations on parameters.
    Selections by joined truth values become nested ones.
    """
    if _has_single_nest(kernel):
        return _with_nested_selections(kernel)
    schedule = s_tir.Schedule(kernel)
    try:
        root = schedule.get_sblock("root")
        for block in schedule.get_child_blocks(root):
            consumers = [schedule.get(consumer) for consumer in schedule.get_consumers(block)]
            if consumers and all(_inlines(schedule.get(block), r, kernel) for r in consumers):
                schedule.compute_inline(block)
    except (s_tir.ScheduleError, tvm.error.InternalError):
        # There is no root, or TVM met a form that it did not foresee.
        return kernel
    return _with_nested_selections(schedule.mod["main"])


_JOINS = (tirx.And, tirx.Or, tirx.Not)


def _with_nested_selections(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with `Select(a and b, x, y)` as `Select(a, Select(b, x, y), y)`, and so on.

    TVM miscompiles And, Or and Not of vectors, see `has_truth_values`. Values with calls of
    functions or selections of their own are not repeated: code would grow exponentially.
    """
    found: list[Any] = []
    tvm_ffi.structural_walk(kernel.body, (_JOINS, found.append))
    if not found:
        return kernel
    body = tvm_ffi.structural_map(kernel.body, (tirx.Select, _nested_selection), order="post")
    return kernel.with_body(body)


_MOST_JOINS = 4
"""The most And, Or and Not of a condition that becomes nested: each may repeat both values."""


def _nested_selection(select: Any) -> Any:
    condition, one, other = select.condition, select.true_value, select.false_value
    joins: list[Any] = []
    repeated: list[Any] = []
    tvm_ffi.structural_walk(condition, (_JOINS, joins.append))
    for value in (one, other):
        tvm_ffi.structural_walk(value, ((ir.Call, tirx.Select), repeated.append))
    is_small = len(joins) <= _MOST_JOINS and not repeated
    return _nested(condition, one, other) if is_small else select


def _nested(condition: Any, one: Any, other: Any) -> Any:
    """The selection of `one` where the condition holds, and of `other` elsewhere."""
    if isinstance(condition, tirx.Not):
        return _nested(condition.a, other, one)
    if isinstance(condition, tirx.And):
        return _nested(condition.a, _nested(condition.b, one, other), other)
    if isinstance(condition, tirx.Or):
        return _nested(condition.a, one, _nested(condition.b, one, other))
    return tirx.Select(condition, one, other)


def without_copies(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with nests that only move elements inlined, into reductions, too."""
    if _has_single_nest(kernel):
        return kernel
    schedule = s_tir.Schedule(kernel)
    try:
        for block in schedule.get_child_blocks(schedule.get_sblock("root")):
            body = schedule.get(block).body
            moves = isinstance(body, tirx.BufferStore) and isinstance(body.value, ir.TensorLoad)
            if moves and schedule.get_consumers(block):
                schedule.compute_inline(block)
    except (s_tir.ScheduleError, tvm.error.InternalError):
        return kernel
    return schedule.mod["main"]


def _has_single_nest(kernel: tirx.PrimFunc) -> bool:
    """Whether the kernel is a single loop nest, so that there is nothing to inline.

    Creating a schedule to find out is slow.
    """
    body = kernel.body
    return isinstance(body, s_tir.SBlockRealize) and not isinstance(body.block.body, tirx.SeqStmt)


def _inlines(block: Any, consumer: Any, kernel: tirx.PrimFunc) -> bool:
    bodies = (block.body, consumer.body)
    kinds = {int(v.iter_type) for b in (block, consumer) for v in b.iter_vars}
    if kinds - {SPATIAL} or not all(isinstance(body, tirx.BufferStore) for body in bodies):
        return False
    if not stays_small(block, consumer):
        return False
    reads = [load for load in loads(consumer.body.value) if load.source.same_as(block.body.buffer)]
    moves = isinstance(block.body.value, ir.TensorLoad)
    if len(reads) == 1 and (moves or _same_size(block, consumer) or _is_cheap(block, kernel)):
        return True
    places = [tuple(str(index) for index in load.indices) for load in reads]
    return len(reads) <= _MOST_READS and len(set(places)) == 1 and _same_size(block, consumer)


_MOST_LEAVES = 4
"""Operands of a nest up to which it is computed again for each of several readers."""
_OPERATIONS = (
    tirx.Add, tirx.Sub, tirx.Mul, *_JOINS,
    tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE,
)  # fmt: skip


def _is_cheap(block: Any, kernel: tirx.PrimFunc) -> bool:
    """Whether a block computes a few operations of numbers and parameters of the kernel."""
    leaves = _leaves(block.body.value)
    return len(leaves) <= _MOST_LEAVES and all(
        isinstance(leaf, (tirx.IntImm, tirx.FloatImm)) or _is_parameter(leaf, kernel)
        for leaf in leaves
    )


def _leaves(value: Any) -> list[Any]:
    """The operands of the operations that an expression consists of."""
    while isinstance(value, tirx.Cast):
        value = value.value
    if isinstance(value, tirx.Select):
        parts = [value.condition, value.true_value, value.false_value]
    elif isinstance(value, _OPERATIONS):
        parts = [value.a] if isinstance(value, tirx.Not) else [value.a, value.b]
    else:
        return [value]
    return [leaf for part in parts for leaf in _leaves(part)]


def _is_parameter(value: Any, kernel: tirx.PrimFunc) -> bool:
    """Whether an expression is an element of a parameter, perhaps of another type."""
    while isinstance(value, tirx.Cast):
        value = value.value
    if not isinstance(value, ir.TensorLoad):
        return False
    return any(value.source.same_as(parameter) for parameter in kernel.params)


def stays_small(block: Any, consumer: Any) -> bool:
    """Whether a block that is inlined into another leaves it few loads and few nested functions,
    or no more than one of the two has.

    Otherwise the time to compile a chain of blocks would grow exponentially with its length.
    """
    source, value = block.body.buffer, consumer.body.value
    before, inside = loads(value), loads(block.body.value)
    reads = sum(load.source.same_as(source) for load in before)
    count = len(before) + reads * (len(inside) - 1)
    if count > max(_MOST_LOADS, len(before), len(inside)):
        return False
    inner = _function_depth(block.body.value)
    depth = _function_depth(value, source, inner)
    return depth <= max(_MOST_NESTED, inner, _function_depth(value))


def _function_depth(expression: Any, buffer: Any = None, inner: int = 0) -> int:
    """How many functions are applied to each other; a load of `buffer` counts as `inner`."""
    depths = [0]

    def visit_call(call: Any) -> tvm_ffi.WalkResult:
        if getattr(call.op, "name", "") in _NO_FUNCTIONS:
            return tvm_ffi.WalkResult.ADVANCE
        depths.append(1 + max((_function_depth(a, buffer, inner) for a in call.args), default=0))
        return tvm_ffi.WalkResult.SKIP

    def visit_load(load: Any) -> None:
        if load.source.same_as(buffer):
            depths.append(inner)

    callbacks = [(ir.Call, visit_call), (ir.TensorLoad, visit_load)]
    tvm_ffi.structural_walk(expression, callbacks, order="pre")
    return max(depths)


def _same_size(block: Any, consumer: Any) -> bool:
    """Whether two blocks have the same extents, whatever their order and without those of 1.

    Extents are compared as text: if two symbols of one name differ, work is repeated, no more.
    """
    extents = [sorted(map(str, _long_extents(b))) for b in (block, consumer)]
    return extents[0] == extents[1]


def _long_extents(block: Any) -> list[Any]:
    extents = [variable.dom.extent for variable in block.iter_vars]
    return [extent for extent in extents if not is_number(extent, 1)]


def loads(expression: Any) -> list[Any]:
    """The loads in an expression, each occurrence once."""
    found: list[Any] = []
    tvm_ffi.structural_walk(expression, (ir.TensorLoad, found.append))
    return found


def without_loads(expression: Any) -> Any:
    """An expression with zeros in place of loads."""

    def zero(load: Any) -> Any:
        return tirx.const(0, load.ty.dtype)

    return tvm_ffi.structural_map(expression, (ir.TensorLoad, zero), order="post")


def is_if_then_else(expression: Any) -> bool:
    """Whether an expression evaluates one of two expressions only."""
    return getattr(getattr(expression, "op", None), "name", "") in _IF_THEN_ELSE


def depends(expression: Any, variables: Sequence[Any]) -> bool:
    """Whether an expression contains one of these variables."""
    free = tirx.analysis.undefined_vars(expression)
    return any(f.same_as(variable) for f in free for variable in variables)


def substituted(expression: Any, values: Mapping[Any, Any]) -> Any:
    """An expression or statement with variables replaced by other expressions."""
    # Most expressions are a number or a variable, and a traversal is a call into C++.
    if isinstance(expression, tirx.IntImm):
        return expression
    if isinstance(expression, ir.Var):
        return values.get(expression, expression)
    return tvm_ffi.structural_map(
        expression, (ir.Var, lambda variable: values.get(variable, variable)), order="post"
    )
