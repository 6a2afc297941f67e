"""What a loop nest of a kernel computes, as far as its schedule depends on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from .affine import product
from .math_functions import is_fast
from .nests import REDUCTION, SPATIAL, depends, is_if_then_else, loads, stays_small


@dataclass(frozen=True)
class BlockLoops:
    """A block that stores one element per iteration, and the loops around it, outermost first."""

    block: Any
    loops: Sequence[Any]
    """One for each variable of the block."""
    extents: Sequence[int | None]
    """None if only known at run time."""

    @property
    def spatial(self) -> list[Any]:
        return self._of_kind(SPATIAL)

    @property
    def reduced(self) -> list[Any]:
        return self._of_kind(REDUCTION)

    @property
    def last(self) -> Any:
        """The variable that indexes the last dimension of the output; None if none does alone."""
        index = self.block.body.indices[-1] if len(self.block.body.indices) else None
        found = [v.var for v in self.block.iter_vars if v.var.same_as(index)]
        return found[0] if found and self.loop(found[0]) in self.spatial else None

    @property
    def dtype(self) -> Any:
        """The type of the output's elements."""
        return self.block.body.value.ty.dtype

    def loop(self, variable: Any) -> Any:
        return self.loops[self._position(variable)]

    def extent(self, variable: Any) -> int | None:
        return self.extents[self._position(variable)]

    def variable(self, loop: Any) -> Any:
        return self.block.iter_vars[list(self.loops).index(loop)].var

    def _position(self, variable: Any) -> int:
        return next(i for i, v in enumerate(self.block.iter_vars) if v.var.same_as(variable))

    def _of_kind(self, kind: int) -> list[Any]:
        variables = self.block.iter_vars
        return [
            loop for loop, v in zip(self.loops, variables, strict=True) if int(v.iter_type) == kind
        ]


def block_loops(schedule: s_tir.Schedule, handle: Any) -> BlockLoops | None:
    """The loop nest of a block, or None if it has another form."""
    block = schedule.get(handle)
    loops = schedule.get_loops(handle)
    kinds = {int(variable.iter_type) for variable in block.iter_vars}
    plain = isinstance(block.body, tirx.BufferStore) and kinds <= {SPATIAL, REDUCTION}
    if not plain or not loops or len(loops) != len(block.iter_vars):
        return None
    extents = []
    for loop, variable in zip(loops, block.iter_vars, strict=True):
        extent = schedule.get(loop).extent
        if not tvm_ffi.structural_equal(extent, variable.dom.extent, map_free_vars=False):
            return None
        extents.append(int(extent) if isinstance(extent, tirx.IntImm) else None)
    return BlockLoops(block, loops, extents)


def reads_along(block: Any, variable: Any) -> bool:
    """Whether neighbours along a variable of the block read neighbours, or the same element.

    An `if_then_else` of value or of position would turn vectors into branches.
    """
    analyzer = sym.Analyzer()
    value = block.body.value
    return all(_in_order(load.indices, variable, analyzer) for load in loads(value)) and not any(
        _depends(choice, variable) for choice in _choices(value)
    )


def inlinable(block: Any, consumer: Any) -> bool:
    """Whether a block without reduction can be computed where its one reader needs it.

    Work is never repeated: the reader reads each element once, unless the block only moves data.
    """
    if not _is_read_once(block, consumer) or not stays_small(block, consumer):
        return False
    return _moves(block) or _size(block) == _size(consumer) is not None


def inlinable_in_loop(block: Any, consumer: Any) -> bool:
    """The same in the body of a loop, whatever the sizes are.

    A function is never inlined into a block with another one: `with_fast_math`, which the body of a
    loop gets, leaves functions of functions as calls.
    """
    if not _is_read_once(block, consumer) or not stays_small(block, consumer):
        return False
    nested = all(map(_has_fast_function, (block, consumer)))
    return _moves(block) or (not nested and _has_size_of(block, consumer))


def _is_read_once(block: Any, consumer: Any) -> bool:
    bodies = (block.body, consumer.body)
    kinds = {int(v.iter_type) for b in (block, consumer) for v in b.iter_vars}
    if kinds - {SPATIAL} or not all(isinstance(body, tirx.BufferStore) for body in bodies):
        return False
    reads = [load for load in loads(consumer.body.value) if load.source.same_as(block.body.buffer)]
    return len(reads) == 1


