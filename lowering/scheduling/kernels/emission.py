"""What the kernels of this package are built from: blocks, items of work, and lines.

A kernel is cut into *items* that are independent of each other. Where there is enough work they run
on all cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import s_tir, sym, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ...processor import GRAIN
from .affine import int64, product, static_size, unflattened
from .math_functions import FAST_MATH

SCHEDULED = "tirx.is_scheduled"
ON_ONE_CORE = "looplift.on_one_core"
"""The annotation of a parallel loop that is to become serial."""
WRITTEN_BY_RULE = "looplift.written_by_rule"
"""The attribute of kernels that a schedule rule has written anew."""


def rewritten(
    kernel: tirx.PrimFunc, emit: Callable[[], None], written: Sequence[Any] = ()
) -> tirx.PrimFunc:
    """The kernel with another body, which `emit` builds inside its root block.

    Of the buffers that the body writes, those of the kernel's own that others read are `written`.
    """
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True), ib.sblock("root"):
        emit()
    body = builder.get().body
    kept = [buffer for buffer in allocated(kernel) if any(buffer.same_as(w) for w in written)]
    if kept:
        root = body.block
        buffers = [*root.alloc_buffers, *kept]
        root = s_tir.SBlock([], [], [], root.name_hint, root.body, None, buffers)
        body = s_tir.SBlockRealize([], True, root)
    return kernel.with_body(body).with_attr(WRITTEN_BY_RULE, True).with_attr(FAST_MATH, True)


def allocated(kernel: tirx.PrimFunc) -> list[Any]:
    """The buffers between the loop nests of a kernel."""
    return list(kernel.body.block.alloc_buffers)


_USUAL = 8
"""What a size that is known at run time only is taken for at least, if the rest of the work is
large: the second loop that a test needs doubles the time to compile the kernel."""


def for_items(count: Any, work: Any, body: Callable[[Any], None]) -> None:
    """Emits a loop over items; on all cores where `work`, in multiply-adds, is worth it."""
    enough = sym.Analyzer().simplify(work >= int64(GRAIN))
    if not isinstance(enough, tirx.IntImm) and _known_factor(work) * _USUAL >= GRAIN:
        enough = tirx.IntImm("bool", 1)
    several = sym.Analyzer().simplify(count > int64(1))
    if is_false(enough) or is_false(several):
        with ib.serial(count) as item:
            body(item)
        return
    if is_true(enough):
        with ib.parallel(count) as item:
            body(item)
        return
    with ib.If(enough):
        with ib.Then(), ib.parallel(count) as item:
            body(item)
        # Parallel as well, so that TVM makes the same of both; `share_loop_bodies` makes it serial.
        with ib.Else(), ib.parallel(count, annotations={ON_ONE_CORE: True}) as item:
            body(item)


CHUNK = 1 << 14
"""Elements of an item of an elementwise kernel or a copy: handing it to another core pays."""
COST_OF_ELEMENT = 4
"""The time for an element of such a kernel, in multiply-adds."""


def for_lines(
    variables: Sequence[Any], columns: Sequence[Any], extent: Callable[[Any], Any], cost: int,
    body: Callable[[Any, dict[Any, Any]], None],
) -> None:  # fmt: skip
    """Emits a loop over lines, on all cores where that is worth it.

    There is a line for all values of the variables, the last one fastest. `body` takes its number
    and these values. An item of work is a group of lines with about `CHUNK` elements. A line has an
    element for all values of the columns, and `cost` is the time for one, in multiply-adds.
    """
    lines, width = (product([extent(v) for v in part]) for part in (variables, columns))
    work = sym.Analyzer().simplify(lines * width * cost)
    lines = bound(lines)
    together = bound(tirx.max(tirx.floordiv(CHUNK, tirx.max(width, int64(1))), int64(1)))

    def some_lines(item: Any) -> None:
        first = bound(item * together)
        counters = Counters(variables, extent, first)
        with ib.serial(bound(tirx.min(lines - first, together))) as offset:
            body(bound(first + offset), counters.values())
            counters.step()

    for_items(bound(pieces(lines, together)), work, some_lines)


class Counters:
    """The values of variables for consecutive lines, without a division for each line: that would
    take as long as a short line.
    """

    def __init__(self, variables: Sequence[Any], extent: Callable[[Any], Any], number: Any) -> None:
        """Emits the values for line `number`."""
        self._variables, self._extent = variables, extent
        self._places = {}

        def divisor(variable: Any) -> Any:
            # An item without lines starts at line 0, and an extent of it is 0.
            return tirx.max(extent(variable), int64(1))

        for variable, value in unflattened(variables, divisor, number).items():
            self._places[variable] = ib.alloc_buffer((1,), "int64", layout=None)
            ib.buffer_store(self._places[variable], value, [int64(0)])

    def values(self) -> dict[Any, Any]:
        """The values of this line, which the step to the next does not change."""
        return {variable: bound(place[int64(0)]) for variable, place in self._places.items()}

    def step(self) -> None:
        """Emits the step to the next line."""
        self._step(list(self._variables))

    def _step(self, variables: list[Any]) -> None:
        if not variables:
            return
        *outer, last = variables
        place = self._places[last]
        ib.buffer_store(place, place[int64(0)] + 1, [int64(0)])
        if outer:
            with ib.If(place[int64(0)] >= self._extent(last)), ib.Then():
                ib.buffer_store(place, int64(0), [int64(0)])
                self._step(outer)


def _known_factor(work: Any) -> int:
    """The product of the numbers among the factors of an expression."""
    if isinstance(work, tirx.IntImm):
        return int(work)
    if isinstance(work, tirx.Mul):
        return _known_factor(work.a) * _known_factor(work.b)
    return 1


def is_true(condition: Any) -> bool:
    """Whether a condition is known to hold."""
    return isinstance(condition, tirx.IntImm) and bool(int(condition))


def is_false(condition: Any) -> bool:
    """Whether a condition is known not to hold."""
    return isinstance(condition, tirx.IntImm) and not int(condition)


def prefetch(buffer: Any, place: Any, *, is_write: int, locality: int) -> None:
    """Emits LLVM's prefetch of an element's cache line; the element may lie outside of the buffer.

    `locality` is 2 for the second-level cache, 3 for the first.
    """
    arguments = (tirx.const(value, "int32") for value in (is_write, locality, 1))
    address = tirx.address_of(buffer[place])
    ib.evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", address, *arguments))


def ceil_div(number: Any, divisor: Any) -> Any:
    """The quotient of sizes, rounded up."""
    return tirx.floordiv(number + divisor - 1, divisor)


def pieces(number: Any, size: Any) -> Any:
    """How many pieces of a size there are in a number of elements: 1 for none.

    TVM's simplifier fails on a division by a number that it finds to be 0.
    """
    return tirx.max(ceil_div(number, size), int64(1))


def even_part(total: Any, most: Any, multiple: Any = 1) -> Any:
    """The size of a part if a whole is cut into the fewest equal parts of at most `most`.

    The number of parts is a multiple of `multiple`, unless rounding up leaves fewer.
    """
    return ceil_div(total, ceil_div(pieces(total, most), multiple) * multiple)


def even_start(number: Any, parts: Any, total: Any) -> Any:
    """Where a part begins if a whole is cut into parts that differ by one element at most."""
    return bound(tirx.floordiv(number * total, tirx.max(parts, int64(1))))


def bound(value: Any, dtype: str = "int64") -> Any:
    """A scalar that is computed once, on the stack of a CPU.

    It lies in a buffer of its own, which LLVM makes a register of. TVM's simplifier would put the
    definition of a variable in its place, and take seconds over the expressions that result.
    """
    if isinstance(value, tirx.IntImm):
        return value
    # `layout=None`: computing the default layout makes the builder search all open frames.
    place = ib.alloc_buffer((1,), dtype, layout=None)
    ib.buffer_store(place, value, [int64(0)])
    return place[int64(0)]


@contextmanager
def compute_block(name: str) -> Iterator[None]:
    """A block without iteration variables, which passes of TVM take as it is."""
    with ib.sblock(name):
        ib.reads([])
        ib.writes([])
        yield


@contextmanager
def unless_empty(written: Any) -> Iterator[None]:
    """What lies within does nothing where a buffer has no elements, as tiles would reach past it.

    Only for a kernel of a single block: values that one block leaves for another were lost.
    """
    sizes = [size for size in written.shape if static_size(size) is None]
    if not sizes:
        yield
        return
    with ib.If(tirx.all(*(size > 0 for size in sizes))), ib.Then():
        yield
