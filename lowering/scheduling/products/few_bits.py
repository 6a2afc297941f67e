"""Products with constant weights of 2, 4 or 8 bits, as of MatMulNBits, that stay packed.

A language model reads all its weights for each token: as floats they are eight times as many bytes.
For a few rows, the kernel turns them into floats in registers. For more rows, a panel of them
becomes floats once, and tiles of rows pass over it.

    w = call_tir(dequantize_weights, (packed, scales, zeros))
    y = matmul(x, w)            ->    y = call_tir(few_bit_product, (x, panels, scales, zeros))

The weights are laid out in panels of 16 columns, `[panel, byte of a column, 16]`; scales and zero
points of the blocks along a column in panels, too.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ...values import Constant
from ..kernels.affine import int64
from ..kernels.emission import SCHEDULED, bound, compute_block, for_items
from ..relax.dataflow import rewritten_functions

FEW_BITS = "looplift.few_bits"
"""The attribute of a kernel (packed, scales, zeros) -> weights [depth, width]: the bits of a weight
and the weights of a block. Without zeros, the zero point is half of the range."""

_CALL_TIR = ir.Op.get("relax.call_tir")
_LANES = 16
"""The columns of a panel."""
_FEW_ROWS = 4
"""The fewest rows for which a panel becomes floats first."""
_TILE = 8
"""The rows of a tile: so many sums of 16 columns hide the latency of multiply-adds."""
_COST_OF_WEIGHT = 2
"""The time to turn a weight into a float, in multiply-adds."""


def multiply_packed_weights(module: tvm.IRModule) -> tvm.IRModule:
    """The module whose float32 products with constant weights of few bits read packed weights.

    Requires a module before LegalizeOps.
    """
    if not any(FEW_BITS in (function.attrs or {}) for function in module.functions.values()):
        return module
    return rewritten_functions(_Products(module), module)


@mutator
class _Products(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self._module = module

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.matmul":
            return call
        data, weights = call.args
        packed = self._packed(weights)
        if packed is None or not _is_float_matrix(data):
            return call
        *outer, _ = data.ty.shape.values
        rows = functools.reduce(operator.mul, outer, int64(1))
        flat = relax.op.reshape(data, relax.ShapeExpr([rows, int64(packed.depth)]))
        kernel = self.builder_.add_func(packed.kernel(), "few_bit_product")
        arguments = [self.builder_.emit(flat), *map(relax.const, packed.panels())]
        kind = relax.TensorType([rows, int64(packed.width)], "float32")
        result = self.builder_.emit(relax.op.call_tir(kernel, arguments, kind))
        return relax.op.reshape(result, relax.ShapeExpr([*outer, int64(packed.width)]))

    def _packed(self, weights: Any) -> PackedWeights | None:
        value = self.lookup_binding(weights) if isinstance(weights, relax.Var) else None
        if not isinstance(value, ir.Call) or not value.op.same_as(_CALL_TIR):
            return None
        attributes = self._module[value.args[0]].attrs or {}
        arguments = list(value.args[1].fields)
        if FEW_BITS not in attributes or not all(isinstance(a, Constant) for a in arguments):
            return None
        bits, block = (int(number) for number in attributes[FEW_BITS])
        depth, width = (int(size) for size in value.ty.shape.values)
        parts = 8 // bits
        if depth % block or block % (2 * parts):
            return None
        return PackedWeights(bits, block, depth, width, [a.value.numpy() for a in arguments])


def _is_float_matrix(data: Any) -> bool:
    """Whether a tensor of float32 has rows of known number."""
    kind = data.ty
    return (
        str(kind.dtype) == "float32" and isinstance(kind.shape, relax.ShapeExpr) and kind.ndim > 1
    )


@dataclass(frozen=True)
class PackedWeights:
    """Constant weights of few bits, `width` columns of `depth` numbers."""

    bits: int
    block: int
    """The numbers of a column that share a scale and a zero point."""
    depth: int
    width: int
    arrays: Sequence[np.ndarray[Any, Any]]
    """Bytes [width, blocks, bytes of a block], scales [width, blocks], and zero points: floats of
    that shape, or bytes; or none of these."""

    @property
    def blocks(self) -> int:
        """The blocks of a column."""
        return self.depth // self.block

    def panels(self) -> list[np.ndarray[Any, Any]]:
        """What the kernel takes after the data."""
        packed, scales, *zeros = self.arrays
        found = [_in_panels(packed.reshape(self.width, -1)), _in_panels(scales)]
        if zeros:
            (points,) = zeros
            if points.dtype == np.uint8:
                shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
                mask = np.uint8(2**self.bits - 1)
                points = (points[:, :, None] >> shifts & mask).reshape(self.width, -1)
                points = points[:, : self.blocks].astype(np.float32)
            found.append(_in_panels(points))
        return found

    def kernel(self) -> tirx.PrimFunc:
        """(data [rows, depth], panels, scales[, zeros]) -> [rows, width]."""
        has_zeros = len(self.arrays) > 2
        return _kernel(self.bits, self.block, self.depth, self.width, has_zeros)


def _in_panels(columns: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[width, n] as [panel, n, 16]; columns beyond the last one are 0."""
    width, count = columns.shape
    panels = -(-width // _LANES)
    whole = np.zeros((panels * _LANES, count), columns.dtype)
    whole[:width] = columns
    return np.ascontiguousarray(whole.reshape(panels, _LANES, count).transpose(0, 2, 1))


@functools.cache
def _kernel(bits: int, block: int, depth: int, width: int, has_zeros: bool) -> tirx.PrimFunc:
    panels, blocks = -(-width // _LANES), depth // block
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True, SCHEDULED: True})
        names = ["data", "panels", "scales", *(["zeros"] if has_zeros else []), "result"]
        handles = {name: ib.arg(name, ib.handle()) for name in names}
        rows, results = ib.int64(), ib.int64()
        per_block = (panels, blocks, _LANES)
        emission = _Emission(
            bits, block, depth, width, rows,
            ib.match_buffer(handles["data"], (rows, depth), "float32"),
            ib.match_buffer(handles["panels"], (panels, depth * bits // 8, _LANES), "uint8"),
            ib.match_buffer(handles["scales"], per_block, "float32"),
            ib.match_buffer(handles["zeros"], per_block, "float32") if has_zeros else None,
            ib.match_buffer(handles["result"], (results, width), "float32"),
        )  # fmt: skip
        with ib.sblock("root"), compute_block("few_bit_product"):
            work = (rows + _COST_OF_WEIGHT) * (depth * width)
            for_items(int64(panels), work, emission.panel)
    return builder.get()


@dataclass(frozen=True)
class _Emission:
    bits: int
    block: int
    depth: int
    width: int
    rows: Any
    data: Any
    packed: Any
    scales: Any
    zeros: Any
    result: Any

    def panel(self, panel: Any) -> None:
        """The columns of one panel for all rows."""
        with ib.If(self.rows < _FEW_ROWS):
            with ib.Then(), ib.serial(self.rows) as row:
                self._row_of_packed(panel, row)
            with ib.Else():
                floats = ib.alloc_buffer((self.depth * _LANES,), "float32")
                self._to_floats(panel, floats)
                tiles = bound(tirx.floordiv(self.rows, int64(_TILE)))
                with ib.serial(tiles) as tile:
                    self._tile(panel, floats, bound(tile * _TILE), _TILE)
                with ib.serial(bound(tirx.floormod(self.rows, int64(_TILE)))) as rest:
                    self._tile(panel, floats, bound(tiles * _TILE + rest), 1)

    def _row_of_packed(self, panel: Any, row: Any) -> None:
        """One row times the packed weights.

        Two bytes of each column at a time, so that sums do not wait for each other.
        """
        parts = 8 // self.bits
        total = _vector(0.0)
        with ib.serial(int64(self.depth // self.block)) as number:
            sums = [_vector(0.0) for _ in range(2 * parts)]
            first = bound(number * self.block)
            with ib.serial(int64(self.block // (2 * parts))) as pair:
                for place, part_sum in enumerate(sums):
                    k = bound(first + pair * (2 * parts) + place)
                    x = bound(self.data[row, k], "float32")
                    with ib.vectorized(int64(_LANES)) as lane:
                        weight = self._weight(panel, number, k, place % parts, lane)
                        ib.buffer_store(part_sum, part_sum[lane] + weight * x, [lane])
            with ib.vectorized(int64(_LANES)) as lane:
                part_sum = functools.reduce(operator.add, (each[lane] for each in sums))
                scaled = part_sum * self.scales[panel, number, lane]
                ib.buffer_store(total, total[lane] + scaled, [lane])
        self._write(panel, row, total)

    def _weight(self, panel: Any, number: Any, k: Any, part: int, lane: Any) -> Any:
        """A weight minus its zero point, without its scale."""
        byte = self.packed[panel, tirx.floordiv(k, int64(8 // self.bits)), lane]
        if part:
            byte = tirx.shift_right(byte, tirx.const(part * self.bits, "uint8"))
        if (part + 1) * self.bits < 8:
            byte = tirx.bitwise_and(byte, tirx.const(2**self.bits - 1, "uint8"))
        zero = tirx.const(2.0 ** (self.bits - 1), "float32")
        if self.zeros is not None:
            zero = self.zeros[panel, number, lane]
        return tirx.Cast("float32", byte) - zero

    def _to_floats(self, panel: Any, floats: Any) -> None:
        """The weights of a panel as floats, [depth, 16]."""
        parts = 8 // self.bits
        with ib.grid(int64(self.depth // self.block), int64(self.block // parts)) as (number, byte):
            for part in range(parts):
                k = bound(number * self.block + byte * parts + part)
                with ib.vectorized(int64(_LANES)) as lane:
                    weight = self._weight(panel, number, k, part, lane)
                    scaled = weight * self.scales[panel, number, lane]
                    ib.buffer_store(floats, scaled, [k * _LANES + lane])

    def _tile(self, panel: Any, floats: Any, first: Any, count: int) -> None:
        """Some rows times the floats of a panel."""
        sums = [_vector(0.0) for _ in range(count)]
        with ib.serial(int64(self.depth)) as k:
            for row, row_sum in enumerate(sums):
                x = bound(self.data[first + row, k], "float32")
                with ib.vectorized(int64(_LANES)) as lane:
                    product = floats[k * _LANES + lane] * x
                    ib.buffer_store(row_sum, row_sum[lane] + product, [lane])
        for row, row_sum in enumerate(sums):
            self._write(panel, first + row, row_sum)

    def _write(self, panel: Any, row: Any, sums: Any) -> None:
        """Writes the sums of a row; the last panel may have fewer columns."""
        column = bound(panel * _LANES)
        last = self.width % _LANES
        if not last:
            with ib.vectorized(int64(_LANES)) as lane:
                ib.buffer_store(self.result, sums[lane], [row, column + lane])
            return
        with ib.serial(bound(tirx.min(int64(self.width) - column, int64(_LANES)))) as lane:
            ib.buffer_store(self.result, sums[lane], [row, column + lane])


def _vector(value: float) -> Any:
    """16 floats, which LLVM keeps in registers."""
    buffer = ib.alloc_buffer((_LANES,), "float32", layout=None)
    with ib.vectorized(int64(_LANES)) as lane:
        ib.buffer_store(buffer, tirx.const(value, "float32"), [lane])
    return buffer
