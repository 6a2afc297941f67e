"""Micro-kernels of products of bytes: register tiles of sums of int32.

They compute `out[r, v] = sum(a[r, k] * b[k, v] for k)` as the micro-kernels of float32 do, but take
several k at a time, a *word* of each operand. One instruction adds the products of two words to a
sum: of four bytes where the processor has VNNI, or of two numbers of 16 bits, to which bytes are
widened when they are packed. Sums are exact, and wrap around as those of int32 do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ...processor import has_features, vector_bytes
from .micro_kernels import Tile, call_function
from .shared_functions import ANY_SHAPE, function_frame, noinline
from .winograd_transforms import span

DOTS = "looplift_dots_"


@dataclass(frozen=True)
class Dot:
    """The instruction that multiplies words, for vectors of some size."""

    lanes: int
    """The words of a vector, and the sums that an instruction adds to."""
    size: int
    """The factors in a word."""
    multiply: str
    """The LLVM intrinsic; empty for words of one factor."""
    a_is_signed: bool
    """Whether `a` is of int8 and `b` of uint8, rather than the reverse."""

    @property
    def tile(self) -> Tile:
        """The tile of sums: 24 of 32 registers of AVX-512 and NEON, 12 of 16 of AVX2 and SSE."""
        rows = {16: 12, 8: 6, 4: 12 if self.size == 1 else 6}[self.lanes]
        return Tile(self.lanes, 2, rows)

    @property
    def name(self) -> str:
        """The name of the function that `call_dots` calls."""
        return f"{DOTS}{'signed' if self.a_is_signed else 'unsigned'}_{self.tile.size}"

    def packed(self, dtype: str) -> str:
        """The type in which factors of the type `dtype`, uint8 or int8, are packed."""
        return dtype if self.size == _BYTES_OF_WORD else "int16"

    @property
    def word(self) -> str:
        """The type of a word."""
        return "int32" if self.size > 1 else "int16"

    def add_product(self, total: Any, a: Any, b: Any) -> Any:
        """`total` plus the products of a word of `a` with a vector of words of `b`."""
        a = tirx.Broadcast(a, self.lanes)
        if self.size == 1:
            wide = f"int32x{self.lanes}"
            return total + tirx.Cast(wide, a) * tirx.Cast(wide, b)
        kind = f"int{32 // self.size}x{self.lanes * self.size}"
        operands = [tirx.reinterpret(kind, words) for words in (a, b)]
        if self.size == _BYTES_OF_WORD:
            if self.a_is_signed:
                operands.reverse()  # The first one is unsigned.
            # LLVM 22 declares the operands as bytes; before, they were words.
            return tirx.call_llvm_pure_intrin(total.ty, self.multiply, total, *operands)
        return total + tirx.call_llvm_pure_intrin(total.ty, self.multiply, *operands)


_BYTES_OF_WORD = 4
"""VNNI adds the products of all of them to a sum."""
_PAIRS = {
    16: "llvm.x86.avx512.pmaddw.d.512",
    8: "llvm.x86.avx2.pmadd.wd",
    4: "llvm.x86.sse2.pmadd.wd",
}


def native_dot(*, a_is_signed: bool) -> Dot:
    """The instruction for the processor of the target in scope, for its largest vectors."""
    lanes = vector_bytes() // 4
    if not has_features():
        return Dot(lanes, 1, "", a_is_signed)
    vnni = {16: "avx512vnni", 8: "avxvnni"}.get(lanes)
    if vnni is not None and has_features(vnni):
        return Dot(lanes, _BYTES_OF_WORD, f"llvm.x86.avx512.vpdpbusd.{lanes * 32}", a_is_signed)
    pairs = {16: "avx512bw", 8: "avx2"}.get(lanes)
    if pairs is not None and not has_features(pairs):
        lanes = 4
    return Dot(lanes, 2, _PAIRS[lanes], a_is_signed)


def call_dots(dot: Dot, rows: Any, a: Any, b: Any, out: Any, count: Any) -> None:
    """Emits a call of the micro-kernel for `rows` rows and `count` words of each.

    `out[r * width + v]` becomes the sum of the products of the words `a[k * dot.tile.rows + r]` and
    `b[k * width + v]`.
    """
    with ib.If(rows == dot.tile.rows):
        with ib.Then():
            call_function(f"{dot.name}_{dot.tile.rows}", a, b, out, count)
        with ib.Else():
            call_function(dot.name, rows, a, b, out, count)


def _parameters(word: str) -> list[Any]:
    kinds = {"a": word, "b": word, "out": "int32"}
    return [
        *(ib.arg(name, ib.handle(kind)) for name, kind in kinds.items()),
        ib.arg("count", ib.int64()),
    ]


def select_dots(word: str, _: Tile, select: Callable[[list[Any]], None]) -> None:
    """Emits the selection for `selector` of what `call_dots` calls."""
    select(_parameters(word))


def dot_function(dot: Dot, tile: Tile, rows: int) -> tirx.PrimFunc:
    """What `call_dots` calls, for a number of rows."""
    with IRBuilder() as builder, function_frame():
        *pointers, count = _parameters(dot.word)
        a, b, out = (
            ib.decl_buffer(ANY_SHAPE, kind, data=pointer)
            for pointer, kind in zip(pointers, (dot.word, dot.word, "int32"), strict=True)
        )
        places = [(row, vector) for row in range(rows) for vector in range(tile.vectors)]
        sums = {place: ib.alloc_buffer((tile.lanes,), "int32") for place in places}
        whole = span(tirx.IntImm("int64", 0), tile.lanes)
        for total in sums.values():
            ib.buffer_store(total, tirx.Broadcast(tirx.const(0, "int32"), tile.lanes), [whole])
        with ib.serial(count) as k:
            for (row, vector), total in sums.items():
                words = b[span(k * tile.width + vector * tile.lanes, tile.lanes)]
                value = dot.add_product(total[whole], a[k * tile.rows + row], words)
                ib.buffer_store(total, value, [whole])
        for (row, vector), total in sums.items():
            place = span(tirx.IntImm("int64", row * tile.width + vector * tile.lanes), tile.lanes)
            ib.buffer_store(out, total[whole], [place])
    return noinline(builder.get())