def _moves(block: Any) -> bool:
    return isinstance(block.body.value, ir.TensorLoad)


def _choices(expression: Any) -> list[Any]:
    """The calls of `if_then_else`, which compute only one of their operands."""
    found: list[Any] = []

    def visit(call: Any) -> None:
        if is_if_then_else(call):
            found.append(call)

    tvm_ffi.structural_walk(expression, (ir.Call, visit))
    return found


def _size(block: Any) -> int | None:
    """The number of elements a block computes, if it is known."""
    size = 1
    for variable in block.iter_vars:
        if not isinstance(variable.dom.extent, tirx.IntImm):
            return None
        size *= int(variable.dom.extent)
    return size


def _has_size_of(block: Any, consumer: Any) -> bool:
    """Whether two blocks compute equally many elements, whatever the sizes are."""
    sizes = (product([v.dom.extent for v in b.iter_vars]) for b in (block, consumer))
    return bool(sym.Analyzer().can_prove_equal(*sizes))


def _has_fast_function(block: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(block.body.value, (ir.Call, found.append))
    return any(is_fast(call) for call in found)


def _depends(expression: Any, variable: Any) -> bool:
    return any(variable.same_as(free) for free in tirx.analysis.undefined_vars(expression))


def _in_order(indices: Sequence[Any], variable: Any, analyzer: Any) -> bool:
    *outer, last = indices or [tirx.const(0, "int64")]
    if any(_depends(index, variable) for index in outer):
        return False
    if not _depends(last, variable):
        return True
    following = tvm_ffi.structural_map(
        last, (ir.Var, lambda var: variable + 1 if var.same_as(variable) else var), order="post"
    )
    return bool(analyzer.can_prove_equal(following - last, 1))


def has_truth_values(block: tirx.SBlock) -> bool:
    """Whether a block reads, writes or joins truth values.

    TVM's LLVM code for vectors of them is wrong: `not` of a vector of bytes flips every bit,
    and some kernels fail its verification (apache-tvm 0.27).
    """
    found: list[Any] = []

    def visit_load(load: ir.TensorLoad) -> None:
        if str(load.source.dtype) == "bool":
            found.append(load)

    def visit_store(store: tirx.BufferStore) -> None:
        if str(store.buffer.dtype) == "bool":
            found.append(store)

    accesses = [(ir.TensorLoad, visit_load), (tirx.BufferStore, visit_store)]
    tvm_ffi.structural_walk(block.body, accesses)
    return bool(found) or joins_truth_values(block.body)


_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def joins_truth_values(code: Any) -> bool:
    """Whether code computes truth values from others, or selects or converts to them."""
    found: list[Any] = []

    def is_truth(value: Any) -> bool:
        return str(value.ty.dtype) == "bool"

    def visit_comparison(comparison: Any) -> None:
        if is_truth(comparison.a):
            found.append(comparison)

    def visit_value(value: Any) -> None:
        if is_truth(value):
            found.append(value)

    kinds: list[tuple[Any, Any]] = [
        ((tirx.Not, tirx.And, tirx.Or), found.append),
        (_COMPARISONS, visit_comparison),
        ((tirx.Select, tirx.Cast), visit_value),
    ]
    tvm_ffi.structural_walk(code, kinds)
    return bool(found)


_SCALAR_ONLY = frozenset({"tirx.cosh", "tirx.sinh"})


def has_scalar_functions(code: Any) -> bool:
    """Whether code calls a function that TVM 0.27 vectorises, but cannot compile for vectors."""
    found: list[Any] = []

    def visit(call: Any) -> None:
        if getattr(call.op, "name", "") in _SCALAR_ONLY:
            found.append(call)

    tvm_ffi.structural_walk(code, (ir.Call, visit))
    return bool(found)


def may_trap(code: Any, *variables: Any) -> bool:
    """Whether code divides integers by what it loads, or by some variables.

    A vector that reaches past the last element has any divisor there, also 0.
    """
    found: list[Any] = []

    def visit(quotient: Any) -> None:
        is_number = not loads(quotient.b) and not depends(quotient.b, variables)
        if "int" in str(quotient.ty.dtype) and not is_number:
            found.append(quotient)

    kinds = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
    tvm_ffi.structural_walk(code, (kinds, visit))
    return bool(found)
